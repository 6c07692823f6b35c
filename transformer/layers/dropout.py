"""Dropout of elements and of whole branches, and its random keys."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from transformer.layers.sharding import platform


def fold(key: jax.Array | None, *names: str | int | jax.Array) -> jax.Array | None:
    """The key of a named stream: fold_in by crc32 of each name, or by the number itself; None (evaluation) stays None."""
    for name in names if key is not None else ():
        key = jax.random.fold_in(key, zlib.crc32(name.encode()) if isinstance(name, str) else name)
    return key


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate); key=None is evaluation.

    Srivastava et al. 2014, in the inverted form."""
    require_rate(rate)
    if key is None or rate == 0.0:
        return x
    keep = _sixteen_bits(key, x.shape) >= min(round(rate * 65536), 65535)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))


def require_rate(rate: float) -> None:
    """Raises ValueError for a rate that leaves nothing, or that is none."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f'dropout is {rate}; expected a rate in [0, 1).')


def drop_path(x: jax.Array, rate: float | jax.Array | None, key: jax.Array | None) -> jax.Array:
    """Zeroes each example of x [B, ...] as a whole with probability `rate` and scales the rest by 1 / (1 - rate); key=None is
    evaluation, rate=None no drop path.

    Stochastic depth (Huang et al. 2016, section 3), in the inverted form of timm: x is the output of a residual branch."""
    if key is None or rate is None:
        return x
    keep = jax.random.uniform(key, (x.shape[0], *(1,) * (x.ndim - 1))) >= rate
    return jnp.where(keep, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))


def path_rates(drop_path: float, blocks: int) -> tuple[float, ...]:
    """The rates of drop path of so many blocks, from 0 for the first linearly to `drop_path` for the last, as in timm's ViT and
    Swin; (): all are 0, as of a single block."""
    if not 0 <= drop_path < 1:
        raise ValueError(f'drop_path is {drop_path}; expected a rate in [0, 1).')
    return tuple(np.linspace(0.0, drop_path, blocks).tolist()) if drop_path and blocks > 1 else ()


def _sixteen_bits(key, shape):
    """Uniform whole numbers below 2^16: a random word serves two elements, as drawing them takes most of the time on a CPU."""
    *front, last = shape
    words = jax.random.bits(key, (*front, -(-last // 2)), jnp.uint32)
    if platform() != 'cpu':  # neighbours in a row would be copied apart
        return jnp.concatenate([words & 0xffff, words >> 16], -1)[..., :last]
    return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*front, -1)[..., :last]
