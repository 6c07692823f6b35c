"""Attention itself, as pure functions of query, key and value."""

import jax
import jax.numpy as jnp

from transformer.layers import dropout
from transformer.numerics import Numerics


def masked_softmax(scores, visible=None):
    """exp(s) / sum exp(s) over the last axis among the visible keys, in float32; all zeros where nothing is visible."""
    scores = scores.astype(jnp.float32)
    return _softmax(scores if visible is None else jnp.where(visible, scores, -jnp.inf))


@jax.custom_vjp  # w (dw - sum(dw w)): half the passes over [B, N, T, S] of differentiating each operation
def _softmax(scores):
    top = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total > 0.0, total, 1.0)


def _softmax_forward(scores):
    weights = _softmax(scores)
    return weights, weights


def _softmax_backward(weights, dy):
    return (weights * (dy - (dy * weights).sum(-1, keepdims=True)),)


_softmax.defvjp(_softmax_forward, _softmax_backward)


def attend(query, key, value, *, visible=None, rate=0.0, dropout_key=None, numerics=Numerics()):
    """Scaled dot-product attention, softmax(q·kᵀ / sqrt(H))·v (Vaswani et al. 2017, eq. 1).

    Args:
      query, key, value: [B, T, N, H], [B, S, N, H], [B, S, N, H].
      visible: booleans that broadcast to [B, T, S], True = may attend; None: everything.
      rate, dropout_key: dropout on the weights; no key, no dropout.
    Returns:
      [B, T, N, H]; zeros for a query that may attend to nothing.
    """
    if visible is not None and visible.ndim == 3:
        visible = visible[:, None]  # [B, 1, T, S]
    scores = numerics.scores('BTNH,BSNH->BNTS', query * (query.shape[-1] ** -0.5), key)
    weights = masked_softmax(scores, visible)
    weights = dropout(numerics.cast(weights), rate, dropout_key)
    return numerics.einsum('BNTS,BSNH->BTNH', weights, value)
