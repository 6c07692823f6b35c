"""Losses as pure functions; each returns one value per position, summed and weighted by the task."""

import jax
import jax.numpy as jnp

from transformer.layers.numerics import real_dtype, wide
from transformer.layers.sharding import platform


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """-log softmax(logits)[target] in nats: [..., V], [...] -> [...], in at least float32.

    Targets [..., V] are probabilities: -sum over v of targets[v]·log softmax(logits)[v]. A single target's logit is picked
    by comparison, not by a gather, whose gradient would be a scatter."""
    logits = wide(logits)
    if targets.ndim == logits.ndim:
        return -(targets * jax.nn.log_softmax(logits)).sum(-1)
    chosen = jnp.arange(logits.shape[-1]) == targets[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.where(chosen, logits, 0.0).sum(-1)


def divergence(teacher: jax.Array, student: jax.Array) -> jax.Array:
    """KL(softmax(teacher) ‖ softmax(student)) in nats, of logits: [..., V], [..., V] -> [...]."""
    expected, found = jax.nn.log_softmax(wide(teacher)), jax.nn.log_softmax(wide(student))
    return (jnp.exp(expected) * (expected - found)).sum(-1)


def uniform_cross_entropy(logits: jax.Array) -> jax.Array:
    """-mean over v of log softmax(logits)[v], the cross-entropy against the uniform distribution: [..., V] -> [...].

    Label smoothing mixes it in: targets (1 - ε)·onehot + ε / V give (1 - ε)·cross_entropy + ε·uniform_cross_entropy
    (Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4)."""
    logits = wide(logits)
    return jax.nn.logsumexp(logits, axis=-1) - logits.mean(-1)


def log_z_squared(logits: jax.Array) -> jax.Array:
    """(log sum over v of exp(logits[v]))², which holds the normaliser near 1: [..., V] -> [...] (Chowdhery et al. 2022,
    section 5)."""
    return jnp.square(jax.nn.logsumexp(wide(logits), axis=-1))


def correct(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """1 where the largest logit (the first of equal ones) is the target's, else 0: [..., V], [...] -> [...]; for targets
    [..., V] their probability of the class with the largest logit.

    On a CPU a single target is compared with all logits: none before it is as large, none after it larger. That takes a quarter
    of the time of an argmax. On others the first logit that equals the largest is looked for: with that of `cross_entropy` they
    are read once for both."""
    if targets.ndim == logits.ndim:
        return jnp.take_along_axis(targets, logits.argmax(-1, keepdims=True), axis=-1).squeeze(-1)
    places, target, logits = jnp.arange(logits.shape[-1]), targets[..., None], wide(logits)  # as in `cross_entropy`
    if platform() != 'cpu':
        # Places as numbers of the same type, or a TPU's compiler would not read logits once for this and the normaliser.
        first = jnp.where(logits == logits.max(-1, keepdims=True), places.astype(logits.dtype), places.size).min(-1)
        return (first == targets.astype(logits.dtype)).astype(real_dtype())
    own = jnp.where(places == target, logits, 0.0).sum(-1, keepdims=True)
    beaten = ~(logits <= own) | (logits == own) & (places < target)  # ~(<=) so that a NaN beats it too
    return (~beaten.any(-1)).astype(real_dtype())
