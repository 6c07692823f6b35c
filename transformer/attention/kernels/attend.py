"""Attention itself, as a pure function of query, key and value, and the choice of the kernel that computes it.

The bias is a tuple of changes to the scores q·k / sqrt(H) before the softmax: each entry is an array that is added, or a
`Term`, which computes new scores.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.kernels import accelerated, rows
from transformer.attention.kernels.blockwise import blockwise, milliseconds, numbers_per_score
from transformer.attention.kernels.terms import Term, terms_of
from transformer.attention.masks.algebra import Mask
from transformer.attention.masks.patterns import Full
from transformer.attention.scores import products
from transformer.layers.dropout import dropout, require_rate
from transformer.layers.numerics import Numerics, wide
from transformer.layers.sharding import platform


def masked_softmax(scores: jax.Array, visible: jax.Array | None = None) -> jax.Array:
    """exp(s) / sum exp(s) over the visible keys of the last axis, in at least float32; all zeros where no key is visible."""
    scores = wide(scores)
    return _softmax(scores if visible is None else jnp.where(visible, scores, -jnp.inf))


@jax.custom_vjp  # w (dw - sum(dw w)): half the passes over [B, N, T, S] that automatic differentiation needs
def _softmax(scores):
    top = scores.max(-1, keepdims=True, initial=-jnp.inf)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total > 0.0, total, 1.0)


def _softmax_forward(scores):
    weights = _softmax(scores)
    return weights, weights


def _softmax_backward(weights, dy):
    return (weights * (dy - (dy * weights).sum(-1, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask = Full(), bias: tuple | jax.Array = (),
           positions: tuple | None = None, rate: float = 0.0, dropout_key: jax.Array | None = None,
           implementation: str = 'auto', numerics: Numerics = Numerics()) -> jax.Array:
    """Scaled dot-product attention, softmax(q·kᵀ / sqrt(H) + bias)·v (Vaswani et al. 2017, eq. 1).

    Args:
      query, key, value: [B, T, N, H], [B, S, K, H], [B, S, K, Hv]; N / K query heads share one head of keys and values
        (Shazeer 2019, Ainslie et al. 2023).
      mask: which query may attend to which key (`masks.algebra.Mask`).
      bias: changes to the scores (see above): an array that broadcasts to [B, N, T, S], a term, or a tuple of them.
      positions: (of queries [B, T], of keys [B, S] or [S]) if these are not 0..T-1 and 0..S-1, as in cached decoding.
      rate, dropout_key: dropout on the weights; without a key there is no dropout.
      implementation: 'plain', 'blockwise', 'cudnn' (GPU), 'rows' or 'splash' (TPU), or 'auto' for the choice of `choose`.
    Returns:
      [B, T, N, Hv]; zeros for a query that may attend to nothing.
    """
    bias = jax.tree.map(jnp.asarray, bias if isinstance(bias, tuple) else (bias,))
    if key.shape[2] != value.shape[2]:
        raise ValueError(f'There are {key.shape[2]} heads of keys and {value.shape[2]} of values; give them as many of each.')
    require_rate(rate)
    rate = rate if dropout_key is not None else 0.0
    picked = choose(query, key, value, mask=mask, bias=bias, positions=positions, rate=rate, implementation=implementation,
                    numerics=numerics)
    kernel = {'plain': plain, 'blockwise': blockwise, 'cudnn': accelerated.cudnn, 'rows': rows.rows,
              'splash': accelerated.splash}[picked.name]
    extra = {} if positions is None else dict(positions=positions)
    return kernel(query, key, value, mask=mask, bias=bias, rate=rate, dropout_key=dropout_key, numerics=numerics, **extra)


def weights_of(query: jax.Array, key: jax.Array, *, mask: Mask = Full(), bias: tuple | jax.Array = (),
               positions: tuple | None = None, numerics: Numerics = Numerics()) -> jax.Array:
    """The weights of `attend`, [B, N, T, S] in at least float32."""
    return masked_softmax(*scores_of(query, key, mask=mask, bias=bias, positions=positions, numerics=numerics))


def scores_of(query: jax.Array, key: jax.Array, *, mask: Mask = Full(), bias: tuple | jax.Array = (),
              positions: tuple | None = None, numerics: Numerics = Numerics()) -> tuple[jax.Array, jax.Array]:
    """(scores q·kᵀ / sqrt(H) + bias [B, N, T, S], booleans that broadcast to them, True where the softmax includes them)."""
    t, s = (jnp.arange(x.shape[1]) for x in (query, key)) if positions is None else positions
    scores = products(query * query.shape[-1] ** -0.5, key, numerics)
    for entry in bias if isinstance(bias, tuple) else (bias,):
        scores = entry(scores, query, key, t, s) if isinstance(entry, Term) else scores + entry
    visible = jnp.asarray(mask(t, s))
    return scores, visible[:, None] if visible.ndim == 3 else visible


def plain(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask, bias: tuple | jax.Array = (),
          positions: tuple | None = None, rate: float = 0.0, dropout_key: jax.Array | None = None,
          numerics: Numerics = Numerics()) -> jax.Array:
    """`attend` with all scores [B, N, T, S] in memory at once."""
    weights = weights_of(query, key, mask=mask, bias=bias, positions=positions, numerics=numerics)
    return mixed(dropout(numerics.cast(weights), rate, dropout_key), value, bias=bias, positions=positions, numerics=numerics)


def mixed(weights: jax.Array, value: jax.Array, *, bias: tuple | jax.Array = (), positions: tuple | None = None,
          numerics: Numerics = Numerics()) -> jax.Array:
    """Weights [B, N, T, S] times values [B, S, K, Hv], plus the additions of terms: [B, T, N, Hv]."""
    batch, heads, queries, keys = weights.shape
    grouped = weights.reshape(batch, value.shape[2], heads // value.shape[2], queries, keys)
    if queries > 1:  # as in `products`
        out = numerics.einsum('BKGTS,BKSH->BKGTH', grouped, value.swapaxes(1, 2)).transpose(0, 3, 1, 2, 4)
    else:
        out = numerics.einsum('BKGTS,BSKH->BTKGH', grouped, value)
    out = out.reshape(batch, queries, heads, value.shape[-1])
    for term in terms_of(bias):
        if term.values:
            t, s = (jnp.arange(queries), jnp.arange(keys)) if positions is None else positions
            out = out + jnp.swapaxes(numerics.cast(term.values(weights, t, s)), 1, 2)
    return out


@dataclasses.dataclass(frozen=True)
class Choice:
    """The kernel that `attend` uses, and why."""
    name: str
    why: str


def choose(query: Any, key: Any, value: Any, *, mask: Mask = Full(), bias: tuple | jax.Array = (),
           positions: tuple | None = None, rate: float = 0.0, implementation: str = 'auto',
           numerics: Numerics = Numerics()) -> Choice:
    """The kernel that `attend` uses for arrays of these shapes (jax.ShapeDtypeStruct suffices), and why.

    Raises ValueError for an implementation that does not support the arguments."""
    bias = bias if isinstance(bias, tuple) else (bias,)
    (batch, queries, heads, _), keys = query.shape, key.shape[1]
    mask.require_length(max(queries, keys))
    given = dict(mask=mask, bias=bias, positions=positions, rate=rate, numerics=numerics)
    lacks = {'plain': None, 'blockwise': None if positions is None else 'positions other than those of the row',
             'cudnn': accelerated.cudnn_lacks(query, key, value, **given),
             'rows': accelerated.rows_lacks(query, key, value, **given),
             'splash': accelerated.splash_lacks(query, key, value, **given)}
    fused = ('cudnn', 'gpu'), ('rows', 'tpu'), ('splash', 'tpu')
    if implementation != 'auto':
        if implementation not in lacks:
            raise ValueError(f"The kernel {implementation!r} is not one of {', '.join(lacks)} or 'auto'.")
        if lacks[implementation]:
            raise ValueError(f"The kernel {implementation!r} cannot do this: {lacks[implementation]}; use 'auto' or 'plain'.")
        return Choice(implementation, 'as asked')
    for name, backend in fused:
        if platform() == backend and not lacks[name]:
            return Choice(name, f'the fused kernel of a {backend.upper()}')
    where = ''.join(f'{name}: {lacks[name]}; ' for name, backend in fused if platform() == backend)
    if lacks['blockwise']:
        return Choice('plain', where + f'blockwise: {lacks["blockwise"]}')
    larger = numbers_per_score(bias)
    gigabytes = larger * batch * heads * queries * keys * 4e-9
    if platform() == 'cpu':
        by_blocks, dense = (scale * larger * batch * heads / 8 for scale in milliseconds(mask, queries, keys))
        reason = f'about {by_blocks:.3g} ms by blocks, {dense:.3g} ms with all scores at once ({gigabytes:.2g} GB)'
        return Choice('blockwise' if by_blocks < dense else 'plain', reason)
    name = 'blockwise' if gigabytes > 1 else 'plain'
    return Choice(name, where + f'all scores at once take {gigabytes:.2g} GB')
