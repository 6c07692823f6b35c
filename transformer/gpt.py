"""GPT: a causal decoder-only Transformer, with GPT-2's block unless told otherwise (Radford et al. 2019)."""

import flax.linen as nn

from transformer.attention.mask_algebra import Mask
from transformer.attention.masks import Causal
from transformer.layers import Embedding
from transformer.outputs import Head, NextWords
from transformer.tower import Sequence


class Gpt(Sequence, kw_only=True):
    """logits = norm(blocks(E[token] + P[position]))·Eᵀ, with the defaults.

    Attributes:
      vocab: vocabulary size V; left out of a config, it is the tokenizer's.
      head: what is made of the hidden states: 'NextWords()', 'NextWords(tied=False)', or to classify texts such as
        "Classes(classes=2, at='last')", 'TokenClasses(classes=9)' or 'Span()'.
      mask: which positions see which, a causal mask or an expression such as 'Causal() & Window(size=256)'.
      kept: the heads that pruning left (eval.py --heads), such as ((0, 2), (1,)) in two layers; () stands for all.

    The others are those of `Sequence` and `Tower`.
    """
    vocab: int
    head: Head = NextWords()
    mask: Mask = Causal()
    kept: tuple = ()

    @nn.compact
    def __call__(self, inputs, *, segments=None, positions=None, key=None, cache=None, head_mask=None):
        """inputs [B, T] -> {'hidden' [B, T, D]} and what the head gives, {'logits' [B, T, V]}; with a cache also {'cache'},
        and with adaptive halting {'ponder' [B, T]}.

        Args:
          segments, positions: [B, T], as in `Sequence`.
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; inputs are then the next tokens, at `positions`.
          head_mask: [layers, N] or [layers, B, 1, N], factors of what each head gives; None: ones.
        """
        if self.head.causal:
            self.require_causal()
        tokens = Embedding(self.vocab, self.width, kernel_init=self.initial.embedding(self.layers), numerics=self.numerics,
                           name='tokens')
        x, cache, more = self.sequence(tokens(inputs), segments=segments, positions=positions, key=key, cache=cache,
                                       head_mask=head_mask)
        outputs = {'hidden': x} | more | self.head(self, x, tokens=tokens, segments=segments, key=key)
        return outputs if cache is None else outputs | {'cache': cache}

    def init_cache(self, batch, length=None):
        """An empty cache for `batch` rows of up to `length` tokens, by default as many as the model takes."""
        return self.empty_cache(batch, length or self.length)
