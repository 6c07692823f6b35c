"""What the tests of attention mechanisms share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.mechanism import Given, Softmax
from transformer.attention.mechanisms.alternatives import Convolution, Recurrence
from transformer.attention.mechanisms.hashing import Hashing
from transformer.attention.mechanisms.linear import Linear, Performer
from transformer.attention.mechanisms.nystrom import Nystrom
from transformer.attention.mechanisms.projected import Linformer, MemoryCompressed
from transformer.attention.mechanisms.synthesizer import Synthesizer

CASES = {
    'softmax': Softmax(), 'linear': Linear(chunk=3), 'performer': Performer(features=8, chunk=4),
    'linformer': Linformer(rank=4), 'compressed': MemoryCompressed(factor=2), 'dense': Synthesizer(length=16),
    'random': Synthesizer('random', length=16),
    'factorized': Synthesizer('random', length=16, rank=2), 'hashing': Hashing(buckets=2, chunk=3, rounds=2),
    'nystrom': Nystrom(landmarks=4), 'convolution': Convolution(), 'gated': Recurrence(), 'elman': Recurrence(gated=False)}


def where(**declared):
    """[(name, mechanism)] of the cases that declare all of this."""
    return [(name, m) for name, m in CASES.items() if all(getattr(m, key) == value for key, value in declared.items())]


def drawn(seed=0, *, batch=2, queries=9, keys=9, heads=4, key_heads=2, width=3):
    """Queries, keys and values in float32."""
    rng = np.random.default_rng(seed)
    shapes = (batch, queries, heads, width), (batch, keys, key_heads, width), (batch, keys, key_heads, width)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def parameters_of(mechanism, query, key, value, scale=0.5):
    rng = np.random.default_rng(1)
    wanted = mechanism.parameters(*used(mechanism, query, key, value))
    return {name: (scale * rng.normal(size=one.shape)).astype(np.float32) for name, one in wanted.items()}


def used(mechanism, query, key, value):
    """None for what a mechanism does not use."""
    return [x if name in mechanism.projections else None for name, x in (('query', query), ('key', key), ('value', value))]


def output(mechanism, parameters, query, key, value, mask, **more):
    return np.asarray(_output(mechanism, parameters, used(mechanism, query, key, value), mask, **more))


def weights(mechanism, parameters, query, key, value, mask):
    return np.asarray(_weights(mechanism, parameters, used(mechanism, query, key, value), mask))


# What two tests, or two calls of one, ask of the same shapes is compiled once.
@functools.partial(jax.jit, static_argnums=0, static_argnames=('rate', 'numerics'))
def _output(mechanism, parameters, arrays, mask, **more):
    return mechanism(parameters, *arrays, Given(mask, **more))


@functools.partial(jax.jit, static_argnums=0)
def _weights(mechanism, parameters, arrays, mask):
    return mechanism.weights(parameters, *arrays, Given(mask))


def times(matrix, value):
    """Weights [B, N, T, S] times values [B, S, K, H] -> [B, T, N, H]."""
    heads = matrix.shape[1] // value.shape[2]
    return np.einsum('bnts,bsnh->btnh', matrix, np.repeat(value, heads, 2))


def visible(mask, queries, keys, batch):
    """[B, T, S] booleans."""
    return np.broadcast_to(np.asarray(mask(jnp.arange(queries), jnp.arange(keys))), (batch, queries, keys))


def attention(query, key, value, seen):
    """softmax(q·kᵀ / sqrt(H))·v in float64, one query of one head at a time; `seen` [B, T, S]."""
    query, key, value = (np.float64(x) for x in (query, key, value))
    share, out = query.shape[2] // key.shape[2], np.zeros((*query.shape[:3], value.shape[-1]))
    for b, t, n in np.ndindex(query.shape[:3]):
        at = np.flatnonzero(seen[b, t])
        if len(at):
            scores = np.array([query[b, t, n] @ key[b, s, n // share] / np.sqrt(query.shape[-1]) for s in at])
            w = np.exp(scores - scores.max())
            out[b, t, n] = sum(x * value[b, s, n // share] for x, s in zip(w / w.sum(), at))
    return out
