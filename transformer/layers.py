"""The small layers: dense, embedding, layer norm, dropout; and how random keys reach them."""

import math
import zlib
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.numerics import Numerics

normal = nn.initializers.normal
zeros = nn.initializers.zeros_init()


def fold(key, *names):
    """The key of a named stream: fold_in by crc32 of each name, or by the number itself; None (evaluation) stays None."""
    for name in names if key is not None else ():
        key = jax.random.fold_in(key, name if isinstance(name, int) else zlib.crc32(name.encode()))
    return key


def dropout(x, rate, key):
    """Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate); key=None is evaluation.

    Srivastava et al. 2014, in the inverted form."""
    if not 0.0 <= rate < 1.0:
        raise ValueError(f'dropout is {rate}; expected a rate in [0, 1).')
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros((), x.dtype))


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

    @nn.compact
    def __call__(self, x):
        features = (self.features,) if isinstance(self.features, int) else tuple(self.features)
        inputs = x.shape[x.ndim - self.axes:]
        # Initialised as the matrix it is, whatever dimensions it is shown in: fans are its rows and columns.
        matrix = lambda key: self.kernel_init(key, (math.prod(inputs), math.prod(features))).reshape(*inputs, *features)
        kernel = self.param('kernel', matrix)
        y = self.numerics.dense(x, kernel, self.axes)
        if self.bias:
            y = y + self.numerics.cast(self.param('bias', zeros, features))
        return y


class Embedding(nn.Module):
    """A table [rows, D]: looks rows up, and projects onto them as a tied output layer (Press and Wolf 2017)."""
    rows: int
    width: int
    kernel_init: Callable = normal(0.02)
    numerics: Numerics = Numerics()

    def setup(self):
        self.embedding = self.param('embedding', self.kernel_init, (self.rows, self.width))

    def __call__(self, ids):
        return self.numerics.cast(self.embedding)[ids]

    def attend(self, x):
        """Logits x·Eᵀ: [..., D] -> [..., rows]."""
        return self.numerics.dense(x, self.embedding.T)


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis, in float32 (Ba et al. 2016, eq. 4)."""
    bias: bool = True
    epsilon: float = 1e-5
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x):
        scale = self.param('scale', nn.initializers.ones_init(), x.shape[-1:])
        y = x.astype(jnp.float32)
        y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + self.epsilon) * scale
        if self.bias:
            y = y + self.param('bias', zeros, x.shape[-1:])
        return self.numerics.cast(y)
