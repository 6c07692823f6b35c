"""Predictions for the masks of a text, the probabilities of chosen words there, and whether a text follows another.

A chosen word of k tokens is asked for in the text with k masks in place of one; its probability is the product of those of its
tokens there, p(w_1) .. p(w_k), as if they did not depend on each other.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer.contracts import MaskedText
from transformer.readers.base import chances
from transformer.readers.rows import MASKS, TokenRow, given_by
from transformer.readers.whole import WholeText, parted

BEST = 5  # number of words for a mask in --json


class _Word(NamedTuple):
    """A chosen word: its tokens [k], and where their logits are among those of all masks of the rows, the first of k."""
    text: str
    ids: np.ndarray
    first: int


class _Asked(NamedTuple):
    """What a line with masks asks: the number of its masks, whose logits come first, and the chosen words at each of them."""
    masks: int
    words: list[list[_Word]]


@dataclasses.dataclass(frozen=True)
class FilledMasks(WholeText):
    """Fills the masks of a text, with \\n for line breaks; for 'first<TAB>second', if the model predicts next sentences, says
    whether the second text follows the first.

    Attributes:
      candidates: words whose probabilities are given in place of the likeliest word at each mask; () for none.
    """
    candidates: tuple[str, ...] = ()
    flags = 'candidates',
    contract, what = MaskedText, 'texts with masked words'

    def answers(self, snapshot: Any, lines: Sequence[str], name: str, *, candidates: Sequence[str] | str = ()
                ) -> Iterator[tuple[str, dict]]:
        """As in the base.

        Args:
          candidates: words, as a list or with commas between them.
        """
        given = candidates.split(',') if isinstance(candidates, str) and candidates else candidates
        words = tuple(dict.fromkeys(word.strip() for word in given))
        if not all(words):
            raise ValueError(f'The candidates are {candidates!r:.60}, one of them empty; expected words, such as '
                             "'train,peanut'.")
        chosen = dataclasses.replace(self, candidates=words)
        yield from super(FilledMasks, chosen).answers(snapshot, lines, name)

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
            if self.candidates:
                raise ValueError(f'{line.strip()[:40]!r} has a tab and asks whether a text follows; leave the candidates out.')
            return [TokenRow(data.framed(*parted(line, 'two texts')))], None
        ids, types, places = data.read_masked(line)
        rows = [TokenRow((ids, types), places[first:first + MASKS]) for first in range(0, len(places), MASKS)]
        asked = _Asked(len(places), [[] for _ in places])
        first = {}  # {(mask, k): the first of k masks in its place}
        for mask, place in enumerate(places):
            for word in self.candidates:
                tokens = data.in_place(line, mask, word)
                key = mask, k = mask, len(tokens)
                if k > 1 and key not in first:
                    if len(ids) + k - 1 > data.length:
                        raise ValueError(f'{word!r} has {k} tokens, and with as many masks the text has {len(ids) + k - 1}, '
                                         f'more than a row of this run, {data.length}; shorten it.')
                    first[key] = len(rows) * MASKS
                    times = np.where(np.arange(len(ids)) == place, k, 1)
                    rows += [TokenRow((np.repeat(ids, times), np.repeat(types, times)), part)
                             for part in np.split(place + np.arange(k), range(MASKS, k, MASKS))]
                asked.words[mask].append(_Word(word, tokens, first.get(key, mask)))
        return rows, asked

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        if known is None:
            p, (first, second) = chances(rows[0]['next_logits']), parted(line, 'two texts')
            said = 'follows' if p[0] >= p[1] else 'does not follow'
            return f'{said}\t{p.max():.4f}', {'first': first, 'second': second, 'follows': said == 'follows',
                                              'probability': float(p.max())}
        vocab = data.facts['vocab']  # a model may have more
        every = chances(np.concatenate([row['logits'] for row in rows])[:, :vocab])  # [rows * MASKS, V]
        p = every[:known.masks]
        best = np.argsort(-p, -1, kind='stable')[:, :BEST]
        text = data.filled(line, best[:, 0])
        masks = [[{'token': sign, 'id': int(i), 'probability': float(row[i])} for sign, i in zip(data.pieces(ids), ids)]
                 for row, ids in zip(p, best)]
        found = {'text': line, 'filled': text, 'masks': masks}
        if not self.candidates:
            return text.replace('\n', '\\n'), found
        ranked = [self._ranked(data, words, every) for words in known.words]
        shown = '\t'.join(', '.join(f'{one["word"]} {one["probability"]:.4g}' for one in words) for words in ranked)
        return shown, found | {'candidates': ranked}

    def _ranked(self, data: MaskedText, words: Sequence[_Word], p: np.ndarray) -> list[dict]:
        """The JSON of the chosen words at a mask, the most probable first."""
        each = [p[word.first + np.arange(len(word.ids)), word.ids] for word in words]
        total = sum(float(one.prod()) for one in each)
        found = [{'word': word.text, 'probability': float(one.prod()), 'share': float(one.prod()) / total if total else 0.0,
                  'tokens': [{'token': sign, 'id': int(i), 'probability': float(x)}
                             for sign, i, x in zip(data.pieces(word.ids), word.ids, one)]} for word, one in zip(words, each)]
        return sorted(found, key=lambda one: -one['probability'])

    def shown(self, snapshot: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
        """As in the base; the text of a picture needs no mask."""
        return snapshot.data.framed(*[text] if snapshot.data.pairs == 'none' else text.split('\t', 1))
