"""The residual block that every Transformer here is a stack of, composed from the parts that are passed in."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.mask_algebra import Mask
from transformer.attention.masks import Full
from transformer.attention.positions import Encoding
from transformer.layers import Dense, dropout, fold, normal
from transformer.numerics import Numerics
from transformer.residual import PreNorm, Residual


def normal_distribution(x):
    """Φ(x) = (1 + erf(x / sqrt 2)) / 2."""
    return 0.5 + 0.5 * jax.lax.erf(x * 0.5 ** 0.5)


@jax.custom_vjp
def gelu(x):
    """x Φ(x) (Hendrycks and Gimpel 2016).

    jax.nn.gelu goes through erfc, which XLA on CPU computes in branches with an exponential: twice the time."""
    return x * normal_distribution(x)


def _gelu_backward(x, dy):
    # Φ(x) + x φ(x), from x alone: computing Φ again is cheaper than keeping it.
    return (dy * (normal_distribution(x) + x * jnp.exp(-0.5 * x * x) * (2.0 * math.pi) ** -0.5),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)


ACTIVATIONS = {
    'gelu': gelu,
    'gelu_tanh': lambda x: jax.nn.gelu(x, approximate=True),  # the approximation of GPT-2's code
    'relu': jax.nn.relu,
}


class FeedForward(nn.Module):
    """activation(x·W1 + b1)·W2 + b2 at every position (Vaswani et al. 2017, section 3.3); or with a gate,
    (activation(x·W + b) * (x·V + c))·W2 + b2 (Shazeer 2020, eq. 6).

    Attributes:
      width: inner width F.
      gated: whether there is a gate.
      dropout: rate on the inner activations.
    """
    width: int
    activation: str = 'gelu'
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0
    kernel_init: Callable = normal(0.02)
    output_init: Callable = normal(0.02)
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x, *, key=None):
        if self.activation not in ACTIVATIONS:
            raise ValueError(f'activation is {self.activation!r}; expected one of {", ".join(ACTIVATIONS)}.')
        dense = partial(Dense, bias=self.bias, numerics=self.numerics)
        into = partial(dense, self.width, kernel_init=self.kernel_init)
        inner = into(name='gate' if self.gated else 'input')(x)  # [B, T, F]
        inner = self.numerics.cast(ACTIVATIONS[self.activation](inner.astype(jnp.float32)))
        if self.gated:
            inner = inner * into(name='linear')(x)
        inner = dropout(inner, self.dropout, fold(key, 'inner'))
        return dense(x.shape[-1], kernel_init=self.output_init, name='output')(inner)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Source:
    """Another sequence, which a decoder looks at.

    Attributes:
      hidden: [B, S, D]; None in cached decoding after the first call, when the cache has what is needed of it.
      mask: which of its positions are seen.
    """
    hidden: Any
    mask: Mask = Full()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """What blocks work with besides the stream.

    Attributes:
      mask: which positions see which.
      encoding: where they are, as the position encoding sees it.
      positions: [B, T], with a cache: where in it the queries are.
      head_mask: [layers, N] or [layers, B, 1, N], factors of what each head gives; None: ones.
      source: what a decoder looks at.
    """
    mask: Mask = Full()
    encoding: Encoding = Encoding()
    positions: Any = None
    head_mask: Any = None
    source: Source | None = None

    def of_layer(self, layer):
        """That of one layer, with its mask and head mask."""
        own = None if self.head_mask is None else self.head_mask[layer]
        return dataclasses.replace(self, mask=self.mask.of_layer(layer), head_mask=own)


class Block(nn.Module):
    """Attention, then cross attention to a source if there is one, then feed-forward, each a branch that joins the stream as
    `residual` says (Vaswani et al. 2017, section 3.1).

    Attributes:
      attention, feed_forward, norm: constructors of the parts, called with a name.
      cross_attention: constructor of the attention to `source`; None: there is none.
      residual: where the norm stands; PreNorm: x + attention(norm(x)), then x + feed_forward(norm(x)).
      dropout: rate on each branch before it joins.
    """
    attention: Callable
    feed_forward: Callable
    norm: Callable
    residual: Residual = PreNorm()
    dropout: float = 0.0
    cross_attention: Callable | None = None

    @nn.compact
    def __call__(self, x, context=Context(), *, key=None, cache=None):
        """x [B, T, D], the context of this layer -> ([B, T, D], cache); with a source, what the cache keeps of that is under
        'source'."""
        before = partial(self.residual.before, norm=self.norm)

        def join(name, x, branch):
            branch = dropout(branch, self.dropout, fold(key, f'{name}_branch'))
            return self.residual.after(name, x, branch, norm=self.norm)

        x = context.encoding.at_layer(x)
        branch, new = self.attention(name='attention')(
            before('attention', x), mask=context.mask, encoding=context.encoding, key=fold(key, 'attention'), cache=cache,
            positions=context.positions, head_mask=context.head_mask)
        x = join('attention', x, branch)
        if self.cross_attention:
            source = context.source
            branch, projected = self.cross_attention(name='cross_attention')(
                before('cross_attention', x), source.hidden, mask=source.mask, key=fold(key, 'cross_attention'),
                projected=None if cache is None else cache.get('source'))
            x = join('cross_attention', x, branch)
            new = None if cache is None else new | {'source': projected}
        branch = self.feed_forward(name='feed_forward')(before('feed_forward', x), key=fold(key, 'feed_forward'))
        return join('feed_forward', x, branch), new
