"""The interface of position encodings: the sizes of the model that they use, and the places where they enter."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.kernels.terms import Term
from transformer.layers.initial import normal
from transformer.layers.sharding import platform


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of the model that an encoding uses.

    Attributes:
      length: the longest row.
      width, heads, head_width: D, N and H.
      input_width: the width of the embedded tokens; 0: D.
      table: the initialiser of the model's embeddings.
      grid: (rows, columns) of the patches of an image, ordered row by row; None: the input is no image.
      trained: the grid of a parameter that is resized, where it is known.
      extra: tokens in front without a place in the grid, such as a class token.
      registers: how many of these, the last ones, get no row of an encoding that adds rows (Darcet et al. 2024).
      causal: whether no query sees a key after it.
      kept: the indices of the heads that remain after pruning; None: all.
    """
    length: int = 0
    width: int = 0
    heads: int = 0
    head_width: int = 0
    input_width: int = 0
    table: Callable = dataclasses.field(default=normal(0.02), compare=False)
    grid: tuple | None = None
    trained: tuple | None = None
    extra: int = 0
    registers: int = 0
    causal: bool = False
    kept: tuple | None = None


class Positions:
    """Base of the encodings. Positions are [T], the same in all rows, or [B, T].

    `parameters` are those that all layers share, `layer_parameters` those of one attention layer, each as {name: `Wanted`}. An
    encoding overrides those of the other methods through which it enters.

    Attributes:
      free_length: whether it is defined beyond the longest row of training.
      by_content: whether queries or keys are multiplied with parameters, which are as wide as a head.
      in_scores: whether it changes the scores, through `bias`.
      additive: whether it adds to them what depends on the positions alone.
      values: None, or a method `values(term, weights, t, s)` that returns the addition of a `PositionTerm` to the output,
        [B, N, T, H].
    """
    free_length = False
    by_content = False
    in_scores = False
    additive = False
    values = None

    def parameters(self, sizes: Sizes) -> dict:
        return {}

    def layer_parameters(self, sizes: Sizes) -> dict:
        return {}

    def learnt(self, parameters: Mapping) -> jax.Array | None:
        """The vectors of positions 0, 1, .. [T, D] among its parameters; None if it has none."""
        return None

    def resized(self, name: str, table: jax.Array, sizes: Sizes) -> jax.Array:
        """A parameter for another grid of patches -> the same resized to `sizes.grid`; one whose shape is the same stays."""
        if table.shape == (self.parameters(sizes) | self.layer_parameters(sizes))[name].shape:
            return table
        raise ValueError(f'positions={self} has {name} {table.shape}, which was made for images of another size and '
                         'cannot be resized; keep the size, or use Learned(), Sinusoidal2d() or SwinBias().')

    def at_input(self, parameters: Mapping, x: jax.Array, positions: jax.Array | None, sizes: Sizes) -> jax.Array:
        """The embedded tokens [B, T, D] -> the input of the first block."""
        return x

    def at_layer(self, parameters: Mapping, x: jax.Array, positions: jax.Array | None, sizes: Sizes) -> jax.Array:
        """The residual stream [B, T, D] -> the input of a block."""
        return x

    def at_source(self, parameters: Mapping, x: jax.Array, positions: jax.Array | None, sizes: Sizes) -> jax.Array:
        """The source [B, T, D] of queries or keys before their projection; the source of values is unchanged."""
        return x

    def at_heads(self, parameters: Mapping, own: Mapping, x: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Queries or keys [B, T, N, H] -> with positions, as a cache stores them; `own` are the parameters of the layer."""
        return x

    def bias(self, parameters: Mapping, own: Mapping, query: jax.Array | None, key: jax.Array | None, sizes: Sizes) -> tuple:
        """Entries of the bias of `kernels.attend`; query and key are the positions of queries and keys in their documents, None
        for positions along the row, as in cached decoding. After pruning, parameters and entries are those of the remaining
        heads."""
        return ()


@dataclasses.dataclass(frozen=True)
class NoPositions(Positions):
    """No position encoding: without a causal mask, attention is then equivariant to permutations."""

    free_length = True


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Encoding:
    """A position encoding with the parameters that all layers share and the positions of queries and keys.

    Attributes:
      query, key: positions in the document, [T] and [S], or [B, T] and [B, S].
    """
    kind: Positions = dataclasses.field(default=NoPositions(), metadata=dict(static=True))
    parameters: Mapping = dataclasses.field(default_factory=dict)
    query: Any = None
    key: Any = None
    sizes: Sizes = dataclasses.field(default=Sizes(), metadata=dict(static=True))

    def at_input(self, x: jax.Array) -> jax.Array:
        return self.kind.at_input(self.parameters, x, self.query, self.sizes)

    def at_layer(self, x: jax.Array) -> jax.Array:
        return self.kind.at_layer(self.parameters, x, self.query, self.sizes)

    def at_source(self, x: jax.Array, positions: jax.Array | None) -> jax.Array:
        return self.kind.at_source(self.parameters, x, positions, self.sizes)

    def at_heads(self, own: Mapping, x: jax.Array, positions: jax.Array | None) -> jax.Array:
        return self.kind.at_heads(self.parameters, own, x, positions)

    def in_layer(self, heads: int, head_width: int, width: int, causal: bool) -> 'Encoding':
        """The encoding for an attention layer of these sizes; `heads` stays the number before pruning."""
        heads = heads if self.sizes.kept is None else self.sizes.heads
        return dataclasses.replace(self, sizes=dataclasses.replace(
            self.sizes, heads=heads, head_width=head_width, width=width, causal=causal))

    def of_heads(self, kept: tuple | None) -> 'Encoding':
        """The encoding of a layer that has only the heads `kept`; None: all."""
        return self if kept is None else dataclasses.replace(self, sizes=dataclasses.replace(self.sizes, kept=kept))

    @property
    def fit(self) -> Callable | None:
        """A function (name, parameter for another grid of patches) -> the same for this grid; None without a grid."""
        return functools.partial(self.kind.resized, sizes=self.sizes) if self.sizes.grid else None

    def bias(self, own: Mapping, cached: bool = False) -> tuple:
        """Entries of the bias; with a cache, positions along the row are those in the document."""
        query, key = (None, None) if cached else (self.query, self.key)
        shared = self._of_kept(self.parameters, self.kind.parameters)
        return self.kind.bias(shared, self._of_kept(own, self.kind.layer_parameters), query, key, self.sizes)

    def _of_kept(self, parameters, wanted):
        """Selects the heads that are kept from parameters with an axis of heads."""
        if self.sizes.kept is None:
            return parameters
        axes = {name: one.role.heads for name, one in wanted(self.sizes).items()}
        kept = np.array(self.sizes.kept, int)
        return {name: x if axes[name] is None else jnp.take(x, kept, axes[name]) for name, x in parameters.items()}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PositionTerm(Term):
    """The change of an encoding to the scores of one layer, `kind.scores`, as an entry of the bias of `kernels.attend`.

    Attributes:
      parameters: arrays of floats.
      query, key: positions in the documents, as floats (a kernel differentiates with respect to all leaves of a term); None as
        in `Positions.bias`.
    """
    kind: Positions = dataclasses.field(metadata=dict(static=True))
    sizes: Sizes = dataclasses.field(metadata=dict(static=True))
    parameters: Mapping = dataclasses.field(default_factory=dict)
    query: Any = None
    key: Any = None

    def __call__(self, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return self.kind.scores(self, scores, query, key, t, s)

    def __str__(self) -> str:
        return f'positions={self.kind}'

    @property
    def additive(self) -> bool:
        return self.kind.additive

    @property
    def by_content(self) -> bool:
        return self.kind.by_content

    @property
    def values(self) -> Callable | None:
        return self.kind.values and functools.partial(self.kind.values, self)


class Offsets:
    """All pairs of queries at t and keys at s, by the offset s - t.

    Positions [T], [S] are consecutive, as in kernels: reshaping then turns an array over offsets into one over pairs. Positions
    [B, T] or [B, S], as in cached decoding, lie in 0 .. max(T, S) - 1 and need a gather.

    Attributes:
      offsets: [W], the offsets that occur.
    """

    def __init__(self, t: jax.Array, s: jax.Array, farthest: int | None = None) -> None:
        """farthest: offsets beyond it may be clipped to it."""
        self.queries, self.keys, self.index = t.shape[-1], s.shape[-1], None
        self.places = t, s
        several, width = t.ndim + s.ndim > 2, self.queries + self.keys - 1
        # A gather from few offsets halves the time of Shaw's scores on a CPU; its gradient is a scatter-add to few places.
        few = farthest is not None and 2 * farthest + 1 < width and platform() == 'cpu'
        if not (several or few):
            self.offsets = s[0] - t[-1] + jnp.arange(width)
            return
        longest = max(self.queries, self.keys) - 1 if several else farthest
        longest = longest if farthest is None else min(longest, farthest)
        self.offsets = jnp.arange(-longest, longest + 1)
        index = jnp.clip(s[..., None, :] - t[..., :, None], -longest, longest) + longest
        self.index = index if several else index[None]  # [B or 1, T, S]

    def pairs(self) -> jax.Array:
        """[.., T, S], the offset of each pair."""
        t, s = self.places
        return s[..., None, :] - t[..., :, None]

    def spread(self, x: jax.Array) -> jax.Array:
        """x [.., N, T, W], for each query and offset -> [.., N, T, S], for each query and key; T may be 1 for equal rows."""
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

    def collect(self, weights: jax.Array) -> jax.Array:
        """weights [B, N, T, S] -> their sums by offset, [B, N, T, W]: the transpose of `spread`."""
        shape = (*weights.shape[:-1], self.offsets.shape[0])
        return jax.linear_transpose(self.spread, jax.ShapeDtypeStruct(shape, weights.dtype))(weights)[0]
