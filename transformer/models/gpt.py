"""GPT: a causal decoder-only Transformer, by default with the blocks of GPT-2 (Radford et al. 2019)."""

from collections.abc import Mapping

import flax.linen as nn
import jax

from transformer.attention.masks.patterns import Causal
from transformer.layers.embedding import Embedding
from transformer.layers.heads import Head, NextWords, body_of, in_blocks
from transformer.layers.numerics import Numerics, array_type
from transformer.layers.stack import Heads, Stack, inlined


class Gpt(nn.Module):
    """By default logits = norm(blocks(E[token] + P[position]))·Eᵀ.

    Attributes:
      vocab: vocabulary size V; by default the tokenizer's.
      length: the largest number of tokens in a row.
      stack: the blocks; a config sets its fields on the model itself, such as `model.layers`.
      head: maps the hidden states to outputs: 'NextWords()', 'NextWords(tied=False)'; to classify texts
        "Classes(classes=2, at='last')", 'TokenClasses(classes=9)' or 'Span()'.
      dense_gradient: compute the gradient of dense layers as in `transformer.layers.numerics`, instead of by JAX's rule.
    """
    vocab: int
    length: int = 1024
    stack: Stack = inlined(Stack(mask=Causal()))
    head: Head = NextWords()
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    @property
    def packs(self) -> bool:
        """Whether it tells apart the documents of a row, by `segments`."""
        return self.stack.packs

    @property
    def attentions(self) -> dict:
        """{name: `Heads`} of the attention layers whose heads `head_mask` can switch off."""
        return {'attention': Heads(self.stack)}

    @nn.compact
    def __call__(self, inputs: jax.Array, *, segments: jax.Array | None = None, positions: jax.Array | None = None,
                 prefix: jax.Array | None = None, key: jax.Array | None = None, cache: dict | None = None,
                 block: int = 0, head_mask: Mapping | None = None, capture: tuple = ()) -> dict:
        """inputs [B, T] -> {'hidden' [B, T, D], 'logits' [B, T, V]} (or the outputs of another head), the `aux` of the stack,
        and with a cache {'cache'}.

        Args:
          segments, positions: [B, T], as in `Stack.over_rows`.
          prefix: [B, T], 1 for tokens that see each other, such as those of a source, and that all later ones see (Raffel et
            al. 2020, section 3.2.1); None: none do. With a cache, given in the first call only.
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; `inputs` are then the next tokens, at `positions`.
          block: give the logits as `BlockedLogits` of so many positions; 0: whole.
          head_mask, capture: as in `Context`.
        """
        if self.head.causal:
            self.stack.require_causal()
        numerics = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype)
        tokens = Embedding(self.vocab, self.stack.width, kernel_init=self.stack.table_init, numerics=numerics, name='tokens')
        if prefix is None and cache is not None:
            prefix = cache.get('prefix')
        x, cache, aux = self.stack.over_rows(
            tokens(inputs), length=self.length, numerics=numerics, segments=segments, positions=positions, prefix=prefix,
            key=key, cache=cache, head_mask=head_mask, capture=capture)
        body = body_of(self.stack, numerics, tokens, self.vocab)
        outputs = {'hidden': x} | aux | self.head(x, body, segments=segments, key=key, **in_blocks(self.head, block))
        if cache is None:
            return outputs
        return outputs | {'cache': cache | ({} if prefix is None else {'prefix': prefix})}

    def init_cache(self, batch: int, length: int | None = None) -> dict:
        """An empty cache for `batch` rows of up to `length` tokens, by default the model's length."""
        return self.stack.empty_cache(batch, length or self.length, array_type(self.dtype))
