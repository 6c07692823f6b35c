"""The rows of a text for encoders that learn masked words: pieces of documents, one in a row, or two parts of one.

Two parts of a piece follow each other (label 0), or are changed (label 1), each with probability 1/2:

    next     the second part is replaced by text of another document        Devlin et al. 2019, section 3.1, task 2
    order    the two parts change places                                     Lan et al. 2020, section 3.1

Where the papers' code differs: Google's gives every piece of one sentence the label 1, here a piece that cannot be cut is left
out; ALBERT's takes another document for it, which topics alone reveal; both make 10 % of the rows shorter, and cut tokens at
random from the front or the back of parts that are too long, here all pieces fill their rows and are never too long.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from data.noise.masking import Masking, boundaries
from data.noise.vocabulary import Vocabulary
from data.text import frames, tokens
from data.text.frames import Frame

PAIRS = 'none', 'next', 'order'
CUTS = 'sentences', 'anywhere'
_EVALUATION = 20190602  # seed of the masks of evaluation
_STATIC = 2  # second word of the seed of masks that are drawn once
_TRIES = 20  # documents in which sentences that fit are looked for
_CHOICES = 4  # random numbers for two parts: whether they change, where to cut, which other document, where in it


@dataclasses.dataclass(frozen=True)
class MaskedRows:
    """The rows of a split, as stretches of its token file, where document d is ids[begins[d] : begins[d] + sizes[d]].

    Attributes:
      store: the token file.  frame: the special tokens around a text or two.
      masking: hides tokens of the `vocabulary`.
      length: tokens in a row.  pairs: what two parts of a piece are, as in PAIRS.
      boundary_targets: the most words of a span that have its boundaries; 0: batches have no boundaries.
      begins, sizes: [documents], without empty ones.
      starts, counts: [rows], the tokens of a row.
      document: [rows], the document of a row's first token.
      borders: if documents share rows, the places of the file between two documents, ascending.
      special: places of the file with no ordinary token, ascending.
      ends: places of the file behind sentences, ascending; None: a piece may be cut anywhere.
      left: ordinary tokens of pieces that are left out.
    """

    store: tokens.Tokens
    frame: Frame
    masking: Masking
    vocabulary: Vocabulary
    length: int
    pairs: str
    boundary_targets: int
    begins: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    document: np.ndarray
    borders: np.ndarray
    special: np.ndarray
    ends: np.ndarray | None
    left: int = 0

    @classmethod
    def of(cls, store: tokens.Tokens, frame: Frame, vocabulary: Vocabulary, config: Any) -> 'MaskedRows':
        """Cuts documents, or all of them end to end, into pieces; those without a token to predict, and those of which two
        parts are needed that cannot be cut, are left out.

        Args:
          config: with the fields of data.text.masked:Masked.
        """
        from data.text import packing

        offsets, stream, pairs = store.offsets, config.documents == 'stream', config.pairs
        begins, sizes = packing.documents(offsets, len(store.ids), stream)
        joined = config.packing == 'concat' and not stream
        room = frame.room(config.length, pairs != 'none')
        ends = vocabulary.sentence_ends(store.ids) if pairs != 'none' and config.cut == 'sentences' else None
        if ends is None:
            whole = (offsets[:1] + 1, offsets[-1:] - offsets[:1] - 1) if joined else (begins, sizes)
            starts, counts = packing.stretches(*whole, room)
        else:
            starts, counts = _of_sentences(begins, sizes, ends, room)
        starts, counts = packing.stripped(starts, counts, begins, sizes)
        borders = offsets if joined else offsets[:0]
        special = np.union1d(np.flatnonzero(vocabulary.special[store.ids]), borders)
        document = np.searchsorted(begins, starts, 'right') - 1
        made = cls(store, frame, config.noise, vocabulary, config.length, pairs, config.boundary_targets, begins, sizes, starts,
                   counts, document, borders, special, ends)
        kept = (made.ordinary > 0) & ((made.cuts > 0) if made.two else (counts > 0))
        return dataclasses.replace(made, starts=starts[kept], counts=counts[kept], document=document[kept],
                                   left=int(made.ordinary[~kept].sum()))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def two(self) -> bool:
        """Whether rows are two parts."""
        return self.pairs != 'none'

    @property
    def width(self) -> int:
        """The number of random numbers for a row."""
        return _CHOICES * self.two + self.masking.width(self.length)

    @functools.cached_property
    def ordinary(self) -> np.ndarray:
        """[rows]: ordinary tokens of each row's own text."""
        before = np.searchsorted(self.special, self.starts)
        return self.counts - (np.searchsorted(self.special, self.starts + self.counts) - before)

    @functools.cached_property
    def cuts(self) -> np.ndarray:
        """[rows]: the number of places where each row's piece can be cut in two."""
        if self.ends is None:
            return self.counts - 1
        return self.ends.searchsorted(self.starts + self.counts) - self.ends.searchsorted(self.starts, 'right')

    def fixed(self, numbers: np.ndarray) -> np.ndarray:
        """[n, width] random numbers for evaluation, always the same for a row; `numbers` must be consecutive."""
        bits = np.random.PCG64(_EVALUATION).advance(int(numbers[0]) * self.width)  # one step per random number
        return np.random.Generator(bits).random((len(numbers), self.width))

    def static(self, numbers: np.ndarray, copies: np.ndarray, seed: int) -> np.ndarray:
        """[n, width] random numbers that are the same whenever a row with this number has the same copy."""
        bits = np.random.PCG64([seed, _STATIC])
        begin, rng, found = bits.state, np.random.Generator(bits), np.empty((len(numbers), self.width))
        for row, place in zip(found, (copies * len(self) + numbers).tolist()):
            bits.state = begin
            bits.advance(place * self.width)
            rng.random(out=row)
        return found

    def batch(self, numbers: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
        """The batch of rows with these numbers; draws: [n, width] random numbers in [0, 1)."""
        starts, counts, label = self._stretches(numbers, draws)
        texts = [[self._ids(*one) for one in zip(*both)] for both in zip(starts.tolist(), counts.tolist(), strict=True)]
        made = frames.rows([self.frame.framed(*text) for text in texts], self.length)
        made = self.masking(made, self.vocabulary, draws[:, _CHOICES * self.two :])
        if self.boundary_targets:
            made |= boundaries(made, self.frame.special, self.boundary_targets)
        return made | ({'label': label} if self.two else {})

    def _stretches(self, numbers: np.ndarray, draws: np.ndarray):
        """(starts, counts, label): the one or two stretches of each row, [n, 1 or 2], and for two [n] int32."""
        start, count = self.starts[numbers], self.counts[numbers]
        if not self.two:
            return start[:, None], count[:, None], None
        change, where, which, place = draws[:, :_CHOICES].T
        chosen = (where * self.cuts[numbers]).astype(np.int64)
        cut = start + 1 + chosen if self.ends is None else self.ends[self.ends.searchsorted(start, 'right') + chosen]
        first, changed = cut - start, change >= 0.5
        starts, counts = np.stack([start, cut], 1), np.stack([first, count - first], 1)
        if self.pairs == 'order':
            others = starts[:, ::-1], counts[:, ::-1]
        else:
            begin, taken = self._elsewhere(numbers, first, which, place)
            others = np.stack([start, begin], 1), np.stack([first, taken], 1)
        starts, counts = (np.where(changed[:, None], x, y) for x, y in zip(others, (starts, counts)))
        return starts, counts, changed.astype(np.int32)

    @functools.cached_property
    def _by_size(self) -> tuple[np.ndarray, np.ndarray]:
        """(the documents that have rows, or all if one alone has, from the shortest to the longest; the tokens before each of
        them, and of all)."""
        documents = np.unique(self.document)
        documents = documents if len(documents) > 1 else np.arange(len(self.sizes))
        documents = documents[np.argsort(self.sizes[documents], kind='stable')]
        return documents, np.concatenate([[0], np.cumsum(self.sizes[documents])])

    def _others(self, numbers: np.ndarray, second: np.ndarray, which: np.ndarray) -> np.ndarray:
        """[n]: places in `_by_size` of other documents than the rows', drawn in proportion to their tokens among those that
        have `second` tokens, as many as the text that they replace; if no other has, the next shorter one."""
        documents, before = self._by_size
        places = np.zeros(len(self.sizes), np.int64)
        places[documents] = np.arange(len(documents))
        own = places[self.document[numbers]]
        last = len(documents) - 1 - (own == len(documents) - 1)  # the longest other one
        low = np.minimum(self.sizes[documents].searchsorted(second), last)
        there = np.where(own >= low, np.diff(before)[own], 0)  # the tokens of the own document, which is not drawn
        drawn = before[low] + (which * (before[-1] - before[low] - there)).astype(np.int64)
        drawn += np.where((own >= low) & (drawn >= before[own]), there, 0)
        return before.searchsorted(drawn, 'right') - 1

    def _elsewhere(self, numbers: np.ndarray, first: np.ndarray, which: np.ndarray, place: np.ndarray):
        """(starts, counts) [n] of text in other documents, as long as the true second parts, so that the length reveals
        nothing; fewer tokens if no other document has so many."""
        second = self.counts[numbers] - first
        others, own = self._others(numbers, second, which), self.document[numbers]
        if self.ends is None:
            other = self._by_size[0][others]
            taken = np.minimum(second, self.sizes[other])
            return self.begins[other] + (place * (self.sizes[other] - taken + 1)).astype(np.int64), taken
        is_last = self.starts[numbers] + self.counts[numbers] == self.begins[own] + self.sizes[own]
        room = self.frame.room(self.length, True) - first
        each = zip(*(x.tolist() for x in (others, own, second, room, is_last, place)))
        return tuple(np.array([self._sentences(*one) for one in each], np.int64).reshape(-1, 2).T)

    def _sentences(self, other: int, own: int, second: int, room: int, last: bool, place: float) -> tuple[int, int]:
        """(start, count) of whole sentences of the document at a place in `_by_size`, or of one of the next, not of `own`. They
        begin where `second` tokens follow, if there are so many, and are as many as fit in `room`, as in a piece of its own;
        for the `last` piece of a document, which ends with it, those that are nearest to `second` tokens. If no sentence fits,
        one is cut."""
        documents, best = self._by_size[0], (math.inf, 0, 0)
        for number in documents[(other + np.arange(min(len(documents), _TRIES))) % len(documents)].tolist():
            if number != own and (found := self._stretch(number, second, room, last, place)):
                best = min(best, found)
                if best[0] == 0:
                    break
        if best[2]:
            return best[1:]
        other = int(documents[other])
        return int(self.begins[other]), min(room, int(self.sizes[other]))

    def _stretch(self, number: int, second: int, room: int, last: bool, place: float) -> tuple[int, int, int] | None:
        """(how far its count is from what it should be, start, count) of a stretch of a document; None if no sentence fits."""
        begin = int(self.begins[number])
        after = begin + int(self.sizes[number])
        low, high = self.ends.searchsorted((begin + 1, after))
        bounds = np.concatenate([[begin], self.ends[low:high], [after]])
        starts, fits = bounds[:-1], np.diff(bounds) <= room
        choices = np.flatnonzero(fits & (starts <= max(begin, after - second)))
        choices = choices if len(choices) else np.flatnonzero(fits)
        if not len(choices):
            return None
        starts = starts[choices]
        most = bounds.searchsorted(starts + room, 'right') - 1  # the last end that fits, of each
        if last:
            behind = np.clip(bounds.searchsorted(starts + second), choices + 1, most)
            before = np.maximum(behind - 1, choices + 1)
            far = lambda ends: np.abs(bounds[ends] - starts - second)
            most = np.where(far(before) < far(behind), before, behind)
            nearest = far(most) == far(most).min()
            starts, most = starts[nearest], most[nearest]
        chosen = int(place * len(starts))
        start, count = int(starts[chosen]), int(bounds[most[chosen]] - starts[chosen])
        return abs(count - second) if last else 0, start, count

    def _ids(self, start: int, count: int) -> np.ndarray:
        """int32 [count]: the tokens of a stretch, with the token that ends a text between documents."""
        return self.store.piece(start, count, self.borders, self.frame.end)


def _of_sentences(begins: np.ndarray, sizes: np.ndarray, ends: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts, counts) of pieces: as many whole sentences of a document as fit in `room` tokens; a longer sentence is cut."""
    starts, counts = [], []
    for begin, size in zip(begins.tolist(), sizes.tolist()):
        start, after = begin, begin + size
        while start < after:
            stop = start + room
            if stop < after:
                number = int(ends.searchsorted(stop, 'right')) - 1
                stop = int(ends[number]) if number >= 0 and ends[number] > start else stop
            stop = min(stop, after)
            starts.append(start)
            counts.append(stop - start)
            start = stop
    return np.array(starts, np.int64), np.array(counts, np.int64)
