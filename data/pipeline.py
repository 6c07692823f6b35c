"""What text and images share: endless shuffled training batches through Grain, and finite evaluation."""

import atexit
import copy
import dataclasses
import functools
import math
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset

_AHEAD = 4  # batches to prefetch
_ENDLESS = 1 << 40


@dataclasses.dataclass(frozen=True)
class Order:
    """Numbers 0..count-1, shuffled anew every epoch, in consecutive draws of `size`; a draw may span two epochs.

    Order(..)(k) depends on its fields and k alone, so a position in training is one integer.
    """

    count: int
    size: int
    seed: int

    def __call__(self, draw: int) -> np.ndarray:
        """int64 [size]: the draw with this number."""
        return self.between(draw * self.size, (draw + 1) * self.size)

    def between(self, first: int, stop: int) -> np.ndarray:
        """int64 [stop - first]: the numbers at these places of all epochs in sequence."""
        parts, left = [np.zeros(0, np.int64)], stop - first
        while left:
            epoch, place = divmod(first, self.count)
            parts.append(_permutation(self.count, self.seed, epoch)[place : place + left])
            first, left = first + len(parts[-1]), left - len(parts[-1])
        return np.concatenate(parts)


@functools.lru_cache(maxsize=4)
def _permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    """The order of one epoch. Grain's own shuffle takes 3 us per number (11 us in a data set), this one 10 ns."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def endless(element: Callable[[int], Any]) -> grain.IterDataset:
    """The dataset element(0), element(1), .. without end."""
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
    return grain.MapDataset.range(_ENDLESS).map(element).to_iter_dataset(options)


def ahead(batches: grain.IterDataset) -> grain.DatasetIterator:
    """Iterates over batches that a thread prefetches."""
    return closed_at_exit(iter(ThreadPrefetchIterDataset(batches, prefetch_buffer_size=_AHEAD)))


def numbered(element: Callable[[int], Any], workers: int = 0, threads: int = 1) -> grain.DatasetIterator:
    """element(0), element(1), .. without end, prefetched by worker processes or by threads of this process."""
    return closed_at_exit(_Numbered(element, workers, threads))


def shuffled(batch: Callable[[np.ndarray], dict], order: Order) -> grain.DatasetIterator:
    """batch(order(0)), batch(order(1)), .. without end: training batches of the rows with these numbers."""
    return numbered(lambda draw: batch(order(draw)))


class _Numbered(grain.DatasetIterator):
    """The state is the number of the next element alone, so a run may resume with another number of workers."""

    def __init__(self, element: Callable[[int], Any], workers: int, threads: int):
        super().__init__()
        self._element, self._workers, self._threads = element, workers, threads
        self._number, self._iterator = 0, None

    def __next__(self):
        if self._iterator is None:
            numbers = grain.MapDataset.range(self._number, _ENDLESS).map(self._element)
            batches = numbers.to_iter_dataset(grain.ReadOptions(self._threads, _AHEAD))
            if self._workers:
                options = grain.MultiprocessingOptions(self._workers, per_worker_buffer_size=_AHEAD)
                batches = batches.mp_prefetch(options, worker_init_fn=_follow_parent)
            self._iterator = iter(batches)
        batch = next(self._iterator)
        self._number += 1
        return batch

    def get_state(self):
        return {'next': self._number}

    def set_state(self, state):
        self.close()
        self._number = state['next']

    def close(self):
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None


class Epochs(grain.DatasetIterator):
    """Batches of one iterator after the other.

    Args:
      begin: (the iterator over an epoch with this number, the number of batches to take of it), always the same for a number.
    """

    def __init__(self, begin: Callable[[int], tuple[grain.DatasetIterator, int]]):
        super().__init__()
        self._open = begin
        self._epoch, self._taken, self._count, self._inner = 0, 0, 0, None

    def __next__(self):
        if self._inner is not None and self._taken == self._count:
            self.close()
            self._epoch, self._taken = self._epoch + 1, 0
        if self._inner is None:
            self._inner, self._count = self._open(self._epoch)
        batch = next(self._inner)
        self._taken += 1
        return batch

    def get_state(self):
        """The number of the epoch, how many of its batches were taken, and the state of its iterator, None before the first."""
        inner = None if self._inner is None else self._inner.get_state()
        return {'epoch': self._epoch, 'taken': self._taken, 'inner': inner}

    def set_state(self, state):
        self.close()
        self._epoch, self._taken = state['epoch'], state['taken']
        if state['inner'] is not None:
            self._inner, self._count = self._open(self._epoch)
            self._inner.set_state(state['inner'])

    def close(self):
        if self._inner is not None:
            self._inner.close()
            self._inner = None


def _follow_parent(worker: int, workers: int) -> None:
    """Initialises a worker: it ends when its parent ends, for any reason, and ignores signals meant for the parent."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole group, but the parent still reads batches
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()  # not PR_SET_PDEATHSIG: its "parent" is a short-lived thread of Grain
    time.sleep(0.3)  # until the prefetch buffer is full: a batch in the making may not be registered with the tracker
    os._exit(1)  # Python's resource tracker then frees the shared memory


def closed_at_exit(iterator: grain.DatasetIterator) -> grain.DatasetIterator:
    """Returns the iterator; its threads and processes end before Python tears down its modules."""
    atexit.register(_close, weakref.ref(iterator))
    return iterator


def _close(iterator: weakref.ref) -> None:
    if (alive := iterator()) is not None:
        alive.close()
        alive.close = lambda: None  # Grain closes it again after Python has torn down its modules, which fails


class Evaluation:
    """A finite pass over rows, in order, each exactly once; it may be iterated any number of times.

    Batches are dicts of arrays with exactly `batch_size` rows. Missing rows of the last one are zeros, and
    `example_weights` [batch_size] float32 is 0 there and 1 elsewhere.

    Args:
      rows: number of rows.  batch: maps an int array of row numbers to a dict of arrays.
      facts: numbers about the data, by name.  raw: yields the bytes of the text, for text.
    """

    def __init__(
        self,
        rows: int,
        batch_size: int,
        batch: Callable[[np.ndarray], dict[str, np.ndarray]],
        facts: dict[str, int],
        raw: Callable[[], Iterator[bytes]] | None = None,
    ):
        if batch_size < 1:
            raise ValueError(f'The evaluation batch size is {batch_size}; it must be 1 or more.')
        self.facts = facts
        self._rows, self._batch_size, self._batch, self._raw = rows, batch_size, batch, raw

    def __len__(self) -> int:
        return math.ceil(self._rows / self._batch_size)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=_AHEAD)
        return iter(grain.MapDataset.range(len(self)).map(self._padded).to_iter_dataset(options))

    def mapped(self, function: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> 'Evaluation':
        """The same pass with `function` applied to every batch, before padding."""
        made = copy.copy(self)
        made._batch = lambda numbers: function(self._batch(numbers))
        return made

    def text(self) -> bytes:
        """The bytes of the evaluated text, in order. Raises ValueError if the data is not text."""
        if self._raw is None:
            raise ValueError('Compressors needs text, and this data is not text; leave that evaluator out.')
        return b''.join(self._raw())

    def _padded(self, number: int) -> dict[str, np.ndarray]:
        size = self._batch_size
        batch = self._batch(np.arange(number * size, min(self._rows, (number + 1) * size)))
        rows = len(next(iter(batch.values())))
        batch['example_weights'] = np.ones(rows, np.float32)
        if rows < size:
            batch = {k: np.concatenate([v, np.zeros((size - rows, *v.shape[1:]), v.dtype)]) for k, v in batch.items()}
        return batch
