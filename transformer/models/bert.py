"""BERT: an encoder trained to predict masked words (Devlin et al. 2019); its heads are in transformer/layers/heads.py."""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.layers.embedding import Embedding
from transformer.layers.heads import Head, MaskedWords, body_of
from transformer.layers.norm import LayerNorm
from transformer.layers.numerics import Numerics
from transformer.layers.residual import PostNorm
from transformer.layers.stack import Heads, Stack, inlined


class Bert(nn.Module):
    """By default head(blocks(norm(E[token] + S[type] + P[position]))), where each sublayer is norm(x + f(x)).

    With an embedding width E the tables are E wide and W [E, D] projects the embedded tokens, head(blocks(norm(..)·W + b)):
    V·E + E·D parameters instead of V·D (Lan et al. 2020, section 3.1). A head that is tied to the table projects back to E.

    Attributes:
      vocab: vocabulary size V; by default the tokenizer's.
      length: the largest number of tokens in a row.
      embedding_width: the width E of the tables, with a projection to the model's width, even an equal one; 0: the model's
        width, without a projection.
      types: number of token types, such as one for the first text and one for the second; 0: no embedding of types.
      stack: the blocks; a config sets its fields on the model itself, such as `model.layers`.
      head: maps the hidden states to outputs: 'MaskedWords()', 'Pretraining()', 'NextSentence()', 'Classes(classes=2)',
        'SpanBoundary()', 'TokenClasses(classes=9)', 'Span()', 'ReplacedTokens()' or 'NoHead(pooler=True)'.
      dense_gradient: compute the gradient of dense layers as in `transformer.layers.numerics`, instead of by JAX's rule.
    """
    vocab: int
    length: int = 512
    embedding_width: int = 0
    types: int = 2
    stack: Stack = inlined(Stack(residual=PostNorm(), embedding_norm=True, norm=LayerNorm(epsilon=1e-12)))
    head: Head = MaskedWords()
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    def __post_init__(self):
        if self.embedding_width < 0:
            raise ValueError(f'embedding_width is {self.embedding_width}; set it to the width of the tables, or to 0 for the '
                             'model\'s own.')
        super().__post_init__()

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
                 types: jax.Array | None = None, masked: jax.Array | None = None, boundaries: jax.Array | None = None,
                 key: jax.Array | None = None, head_mask: Mapping | None = None, capture: tuple = ()) -> dict:
        """inputs [B, T] -> {'hidden' [B, T, D]}, the outputs of the head, and the `aux` of the stack.

        Args:
          segments, positions: [B, T], as in `Stack.over_rows`.
          types: [B, T], the type of each token; None: 0.
          masked: [B, M], the positions whose tokens are predicted; None: all.
          boundaries: [B, M, 3], the boundaries of these, for a head that takes them (`SpanBoundary`).
          key: random key of training; None switches dropout off.
          head_mask, capture: as in `Context`.
        """
        numerics, stack = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype), self.stack
        width = self.embedding_width or stack.width
        table = lambda rows, name: Embedding(rows, width, kernel_init=stack.table_init, numerics=numerics, name=name)
        tokens = table(self.vocab, 'tokens')
        x = tokens(inputs)
        if self.types:
            x = x + table(self.types, 'types')(jnp.zeros_like(inputs) if types is None else types)
        x, _, aux = stack.over_rows(x, length=self.length, numerics=numerics, segments=segments, positions=positions, key=key,
                                    head_mask=head_mask, capture=capture, projected=self.embedding_width > 0)
        body = body_of(stack, numerics, tokens, self.vocab)
        more = {'boundaries': boundaries} if self.head.bounded else {}
        return {'hidden': x} | aux | self.head(x, body, segments=segments, masked=masked, key=key, **more)
