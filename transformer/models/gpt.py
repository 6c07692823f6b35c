"""GPT: a causal decoder-only Transformer, with GPT-2's block unless told otherwise (Radford et al. 2019)."""

from collections.abc import Mapping

import flax.linen as nn
import jax

from transformer.attention.masks.patterns import Causal
from transformer.layers.embedding import Embedding
from transformer.layers.heads import Head, NextWords, body_of
from transformer.layers.numerics import Numerics
from transformer.layers.stack import Heads, Stack, inlined


class Gpt(nn.Module):
    """logits = norm(blocks(E[token] + P[position]))·Eᵀ, with the defaults.

    Attributes:
      vocab: vocabulary size V; left out of a config, it is the tokenizer's.
      length: the longest row.
      stack: its blocks; in a config its fields are the model's own, such as `model.layers`.
      head: what is made of the hidden states: 'NextWords()', 'NextWords(tied=False)', or to classify texts such as
        "Classes(classes=2, at='last')", 'TokenClasses(classes=9)' or 'Span()'.
      dense_gradient: the gradient of dense layers as in `transformer.layers.numerics`, instead of JAX's rule.
    """
    vocab: int
    length: int = 1024
    stack: Stack = inlined(Stack(mask=Causal()))
    head: Head = NextWords()
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    @property
    def attentions(self) -> dict:
        """{name: `Heads`} of those whose heads can be switched off by `head_mask`."""
        return {'attention': Heads(self.stack)}

    @nn.compact
    def __call__(self, inputs: jax.Array, *, segments: jax.Array | None = None, positions: jax.Array | None = None,
                 key: jax.Array | None = None, cache: dict | None = None, head_mask: Mapping | None = None,
                 capture: tuple = ()) -> dict:
        """inputs [B, T] -> {'hidden' [B, T, D]}, what the head gives, {'logits' [B, T, V]}, and what the stack says besides;
        with a cache also {'cache'}.

        Args:
          segments, positions: [B, T], as in `Stack.over_rows`.
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; inputs are then the next tokens, at `positions`.
          head_mask, capture: as in `Context`.
        """
        if self.head.causal:
            self.stack.require_causal()
        numerics = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype)
        tokens = Embedding(self.vocab, self.stack.width, kernel_init=self.stack.table_init, numerics=numerics, name='tokens')
        x, cache, aux = self.stack.over_rows(
            tokens(inputs), length=self.length, numerics=numerics, segments=segments, positions=positions, key=key, cache=cache,
            head_mask=head_mask, capture=capture)
        body = body_of(self.stack, numerics, tokens, self.vocab)
        outputs = {'hidden': x} | aux | self.head(x, body, segments=segments, key=key)
        return outputs if cache is None else outputs | {'cache': cache}

    def init_cache(self, batch: int, length: int | None = None) -> dict:
        """An empty cache for `batch` rows of up to `length` tokens, by default as many as the model takes."""
        return self.stack.empty_cache(batch, length or self.length, self.dtype)
