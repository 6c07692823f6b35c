"""Predictions for the masks of a text, and whether a text follows another."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.contracts import MaskedText
from transformer.readers.base import chances
from transformer.readers.rows import MASKS, TokenRow, given_by
from transformer.readers.whole import WholeText, parted

BEST = 5  # number of words for a mask in --json


@dataclasses.dataclass(frozen=True)
class FilledMasks(WholeText):
    """Fills the masks of a text; for 'first<TAB>second', if the model predicts next sentences, says whether the second text
    follows the first."""
    contract, what = MaskedText, 'texts with masked words'

    def names(self, snapshot: Any) -> tuple[str, ...]:
        given = given_by(snapshot)
        learnt = ('logits',) if snapshot.data.pairs == 'none' else ('logits', 'next_logits')
        found = tuple(name for name in learnt if name in given)
        if not found:
            raise ValueError(f'The model of this run gives {", ".join(sorted(given))}, and no logits of words; set data.reader '
                             'to transformer.readers.vectors:TextVector.')
        return found

    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        if 'next_logits' in names and ('\t' in line or 'logits' not in names):
            return [TokenRow(data.framed(*parted(line, 'two texts')))], None
        ids, types, places = data.read_masked(line)
        return [TokenRow((ids, types), places[first:first + MASKS]) for first in range(0, len(places), MASKS)], len(places)

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        if known is None:
            p, (first, second) = chances(rows[0]['next_logits']), parted(line, 'two texts')
            said = 'follows' if p[0] >= p[1] else 'does not follow'
            return f'{said}\t{p.max():.4f}', {'first': first, 'second': second, 'follows': said == 'follows',
                                              'probability': float(p.max())}
        vocab = data.facts['vocab']  # a model may have more
        p = chances(np.concatenate([row['logits'] for row in rows])[:known, :vocab])
        best = np.argsort(-p, -1, kind='stable')[:, :BEST]
        text = data.filled(line, best[:, 0])
        masks = [[{'token': sign, 'id': int(i), 'probability': float(row[i])} for sign, i in zip(data.pieces(ids), ids)]
                 for row, ids in zip(p, best)]
        return text, {'text': line, 'filled': text, 'masks': masks}

    def shown(self, snapshot: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
        """As in the base; the text of a picture needs no mask."""
        return snapshot.data.framed(*[text] if snapshot.data.pairs == 'none' else text.split('\t', 1))
