"""Which tokens the attention of a block sees together: a part of a config (`model.partition`).

A partition surrounds the attention branch alone, after its norm and before the projections: it puts the tokens of a row into
groups, each a row of its own to the attention, and the outputs back to their places.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from transformer.attention.by_layer import ByLayer
from transformer.attention.context import Context


class Groups(NamedTuple):
    """The groups of a partition.

    Attributes:
      x: [B·groups, t, D].
      context: that of the attention in a group.
      whole: a function of the attention's output [B·groups, t, D] -> [B, T, D].
      rows: a function of arrays over the pairs of a group [B·groups, N, t, t] -> [B, N, T, t], for each token those with the
        tokens of its group, in the order of `Partition.keys`; 0 for padding.
    """
    x: jax.Array
    context: Context
    whole: Callable = lambda x: x
    rows: Callable = lambda x: x


class Partition(abc.ABC):
    """Base of the partitions.

    Attributes:
      period: the number of layers after which the partitions of `of_layer` repeat.
    """
    period = 1

    def of_layer(self, number: int) -> 'Partition':
        """The partition of one layer; only `AlternatePartition` has several."""
        return self

    def grid(self, whole: tuple) -> tuple:
        """(rows, columns) of the patches of a group, in an image with (rows, columns) of patches."""
        return whole

    def keys(self, whole: tuple) -> np.ndarray | None:
        """[T, t], for each patch of such an image the numbers of those of its group, -1 for padding; None: all, in order."""
        return None

    @abc.abstractmethod
    def __call__(self, x: jax.Array, context: Context) -> Groups:
        """The groups of x [B, T, D]."""


@dataclasses.dataclass(frozen=True)
class Whole(Partition):
    """All tokens together."""

    def __call__(self, x: jax.Array, context: Context) -> Groups:
        return Groups(x, context)


@dataclasses.dataclass(frozen=True)
class AlternatePartition(ByLayer, Partition):
    """Layers 0, 2, 4, ... of a stack have the partition `even`, the others `odd`: 'AlternatePartition(Windows(size=7),
    Windows(size=7, shift=3))' are those of Swin."""
    even: Partition
    odd: Partition
