"""Where a token stands: position encodings, each a part of a config (`model.positions`).

An encoding enters where its nature says, or where its field `at` does: in the input of the model, in that of every layer, in
the queries and keys but not the values, or in the scores. A model makes an `Encoding` of it and passes that on to its blocks.
Those that enter in the scores alone, by how far a key is from a query along the row, are in `relative`.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.layers import normal
from transformer.sharding import constrain

PLACES = ('input', 'layers', 'queries_keys')


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What an encoding is told of the model.

    Attributes:
      length: the longest row.
      width, heads, head_width: D, N and H.
      table: the initialiser of the model's embeddings.
      grid: (rows, columns) of the patches of an image, which follow each other row by row; None: it is no image.
      extra: tokens in front that stand for the whole (a class token), and have no place in the grid.
      causal: whether no query sees a key after it.
      kept: the numbers of the heads that pruning left; None: all.
    """
    length: int = 0
    width: int = 0
    heads: int = 0
    head_width: int = 0
    table: Callable = dataclasses.field(default=normal(0.02), compare=False)
    grid: tuple | None = None
    extra: int = 0
    causal: bool = False
    kept: tuple | None = None


class Positions:
    """Base of the encodings. Positions are [T], the same in all rows, or [B, T].

    `parameters` are those that all layers share, `layer_parameters` those of one attention layer, each as {name:
    (initialiser, shape)}. Of the other methods an encoding overrides those by which it enters.

    Attributes:
      free_length: means something beyond the longest row of training.
      values: None, or a method `values(term, weights, t, s)` that says what a `Term` adds to the output, [B, N, T, H].
    """
    free_length = False
    values = None

    def parameters(self, sizes):
        return {}

    def layer_parameters(self, sizes):
        return {}

    def resized(self, name, table, sizes):
        """A parameter that was made for another grid of patches -> the same for `sizes.grid`."""
        raise ValueError(f'positions={self} has {name} {table.shape}, which was made for images of another size and has no '
                         'meaning for these; keep the size, or use Learned(), Sinusoidal2d() or Swin().')

    def at_input(self, parameters, x, positions, sizes):
        """The embedded tokens [B, T, D] -> the input of the first block."""
        return x

    def at_layer(self, parameters, x, positions, sizes):
        """The stream [B, T, D] -> that which a block begins with."""
        return x

    def at_source(self, parameters, x, positions, sizes):
        """A source [B, T, D] of queries or of keys -> what is projected to them; that of values stays as it is."""
        return x

    def at_heads(self, parameters, own, x, positions):
        """Queries or keys [B, T, N, H] -> the same, as they are cached; `own` are the parameters of the layer."""
        return x

    def bias(self, parameters, own, query, key, sizes):
        """Entries for the scores, as in `kernels.attend`; query and key tell at which positions in their documents the
        queries and the keys of a row are; None: at those along the row, as in cached decoding. Where pruning left some of
        the heads, parameters and entries are of these."""
        return ()


@dataclasses.dataclass(frozen=True)
class NoPositions(Positions):
    """None: without a causal mask, attention is then equivariant to permutations."""

    free_length = True


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Encoding:
    """A position encoding at work: the encoding, the parameters that its layers share, and where queries and keys are.

    Attributes:
      query, key: positions in the document, [T] and [S], or [B, T] and [B, S].
    """
    kind: Positions = dataclasses.field(default=NoPositions(), metadata=dict(static=True))
    parameters: Mapping = dataclasses.field(default_factory=dict)
    query: Any = None
    key: Any = None
    sizes: Sizes = dataclasses.field(default=Sizes(), metadata=dict(static=True))

    def at_input(self, x):
        return self.kind.at_input(self.parameters, x, self.query, self.sizes)

    def at_layer(self, x):
        return self.kind.at_layer(self.parameters, x, self.query, self.sizes)

    def at_source(self, x, positions):
        return self.kind.at_source(self.parameters, x, positions, self.sizes)

    def at_heads(self, own, x, positions):
        return self.kind.at_heads(self.parameters, own, x, positions)

    def in_layer(self, heads, head_width, width, causal, kept=None):
        """The encoding, as an attention layer of these sizes sees it."""
        return dataclasses.replace(self, sizes=dataclasses.replace(
            self.sizes, heads=heads, head_width=head_width, width=width, causal=causal, kept=kept))

    @property
    def fit(self):
        """(name, parameter of another grid of patches) -> the same for this one; None where there is no grid."""
        return functools.partial(self.kind.resized, sizes=self.sizes) if self.sizes.grid else None

    def bias(self, own, cached=False):
        """Entries for the scores; with a cache, positions along the row are those in the document."""
        query, key = (None, None) if cached else (self.query, self.key)
        shared = self._of_kept(self.parameters, self.kind.parameters)
        return self.kind.bias(shared, self._of_kept(own, self.kind.layer_parameters), query, key, self.sizes)

    def _of_kept(self, parameters, wanted):
        """Of parameters with an axis of heads, the heads that are kept."""
        if self.sizes.kept is None:
            return parameters
        shapes = wanted(self.sizes), wanted(dataclasses.replace(self.sizes, heads=self.sizes.heads + 1))

        def chosen(name, x):
            one, other = (shape[name][1] for shape in shapes)
            axes = [axis for axis, (a, b) in enumerate(zip(one, other)) if a != b]
            return jnp.take(x, np.array(self.sizes.kept, int), axes[0]) if axes else x
        return {name: chosen(name, x) for name, x in parameters.items()}


def require_place(part, places):
    if part.at not in places:
        raise ValueError(f'{part}: at is {part.at!r}; expected one of {", ".join(places)}.')


def sinusoid(positions, width):
    """P [.., D] with P_2i = sin(t / 10000^(2i/D)) and P_2i+1 = cos(t / 10000^(2i/D)) (Vaswani et al. 2017, section 3.5), in
    float32. Of an odd width the last sine has no cosine.

    A step of k turns each pair by the angle k / 10000^(2i/D), wherever it begins: P_{t+k} = R_k·P_t."""
    angles = jnp.asarray(positions, jnp.float32)[..., None] * _frequencies(width, 10000.0)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1)
    return pairs.reshape(*pairs.shape[:-2], 2 * pairs.shape[-2])[..., :width]


def _frequencies(width, base):
    """base^(-2i/width) for i = 0 .. ceil(width / 2) - 1."""
    return (base ** (-np.arange(0, width, 2) / width)).astype(np.float32)


class _Added(Positions, abc.ABC):
    """Base of those that add rows [.., T, D] where their field `at` says."""

    @abc.abstractmethod
    def _rows(self, parameters, positions, sizes, dtype):
        """[.., T, D] at the positions [.., T]."""

    def _add(self, place, parameters, x, positions, sizes):
        return x + self._rows(parameters, positions, sizes, x.dtype) if place == self.at else x

    def at_input(self, parameters, x, positions, sizes):
        return self._add('input', parameters, x, positions, sizes)

    def at_layer(self, parameters, x, positions, sizes):
        return self._add('layers', parameters, x, positions, sizes)

    def at_source(self, parameters, x, positions, sizes):
        return self._add('queries_keys', parameters, x, positions, sizes)


@dataclasses.dataclass(frozen=True)
class Learned(_Added):
    """x_t + P_t, with a learnt row P_t [D] for each position (Gehring et al. 2017, section 3.1).

    An image of another size than those of training finds the rows of its patches between theirs, by bicubic interpolation; the
    class token keeps its own (Dosovitskiy et al. 2021, section 3.2). The grid of training is taken to have the shape of the
    image's, or else to be square.

    Attributes:
      at: 'input'; 'layers', of every block; or 'queries_keys', of what is projected to queries and keys but not to values.
      scale: standard deviation with which the rows begin; 0: as the model's token embedding.
      offset: rows in front that no position has, as in the tables of RoBERTa and BART.
    """
    at: str = 'input'
    scale: float = 0.0
    offset: int = 0

    def __post_init__(self):
        require_place(self, PLACES)
        if self.scale < 0 or self.offset < 0:
            raise ValueError(f'{self}: scale is {self.scale} and offset {self.offset}; expected 0 or more.')

    def parameters(self, sizes):
        table = normal(self.scale) if self.scale else sizes.table
        return {'embedding': (table, (sizes.length + self.offset, sizes.width))}

    def resized(self, name, table, sizes):
        front = self.offset + sizes.extra
        patches = table.shape[0] - front
        grid = _grid_of(patches, sizes.grid)
        if grid is None:
            raise ValueError(f'positions={self} has {patches} rows for patches, which make neither a square nor a grid of the '
                             f'shape of {sizes.grid}; use images of the size of training.')
        rows = bicubic(table[front:].reshape(*grid, -1), sizes.grid)
        return jnp.concatenate([table[:front], rows.reshape(-1, rows.shape[-1])])

    def _rows(self, parameters, positions, sizes, dtype):
        # The whole table on every device: a lookup in a split one comes out split by width, not by batch.
        return constrain(parameters['embedding'].astype(dtype), None, None)[positions + self.offset]


def bicubic(rows, grid):
    """[height, width, D] -> [*grid, D] by cubic convolution (Keys 1981, eq. 4) with a = -0.75 and no smoothing, the edges
    repeated: as PyTorch has it, in which tables are published."""
    for axis, size in enumerate(grid):
        rows = jnp.moveaxis(jnp.tensordot(_cubic(rows.shape[axis], size), rows, (1, axis), precision='highest'), 0, axis)
    return rows


def _cubic(given, wanted, a=-0.75):
    """The matrix [wanted, given] of `bicubic` along one axis."""
    place = (np.arange(wanted) + 0.5) * given / wanted - 0.5
    matrix = np.zeros((wanted, given), np.float32)
    for near in range(-1, 3):
        point = np.floor(place) + near
        d = np.abs(place - point)
        weight = np.where(d <= 1, ((a + 2) * d - (a + 3)) * d * d + 1, ((d - 5) * d + 8) * a * d - 4 * a)
        np.add.at(matrix, (np.arange(wanted), np.clip(point, 0, given - 1).astype(int)), weight)
    return matrix


def _grid_of(patches, like):
    """(rows, columns) of so many patches, in the proportion of another grid or square; None: neither."""
    for rows, columns in (like, (1, 1)):
        high = round((patches * rows / columns) ** 0.5)
        if high and patches % high == 0 and high * columns == patches // high * rows:
            return high, patches // high
    return None


@dataclasses.dataclass(frozen=True)
class Sinusoidal(_Added):
    """x_t + c·P_t, with P the sines and cosines of `sinusoid`; or scores that know them.

    Attributes:
      at: 'input', 'layers' or 'queries_keys', as `Learned`; 'scores', to which (c·P_t)·(c·P_s) / sqrt(D) is added; or
        'scores_times', which are multiplied by P_t·P_s / P_t·P_t. That depends on s - t alone: it is 1 for a key at the
        query's own place and falls off around it. (In these two the last sine of an odd width has its cosine.)
      scale: c. The paper's 1 is for token embeddings that are multiplied by sqrt(D).
    """
    at: str = 'input'
    scale: float = 1.0
    free_length = True

    def __post_init__(self):
        require_place(self, (*PLACES, 'scores', 'scores_times'))

    def _rows(self, parameters, positions, sizes, dtype):
        return (self.scale * sinusoid(positions, sizes.width)).astype(dtype)

    def bias(self, parameters, own, query, key, sizes):
        return (Term(self, sizes),) if self.at in ('scores', 'scores_times') else ()

    def scores(self, term, scores, query, key, t, s):
        pairs = Offsets(t, s)
        angles = pairs.offsets[:, None].astype(jnp.float32) * _frequencies(term.sizes.width, 10000.0)
        alike = pairs.spread(jnp.cos(angles).sum(-1)[None, None, None])  # [.., 1, T, S]
        if self.at == 'scores_times':
            return scores * (alike / angles.shape[-1])
        return scores + alike * (self.scale ** 2 / term.sizes.width ** 0.5)


@dataclasses.dataclass(frozen=True)
class Sinusoidal2d(_Added):
    """x_t + c·[P_row; P_column], half of the width for each, with P of `sinusoid`; zeros for a class token
    (Parmar et al. 2018; Carion et al. 2020, appendix).

    Attributes:
      at: 'input', 'layers' or 'queries_keys', as `Learned`.
      scale: c.
    """
    at: str = 'input'
    scale: float = 1.0
    free_length = True

    def __post_init__(self):
        require_place(self, PLACES)

    def _rows(self, parameters, positions, sizes, dtype):
        row, column, inside = of_grid(self, positions, sizes)
        half = sizes.width // 2
        rows = jnp.concatenate([sinusoid(row, half), sinusoid(column, sizes.width - half)], -1)
        return (self.scale * jnp.where(inside[..., None], rows, 0.0)).astype(dtype)


def of_grid(kind, positions, sizes):
    """(row, column, whether it is a patch) of positions in a row of patches."""
    if sizes.grid is None:
        raise ValueError(f'positions={kind} is for the patches of an image, and this model has none; use one for text, such as '
                         'Rotary() or T5().')
    patch = jnp.asarray(positions) - sizes.extra
    return patch // sizes.grid[1], patch % sizes.grid[1], patch >= 0


@dataclasses.dataclass(frozen=True)
class Rotary(Positions):
    """Queries and keys turned by angles that grow with their position (Su et al. 2021, eq. 34): the pair i of the features of
    a head at t by t·θ_i, with θ_i = base^(-2i/H). The score then depends on the positions through t - s alone.

    Attributes:
      base: the slowest pair takes 2π·base^(1 - 2/H) positions to come round.
      scaling: for rows `factor` times as long as those of training: 'none'; 'linear', positions divided by the factor (Chen
        et al. 2023); or 'ntk', base·factor^(H / (H - 2)), which keeps the fast pairs and divides the slowest (bloc97 2023,
        in Peng et al. 2023, section 3.1).
      factor: of the scaling.
      interleaved: pairs are features (2i, 2i + 1), as in the paper and GPT-J; False: (i, i + H/2), as in GPT-NeoX and Llama.
    """
    base: float = 10000.0
    scaling: str = 'none'
    factor: float = 1.0
    interleaved: bool = False
    free_length = True

    def __post_init__(self):
        if self.scaling not in ('none', 'linear', 'ntk'):
            raise ValueError(f'{self}: scaling is {self.scaling!r}; expected none, linear or ntk.')
        if not 1 <= self.factor <= 1e9 or not 1 < self.base <= 1e30:
            raise ValueError(f'{self}: expected a factor from 1 to 1e9, and a base above 1 and up to 1e30.')
        if self.scaling == 'none' and self.factor != 1:
            raise ValueError(f"{self}: a factor does nothing without scaling; give scaling='linear' or 'ntk'.")

    def frequencies(self, width):
        """θ [H/2] in radians per position."""
        if self.scaling == 'ntk' and width > 2:
            return _frequencies(width, self.base * self.factor ** (width / (width - 2)))
        return _frequencies(width, self.base) / (self.factor if self.scaling == 'linear' else 1.0)

    def at_heads(self, parameters, own, x, positions):
        width = x.shape[-1]
        if width % 2:
            raise ValueError(f'positions={self} turns pairs of features, but a head is {width} wide; choose an even width of '
                             'the heads.')
        angles = positions[..., None, None].astype(jnp.float32) * self.frequencies(width)  # [.., T, 1, H/2]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        wide = x.astype(jnp.float32)
        a, b = (wide[..., ::2], wide[..., 1::2]) if self.interleaved else jnp.split(wide, 2, -1)
        turned = a * cos - b * sin, a * sin + b * cos
        if self.interleaved:
            return jnp.stack(turned, -1).reshape(x.shape).astype(x.dtype)
        return jnp.concatenate(turned, -1).astype(x.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Term:
    """What an encoding does to the scores of one layer, as an entry of the bias of `kernels.attend`: `kind.scores`.

    Attributes:
      parameters: arrays of floats.
      query, key: positions in the documents, as floats (a kernel differentiates all that a term holds); None as in
        `Positions.bias`.
    """
    kind: Positions = dataclasses.field(metadata=dict(static=True))
    sizes: Sizes = dataclasses.field(metadata=dict(static=True))
    parameters: Mapping = dataclasses.field(default_factory=dict)
    query: Any = None
    key: Any = None

    def __call__(self, scores, query, key, t, s):
        return self.kind.scores(self, scores, query, key, t, s)

    @property
    def values(self):
        return self.kind.values and functools.partial(self.kind.values, self)


class Offsets:
    """All pairs of queries at t and keys at s, by the offset s - t.

    Positions [T], [S] are consecutive, as kernels have them: an array over offsets then becomes one over pairs by a change of
    its shape. Others, [B, T] or [B, S] as in cached decoding, are all those of one row, 0 .. max(T, S) - 1, and take a gather.

    Attributes:
      offsets: [W], the offsets that occur.
    """

    def __init__(self, t, s, farthest=None):
        """farthest: offsets beyond it may count as it."""
        self.queries, self.keys, self.index = t.shape[-1], s.shape[-1], None
        several, width = t.ndim + s.ndim > 2, self.queries + self.keys - 1
        # A gather from few offsets halves the time of Shaw's scores on a CPU; its gradient adds to one place again and again.
        few = farthest is not None and 2 * farthest + 1 < width and jax.default_backend() == 'cpu'
        if not (several or few):
            self.offsets = s[0] - t[-1] + jnp.arange(width)
            return
        longest = max(self.queries, self.keys) - 1 if several else farthest
        longest = longest if farthest is None else min(longest, farthest)
        self.offsets = jnp.arange(-longest, longest + 1)
        index = jnp.clip(s[..., None, :] - t[..., :, None], -longest, longest) + longest
        self.index = index if several else index[None]  # [B or 1, T, S]

    def spread(self, x):
        """x [.., N, T, W], for each query and offset -> [.., N, T, S], for each query and key; T may be 1 if all are alike."""
        if self.index is not None:
            shape = np.broadcast_shapes(x.shape[:-1], (self.index.shape[0], 1, self.queries))
            return jnp.take_along_axis(jnp.broadcast_to(x, (*shape, x.shape[-1])), self.index[:, None], -1)
        front, (queries, offsets) = x.shape[:-2], (self.queries, x.shape[-1])
        x = jnp.broadcast_to(x, (*front, queries, offsets))
        if queries == 1:
            return x
        flat, size = x.reshape(*front, queries * offsets), queries * (offsets - 1)
        flat = flat[..., queries - 1:queries - 1 + size]  # key j of query i is at i (W - 1) + j
        return flat.reshape(*front, queries, offsets - 1)[..., :self.keys]

    def collect(self, weights):
        """weights [B, N, T, S] -> their sums by offset, [B, N, T, W]: the transpose of `spread`."""
        shape = (*weights.shape[:-1], self.offsets.shape[0])
        return jax.linear_transpose(self.spread, jax.ShapeDtypeStruct(shape, weights.dtype))(weights)[0]
