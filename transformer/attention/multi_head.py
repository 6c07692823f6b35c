"""Multi-head attention (Vaswani et al. 2017, section 3.2.2), with a static key-value cache for decoding."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from transformer.attention.kernels import attend
from transformer.layers import Dense, fold, normal
from transformer.numerics import Numerics


def empty_cache(batch, length, heads, head_width, dtype):
    """The cache of one layer: keys and values of `length` positions, {'key', 'value'} of [B, S, N, H]."""
    zeros = jnp.zeros((batch, length, heads, head_width), dtype)
    return {'key': zeros, 'value': zeros}


class MultiHead(nn.Module):
    """concat_n(attend(x Wq_n, y Wk_n, y Wv_n)) Wo, with x the queries' and y the keys' source (y = x: self-attention).

    Attributes:
      heads: number of heads N; the head width is H = D / N.
      bias: biases on the four projections.
      dropout: rate on the attention weights.
      kernel_init, value_init, output_init: initialisers of the projections to queries and keys, to values, and of the
        output.
    """
    heads: int
    bias: bool = True
    dropout: float = 0.0
    kernel_init: Callable = normal(0.02)
    value_init: Callable = normal(0.02)
    output_init: Callable = normal(0.02)
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x, y=None, *, visible=None, key=None, cache=None, positions=None):
        """x [B, T, D], y [B, S, D] -> ([B, T, D], cache).

        With a cache (see `empty_cache`), the keys and values of x are written at `positions` [B, T], attention runs
        over all S cached positions, and the new cache is returned; without one, None is returned in its place."""
        width = x.shape[-1]
        if width % self.heads:
            raise ValueError(f'The width {width} is not divisible by {self.heads} heads.')
        shape = (self.heads, width // self.heads)
        dense = partial(Dense, bias=self.bias, numerics=self.numerics)
        inits = {'query': self.kernel_init, 'key': self.kernel_init, 'value': self.value_init}
        layers = [dense(shape, kernel_init=init, name=name) for name, init in inits.items()]
        if y is None:  # self-attention: one product is faster than three, and its gradient more so
            kernels, biases = zip(*(layer.weights((width,)) for layer in layers))
            merged = self.numerics.dense(x, jnp.stack(kernels, 1))  # [B, T, 3, N, H]
            if self.bias:
                merged = merged + self.numerics.cast(jnp.stack(biases))
            queries, keys, values = (part[:, :, 0] for part in jnp.split(merged, 3, 2))
        else:
            queries, keys, values = (layer(z) for layer, z in zip(layers, (x, y, y)))  # [B, T|S, N, H]
        if cache is not None:
            rows = jnp.arange(x.shape[0])[:, None]
            cache = {'key': cache['key'].at[rows, positions].set(keys),
                     'value': cache['value'].at[rows, positions].set(values)}
            keys, values = cache['key'], cache['value']
        mixed = attend(queries, keys, values, visible=visible, rate=self.dropout,
                       dropout_key=fold(key, 'weights'), numerics=self.numerics)
        return dense(width, axes=2, kernel_init=self.output_init, name='output')(mixed), cache
