"""The algebra of masks: predicates on positions, combined with `&`, `|` and `~`, and the state of their blocks.

The patterns themselves are in `transformer.attention.masks.patterns`.
"""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

EMPTY, PARTIAL, FULL = 0, 1, 2  # the states of a block of a mask
_FINEST = 64  # the block sizes of kernels are multiples of it


class Mask(abc.ABC):
    """Base of all masks, which are frozen dataclasses combined with &, | and ~. As pytrees, their leaves are the fields of type
    Any."""

    causal = False  # whether no query sees a key after it, as decoding with a cache requires

    def __init_subclass__(cls):
        super().__init_subclass__()
        jax.tree_util.register_pytree_node(cls, _flatten, functools.partial(_unflatten, cls))

    @abc.abstractmethod
    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        """Positions [..., T] and [..., S] -> booleans that broadcast to [..., T, S]."""

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        """(possible, certain) for blocks given by their (first, last) positions, arrays that broadcast: whether some pair
        and whether every pair may attend. (True, False) where this is unknown."""
        return True, False

    def known(self, query: jax.Array, key: jax.Array) -> tuple:
        """(possible, certain) for single pairs, without reading the arrays of the data."""
        value = self(query, key)
        return value, value

    def cut(self, query: tuple, key: tuple) -> 'Mask':
        """The mask of a block: slices the arrays of the data to queries (start, size) and keys (start, size)."""
        return self

    def pad(self, query: int, key: int) -> 'Mask':
        """The mask with its data arrays padded by so many queries and keys; kernels hide the padding themselves."""
        return self

    def of_layer(self, number: int) -> 'Mask':
        """The mask of one layer; only `Alternate` has several."""
        return self

    @property
    def period(self) -> int:
        """The number of layers after which the masks of `of_layer` repeat."""
        return 1

    def require_length(self, length: int) -> None:
        """Raises ValueError for a row that is too long; only `Random`, and masks that contain it, have a limit."""
        for field in dataclasses.fields(self):
            inner = getattr(self, field.name)
            if isinstance(inner, Mask):
                inner.require_length(length)

    def __repr__(self):
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        defaults = {f.name: f.default for f in dataclasses.fields(self) if f.default is not dataclasses.MISSING}
        return f'{type(self).__name__}(' + ', '.join(
            f'{name}={value!r}' for name, value in values.items() if name not in defaults or value != defaults[name]) + ')'

    def __and__(self, other: 'Mask') -> 'Mask':
        return _And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: 'Mask') -> 'Mask':
        return _Or(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> 'Mask':
        return self.mask if isinstance(self, _Not) else _Not(self)


def _flatten(mask):
    """(arrays and masks, (their names, all other fields)): the arrays are in fields of type Any."""
    fields = dataclasses.fields(mask)
    inside = [f.name for f in fields if f.type is Any or (isinstance(f.type, type) and issubclass(f.type, Mask))]
    rest = tuple((f.name, getattr(mask, f.name)) for f in fields if f.name not in inside)
    return [getattr(mask, name) for name in inside], (tuple(inside), rest)


def _unflatten(cls, names, inside):
    mask = object.__new__(cls)
    for name, value in (*zip(names[0], inside), *names[1]):
        object.__setattr__(mask, name, value)
    return mask


def static(mask: Mask) -> bool:
    """Whether a mask is only a pattern, without arrays of the data."""
    return not jax.tree.leaves(mask)


def conjuncts(mask: Mask) -> list[Mask]:
    """The masks that a mask joins by &; any other mask gives itself."""
    return [*conjuncts(mask.left), *conjuncts(mask.right)] if isinstance(mask, _And) else [mask]


class _Pair(Mask):
    """Base of two masks joined by an operator."""

    def cut(self, query: tuple, key: tuple) -> Mask:
        return type(self)(self.left.cut(query, key), self.right.cut(query, key))

    def pad(self, query: int, key: int) -> Mask:
        return type(self)(self.left.pad(query, key), self.right.pad(query, key))

    def of_layer(self, number: int) -> Mask:
        return type(self)(self.left.of_layer(number), self.right.of_layer(number))

    @property
    def period(self) -> int:
        return int(np.lcm(self.left.period, self.right.period))

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return self._join(self.left(query, key), self.right(query, key))

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        return tuple(map(self._join, self.left.bounds(query, key), self.right.bounds(query, key)))

    def known(self, query: jax.Array, key: jax.Array) -> tuple:
        return tuple(map(self._join, self.left.known(query, key), self.right.known(query, key)))


@dataclasses.dataclass(frozen=True, repr=False)
class _And(_Pair):
    left: Mask
    right: Mask

    @property
    def causal(self) -> bool:
        return self.left.causal or self.right.causal

    def _join(self, a, b):
        return a & b

    def __repr__(self):
        return f'({self.left} & {self.right})'


@dataclasses.dataclass(frozen=True, repr=False)
class _Or(_Pair):
    left: Mask
    right: Mask

    @property
    def causal(self) -> bool:
        return self.left.causal and self.right.causal

    def _join(self, a, b):
        return a | b

    def __repr__(self):
        return f'({self.left} | {self.right})'


@dataclasses.dataclass(frozen=True, repr=False)
class _Not(Mask):
    mask: Mask

    def __call__(self, query: jax.Array, key: jax.Array) -> jax.Array:
        return ~self.mask(query, key)

    def bounds(self, query: Sequence, key: Sequence) -> tuple:
        return _swap(self.mask.bounds(query, key))

    def known(self, query: jax.Array, key: jax.Array) -> tuple:
        return _swap(self.mask.known(query, key))

    def cut(self, query: tuple, key: tuple) -> Mask:
        return _Not(self.mask.cut(query, key))

    def pad(self, query: int, key: int) -> Mask:
        return _Not(self.mask.pad(query, key))

    def of_layer(self, number: int) -> Mask:
        return _Not(self.mask.of_layer(number))

    @property
    def period(self) -> int:
        return self.mask.period

    def __repr__(self):
        return f'~{self.mask}'


def _swap(known):
    possible, certain = known
    return np.logical_not(certain), np.logical_not(possible)


def blocks(mask: Mask, queries: int, keys: int, size: int | tuple[int, int]) -> np.ndarray:
    """[blocks of queries, blocks of keys] of EMPTY, PARTIAL, FULL: the state of each block, as known at trace time.

    If the bounds of a pattern do not decide a block, its pairs are checked one by one; blocks that depend on arrays of the data
    are PARTIAL.

    Args:
      queries, keys: T and S; positions are 0..T-1 and 0..S-1.
      size: (queries, keys) of a block.
    """
    bare = jax.tree.map(lambda x: None, mask)  # arrays are not hashable, and `known` does not read them
    return _blocks(bare, queries, keys, *size)


@functools.lru_cache(maxsize=256)
def _blocks(mask, queries, keys, query_size, key_size):
    if query_size % _FINEST == key_size % _FINEST == 0 and (query_size, key_size) != (_FINEST, _FINEST):
        state = _blocks(mask, queries, keys, _FINEST, _FINEST)
        for axis, size in enumerate((query_size, key_size)):
            first = np.arange(0, state.shape[axis], size // _FINEST)
            least, most = (ufunc.reduceat(state, first, axis) for ufunc in (np.minimum, np.maximum))
            state = np.where(least == most, least, np.int8(PARTIAL))
        return state

    def ends(length, size):
        first = np.arange(0, length, size)
        return first, np.minimum(first + size, length) - 1

    rows, columns = ends(queries, query_size), ends(keys, key_size)
    shape = len(rows[0]), len(columns[0])
    possible, certain = (np.broadcast_to(x, shape) for x in mask.bounds([x[:, None] for x in rows], [x[None] for x in columns]))
    state = np.where(certain, FULL, np.where(possible, PARTIAL, EMPTY)).astype(np.int8)
    for i, j in zip(*np.nonzero(state == PARTIAL)):
        query, key = np.arange(rows[0][i], rows[1][i] + 1), np.arange(columns[0][j], columns[1][j] + 1)
        possible, certain = mask.known(query, key)
        state[i, j] = FULL if np.all(certain) else PARTIAL if np.any(possible) else EMPTY
    return state
