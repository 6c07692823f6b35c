"""GPT: a causal decoder-only Transformer, with GPT-2's block unless told otherwise (Radford et al. 2019)."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from transformer.attention.masks import Causal, Mask, Segments
from transformer.attention.multi_head import MultiHead, empty_cache
from transformer.block import Block, FeedForward
from transformer.initial import Initial, Scaled
from transformer.layers import Embedding, LayerNorm, dropout, fold
from transformer.numerics import Numerics
from transformer.residual import PreNorm, Residual
from transformer.stack import stack


class Gpt(nn.Module):
    """logits = norm(blocks(E[token] + P[position]))·Eᵀ; the norm is there if the residual asks for one at the end.

    Attributes:
      vocab: vocabulary size V; left out of a config, it is the tokenizer's.
      length: positions in the learned table, the longest row.
      inner: inner width of the feed-forward; 0 stands for 4·width.
      dropout: rate on the embedding, the attention weights and the residual branches.
      bias: biases in dense layers and norms.
      activation: 'gelu', 'gelu_tanh' (that of GPT-2's code) or 'relu'.
      mask: which positions see which, a causal mask or an expression such as 'Causal() & Window(size=256)'.
      residual: where the norms stand: 'PreNorm()' as GPT-2, 'PostNorm()', 'ReZero()', or 'NoNorm()'.
      initial: how parameters begin: 'Scaled(scale=0.02)' as GPT-2, 'Xavier()', or 'TFixup()' (for 'NoNorm()').
      dense_gradient: the gradient of dense layers as in `transformer.numerics`, instead of JAX's rule.
      scan, remat: how layers are stacked and what of them is kept for the gradient, as in `transformer.stack`.
    """
    vocab: int
    length: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    inner: int = 0
    activation: str = 'gelu'
    dropout: float = 0.0
    bias: bool = True
    mask: Mask = Causal()
    residual: Residual = PreNorm()
    initial: Initial = Scaled()
    dense_gradient: bool = True
    scan: bool = False
    remat: str = 'none'
    dtype: str = 'float32'

    @nn.compact
    def __call__(self, inputs, *, segments=None, positions=None, key=None, cache=None):
        """inputs [B, T] -> {'logits' [B, T, V], 'hidden' [B, T, D]}, and with a cache also {'cache'}.

        Args:
          segments: [B, T], packed documents (0 = padding); None: each row is one document.
          positions: [B, T], index into the position table; None: 0..T-1.
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; inputs are then the next tokens, at `positions`.
        """
        numerics = Numerics(self.dtype, self.dense_gradient)
        batch, length = inputs.shape
        if length > self.length:
            raise ValueError(f'A sequence of {length} tokens is longer than the position table of {self.length}; '
                             f'shorten it or train with model.length={length}.')
        row = jnp.arange(length)
        if positions is None:
            positions = jnp.broadcast_to(row, (batch, length))
        if not self.mask.causal:
            raise ValueError(f'The mask {self.mask} lets a token see later ones, so what it has to predict; use one such as '
                             'Causal() or Causal() & Window(size=256).')
        if cache is None:
            mask = self.mask if segments is None else self.mask & Segments(segments, segments)
            visible = mask(row, row)
        else:
            visible = self.mask(positions, jnp.arange(self.length))

        embedding = partial(Embedding, width=self.width, kernel_init=self.initial.embedding(self.layers), numerics=numerics)
        tokens, table = embedding(self.vocab, name='tokens'), embedding(self.length, name='positions')
        common = dict(bias=self.bias, numerics=numerics)
        norm = partial(LayerNorm, **common)
        block = partial(
            Block, norm=norm, residual=self.residual, dropout=self.dropout,
            attention=partial(MultiHead, self.heads, dropout=self.dropout, **self.initial.attention(self.layers), **common),
            feed_forward=partial(FeedForward, self.inner or 4 * self.width, self.activation,
                                 **self.initial.feed_forward(self.layers), **common))

        x = tokens(inputs) + table(positions)  # [B, T, D]
        x = dropout(x, self.dropout, fold(key, 'embedding'))
        x, cache = stack(block, self.layers, x, visible=visible, key=key, cache=cache, positions=positions, scan=self.scan,
                         remat=self.remat)
        if self.residual.final_norm:
            x = norm(name='norm')(x)
        outputs = {'logits': tokens.attend(x), 'hidden': x}
        return outputs if cache is None else outputs | {'cache': cache}

    def init_cache(self, batch):
        """An empty key-value cache for `batch` rows of up to `length` tokens."""
        layer = lambda: empty_cache(batch, self.length, self.heads, self.width // self.heads, self.dtype)
        return {f'block_{i}': layer() for i in range(self.layers)}
