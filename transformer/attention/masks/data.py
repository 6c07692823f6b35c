"""Terms of a mask that hold arrays of the data: padding, packed documents, prefixes, pairs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.masks.algebra import Mask


@dataclasses.dataclass(frozen=True, repr=False)
class Padding(Mask):
    """The keys at s < length are visible.

    Attributes:
      lengths: [B], for each row, or [B, T], for each query.
    """
    lengths: Any

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        lengths = self.lengths[..., None, None] if self.lengths.ndim == 1 else self.lengths[..., None]
        return key[..., None, :] < lengths

    def known(self, query: jax.Array, key: jax.Array) -> tuple:
        return np.ones((1, 1), bool), np.zeros((1, 1), bool)

    def cut(self, query: tuple, key: tuple) -> Mask:
        return self if self.lengths.ndim == 1 else Padding(_slice(self.lengths, *query))

    def pad(self, query: int, key: int) -> Mask:
        return self if self.lengths.ndim == 1 else Padding(_pad(self.lengths, query))


@dataclasses.dataclass(frozen=True, repr=False)
class Segments(Mask):
    """Documents packed in one row do not see each other, and padding (segment 0) sees and shows nothing.

    Attributes:
      query, key: segment numbers, [B, T] and [B, S].
      runs: whether the positions of each number are neighbours, as those of a document are; False: regions of an image.
    """
    query: Any
    key: Any
    runs: bool = True

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        same = self.query[..., :, None] == self.key[..., None, :]
        return same & (self.key != 0)[..., None, :]

    def known(self, query: jax.Array, key: jax.Array) -> tuple:
        return np.ones((1, 1), bool), np.zeros((1, 1), bool)

    def cut(self, query: tuple, key: tuple) -> Mask:
        return Segments(_slice(self.query, *query), _slice(self.key, *key), self.runs)

    def pad(self, query: int, key: int) -> Mask:
        return Segments(_pad(self.query, query), _pad(self.key, key), self.runs)


@dataclasses.dataclass(frozen=True, repr=False)
class Marked(Mask):
    """The marked keys are visible: under Causal() | Marked(prefix) the tokens of a prefix see each other, and all others what
    stands before them (Raffel et al. 2020, figure 4).

    Attributes:
      key: [B, S], 0 = not marked; further keys, of which a cache may have more, are not.
    """
    key: Any

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return (_pad(self.key, key.shape[-1] - self.key.shape[-1]) != 0)[..., None, :]

    def known(self, query: jax.Array, key: jax.Array) -> tuple:
        return np.ones((1, 1), bool), np.zeros((1, 1), bool)

    def cut(self, query: tuple, key: tuple) -> Mask:
        return Marked(_slice(self.key, *key))

    def pad(self, query: int, key: int) -> Mask:
        return Marked(_pad(self.key, key))


@dataclasses.dataclass(frozen=True, repr=False)
class Explicit(Mask):
    """The pairs that are True are visible.

    Attributes:
      visible: booleans [B, T, S] or [T, S].
    """
    visible: Any

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return self.visible

    def known(self, query: jax.Array, key: jax.Array) -> tuple:
        return np.ones((1, 1), bool), np.zeros((1, 1), bool)

    def cut(self, query: tuple, key: tuple) -> Mask:
        return Explicit(_slice(_slice(self.visible, *query, -2), *key))

    def pad(self, query: int, key: int) -> Mask:
        return Explicit(_pad(_pad(self.visible, query, -2), key))


def _slice(x, start, size, axis=-1):
    return jax.lax.dynamic_slice_in_dim(x, start, size, x.ndim + axis)


def _pad(x, more, axis=-1):
    return jnp.pad(x, [(0, more if a == x.ndim + axis else 0) for a in range(x.ndim)])
