"""Pieces of documents, packed into rows.

Grain's packers handle one example at a time in Python: 50 ms for 32 rows of 256 tokens from short documents. Here rows
are planned on lengths alone, a block of pieces at a time, and a whole batch is gathered from the token file at once.
"""

import dataclasses

import grain
import numpy as np

from data.text import tokens

_OPEN_ROWS = 64  # first fit looks back at this many rows at most


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Stretches of the token file: piece i has inputs ids[starts[i] : starts[i] + counts[i]], targets one later.

    The first `skips[i]` targets have weight 0: they are context that another piece scores.
    """

    starts: np.ndarray
    counts: np.ndarray
    skips: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index) -> 'Pieces':
        return Pieces(self.starts[index], self.counts[index], self.skips[index])


def windows(offsets: np.ndarray, context: int, stride: int) -> Pieces:
    """Windows of at most `context` tokens at 0, stride, 2 stride, .. of every document, up to its end.

    Each target is scored once, by the first window that holds it: a later window scores its last `stride` at most.
    With stride == context these are the consecutive pieces of the documents.
    """
    sizes = np.diff(offsets)
    counts = 1 + np.maximum(0, -(-(sizes - context) // stride))
    document = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = offsets[document] + number * stride
    return Pieces(
        starts,
        np.minimum(context, offsets[document + 1] - starts).astype(np.int32),
        np.where(number > 0, context - stride, 0).astype(np.int32),
    )


def documents(offsets: np.ndarray, size: int, stream: bool) -> tuple[np.ndarray, np.ndarray]:
    """(begins, sizes) of the documents with text in a token file of `size` tokens, each behind one of `offsets`; of a `stream`
    all of it as one."""
    begins, sizes = (offsets[:1], np.array([size])) if stream else (offsets[:-1] + 1, np.diff(offsets) - 1)
    return begins[sizes > 0], sizes[sizes > 0]


def stretches(begins: np.ndarray, sizes: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """(starts, counts): the consecutive pieces of at most `room` tokens of each document."""
    begins, sizes = begins[sizes > 0], sizes[sizes > 0]
    text = np.concatenate([[0], np.cumsum(sizes)])  # places in the text without the tokens between documents
    pieces = windows(text, room, room)
    document = np.searchsorted(text, pieces.starts, 'right') - 1
    return pieces.starts - text[document] + begins[document], pieces.counts.astype(np.int64)


def stripped(starts: np.ndarray, counts: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pieces without the tokens between `documents` with which they begin or end; of a piece of nothing else 0 tokens."""
    stops, ends = starts + counts, begins + sizes
    starts = np.maximum(starts, np.append(begins, 0)[ends.searchsorted(starts, 'right')])  # 0: no document follows
    stops = np.minimum(stops, np.append(ends, 0)[begins.searchsorted(stops) - 1])  # 0, at -1: none stands before
    return starts, np.maximum(0, stops - starts)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of pieces: row r holds pieces[bounds[r] : bounds[r + 1]] one after the other."""

    pieces: Pieces
    bounds: np.ndarray

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def batch(self, rows: np.ndarray, store: tokens.Tokens, length: int) -> dict[str, np.ndarray]:
        """inputs, targets, segments, positions int32 and weights float32, each [len(rows), length]."""
        first, count = self.bounds[rows], self.bounds[rows + 1] - self.bounds[rows]
        piece = _ranges(first, count)
        row = np.repeat(np.arange(len(rows)), count)
        sizes = self.pieces.counts[piece].astype(np.int64)
        ends = np.cumsum(sizes)
        row_starts = np.concatenate([[0], ends])[np.cumsum(count) - count]
        # a flat index into [rows, length] and one into the token file, for every token
        place = _ranges(row * length + ends - sizes - np.repeat(row_starts, count), sizes)
        source = _ranges(self.pieces.starts[piece], sizes)
        position = _ranges(np.zeros_like(sizes), sizes)
        batch = {
            name: np.zeros((len(rows), length), np.float32 if name == 'weights' else np.int32)
            for name in ('inputs', 'targets', 'weights', 'segments', 'positions')
        }
        flat = {name: array.reshape(-1) for name, array in batch.items()}
        flat['inputs'][place] = store.inputs(source)
        flat['targets'][place] = store.ids[source + 1]
        flat['weights'][place] = position >= np.repeat(self.pieces.skips[piece], sizes)
        flat['segments'][place] = np.repeat(_ranges(np.ones_like(count), count), sizes)
        flat['positions'][place] = position
        return batch


def single(pieces: Pieces) -> Rows:
    """One piece a row."""
    return Rows(pieces, np.arange(len(pieces) + 1))


def first_fit(pieces: Pieces, length: int) -> Rows:
    """Each piece goes to the first row with room for it, among the last rows opened."""
    row_of = np.empty(len(pieces), np.int64)
    rows, free, opened = [], [], 0  # plain lists: a handful of open rows is scanned faster than numpy is called
    for index, count in enumerate(pieces.counts.tolist()):
        place = next((place for place, room in enumerate(free) if room >= count), len(free))
        if place == len(free):
            rows.append(opened)
            free.append(length)
            opened += 1
        row_of[index] = rows[place]
        free[place] -= count
        if not free[place] or len(free) > _OPEN_ROWS:
            closed = place if not free[place] else 0
            del rows[closed], free[closed]
    order = np.argsort(row_of, kind='stable')
    return Rows(pieces[order], np.searchsorted(row_of[order], np.arange(opened + 1)))


def concat(pieces: Pieces, length: int) -> tuple[Rows, Pieces]:
    """Pieces end to end, cut where a row is full; returns the full rows and the pieces left over (< length tokens)."""
    ends = np.cumsum(pieces.counts, dtype=np.int64)
    total = int(ends[-1]) // length * length
    cuts = np.union1d(np.concatenate([[0], ends]), np.arange(0, total + 1, length))
    piece = np.searchsorted(ends, cuts[:-1], side='right')
    inside = cuts[:-1] - (ends[piece] - pieces.counts[piece])
    cut = Pieces(pieces.starts[piece] + inside, np.diff(cuts).astype(np.int32), np.zeros(len(piece), np.int32))
    bounds = np.searchsorted(cuts, np.arange(0, total + 1, length))
    return Rows(cut[: bounds[-1]], bounds), cut[bounds[-1] :]


class PackedBatches(grain.IterDataset):
    """Batches of packed rows from blocks of piece numbers.

    Args:
      blocks: Grain dataset of int arrays, numbers of pieces in the order to pack them.
      pieces: all pieces of the split.
      store: the token file they point into.
      length: tokens in a row.  batch_size: rows in a batch.  packing: 'first_fit' or 'concat'.
    """

    def __init__(self, blocks: grain.IterDataset, pieces: Pieces, store: tokens.Tokens, *, length, batch_size, packing):
        super().__init__(blocks)
        self.pieces, self.store = pieces, store
        self.length, self.batch_size, self.packing = length, batch_size, packing

    def __iter__(self) -> 'grain.DatasetIterator':
        return _PackedIterator(self._parent.__iter__(), self)


class _PackedIterator(grain.DatasetIterator):
    """State: the position of the blocks before the block in use, the pieces carried into it, and the rows handed out."""

    def __init__(self, blocks: grain.DatasetIterator, dataset: PackedBatches):
        super().__init__(blocks)
        self._dataset = dataset
        self._start({'blocks': blocks.get_state(), 'carry': [], 'row': 0})

    def _start(self, state):
        self._state, self._rows, self._left = state, None, None

    def get_state(self):
        return {**self._state}

    def set_state(self, state):
        self._parent.set_state(state['blocks'])
        self._start(state)

    def _next_block(self):
        """Packs the next block into rows; get_state() then gives the state before this block."""
        dataset, carry = self._dataset, self._state['carry']
        block = dataset.pieces[next(self._parent)]
        if dataset.packing == 'first_fit':
            self._rows, self._left = first_fit(block, dataset.length), []
            return
        starts, counts = np.array(carry, np.int64).reshape(-1, 2).T
        starts, counts = np.concatenate([starts, block.starts]), np.concatenate([counts, block.counts])
        whole = Pieces(starts, counts, np.zeros_like(counts))
        self._rows, left = concat(whole, dataset.length)
        self._left = [list(pair) for pair in zip(left.starts.tolist(), left.counts.tolist(), strict=True)]

    def __next__(self):
        dataset, parts, missing = self._dataset, [], self._dataset.batch_size
        while missing:
            if self._rows is None:
                self._next_block()
            row = self._state['row']
            taken = np.arange(row, min(len(self._rows), row + missing))
            if len(taken):
                parts.append(self._rows.batch(taken, dataset.store, dataset.length))
                missing -= len(taken)
            self._state = {**self._state, 'row': row + len(taken)}
            if self._state['row'] == len(self._rows):
                self._start({'blocks': self._parent.get_state(), 'carry': self._left, 'row': 0})
        return parts[0] if len(parts) == 1 else {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """starts[0], starts[0] + 1, .. counts[0] of them, then the same of starts[1], and so on."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)
