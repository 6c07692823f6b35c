"""BERT: an encoder that learns from masked words (Devlin et al. 2019), with the heads of transformer/outputs.py on it."""

import flax.linen as nn
import jax.numpy as jnp

from transformer.layers import Embedding
from transformer.outputs import Head, MaskedWords
from transformer.residual import PostNorm, Residual
from transformer.tower import Sequence


class Bert(Sequence, kw_only=True):
    """head(blocks(norm(E[token] + S[type] + P[position]))), each block norm(x + f(x)), with the defaults.

    Attributes:
      vocab: vocabulary size V; left out of a config, it is the tokenizer's.
      types: kinds of tokens, such as those of the first and of the second text; 0: the model is not told of them.
      head: what is made of the hidden states: 'MaskedWords()', 'Pretraining()', 'NextSentence()', 'Classes(classes=2)',
        'TokenClasses(classes=9)', 'Span()', or 'NoHead(pooler=True)'.
      kept: the heads that pruning left (eval.py --heads), such as ((0, 2), (1,)) in two layers; () stands for all.

    The others are those of `Sequence` and `Tower`.
    """
    vocab: int
    types: int = 2
    length: int = 512
    head: Head = MaskedWords()
    residual: Residual = PostNorm()
    embedding_norm: bool = True
    epsilon: float = 1e-12
    kept: tuple = ()

    @nn.compact
    def __call__(self, inputs, *, segments=None, positions=None, types=None, masked=None, key=None, head_mask=None):
        """inputs [B, T] -> {'hidden' [B, T, D]} and what the head gives.

        Args:
          segments, positions: [B, T], as in `Sequence`.
          types: [B, T], the kind of each token; None: 0.
          masked: [B, M], the positions whose words are predicted; None: all.
          key: random key of training; None switches dropout off.
          head_mask: [layers, N] or [layers, B, 1, N], factors of what each head gives; None: ones.
        """
        def table(rows, name):
            init = self.initial.embedding(self.layers)
            return Embedding(rows, self.width, kernel_init=init, numerics=self.numerics, name=name)

        tokens = table(self.vocab, 'tokens')
        x = tokens(inputs)
        if self.types:
            x = x + table(self.types, 'types')(jnp.zeros_like(inputs) if types is None else types)
        x, _, more = self.sequence(x, segments=segments, positions=positions, key=key, head_mask=head_mask)
        return {'hidden': x} | more | self.head(self, x, tokens=tokens, segments=segments, masked=masked, key=key)
