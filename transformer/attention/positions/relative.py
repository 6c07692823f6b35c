"""Relative position encodings: terms of the scores that depend on the offset s - t of a key from a query along the row.

They are invariant to a shift of all positions, except for the absolute positions of Tupe and the global tokens of Etc; all but
Tupe are defined beyond the length of training. With o = s - t, and without a division of the whole score by sqrt(H):

    Shaw           q·(k + a_o), and w·(v + b_o) in place of w·v
    T5Bias         q·k / sqrt(H) + b_bucket(o)
    Alibi          q·k / sqrt(H) - m·|o|
    SwinBias       q·k / sqrt(H) + b_(rows apart, columns apart)
    TransformerXl  (q + u)·k + (q + v)·W·R_o
    Disentangled   (q·k + q·κ_o + k·ρ_-o) / sqrt(3)
    Tupe           (q·k + (P_t·U)·(P_s·V)) / sqrt(2)
    Etc            q·(k + a_label)
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.masks.patterns import require_at_least
from transformer.attention.positions.absolute import bicubic, of_grid, sinusoid
from transformer.attention.positions.base import Offsets, Positions, PositionTerm, Sizes
from transformer.layers import roles
from transformer.layers.initial import normal
from transformer.layers.numerics import Numerics, real_dtype
from transformer.layers.roles import Wanted
from transformer.layers.sharding import platform


def _scores(equation, a, b):
    """einsum in the type of the queries or keys a, accumulated in at least float32."""
    return Numerics(a.dtype.name).scores(equation, a, b)


def _each_head(key, query):
    """Keys [B, S, K, H] -> [B, S, N, H], one for each query head."""
    return jnp.repeat(key, query.shape[2] // key.shape[2], 2)


def _outer(t, s):
    """Values for queries, [T] or [B, T], and for keys, [S] or [B, S], reshaped to broadcast to [.., N, T, S]."""
    return tuple(x[:, None] if x.ndim == 3 else x for x in (t[..., :, None], s[..., None, :]))


class _Relative(Positions):
    """Base of the encodings that are a term of the scores, `scores(term, scores, query, key, t, s)`."""
    free_length = True
    in_scores = True

    def bias(self, parameters: Mapping, own: Mapping, query: jax.Array | None, key: jax.Array | None, sizes: Sizes) -> tuple:
        return (PositionTerm(self, sizes, {**parameters, **own}),)


def _projection(sizes):
    """A matrix [D, N, H] that projects a position vector for each head."""
    return Wanted(normal(max(sizes.width, 1) ** -0.5), (sizes.width, sizes.heads, sizes.head_width),
                  roles.matrix((0,), (1, 2), heads=1))


def _clipped(offsets, distance):
    """The row of each offset in a table for -distance .. distance; offsets beyond are clipped."""
    return jnp.clip(offsets, -distance, distance) + distance


@dataclasses.dataclass(frozen=True)
class Shaw(_Relative):
    """score = q_t·(k_s + a_c) / sqrt(H), output = sum over s of w_ts·(v_s + b_c), with c = clip(s - t, -distance, distance) and
    learnt a, b [2·distance + 1, H] of each layer, shared by its heads (Shaw et al. 2018, eq. 3 and 4).

    Attributes:
      distance: k; beyond it only the direction of a key matters.
    """
    distance: int = 16
    by_content = True

    def __post_init__(self):
        require_at_least(self, distance=1)

    def layer_parameters(self, sizes: Sizes) -> dict:
        # As in Tensor2Tensor, where the variance is 1 / H for uniform and normal alike.
        table = Wanted(normal(max(sizes.head_width, 1) ** -0.5), (2 * self.distance + 1, sizes.head_width), roles.table())
        return {'keys': table, 'values': table}

    def scores(self, term: PositionTerm, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array,
               s: jax.Array) -> jax.Array:
        pairs = Offsets(t, s, self.distance)
        rows = term.parameters['keys'][_clipped(pairs.offsets, self.distance)]  # [W, H]
        return scores + pairs.spread(_scores('BTNH,WH->BNTW', query, rows)) * query.shape[-1] ** -0.5

    def values(self, term: PositionTerm, weights: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        pairs = Offsets(t, s, self.distance)
        rows = term.parameters['values'][_clipped(pairs.offsets, self.distance)]
        return _scores('BNTW,WH->BNTH', pairs.collect(weights), rows)


@functools.cache
def t5_buckets(buckets: int, distance: int, bidirectional: bool) -> np.ndarray:
    """[2·distance + 1] the bucket of each offset s - t from -distance to distance, beyond which it is constant, as
    `_relative_position_bucket` in the code of T5: in each direction half of the buckets are for distances 0, 1, ..., the others
    for logarithmic ranges up to `distance`. With bidirectional=False, a key after the query has the bucket of offset 0."""
    offset = np.arange(-distance, distance + 1)
    first = np.zeros_like(offset)
    if bidirectional:
        buckets //= 2
        first, away = np.where(offset > 0, buckets, 0), np.abs(offset)
    else:
        away = np.maximum(-offset, 0)
    exact = buckets // 2
    # In float32, as in T5: the boundaries of buckets must not depend on the type of the products.
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact)) / np.float32(np.log(distance / exact))
    far = exact + (ratio * np.float32(buckets - exact)).astype(int)
    return first + np.where(away < exact, away, np.minimum(far, buckets - 1))


@dataclasses.dataclass(frozen=True)
class T5Bias(_Relative):
    """score = q·k / sqrt(H) + b_bucket(s - t), with learnt b [buckets, N] that all layers share (Raffel et al. 2020, section
    2.1). Under a mask that is not causal, half of the buckets are for keys after the query.

    T5 itself does not divide by sqrt(H): `Softmax(score=Dot())`.

    Attributes:
      buckets: number of buckets.
      distance: all offsets from here on share one bucket.
    """
    buckets: int = 32
    distance: int = 128
    additive = True

    def __post_init__(self):
        require_at_least(self, buckets=4)
        if self.distance <= self.buckets // 2:
            raise ValueError(f'{self}: half of the buckets are for single offsets, so the distance has to be more than '
                             f'{self.buckets // 2}.')

    def parameters(self, sizes: Sizes) -> dict:
        return {'bias': Wanted(normal(0.02), (self.buckets, sizes.heads), roles.vector(heads=1))}

    def scores(self, term: PositionTerm, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array,
               s: jax.Array) -> jax.Array:
        return scores + bucketed(term.parameters['bias'], Offsets(t, s, self.distance), self.buckets, self.distance,
                                 not term.sizes.causal)


def bucketed(table: jax.Array, pairs: Offsets, buckets: int, distance: int, bidirectional: bool) -> jax.Array:
    """[buckets, N] -> the bias of T5, [.., N, T, S]."""
    found = t5_buckets(buckets, distance, bidirectional)
    if platform() == 'tpu':  # a product with 0 and 1, which are never stored, moves less than `spread`
        which = jax.nn.one_hot(jnp.asarray(found)[_clipped(pairs.pairs(), distance)], buckets, dtype=table.dtype)
        return jnp.einsum('...TSW,WN->...NTS', which, table, precision='highest')
    rows = table[jnp.asarray(found)[_clipped(pairs.offsets, distance)]]  # [W, N]
    return pairs.spread(rows.T[None, :, None])


def alibi_slopes(heads: int) -> np.ndarray:
    """m [N]: 2^(-8/N), 2^(-16/N), ..., 2^-8 for a power of two; else those of the next lower power, then every other one of the
    next higher (Press et al. 2022, section 3, and their code)."""
    power = 1 << (heads.bit_length() - 1)
    slopes = 2.0 ** (-8 / power * np.arange(1, power + 1))
    more = 2.0 ** (-4 / power * np.arange(1, 2 * power + 1, 2))[:heads - power]
    return np.concatenate([slopes, more]).astype(real_dtype())


@dataclasses.dataclass(frozen=True)
class Alibi(_Relative):
    """score = q·k / sqrt(H) - m_n·|s - t|, with a slope m for each head and nothing learnt (Press et al. 2022, section 3)."""
    additive = True

    def scores(self, term: PositionTerm, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array,
               s: jax.Array) -> jax.Array:
        t, s = _outer(t, s)
        slopes = alibi_slopes(term.sizes.heads)
        slopes = slopes if term.sizes.kept is None else slopes[list(term.sizes.kept)]
        return scores - slopes[:, None, None] * jnp.abs(s - t).astype(real_dtype())


@dataclasses.dataclass(frozen=True)
class SwinBias(_Relative):
    """score = q·k / sqrt(H) + b_(i, j), with i and j the offset of the key from the query in rows and columns, and learnt b for
    each layer and head (Liu et al. 2021, eq. 4). For patches of an image; a class token has three entries of its own: as query,
    as key, and as both (Bao et al. 2022). For images of another size the table is resized (bicubic), as in the code of Swin."""
    additive = True

    def layer_parameters(self, sizes: Sizes) -> dict:
        of_grid(self, 0, sizes)
        rows, columns = sizes.grid
        own = {'extra': Wanted(normal(0.02), (3, sizes.heads), roles.vector(heads=1))} if sizes.extra else {}
        return {'bias': Wanted(normal(0.02), (2 * rows - 1, 2 * columns - 1, sizes.heads), roles.vector(heads=2)), **own}

    def resized(self, name: str, table: jax.Array, sizes: Sizes) -> jax.Array:
        shape = self.layer_parameters(sizes)[name].shape
        return table if table.shape == shape else bicubic(table, shape[:2])

    def scores(self, term: PositionTerm, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array,
               s: jax.Array) -> jax.Array:
        table, (rows, columns) = term.parameters['bias'], term.sizes.grid
        (i, j, inside), (k, l, also_inside) = (of_grid(self, x, term.sizes) for x in (t, s))
        apart = lambda a, b, size: jnp.clip(b[..., None, :] - a[..., :, None] + size - 1, 0, 2 * size - 2)
        bias = table[apart(i, k, rows), apart(j, l, columns)]  # [.., T, S, N]
        if term.sizes.extra:
            inside, also_inside = inside[..., :, None], also_inside[..., None, :]
            own = term.parameters['extra'][jnp.where(also_inside, 0, jnp.where(inside, 1, 2))]
            bias = jnp.where((inside & also_inside)[..., None], bias, own)
        return scores + jnp.moveaxis(bias, -1, -3)


@dataclasses.dataclass(frozen=True)
class TransformerXl(_Relative):
    """score = ((q_t + u)·k_s + (q_t + v)·(W·R_{t-s})) / sqrt(H), with R of `sinusoid` [D], learnt W [D, N, H] of each layer
    and learnt u, v [N, H] that all layers share (Dai et al. 2019, section 3.3)."""

    by_content = True

    def parameters(self, sizes: Sizes) -> dict:
        vector = Wanted(normal(0.02), (sizes.heads, sizes.head_width), roles.vector(heads=0))
        return {'content': vector, 'position': vector}

    def layer_parameters(self, sizes: Sizes) -> dict:
        return {'projection': _projection(sizes)}

    def scores(self, term: PositionTerm, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array,
               s: jax.Array) -> jax.Array:
        pairs, own = Offsets(t, s), term.parameters
        rows = sinusoid(-pairs.offsets, term.sizes.width)  # [W, D]
        rows = Numerics(query.dtype.name).einsum('WD,DNH->WNH', rows, own['projection'])
        where = pairs.spread(_scores('BTNH,WNH->BNTW', query + own['position'].astype(query.dtype), rows))
        what = _scores('BSNH,NH->BNS', _each_head(key, query), own['content'])[:, :, None]
        return scores + (what + where) * query.shape[-1] ** -0.5


@dataclasses.dataclass(frozen=True)
class Disentangled(_Relative):
    """score = (q_t·k_s + q_t·κ_δ(t,s) + k_s·ρ_δ(s,t)) / sqrt(3·H): content to content, content to position, and position to
    content, with δ(i, j) = clip(i - j + distance, 0, 2·distance - 1), κ = P·Wk and ρ = P·Wq, learnt P [2·distance, D] that all
    layers share, and learnt Wk, Wq [D, N, H] of each (He et al. 2021, eq. 3 and 4).

    Attributes:
      distance: k; the paper's 512 is for rows of 512.
    """
    distance: int = 64
    by_content = True

    def __post_init__(self):
        require_at_least(self, distance=1)

    def parameters(self, sizes: Sizes) -> dict:
        return {'embedding': Wanted(sizes.table, (2 * self.distance, sizes.width), roles.table())}

    def layer_parameters(self, sizes: Sizes) -> dict:
        return {'queries': _projection(sizes), 'keys': _projection(sizes)}

    def bias(self, parameters: Mapping, own: Mapping, query: jax.Array | None, key: jax.Array | None, sizes: Sizes) -> tuple:
        rows = lambda kernel: jnp.einsum('RD,DNH->RNH', parameters['embedding'], kernel, precision='highest')
        return (PositionTerm(self, sizes, {name: rows(kernel) for name, kernel in own.items()}),)

    def scores(self, term: PositionTerm, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array,
               s: jax.Array) -> jax.Array:
        def of(x, name, t, s):
            pairs = Offsets(t, s, self.distance)
            rows = term.parameters[name][jnp.clip(self.distance - pairs.offsets, 0, 2 * self.distance - 1)]
            return pairs.spread(_scores('BTNH,WNH->BNTW', x, rows))
        to_position = of(query, 'keys', t, s)
        from_position = jnp.swapaxes(of(_each_head(key, query), 'queries', s, t), 2, 3)
        return (scores + (to_position + from_position) * query.shape[-1] ** -0.5) * 3 ** -0.5


_BUCKETS, _DISTANCE = 32, 128  # of TUPE-R


@dataclasses.dataclass(frozen=True)
class Tupe(_Relative):
    """score = (q_t·k_s + (P_t·U)·(P_s·V)) / sqrt(2·H) + b_bucket(s - t): words and positions have separate
    projections, without cross terms (Ke et al. 2021, section 3.1), with learnt P [length, D], U, V [D, N, H] and b that all
    layers share.

    For pairs with a class token position does not matter: a learnt θ1 (the class token is the query) or θ2 (it is the key) of
    each head replaces the two positional terms (section 3.2).

    Attributes:
      relative: b as in `T5Bias`, of 32 buckets up to a distance of 128 (TUPE-R); False: none (TUPE-A).
      untied: θ, if the model has a class token; False: treat that as any other position.
    """
    relative: bool = True
    untied: bool = True
    free_length = False

    def parameters(self, sizes: Sizes) -> dict:
        each = lambda rows: Wanted(normal(0.02), (rows, sizes.heads), roles.vector(heads=1))
        found = {'embedding': Wanted(sizes.table, (sizes.length, sizes.width), roles.table()), 'queries': _projection(sizes),
                 'keys': _projection(sizes)}
        found |= {'bias': each(_BUCKETS)} if self.relative else {}
        return found | ({'theta': each(2)} if self.untied and sizes.extra else {})

    def learnt(self, parameters: Mapping) -> jax.Array | None:
        return parameters['embedding']

    def bias(self, parameters: Mapping, own: Mapping, query: jax.Array | None, key: jax.Array | None, sizes: Sizes) -> tuple:
        rows = lambda kernel: jnp.einsum('LD,DNH->LNH', parameters['embedding'], kernel, precision='highest')
        given = parameters | {name: rows(parameters[name]) for name in ('queries', 'keys')}
        del given['embedding']
        places = (None if x is None else jnp.asarray(x, real_dtype()) for x in (query, key))
        return (PositionTerm(self, sizes, given, *places),)

    def scores(self, term: PositionTerm, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array,
               s: jax.Array) -> jax.Array:
        place = lambda known, row: row if known is None else known[..., row].astype(jnp.int32)
        own, t_place, s_place = term.parameters, place(term.query, t), place(term.key, s)
        of_t, of_s = own['queries'].astype(query.dtype)[t_place], own['keys'][s_place]  # [T, N, H] or [B, T, N, H]
        at = _scores('...TNH,...SNH->...NTS', of_t, of_s) * (2 * query.shape[-1]) ** -0.5
        if self.relative:
            at = at + bucketed(own['bias'], Offsets(t, s, _DISTANCE), _BUCKETS, _DISTANCE, not term.sizes.causal)
        if 'theta' in own:
            looks, seen = _outer(t_place < term.sizes.extra, s_place < term.sizes.extra)
            one, two = own['theta'][:, :, None, None]
            at = jnp.where(looks, one, jnp.where(seen, two, at))
        return scores * 2 ** -0.5 + at


@dataclasses.dataclass(frozen=True)
class Etc(_Relative):
    """score = q_t·(k_s + a_l) / sqrt(H), with learnt a [4·distance + 4, H] of each layer and a label l for the pair: the offset
    s - t clipped to ±distance between tokens of the text, the same with separate labels between the first `tokens` of the row,
    which are global, and one label each from these to the text and from the text to them (Ainslie et al. 2020, section 3). Use
    it with a mask such as Window(85) | Global(64), whose positions also count along the row.

    Attributes:
      tokens: the number of global tokens.
      distance: k of the clipping.
    """
    tokens: int = 1
    distance: int = 12
    by_content = True

    def __post_init__(self):
        require_at_least(self, tokens=1, distance=1)

    def layer_parameters(self, sizes: Sizes) -> dict:
        return {'labels': Wanted(normal(max(sizes.head_width, 1) ** -0.5), (4 * self.distance + 4, sizes.head_width))}

    def scores(self, term: PositionTerm, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array,
               s: jax.Array) -> jax.Array:
        pairs, table, count = Offsets(t, s, self.distance), term.parameters['labels'], 2 * self.distance + 1
        rows = _clipped(pairs.offsets, self.distance)
        text, between = (pairs.spread(_scores('BTNH,WH->BNTW', query, table[rows + first])) for first in (0, count))
        ends = _scores('BTNH,RH->BNTR', query, table[2 * count:])  # from global to text, from text to global
        looks, seen = _outer(t < self.tokens, s < self.tokens)
        label = jnp.where(looks, jnp.where(seen, between, ends[..., :1]), jnp.where(seen, ends[..., 1:], text))
        return scores + label * query.shape[-1] ** -0.5
