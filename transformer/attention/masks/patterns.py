"""Which query may attend to which key: predicates on positions, combined with `&`, `|` and `~`.

A mask is called with positions, query [..., T] and key [..., S], and returns booleans that broadcast to [..., T, S],
True = may attend. Positions count along the row (with an offset in cached decoding), not within a packed document.
Patterns hold no arrays, are hashable and are evaluated by numpy on numpy positions, so that a kernel knows at trace time
which blocks are empty (`algebra.blocks`); `Padding`, `Segments` and `Explicit` hold arrays of the data.

The papers' patterns are compositions:

    convolution of width 5             Window(3)
    dilated convolution, 2             Dilated(size=3, step=2)
    Longformer (Beltagy 2020)          Window(256) | Global(2)                 causal: Causal() & (Window(256) | Global(2))
    BigBird (Zaheer 2020), blocks      Window(2, block=64) | Global(128) | Random(3, block=64, length=4096)
    ETC (Ainslie 2020)                 Window(85) | Global(64), with relative.Etc
    strided Sparse Transformer         Causal() & (Window(128) | Strided(128))                    (Child 2019, section 4.3)
    fixed Sparse Transformer           Causal() & Fixed(128, summary=8)
    GPT-3 (Brown 2020)                 Alternate(Causal(), Causal() & Window(256))
    prefix language model (T5)         Causal() | Prefix(64), or Causal() | Marked(prefix)
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.by_layer import ByLayer
from transformer.attention.masks.algebra import Mask

LARGEST = 2 ** 31 - 1  # positions are numbers of 32 bits


def _outer(query, key):
    return query[..., :, None], key[..., None, :]


def require_at_least(part: Any, **minimum: int) -> None:
    """Raises ValueError for fields of a part of a config that are too small or too large for a number of positions."""
    for name, least in minimum.items():
        if not least <= getattr(part, name) <= LARGEST:
            bound = f'at least {least}' if getattr(part, name) < least else f'at most {LARGEST}'
            raise ValueError(f'{part}: {name} is {getattr(part, name)}; expected {bound}.')


def _require_positions(mask):
    if not all(type(place) is int and 0 <= place <= LARGEST for place in mask.at):
        raise ValueError(f'{mask}: at is {mask.at!r}; expected positions, whole numbers from 0 on.')


@dataclasses.dataclass(frozen=True, repr=False)
class Full(Mask):
    """Every query sees every key."""

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return np.ones((1, 1), bool)

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        return True, True


@dataclasses.dataclass(frozen=True, repr=False)
class Causal(Mask):
    """A query at t sees the keys at s <= t."""

    causal = True

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        t, s = _outer(query, key)
        return t >= s

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        return query[1] >= key[0], query[0] >= key[1]


@dataclasses.dataclass(frozen=True, repr=False)
class Window(Mask):
    """|t - s| < size: under `Causal() & Window(n)` a query sees itself and the n - 1 positions before it. With `block` > 1 the
    window counts blocks of so many positions, and whole blocks see each other (BigBird; Zaheer et al. 2020, section 2)."""
    size: int
    block: int = 1

    def __post_init__(self):
        require_at_least(self, size=1, block=1)

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        t, s = _outer(query // self.block, key // self.block)
        return abs(t - s) < self.size

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        most = np.maximum(query[1] // self.block - key[0] // self.block, key[1] // self.block - query[0] // self.block)
        gap = np.maximum(query[0] // self.block - key[1] // self.block, key[0] // self.block - query[1] // self.block)
        return gap < self.size, most < self.size


@dataclasses.dataclass(frozen=True, repr=False)
class Dilated(Mask):
    """A window with gaps, |t - s| < size·step and t - s divisible by step: the pattern of a dilated convolution."""
    size: int
    step: int = 2

    def __post_init__(self):
        require_at_least(self, size=1, step=1)

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        t, s = _outer(query, key)
        return (abs(t - s) < self.size * self.step) & ((t - s) % self.step == 0)

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        least, most = _apart(query, key)
        last = self.size * self.step - 1
        inside, whole = Window(last + 1).bounds(query, key)
        some, every = _multiples(np.maximum(least, -last), np.minimum(most, last), self.step)
        return inside & some, whole & every


@dataclasses.dataclass(frozen=True, repr=False)
class Strided(Mask):
    """t - s is divisible by `stride` (Child et al. 2019, section 4.3); under `Causal()`, as in the paper."""
    stride: int

    def __post_init__(self):
        require_at_least(self, stride=1)

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        t, s = _outer(query, key)
        return (t - s) % self.stride == 0

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        return _multiples(*_apart(query, key), self.stride)


@dataclasses.dataclass(frozen=True, repr=False)
class Fixed(Mask):
    """t and s lie in the same block of `stride`, or s is among the last `summary` positions of its block (Child et al.
    2019, section 4.3); under `Causal()`, as in the paper."""
    stride: int
    summary: int = 1

    def __post_init__(self):
        require_at_least(self, stride=1, summary=0)
        if self.summary > self.stride:
            raise ValueError(f'{self}: summary is {self.summary}; expected at most the stride, {self.stride}.')

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        t, s = _outer(query, key)
        return (t // self.stride == s // self.stride) | (s % self.stride >= self.stride - self.summary)

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        own = BlockDiagonal(self.stride).bounds(query, key)
        first, last = key
        begin = self.stride - self.summary  # where the summary begins in a block
        place = first % self.stride
        some = (self.summary > 0) & (np.maximum(first, first - place + begin) <= last)
        every = (place >= begin) & (last - first < self.stride - place)
        return own[0] | some, own[1] | every | (begin == 0)


@dataclasses.dataclass(frozen=True, repr=False)
class BlockDiagonal(Mask):
    """t and s lie in the same block of `size` positions."""
    size: int

    def __post_init__(self):
        require_at_least(self, size=1)

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return Window(1, self.size)(query, key)

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        return Window(1, self.size).bounds(query, key)


@dataclasses.dataclass(frozen=True, repr=False)
class Prefix(Mask):
    """Every query sees the first `length` positions; for a different length in each row use `Padding`."""
    length: int

    def __post_init__(self):
        require_at_least(self, length=0)

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return key[..., None, :] < self.length

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        return key[0] < self.length, key[1] < self.length


@dataclasses.dataclass(frozen=True, repr=False)
class Selected(Mask):
    """Every query sees the positions in the tuple `at`."""
    at: tuple

    def __post_init__(self):
        _require_positions(self)

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return _among(key, self.at)[..., None, :]

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        return _some_and_all(key, self.at)


@dataclasses.dataclass(frozen=True, repr=False)
class Global(Mask):
    """The first `tokens` positions, or those of the tuple `at`, see all positions and are seen by all (Beltagy et al. 2020,
    section 3.1). Under `Causal()` they see only themselves and the positions before them."""
    tokens: int = 1
    at: tuple = ()

    def __post_init__(self):
        require_at_least(self, tokens=0)
        _require_positions(self)
        if self.at and self.tokens != 1:
            raise ValueError(f'{self}: tokens counts the first positions, and at names others; give one of the two.')

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        t, s = _outer(*(_among(x, self.at) if self.at else x < self.tokens for x in (query, key)))
        return t | s

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        if self.at:
            return tuple(map(operator.or_, _some_and_all(query, self.at), _some_and_all(key, self.at)))
        return (query[0] < self.tokens) | (key[0] < self.tokens), (query[1] < self.tokens) | (key[1] < self.tokens)


@dataclasses.dataclass(frozen=True, repr=False)
class Random(Mask):
    """Each block of `block` queries sees `blocks` blocks of keys, drawn once from those of a row of `length` (Zaheer et al.
    2020, section 2); `Causal()` hides those that lie ahead."""
    blocks: int
    block: int
    length: int
    seed: int = 0

    def __post_init__(self):
        require_at_least(self, blocks=0, block=1, length=1, seed=0)
        if self.blocks > self._count:
            raise ValueError(f'{self}: {self.blocks} blocks are to be drawn, but a row has {self._count} of {self.block}.')

    @property
    def _count(self):
        return -(-self.length // self.block)

    def require_length(self, length: int) -> None:
        if length > self.length:
            raise ValueError(f'The mask {self} is for rows of up to {self.length} positions, but this one has {length}; '
                             'give it the length of the longest row.')

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        t, s = _outer(query // self.block, key // self.block)
        table = _drawn(self)
        return (table if isinstance(query, np.ndarray) and isinstance(key, np.ndarray) else jnp.asarray(table))[t, s]

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        (top, bottom), (left, right) = ([np.asarray(x) // self.block for x in ends] for ends in (query, key))
        sums = np.pad(_drawn(self).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
        count = sums[bottom + 1, right + 1] - sums[top, right + 1] - sums[bottom + 1, left] + sums[top, left]
        return count > 0, count == (bottom + 1 - top) * (right + 1 - left)


@functools.lru_cache(maxsize=64)
def _drawn(mask):
    """[blocks of queries, blocks of keys] booleans of a Random mask."""
    table, rng = np.zeros((mask._count, mask._count), bool), np.random.default_rng(mask.seed)
    for row in table:
        row[rng.permutation(mask._count)[:mask.blocks]] = True
    return table


def _apart(query, key):
    """The minimum and maximum of t - s in blocks."""
    return query[0] - key[1], query[1] - key[0]


def _multiples(least, most, step):
    """Whether any and whether all of least, .., most are divisible by `step`."""
    return most // step * step >= least, (step == 1) | ((least == most) & (least % step == 0))


def _some_and_all(ends, at):
    """Whether any and whether all positions of blocks, given by their ends, are in `at`."""
    first, last = (np.asarray(x) for x in ends)
    count = sum((first <= place) & (place <= last) for place in set(at)) + 0 * first
    return count > 0, count == last - first + 1


def _among(x, positions):
    return functools.reduce(lambda found, at: found | (x == at), positions, x < 0)


@dataclasses.dataclass(frozen=True, repr=False)
class Alternate(ByLayer, Mask):
    """Layers 0, 2, 4, ... of a stack have the mask `even`, the others `odd` (GPT-3: alternately dense and banded)."""
    even: Mask
    odd: Mask

    @property
    def causal(self) -> bool:
        return self.even.causal and self.odd.causal
