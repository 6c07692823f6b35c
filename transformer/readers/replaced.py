"""Replaced words: which words of a text look as if they were not the original ones."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.contracts import MaskedText
from transformer.readers.rows import TokenRow
from transformer.readers.whole import WholeText


@dataclasses.dataclass(frozen=True)
class ReplacedWords(WholeText):
    """The tokens of a text; behind each that the discriminator takes for replaced, with a probability above 1/2, that
    probability in brackets."""
    contract, what = MaskedText, 'whole texts'

    def names(self, snapshot: Any) -> tuple[str, ...]:
        return 'replaced_logits',

    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        framed = data.framed(line)
        return [TokenRow(framed)], len(framed[0])

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        row, = rows
        ids, chance = row['inputs'][:known], 1 / (1 + np.exp(-np.float64(row['replaced_logits'][:known])))
        inside = ~np.isin(ids, (data.frame.begin, data.frame.end))
        tokens = [{'token': token, 'id': int(i), 'probability': float(p), 'replaced': bool(p > 0.5)}
                  for token, i, p in zip(data.pieces(ids[inside]), ids[inside], chance[inside])]
        said = [f'{one["token"]}[{one["probability"]:.2f}]' if one['replaced'] else one['token'] for one in tokens]
        return ' '.join(piece.strip() for piece in said), {'text': line, 'tokens': tokens}
