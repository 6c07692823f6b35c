"""Words of a text that look replaced."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.contracts import MaskedText
from transformer.readers.rows import TokenRow
from transformer.readers.whole import WholeText


@dataclasses.dataclass(frozen=True)
class ReplacedWords(WholeText):
    """The tokens of a text, in brackets those that a discriminator takes for replaced ones, with a probability above 1/2
    (Clark et al. 2020, section 3.1)."""
    contract, what = MaskedText, 'texts with masked words'

    def names(self, snapshot: Any) -> tuple[str, ...]:
        return 'replaced_logits',

    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        ids, types = data.framed(line)
        special = {one for one, _ in data.frame.single}
        return [TokenRow((ids, types))], [i for i, one in enumerate(ids.tolist()) if one not in special]

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        ids, p = rows[0]['inputs'][known], 1 / (1 + np.exp(-np.float64(rows[0]['replaced_logits'][known])))
        tokens = [{'token': sign, 'id': int(i), 'probability': float(one)} for sign, i, one in zip(data.pieces(ids), ids, p)]
        said = ' '.join(f'[{one["token"]}]' if one['probability'] > 0.5 else one['token'] for one in tokens)
        return said, {'text': line, 'tokens': tokens}
