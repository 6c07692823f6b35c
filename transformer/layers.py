"""The small layers: dense, embedding, layer norm, dropout; and how random keys reach them."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.numerics import Numerics
from transformer.sharding import constrain

normal = nn.initializers.normal
zeros = nn.initializers.zeros_init()


def fold(key, *names):
    """The key of a named stream: fold_in by crc32 of each name, or by the number itself; None (evaluation) stays None."""
    for name in names if key is not None else ():
        key = jax.random.fold_in(key, zlib.crc32(name.encode()) if isinstance(name, str) else name)
    return key


def dropout(x, rate, key):
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate); key=None is evaluation.

    Srivastava et al. 2014, in the inverted form."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f'dropout is {rate}; expected a rate in [0, 1).')
    if key is None or rate == 0.0:
        return x
    keep = _sixteen_bits(key, x.shape) >= min(round(rate * 65536), 65535)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))


def _sixteen_bits(key, shape):
    """Uniform uint16: each random word serves two elements, as drawing them is what dropout costs on a CPU."""
    *front, last = shape
    words = jax.random.bits(key, (*front, -(-last // 2)), jnp.uint32)
    return jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*front, -1)[..., :last]


class Dense(nn.Module):
    """y = x·W + b over the last `axes` dimensions of x: [..., *inputs] -> [..., *features].

    Attributes:
      features: the output dimensions, an int or a tuple such as (heads, head width).
      axes: how many trailing dimensions of x are contracted.
      kernel_init: initialiser of the kernel [*inputs, *features]; the bias starts at zero.
    """
    features: int | Sequence[int]
    axes: int = 1
    bias: bool = True
    kernel_init: Callable = normal(0.02)
    numerics: Numerics = Numerics()

    def __call__(self, x):
        kernel, bias = self.weights(x.shape[x.ndim - self.axes:])
        y = self.numerics.dense(x, kernel, self.axes)
        return y if bias is None else y + self.numerics.cast(bias)

    @nn.compact
    def weights(self, inputs):
        """(kernel [*inputs, *features], bias [*features] or None), for a caller that merges several layers."""
        features = (self.features,) if isinstance(self.features, int) else tuple(self.features)
        # Initialised as the matrix it is, whatever dimensions it is shown in: fans are its rows and columns.
        matrix = lambda key: self.kernel_init(key, (math.prod(inputs), math.prod(features))).reshape(*inputs, *features)
        kernel = self.param('kernel', matrix)
        return kernel, self.param('bias', zeros, features) if self.bias else None


class Parameters(nn.Module):
    """The parameters that a part of a config asks for, and which it is then called with.

    Attributes:
      wanted: {name: (initialiser, shape)}.
      fit: (name, array) -> array of the shape that is wanted, for one that has another; None: that is an error.
    """
    wanted: Mapping
    fit: Callable | None = None

    @nn.compact
    def __call__(self):
        return {name: self._one(name, *wanted) for name, wanted in self.wanted.items()}

    def _one(self, name, initialiser, shape):
        given = self.get_variable('params', name) if self.fit else None
        if given is None or given.shape == shape:
            return self.param(name, initialiser, shape)
        return self.fit(name, given)


class Embedding(nn.Module):
    """A table [rows, D]: looks rows up, and projects onto them as a tied output layer (Press and Wolf 2017)."""
    rows: int
    width: int
    kernel_init: Callable = normal(0.02)
    numerics: Numerics = Numerics()

    def setup(self):
        self.embedding = self.param('embedding', self.kernel_init, (self.rows, self.width))

    def __call__(self, ids):
        # The whole table on every device: a lookup in a split one comes out split by width, not by batch.
        return constrain(self.numerics.cast(self.embedding), None, None)[ids]

    def attend(self, x):
        """Logits x·Eᵀ: [..., D] -> [..., rows]."""
        return self.numerics.dense(x, self.embedding.T)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def normalized(x, epsilon):
    """(x - mean) / sqrt(variance + epsilon) over the last axis."""
    return _normalized(x, epsilon)[0]


def _normalized(x, epsilon):
    centered = x - x.mean(-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + epsilon)
    y = centered * rate
    return y, (y, rate)


def _normalized_backward(epsilon, residuals, dy):
    # r (dy - mean(dy) - y mean(dy y)): two reductions, where differentiating each operation takes twice as many.
    y, rate = residuals
    return (rate * (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True)),)


normalized.defvjp(_normalized, _normalized_backward)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis, in float32 (Ba et al. 2016, eq. 4)."""
    bias: bool = True
    epsilon: float = 1e-5
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x):
        scale = self.param('scale', nn.initializers.ones_init(), x.shape[-1:])
        y = normalized(x.astype(jnp.float32), self.epsilon) * scale
        if self.bias:
            y = y + self.param('bias', zeros, x.shape[-1:])
        return self.numerics.cast(y)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + epsilon) * scale over the last axis, in float32 (Zhang and Sennrich 2019, eq. 4)."""
    epsilon: float = 1e-6
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x):
        scale = self.param('scale', nn.initializers.ones_init(), x.shape[-1:])
        x = x.astype(jnp.float32)
        rate = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.epsilon)
        return self.numerics.cast(x * rate * scale)
