"""Packs tokenized pairs into rows: one pair a row, several pairs a row, or rows of three lengths.

In the token file of a side, sentence i is ids[o_i : o_{i+1} + 1] = end s_1 .. s_n end (data/text/tokens.py). Without the
last id it is the input of a decoder; without the first id it is the target of a decoder and the input of an encoder.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable

import grain
import numpy as np

from data import pipeline
from data.text import packing, tokens

SHARES = (4, 2, 1)  # of the buckets: rows of 1/4, 1/2 and the full length, 4, 2 and 1 times as many

_OPEN_ROWS = 64  # first fit looks back at this many rows at most

Lengths = tuple[int, int]  # tokens in a row of sources, and of targets


@dataclasses.dataclass(frozen=True)
class Store:
    """Tokenized pairs: pair i is sentence i of both sides.

    Attributes:
      ends: the ids that end a source and a target.
      start: the first input of a decoder.
    """

    source: tokens.Tokens
    target: tokens.Tokens
    ends: tuple[int, int]
    start: int

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """int64 [2, pairs]: tokens of every source and target, `end` included."""
        return np.stack([np.diff(side.offsets) for side in (self.source, self.target)])

    def fits(self, lengths: Lengths) -> np.ndarray:
        """bool [pairs]: whether both sides fit into rows of these lengths."""
        return (self.sizes <= np.array(lengths)[:, None]).all(0)

    def batch(self, pairs: np.ndarray, bounds: np.ndarray, lengths: Lengths) -> dict[str, np.ndarray]:
        """The rows that hold pairs[bounds[r] : bounds[r + 1]]; a side that is too long is cut, but keeps its `end`.

        Returns: inputs, segments, positions [B, S], decoder_inputs, decoder_segments, decoder_positions, targets [B, T]
          int32 and weights [B, T] float32. Segment k of a row is the same pair on both sides; 0 is padding.
        """
        source, target = (
            _gathered(side, pairs, bounds, length, end)
            for side, length, end in zip((self.source, self.target), lengths, self.ends, strict=True)
        )
        first = (target['positions'] == 0) & (target['segments'] > 0)
        return {
            'inputs': source['targets'],
            'segments': source['segments'],
            'positions': source['positions'],
            'decoder_inputs': np.where(first, self.start, target['inputs']).astype(np.int32),
            'decoder_segments': target['segments'],
            'decoder_positions': target['positions'],
            'targets': target['targets'],
            'weights': target['weights'],
        }


def _gathered(side: tokens.Tokens, pairs: np.ndarray, bounds: np.ndarray, length: int, end: int) -> dict[str, np.ndarray]:
    starts = side.offsets[pairs]
    counts = np.minimum(side.offsets[pairs + 1] - starts, length).astype(np.int32)
    rows = packing.Rows(packing.Pieces(starts, counts, np.zeros_like(counts)), bounds)
    batch = rows.batch(np.arange(len(rows)), side, length)
    segments = batch['segments']
    last = (segments > 0) & (segments != np.pad(segments[:, 1:], ((0, 0), (0, 1))))
    batch['targets'][last] = end  # already there, except where a side was cut
    return batch


def shapes(rows: int, lengths: Lengths) -> dict[str, tuple[tuple[int, ...], type]]:
    """{name: (shape, dtype)} of a batch."""
    source, target = ((rows, length) for length in lengths)
    return {
        **{name: (source, np.int32) for name in ('inputs', 'segments', 'positions')},
        **{f'decoder_{name}': (target, np.int32) for name in ('inputs', 'segments', 'positions')},
        'targets': (target, np.int32),
        'weights': (target, np.float32),
    }


@dataclasses.dataclass(frozen=True)
class Singles:
    """Batch k of rows with one pair each: those of draw k of an order over `kept`, the numbers of pairs."""

    store: Store
    kept: np.ndarray
    order: pipeline.Order
    lengths: Lengths

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        pairs = self.kept[self.order(number)]
        return self.store.batch(pairs, np.arange(len(pairs) + 1), self.lengths)


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Batch k of rows of several lengths; all rows of a batch have the same length.

    Bucket b has x_b = pairs / rows batches in an epoch on average: floor(x_b (e + 1)) - floor(x_b e) in epoch e. The order of
    the batches of all buckets is drawn anew each epoch. A batch depends on the seed and k alone.
    """

    buckets: tuple[Singles, ...]
    seed: int

    @classmethod
    def of(cls, store: Store, kept: np.ndarray, rows: int, lengths: Lengths, seed: int) -> 'Buckets':
        """Puts every pair into the first bucket that fits both its sides; pairs that fit in none are cut, in the last."""
        made, left = [], kept
        for share in SHARES:
            short = scaled(lengths, share)
            inside = store.fits(short)[left] if share > 1 else np.ones(len(left), bool)
            if inside.any():
                order = pipeline.Order(int(inside.sum()), rows * share, seed)
                made.append(Singles(store, left[inside], order, short))
            left = left[~inside]
        return cls(tuple(made), seed)

    def batches(self) -> float:
        """Batches in an epoch, on average."""
        return sum(bucket.order.count / bucket.order.size for bucket in self.buckets)

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        # the last epoch that begins at or before this batch
        highest = math.ceil((number + len(self.buckets)) / self.batches()) + 1
        epoch = bisect.bisect_right(range(highest), number, key=lambda epoch: sum(self._before(epoch))) - 1
        before = self._before(epoch)
        counts = np.subtract(self._before(epoch + 1), before)
        order = np.random.default_rng([self.seed, epoch]).permutation(np.repeat(np.arange(len(counts)), counts))
        place = number - sum(before)
        chosen = order[place]
        return self.buckets[chosen](before[chosen] + int(np.sum(order[:place] == chosen)))

    def _before(self, epoch: int) -> list[int]:
        """Batches of each bucket before an epoch."""
        return [bucket.order.count * epoch // bucket.order.size for bucket in self.buckets]


def scaled(lengths: Lengths, share: int) -> Lengths:
    """The lengths of a bucket with `share` times the rows."""
    return tuple(max(1, length // share) for length in lengths)


def first_fit(sizes: np.ndarray, lengths: Lengths) -> tuple[np.ndarray, np.ndarray]:
    """Puts each pair into the first row with room for both sides, among the last rows opened.

    Args:
      sizes: int [2, n].
    Returns: (order [n], bounds [rows + 1]): row r holds the pairs order[bounds[r] : bounds[r + 1]].
    """
    row_of = np.empty(sizes.shape[1], np.int64)
    rows, free, opened = [], [], 0  # plain lists, as in packing.first_fit
    for index, (source, target) in enumerate(sizes.T.tolist()):
        place = next((place for place, room in enumerate(free) if room[0] >= source and room[1] >= target), len(free))
        if place == len(free):
            rows.append(opened)
            free.append(lengths)
            opened += 1
        row_of[index] = rows[place]
        free[place] = free[place][0] - source, free[place][1] - target
        if not all(free[place]) or len(free) > _OPEN_ROWS:
            closed = place if not all(free[place]) else 0
            del rows[closed], free[closed]
    order = np.argsort(row_of, kind='stable')
    return order, np.searchsorted(row_of[order], np.arange(opened + 1))


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Block k of packed rows: the pairs of draw k, as (pairs, bounds)."""

    store: Store
    kept: np.ndarray
    order: pipeline.Order
    lengths: Lengths

    def __call__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        pairs = self.kept[self.order(number)]
        sizes = np.minimum(self.store.sizes[:, pairs], np.array(self.lengths)[:, None])
        order, bounds = first_fit(sizes, self.lengths)
        return pairs[order], bounds


class Packed(grain.IterDataset):
    """Batches of `rows` packed rows, block after block; a batch may span two blocks."""

    def __init__(self, blocks: Blocks, rows: int):
        super().__init__()
        self.blocks, self.rows = blocks, rows

    def __iter__(self) -> 'grain.DatasetIterator':
        return _PackedPairs(self)


class _PackedPairs(grain.DatasetIterator):
    """State: the block in use, and how many of its rows were handed out."""

    def __init__(self, dataset: Packed):
        super().__init__()
        self._dataset = dataset
        self.set_state({'block': 0, 'row': 0})

    def get_state(self):
        return {**self._state}

    def set_state(self, state):
        self._state, self._open = {**state}, None

    def __next__(self):
        blocks, missing, parts = self._dataset.blocks, self._dataset.rows, []
        while missing:
            if self._open is None:
                self._open = blocks(self._state['block'])
            pairs, bounds = self._open
            row = self._state['row']
            taken = bounds[row : row + missing + 1]
            parts.append(blocks.store.batch(pairs[taken[0] : taken[-1]], taken - taken[0], blocks.lengths))
            missing -= len(taken) - 1
            self._state['row'] = row + len(taken) - 1
            if self._state['row'] == len(bounds) - 1:
                self.set_state({'block': self._state['block'] + 1, 'row': 0})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class PairEvaluation(pipeline.Evaluation):
    """A pass over pairs, one a row, in order; `pairs()` are their texts.

    Attributes:
      tasks: the name of the task of each pair, for pairs of several tasks.
    """

    tasks: tuple[str, ...] = ()

    def __init__(self, *args, pairs: Callable[[], list[tuple[str, str]]]):
        super().__init__(*args)
        self._pairs = pairs

    def pairs(self) -> list[tuple[str, str]]:
        """(source, target) of every row, prepared but never cut."""
        return self._pairs()
