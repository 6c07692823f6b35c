"""Vectors of texts."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from transformer.contracts import MaskedText
from transformer.readers.base import numbers
from transformer.readers.rows import TokenRow, given_by
from transformer.readers.whole import WholeText


@dataclasses.dataclass(frozen=True)
class TextVector(WholeText):
    """The vector of a text: the pooled output of the model, or the mean of its hidden states, special tokens included."""
    contract, what = MaskedText, 'texts with masked words'

    def names(self, snapshot: Any) -> tuple[str, ...]:
        return 'pooled' if 'pooled' in given_by(snapshot) else 'hidden',

    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        return [TokenRow(data.framed(line))], names[0] == 'pooled'

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        row, = rows
        vector = numbers(row['pooled'] if known else row['hidden'][row['segments'] != 0].mean(0))
        return json.dumps(vector), {'text': line, 'vector': vector, 'of': 'pooled' if known else 'mean'}
