"""Batches of rows with a text each, padded to the least of a few lengths that holds all of a batch.

Every batch has the same number of rows, whatever its length, so that learning rate, steps and epochs mean what they do without
buckets. The rows of a batch are alike in length, which batches drawn at random are not.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from data import pipeline

SHARES = 8, 4, 2, 1  # of the lengths: 1/8, 1/4, 1/2 and all of the longest; each is a program to compile


def lengths(longest: int) -> tuple[int, ...]:
    """The lengths of the buckets, the longest last."""
    return tuple(dict.fromkeys(-(-longest // share) for share in SHARES))


@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """Batches of the rows 0, 1, .., as (their numbers, the length of the batch).

    Attributes:
      sizes: int [rows], the tokens of each row, at most the last of the lengths.
      lengths: increasing.
      rows: rows in a batch.
    """

    sizes: np.ndarray
    lengths: Sequence[int]
    rows: int

    @functools.cached_property
    def bucket(self) -> np.ndarray:
        """int [rows]: the number of the least length that holds each row."""
        return np.searchsorted(self.lengths, self.sizes)

    def length(self, numbers: np.ndarray) -> int:
        """The least length that holds these rows."""
        return self.lengths[self.bucket[numbers].max()]

    def of_epoch(self, epoch: int, seed: int) -> np.ndarray:
        """int [batches, rows]: the numbers of the rows of an epoch, in random order but for their buckets.

        Epoch e has the batches from floor(n e / rows) to floor(n (e + 1) / rows) of the n rows that are shuffled anew every
        epoch, as `pipeline.Order` draws them: each row once, but for those of the last epoch that filled no batch. They are
        sorted by bucket, so that at most one batch for each length has rows of two, and the batches shuffled.
        """
        count = len(self.sizes)
        first, stop = (count * number // self.rows for number in (epoch, epoch + 1))
        order = pipeline.Order(count, self.rows, seed)
        numbers = np.concatenate([order(draw) for draw in range(first, stop)])
        numbers = numbers[np.argsort(self.bucket[numbers], kind='stable')].reshape(-1, self.rows)
        return np.random.default_rng([seed, epoch, len(numbers)]).permutation(numbers)

    def training(self, number: int, seed: int) -> tuple[np.ndarray, int]:
        """The training batch with this number; it depends on the sizes, the seed and the number alone."""
        epoch = ((number + 1) * self.rows - 1) // len(self.sizes)
        numbers = _epoch(self, epoch, seed)[number - len(self.sizes) * epoch // self.rows]
        return numbers, self.length(numbers)

    @property
    def sorted(self) -> np.ndarray:
        """int [rows]: all rows, those of the shortest bucket first, for evaluation."""
        return np.argsort(self.bucket, kind='stable')


@functools.lru_cache(maxsize=4)
def _epoch(buckets: Buckets, epoch: int, seed: int) -> np.ndarray:
    return buckets.of_epoch(epoch, seed)
