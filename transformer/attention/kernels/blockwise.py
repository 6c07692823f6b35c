"""Attention block by block with a running softmax: memory linear in the length, and blocks that the mask hides are skipped.

For each visible pair (i, j) of a block of queries and a block of keys, with m, l and a the running maximum, sum and weighted
values of the queries in i (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1):

    s = scores(q_i, k_j);  m' = max(m, max s);  p = exp(s - m');  l = l·exp(m - m') + sum p;  a = a·exp(m - m') + p·v_j

and the output is a / l. The backward pass recomputes p from the logarithms of the sums. The pattern of the mask determines the
pairs at trace time, so that empty blocks cost nothing and full ones are not masked.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.kernels.residuals import residual
from transformer.attention.kernels.terms import Term, terms_of
from transformer.attention.masks import algebra as mask_algebra
from transformer.attention.masks.algebra import Mask
from transformer.layers.dropout import dropout, fold
from transformer.layers.numerics import Numerics

SIZES = (64, 128, 256, 512)  # of blocks
# Milliseconds for a pair of blocks and for a million dense scores, forward and backward, 8 heads of width 64, on two cores.
_PAIR, _DENSE = {64: 0.55, 128: 1.6, 256: 5.2, 512: 13.5}, 115.0
_LOWEST = float(np.finfo(np.float32).min)  # the initial running maximum: -inf would give -inf - -inf


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The static arguments, known at trace time."""
    queries: int
    keys: int
    size: int
    rate: float
    numerics: Numerics

    def pairs(self, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
        """(full blocks [pairs, 2], partial blocks [pairs, 2], which need the mask)."""
        state = mask_algebra.blocks(mask, self.queries, self.keys, (self.size, self.size)).copy()
        if self.keys % self.size:  # padding after the last key
            state[:, -1] = np.minimum(state[:, -1], mask_algebra.PARTIAL)
        return tuple(np.argwhere(state == kind).astype(np.int32) for kind in (mask_algebra.FULL, mask_algebra.PARTIAL))


def _costs(mask, queries, keys):
    """{size: milliseconds}, estimated from the number of pairs that are not empty."""
    longest = max(SIZES[0], 1 << (max(queries, keys, 1) - 1).bit_length())
    return {size: _PAIR[size] * np.count_nonzero(mask_algebra.blocks(mask, queries, keys, (size, size)))
            for size in SIZES if size <= longest}


def milliseconds(mask: Mask, queries: int, keys: int) -> tuple[float, float]:
    """The approximate time of 8 heads on two cores: (block by block, all scores at once)."""
    return min(_costs(mask, queries, keys).values()), _DENSE * queries * keys / 1e6


def size_for(mask: Mask, queries: int, keys: int, bias: tuple = ()) -> int:
    """The block size that takes the least time; the smallest one if a term of the bias needs more than one number per score."""
    costs = _costs(mask, queries, keys)
    return SIZES[0] if numbers_per_score(bias) > 1 else min(costs, key=costs.get)


def numbers_per_score(bias: tuple) -> int:
    """How many numbers are stored for each score: 1 unless a term of the bias needs more."""
    return max([term.numbers_per_score for term in terms_of(bias)], default=1)


def blockwise(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask, bias: tuple = (), rate: float = 0.0,
              dropout_key: jax.Array | None = None, numerics: Numerics = Numerics(), size: int | None = None) -> jax.Array:
    """The same as `kernels.plain`, in memory linear in T and S; dropout drops different weights.

    Args:
      size: the number of queries, and of keys, in a block; None: that of `size_for`.
    """
    queries, keys = query.shape[1], key.shape[1]
    size = size or size_for(mask, queries, keys, bias)
    plan = _Plan(queries, keys, size, 0.0 if dropout_key is None else rate, numerics)
    by_head = [_pad(jnp.swapaxes(numerics.cast(x), 1, 2), size, 2) for x in (query, key, value)]  # [B, N|K, T|S, H]
    bias = tuple(entry if isinstance(entry, Term) else _pad_bias(entry, size) for entry in bias)
    out = _attend(plan, *by_head, bias, mask.pad(-queries % size, -keys % size), dropout_key)
    return numerics.cast(jnp.swapaxes(out[:, :, :queries], 1, 2))


def _pad(x, size, axis):
    """Pads an axis with zeros at its end, up to a multiple of `size`."""
    missing = -x.shape[axis] % size
    return jnp.pad(x, [(0, missing if a == axis else 0) for a in range(x.ndim)]) if missing else x


def _pad_bias(x, size):
    """Pads the last two axes of an array that broadcasts to [B, N, T, S]; axes of length 1 stay so."""
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    for axis in (2, 3):
        x = x if x.shape[axis] == 1 else _pad(x, size, axis)
    return x


def _block(x, at, size, axis=2):
    return x if x.shape[axis] == 1 else jax.lax.dynamic_slice_in_dim(x, at * size, size, axis)


def _put(x, part, at, size, axis=2):
    return part if x.shape[axis] == 1 else jax.lax.dynamic_update_slice_in_dim(x, part, at * size, axis)


def _add(x, part, i, size):
    return _put(x, _block(x, i, size) + part, i, size)


def _bias_block(bias, i, j, size):
    """The entries of `bias` for a pair of blocks: arrays are sliced; terms stay, as they receive positions."""
    return tuple(entry if isinstance(entry, Term) else _block(_block(entry, i, size), j, size, 3) for entry in bias)


def _bias_add(total, parts, i, j, size):
    """Adds the gradients of the entries for a pair of blocks."""
    def add(entry, part):
        if isinstance(entry, Term):
            return jax.tree.map(jnp.add, entry, part)
        rows = _block(entry, i, size)
        return _put(entry, _put(rows, _block(rows, j, size, 3) + part, j, size, 3), i, size)
    return tuple(map(add, total, parts))


def _loop(plan, mask, step, carry):
    """Carries `step(carry, i, j, masked)` through the pairs that are not empty, the full ones first."""
    for pairs, masked in zip(plan.pairs(mask), (False, True)):
        if len(pairs):
            carry, _ = jax.lax.scan(lambda c, pair: (step(c, pair[0], pair[1], masked), None), carry, pairs)  # noqa: B023
    return carry


def _positions(plan, i, j):
    row = jnp.arange(plan.size)
    return i * plan.size + row, j * plan.size + row


def _rows(x, heads):
    """[B, N, T, H] -> [B, K, N/K·T, H]: stacks the query heads that share one of the K = `heads` heads of
    keys. Batch and heads stay separate axes, as they may be split over devices."""
    batch, all_heads, length, width = x.shape
    return x.reshape(batch, heads, all_heads // heads * length, width)


def _columns(x, heads):
    """[B, N, S, T] -> [B, K, S, N/K·T]: the same for transposed scores, side by side."""
    batch, all_heads, keys, queries = x.shape
    grouped = x.reshape(batch, heads, all_heads // heads, keys, queries)
    return jnp.swapaxes(grouped, 2, 3).reshape(batch, heads, keys, all_heads // heads * queries)


def _from_columns(x, shape, heads):
    """The inverse of `_columns`, to a shape [B, N, S, T]."""
    batch, all_heads, keys, queries = shape
    grouped = x.reshape(batch, heads, keys, all_heads // heads, queries)
    return jnp.swapaxes(grouped, 2, 3).reshape(shape)


def _flip(x):
    return jnp.swapaxes(x, 2, 3)


def _biased(plan, i, j, scores, query, key, bias):
    """The scores [B, N, size, size] with the entries of `bias` applied."""
    for entry in bias:
        if isinstance(entry, Term):
            scores = entry(scores, jnp.swapaxes(query, 1, 2), jnp.swapaxes(key, 1, 2), *_positions(plan, i, j))
        else:
            scores = scores + entry
    return scores


def _hide(plan, mask, i, j, scores):
    """The scores, -inf where the mask hides a key or the key is padding."""
    query, key = _positions(plan, i, j)
    visible = mask.cut((i * plan.size, plan.size), (j * plan.size, plan.size))(query, key)
    visible = visible & (key < plan.keys)
    return jnp.where(visible[:, None] if visible.ndim == 3 else visible, scores, -jnp.inf)


def _values(plan, i, j, weights, bias):
    """The additions of terms to the output: [B, N, size, H], or 0."""
    return sum(term.values(weights, *_positions(plan, i, j)) for term in terms_of(bias) if term.values)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, query, key, value, bias, mask, dropout_key):
    return _forward(plan, query, key, value, bias, mask, dropout_key)[0]


def _forward(plan, query, key, value, bias, mask, dropout_key):
    size, heads, scale, product = plan.size, key.shape[1], query.shape[3] ** -0.5, plan.numerics.scores
    square = (*query.shape[:2], size, size)

    def step(carry, i, j, masked):
        mixed, top, total = carry
        bias_ij, query_i, key_j, value_j = (
            _bias_block(bias, i, j, size), _block(query, i, size), _block(key, j, size), _block(value, j, size))
        scores = product('BKTH,BKSH->BKTS', _rows(query_i * scale, heads), _rows(key_j, heads)).reshape(square)
        scores = _biased(plan, i, j, scores, query_i, key_j, bias_ij)
        if masked:
            scores = _hide(plan, mask, i, j, scores)
        old = _block(top, i, size)
        new = jnp.maximum(old, scores.max(-1, keepdims=True))
        weights, keep = jnp.exp(scores - new), jnp.exp(old - new)
        dropped = plan.numerics.cast(dropout(weights, plan.rate, fold(dropout_key, i, j)))
        more = product('BKTS,BKSH->BKTH', _rows(dropped, heads), _rows(value_j, heads)).reshape(*square[:3], value.shape[3])
        more = more + _values(plan, i, j, dropped, bias_ij)
        return (_put(mixed, _block(mixed, i, size) * keep + more, i, size), _put(top, new, i, size),
                _put(total, _block(total, i, size) * keep + weights.sum(-1, keepdims=True), i, size))

    rows = query.shape[:3]
    start = jnp.zeros((*rows, value.shape[-1])), jnp.full((*rows, 1), _LOWEST), jnp.zeros((*rows, 1))
    mixed, top, total = _loop(plan, mask, step, start)
    total = jnp.where(total > 0, total, 1.0)  # the output of a query that sees nothing is zero
    out, log_total = residual(mixed / total), residual(top + jnp.log(total))
    return out, (query, key, value, bias, mask, dropout_key, out, log_total)


def _backward(plan, residuals, dout):
    query, key, value, bias, mask, dropout_key, out, log_total = residuals
    size, heads, scale, product = plan.size, key.shape[1], query.shape[3] ** -0.5, plan.numerics.scores
    square = (*query.shape[:2], size, size)
    slope = (dout * out).sum(-1, keepdims=True)  # for each query, the sum of weights times their gradients

    def step(carry, i, j, masked):
        # Weights and scores are [.., S, T] here: two of the three products with them then need no transposition.
        dquery, dkey, dvalue, dbias = carry
        bias_ij, query_i, key_j, value_j, dout_i = (
            _bias_block(bias, i, j, size), _block(query, i, size), _block(key, j, size), _block(value, j, size),
            _block(dout, i, size))
        queries, keys, values, douts = (_rows(x, heads) for x in (query_i * scale, key_j, value_j, dout_i))
        scores = _from_columns(product('BKSH,BKTH->BKST', keys, queries), square, heads)
        if bias:
            biased = lambda scores, *given: _flip(_biased(plan, i, j, _flip(scores), *given))
            scores, pull_scores = jax.vjp(biased, scores, query_i, key_j, bias_ij)
        if masked:
            scores = _flip(_hide(plan, mask, i, j, _flip(scores)))
        weights = jnp.exp(scores - _flip(_block(log_total, i, size)))
        drop = lambda x: _flip(dropout(_flip(x), plan.rate, fold(dropout_key, i, j)))  # linear, so that it is its own gradient
        dweights = drop(_from_columns(product('BKSH,BKTH->BKST', values, douts), square, heads))
        dropped = plan.numerics.cast(drop(weights))
        more_query, more_key = 0.0, 0.0
        if bias:
            pull_values = jax.vjp(lambda w, b: _values(plan, i, j, _flip(w), b) + jnp.zeros_like(dout_i), dropped, bias_ij)[1]
            more, from_values = pull_values(dout_i)
            dweights = dweights + drop(more)
        dscores = weights * (dweights - _flip(_block(slope, i, size)))
        if bias:
            dscores, more_query, more_key, from_scores = pull_scores(dscores)
            dbias = _bias_add(dbias, jax.tree.map(jnp.add, from_scores, from_values), i, j, size)
        columns = _columns(dscores, heads)
        dquery_i = scale * product('BKST,BKSH->BKTH', columns, keys).reshape(query_i.shape) + more_query
        dkey_j = product('BKST,BKTH->BKSH', columns, queries).reshape(key_j.shape) + more_key
        dvalue_j = product('BKST,BKTH->BKSH', _columns(dropped, heads), douts).reshape(value_j.shape)
        return _add(dquery, dquery_i, i, size), _add(dkey, dkey_j, j, size), _add(dvalue, dvalue_j, j, size), dbias

    wide = lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32))
    start = wide(query), wide(key), wide(value), jax.tree.map(jnp.zeros_like, bias)
    dquery, dkey, dvalue, dbias = _loop(plan, mask, step, start)
    return *(d.astype(x.dtype) for d, x in zip((dquery, dkey, dvalue), (query, key, value))), dbias, None, None


_attend.defvjp(_forward, _backward)
