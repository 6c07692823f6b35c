"""GPT: a causal decoder-only Transformer, with GPT-2's block unless told otherwise (Radford et al. 2019)."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from transformer.attention.heads import kept_heads
from transformer.attention.mask_algebra import Mask
from transformer.attention.masks import Causal, Padding, Segments
from transformer.attention.mechanism import Mechanism, Softmax
from transformer.attention.multi_head import MultiHead
from transformer.attention.positions import Encoding, Learned, Positions, Sizes
from transformer.block import Block, FeedForward
from transformer.initial import Initial, Scaled
from transformer.layers import Embedding, LayerNorm, Parameters, dropout, fold
from transformer.numerics import Numerics
from transformer.residual import PreNorm, Residual
from transformer.stack import stack


class Gpt(nn.Module):
    """logits = norm(blocks(E[token] + P[position]))·Eᵀ, with the defaults; the norm is there if the residual asks for one
    at the end.

    Attributes:
      vocab: vocabulary size V; left out of a config, it is the tokenizer's.
      length: the longest row; positions that mean something beyond it (Alibi(), Rotary(), ...) can be evaluated on longer ones.
      inner: inner width of the feed-forward; 0 stands for 4·width.
      dropout: rate on the embedding, the attention weights and the residual branches.
      bias: biases in dense layers and norms.
      activation: 'gelu', 'gelu_tanh' (that of GPT-2's code) or 'relu'.
      attention: what mixes positions, such as 'Softmax(score=Additive())'.
      key_heads: heads of keys and values, shared by groups of query heads; 0 stands for `heads`.
      kept: the heads that pruning left (eval.py --heads), such as ((0, 2), (1,)) in two layers; () stands for all.
      positions: how a token knows where it stands, such as 'Learned()' or 'Rotary()'.
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
    attention: Mechanism = Softmax()
    key_heads: int = 0
    kept: tuple = ()
    positions: Positions = Learned()
    mask: Mask = Causal()
    residual: Residual = PreNorm()
    initial: Initial = Scaled()
    dense_gradient: bool = True
    scan: bool = False
    remat: str = 'none'
    dtype: str = 'float32'

    @nn.compact
    def __call__(self, inputs, *, segments=None, positions=None, key=None, cache=None, head_mask=None):
        """inputs [B, T] -> {'logits' [B, T, V], 'hidden' [B, T, D]}, and with a cache also {'cache'}.

        Args:
          segments: [B, T], packed documents (0 = padding); None: each row is one document. With a cache: 0 = padding behind a
            prompt, which a state that runs along must not take up.
          positions: [B, T], index into the position table; None: 0..T-1.
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; inputs are then the next tokens, at `positions`.
          head_mask: [layers, N] or [layers, B, 1, N], factors of what each head gives; None: ones.
        """
        numerics = Numerics(self.dtype, self.dense_gradient)
        batch, length = inputs.shape
        if length > self.length and not (cache is None and self.positions.free_length and self.attention.free_length):
            raise ValueError(f'A sequence of {length} tokens is longer than the {self.length} that this model takes; '
                             f'shorten it or train with model.length={length}.')
        row = jnp.arange(length)
        if positions is None:
            positions = jnp.broadcast_to(row, (batch, length))
        if not self.mask.causal:
            raise ValueError(f'The mask {self.mask} lets a token see later ones, so what it has to predict; use one such as '
                             'Causal() or Causal() & Window(size=256).')
        mask = self.mask
        if segments is not None and cache is None:
            mask = mask & Segments(segments, segments)
        elif segments is not None:
            mask = mask & Padding(jnp.where(segments != 0, positions + 1, 0).max(1))
        table = self.initial.embedding(self.layers)
        tokens = Embedding(self.vocab, self.width, kernel_init=table, numerics=numerics, name='tokens')
        sizes = Sizes(self.length, self.width, self.heads, self.width // self.heads, table)
        encoding = Encoding(self.positions, Parameters(self.positions.parameters(sizes), name='positions')(), positions,
                            positions if cache is None else jnp.arange(self.length), sizes)
        common = dict(bias=self.bias, numerics=numerics)
        norm = partial(LayerNorm, **common)
        attention = partial(MultiHead, self.heads, self.key_heads, mechanism=self.attention, dropout=self.dropout,
                            **self.initial.attention(self.layers), **common)
        block = partial(
            Block, norm=norm, residual=self.residual, dropout=self.dropout,
            feed_forward=partial(FeedForward, self.inner or 4 * self.width, self.activation,
                                 **self.initial.feed_forward(self.layers), **common))

        x = encoding.at_input(tokens(inputs))  # [B, T, D]
        x = dropout(x, self.dropout, fold(key, 'embedding'))
        blocks = [partial(block, attention=partial(attention, kept=kept)) for kept in kept_heads(self)]
        x, cache = stack(blocks, self.layers, x, mask=mask, encoding=encoding, key=key, cache=cache, positions=positions,
                         scan=self.scan, remat=self.remat, head_mask=head_mask)
        if self.residual.final_norm:
            x = norm(name='norm')(x)
        outputs = {'logits': tokens.attend(x), 'hidden': x}
        return outputs if cache is None else outputs | {'cache': cache}

    def init_cache(self, batch):
        """An empty key-value cache for `batch` rows of up to `length` tokens."""
        def layer(kept):
            heads, key_heads = (self.heads, self.key_heads or self.heads) if kept is None else (len(kept),) * 2
            return self.attention.empty_cache(batch, self.length, heads, key_heads, self.width // self.heads, self.dtype)
        return {f'block_{i}': layer(kept) if kept != () else {} for i, kept in enumerate(kept_heads(self))}
