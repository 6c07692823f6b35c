"""Position encodings, each a part of a config (`model.positions`).

An encoding enters in one of four places, some by their field `at`: in the input of the model, in the input of every layer, in
the queries and keys but not the values, or in the scores. A model wraps it in an `Encoding`, which it passes to its blocks.
The encodings that enter only in the scores, by the offset of a key from a query, are in `relative`.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.positions.base import Offsets, Positions, PositionTerm, Sizes
from transformer.layers import roles
from transformer.layers.initial import normal
from transformer.layers.numerics import lookup, real_dtype
from transformer.layers.roles import Wanted

PLACES = ('input', 'layers', 'queries_keys')


def require_place(part: Any, places: tuple) -> None:
    if part.at not in places:
        raise ValueError(f'{part}: at is {part.at!r}; expected one of {", ".join(places)}.')


def sinusoid(positions: jax.Array, width: int) -> jax.Array:
    """P [.., D] with P_2i = sin(t / 10000^(2i/D)) and P_2i+1 = cos(t / 10000^(2i/D)) (Vaswani et al. 2017, section 3.5), in
    at least float32. For an odd width the last sine has no cosine.

    A step of k rotates each pair by the angle k / 10000^(2i/D), whatever t is: P_{t+k} = R_k·P_t."""
    angles = jnp.asarray(positions, real_dtype())[..., None] * frequencies(width, 10000.0)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1)
    return pairs.reshape(*pairs.shape[:-2], 2 * pairs.shape[-2])[..., :width]


def frequencies(width: int, base: float) -> jax.Array:
    """base^(-2i/width) for i = 0 .. ceil(width / 2) - 1."""
    return (base ** (-np.arange(0, width, 2) / width)).astype(real_dtype())


class _Added(Positions, abc.ABC):
    """Base of the encodings that add rows [.., T, D] at the place of their field `at`; registers get none, and tokens after
    them the rows that they would have without registers."""

    @abc.abstractmethod
    def _rows(self, parameters, positions, sizes, dtype):
        """The rows [.., T, D] of the positions [.., T]."""

    def _width(self, sizes):
        """The width of the rows."""
        return sizes.input_width or sizes.width if self.at == 'input' else sizes.width

    def _add(self, place, parameters, x, positions, sizes):
        if place != self.at:
            return x
        if not sizes.registers:
            return x + self._rows(parameters, positions, sizes, x.dtype)
        first, extra = sizes.extra - sizes.registers, sizes.extra
        place = jnp.where(positions < extra, jnp.minimum(positions, first), positions - sizes.registers)
        rows = self._rows(parameters, place, dataclasses.replace(sizes, extra=first, registers=0), x.dtype)
        register = (positions >= first) & (positions < extra)
        return x + jnp.where(register[..., None], jnp.zeros((), x.dtype), rows)

    def at_input(self, parameters: Mapping, x: jax.Array, positions: jax.Array | None, sizes: Sizes) -> jax.Array:
        return self._add('input', parameters, x, positions, sizes)

    def at_layer(self, parameters: Mapping, x: jax.Array, positions: jax.Array | None, sizes: Sizes) -> jax.Array:
        return self._add('layers', parameters, x, positions, sizes)

    def at_source(self, parameters: Mapping, x: jax.Array, positions: jax.Array | None, sizes: Sizes) -> jax.Array:
        return self._add('queries_keys', parameters, x, positions, sizes)


@dataclasses.dataclass(frozen=True)
class Learned(_Added):
    """x_t + P_t, with a learnt row P_t [D] for each position (Gehring et al. 2017, section 3.1).

    For images of another size than in training, the rows of the patches are interpolated bicubically; tokens in front keep
    their own (Dosovitskiy et al. 2021, section 3.2). Where the grid of training is not known, as when a model is applied to
    images of any size, it is assumed to have the proportions of the image's, or else to be square.

    Attributes:
      at: 'input'; 'layers', the input of every block; or 'queries_keys', the source of queries and keys but not of values.
      scale: initial standard deviation of the rows; 0: as the model's token embedding.
      offset: unused rows in front, as in the tables of RoBERTa and BART.
      antialias: smooth the rows that are interpolated, as DINOv2 does.
      frozen: whether the table stays as it is, as the sinusoids do that models of transformers store as weights.
    """
    at: str = 'input'
    scale: float = 0.0
    offset: int = 0
    antialias: bool = False
    frozen: bool = False

    def __post_init__(self):
        require_place(self, PLACES)
        if self.scale < 0 or self.offset < 0:
            raise ValueError(f'{self}: scale is {self.scale} and offset {self.offset}; expected 0 or more.')

    def parameters(self, sizes: Sizes) -> dict:
        table = normal(self.scale) if self.scale else sizes.table
        role = roles.vector() if self.frozen else roles.table()  # vectors do not decay
        return {'embedding': Wanted(table, (sizes.length - sizes.registers + self.offset, self._width(sizes)), role)}

    def learnt(self, parameters: Mapping) -> jax.Array | None:
        return parameters['embedding'][self.offset:]

    def resized(self, name: str, table: jax.Array, sizes: Sizes) -> jax.Array:
        front = self.offset + sizes.extra - sizes.registers
        patches = table.shape[0] - front
        known = sizes.trained and math.prod(sizes.trained) == patches
        grid = sizes.trained if known else _grid_of(patches, sizes.grid)
        if grid is None:
            raise ValueError(f'positions={self} has {patches} rows for patches, which form neither a square nor a grid in the '
                             f'proportions of {sizes.grid}; use images of the size of training.')
        rows = bicubic(table[front:].reshape(*grid, -1), sizes.grid, self.antialias)
        return jnp.concatenate([table[:front], rows.reshape(-1, rows.shape[-1])])

    def _rows(self, parameters, positions, sizes, dtype):
        table = parameters['embedding']
        return lookup(jax.lax.stop_gradient(table) if self.frozen else table, positions + self.offset, dtype)


def bicubic(rows: jax.Array, grid: tuple, antialias: bool = False) -> jax.Array:
    """[height, width, D] -> [*grid, D] by cubic convolution (Keys 1981, eq. 4), as in PyTorch, with which tables are published:
    with a = -0.75, repeated edges and no smoothing, or with `antialias` as Pillow resizes images, with a = -0.5, nothing beyond
    the edges, and in a smaller grid a kernel that is wider in proportion."""
    matrix = _smooth if antialias else _cubic
    for axis, size in enumerate(grid):
        rows = jnp.moveaxis(jnp.tensordot(matrix(rows.shape[axis], size), rows, (1, axis), precision='highest'), 0, axis)
    return rows


def _kernel(d, a):
    """The weight at a distance d from 0 to 2."""
    return np.where(d <= 1, ((a + 2) * d - (a + 3)) * d * d + 1, ((d - 5) * d + 8) * a * d - 4 * a)


def _smooth(given, wanted):
    """The matrix [wanted, given] of `bicubic` along one axis, with `antialias`."""
    place, wide = (np.arange(wanted) + 0.5) * given / wanted, max(given / wanted, 1.0)
    d = np.abs(np.arange(given) + 0.5 - place[:, None]) / wide
    weight = np.where(d < 2, _kernel(d, -0.5), 0.0)
    return (weight / weight.sum(1, keepdims=True)).astype(real_dtype())


def _cubic(given, wanted):
    """The matrix [wanted, given] of `bicubic` along one axis, without `antialias`."""
    place = (np.arange(wanted) + 0.5) * given / wanted - 0.5
    matrix = np.zeros((wanted, given), real_dtype())
    for near in range(-1, 3):
        point = np.floor(place) + near
        weight = _kernel(np.abs(place - point), -0.75)
        np.add.at(matrix, (np.arange(wanted), np.clip(point, 0, given - 1).astype(int)), weight)
    return matrix


def _grid_of(patches, like):
    """(rows, columns) of so many patches, in the proportions of another grid or square; None: neither fits."""
    for rows, columns in (like, (1, 1)):
        high = round((patches * rows / columns) ** 0.5)
        if high and patches % high == 0 and high * columns == patches // high * rows:
            return high, patches // high
    return None


@dataclasses.dataclass(frozen=True)
class Sinusoidal(_Added):
    """x_t + c·P_t, with P the sines and cosines of `sinusoid`; or scores changed by P_t·P_s.

    Attributes:
      at: 'input', 'layers' or 'queries_keys', as in `Learned`; 'scores', to which (c·P_t)·(c·P_s) / sqrt(D) is added; or
        'scores_times', which are multiplied by P_t·P_s / P_t·P_t. This factor depends on s - t alone: it is 1 for a key at
        the query's own position and decays around it. (In these two the last sine of an odd width has its cosine.)
      scale: c. The paper's 1 is for token embeddings that are multiplied by sqrt(D).
    """
    at: str = 'input'
    scale: float = 1.0
    free_length = True

    def __post_init__(self):
        require_place(self, (*PLACES, 'scores', 'scores_times'))

    def _rows(self, parameters, positions, sizes, dtype):
        return (self.scale * sinusoid(positions, self._width(sizes))).astype(dtype)

    @property
    def in_scores(self) -> bool:
        return self.at in ('scores', 'scores_times')

    def bias(self, parameters: Mapping, own: Mapping, query: jax.Array | None, key: jax.Array | None, sizes: Sizes) -> tuple:
        return (PositionTerm(self, sizes),) if self.in_scores else ()

    def scores(self, term: PositionTerm, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array,
               s: jax.Array) -> jax.Array:
        pairs = Offsets(t, s)
        angles = pairs.offsets[:, None].astype(real_dtype()) * frequencies(term.sizes.width, 10000.0)
        alike = pairs.spread(jnp.cos(angles).sum(-1)[None, None, None])  # [.., 1, T, S]
        if self.at == 'scores_times':
            return scores * (alike / angles.shape[-1])
        return scores + alike * (self.scale ** 2 / term.sizes.width ** 0.5)


@dataclasses.dataclass(frozen=True)
class Sinusoidal2d(_Added):
    """x_t + c·[P_row; P_column], half of the width for each, with P of `sinusoid`; zeros for a class token
    (Parmar et al. 2018; Carion et al. 2020, appendix).

    Attributes:
      at: 'input', 'layers' or 'queries_keys', as in `Learned`.
      scale: c.
      interleaved: whether a sine and its cosine are neighbours; False: first all sines, then all cosines, as in MAE.
      columns_first: [P_column; P_row], as in the code of MAE.
    """
    at: str = 'input'
    scale: float = 1.0
    interleaved: bool = True
    columns_first: bool = False
    free_length = True

    def __post_init__(self):
        require_place(self, PLACES)

    def _rows(self, parameters, positions, sizes, dtype):
        row, column, inside = of_grid(self, positions, sizes)
        width = self._width(sizes)
        places = (column, row) if self.columns_first else (row, column)
        halves = [sinusoid(place, half) for place, half in zip(places, (width // 2, width - width // 2))]
        if not self.interleaved:
            halves = [half[..., start::2] for half in halves for start in (0, 1)]
        rows = jnp.concatenate(halves, -1)
        return (self.scale * jnp.where(inside[..., None], rows, 0.0)).astype(dtype)


def of_grid(kind: Positions, positions: jax.Array | int, sizes: Sizes) -> tuple:
    """(row, column, whether it is a patch) of each position in a sequence of patches."""
    if sizes.grid is None:
        raise ValueError(f'positions={kind} is for the patches of an image, and this model has none; use one for text, such as '
                         'Rotary() or T5Bias().')
    patch = jnp.asarray(positions) - sizes.extra
    return patch // sizes.grid[1], patch % sizes.grid[1], patch >= 0
