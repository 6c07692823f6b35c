"""Which query may attend to which key: predicates on positions, combined with `&`, `|` and `~`.

A mask is called with absolute positions, query [..., T] and key [..., S], and returns booleans that broadcast to
[..., T, S], True = may attend. Positions count along the row (with an offset in cached decoding), not within a packed
document. Pattern terms hold no arrays and are hashable; terms of the data (`Segments`) come last.
"""

import abc
import dataclasses
from typing import Any

import jax.numpy as jnp


class Mask(abc.ABC):
    """Base of all masks; combine with &, | and ~."""

    causal = False  # whether no query ever sees a key after it, which decoding with a cache rests on

    @abc.abstractmethod
    def __call__(self, query, key):
        """[..., T, S] booleans of positions [..., T] and [..., S]."""

    def __and__(self, other):
        return _And(self, other)

    def __or__(self, other):
        return _Or(self, other)

    def __invert__(self):
        return _Not(self)


@dataclasses.dataclass(frozen=True)
class Full(Mask):
    """Everything sees everything."""

    def __call__(self, query, key):
        return jnp.ones((query.shape[-1], key.shape[-1]), bool)


@dataclasses.dataclass(frozen=True)
class Causal(Mask):
    """A query at t sees the keys at s <= t."""

    causal = True

    def __call__(self, query, key):
        return query[..., :, None] >= key[..., None, :]


@dataclasses.dataclass(frozen=True)
class Window(Mask):
    """A query at t sees the keys with |t - s| < size (`Causal() & Window(n)`: itself and the n - 1 before it)."""
    size: int

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f'Window(size={self.size}): the size counts the query itself, so it is at least 1.')

    def __call__(self, query, key):
        return jnp.abs(query[..., :, None] - key[..., None, :]) < self.size


@dataclasses.dataclass(frozen=True)
class Segments(Mask):
    """Documents packed in one row do not see each other, and padding (segment 0) sees and shows nothing.

    Attributes:
      query, key: segment numbers, [B, T] and [B, S].
    """
    query: Any
    key: Any

    def __call__(self, query, key):
        same = self.query[..., :, None] == self.key[..., None, :]
        return same & (self.key != 0)[..., None, :]


@dataclasses.dataclass(frozen=True)
class _And(Mask):
    left: Mask
    right: Mask

    @property
    def causal(self):
        return self.left.causal or self.right.causal

    def __call__(self, query, key):
        return self.left(query, key) & self.right(query, key)

    def __repr__(self):
        return f'({self.left} & {self.right})'


@dataclasses.dataclass(frozen=True)
class _Or(Mask):
    left: Mask
    right: Mask

    @property
    def causal(self):
        return self.left.causal and self.right.causal

    def __call__(self, query, key):
        return self.left(query, key) | self.right(query, key)

    def __repr__(self):
        return f'({self.left} | {self.right})'


@dataclasses.dataclass(frozen=True)
class _Not(Mask):
    mask: Mask

    def __call__(self, query, key):
        return ~self.mask(query, key)

    def __repr__(self):
        return f'~{self.mask}'
