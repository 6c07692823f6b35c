"""Losses as pure functions; each returns one value per position, summed and weighted by the task."""

import jax
import jax.numpy as jnp


def cross_entropy(logits, targets):
    """-log softmax(logits)[target] in nats: [..., V], [...] -> [...], in float32.

    The target's logit is picked by comparison, not by a gather, whose gradient would be a scatter."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.arange(logits.shape[-1]) == targets[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.where(chosen, logits, 0.0).sum(-1)


def correct(logits, targets):
    """1 where the largest logit is the target's, else 0: [..., V], [...] -> [...]."""
    return (logits.argmax(-1) == targets).astype(jnp.float32)
