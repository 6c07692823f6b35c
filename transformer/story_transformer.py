"""A Transformer over the sentences of a story and a question about it (Dehghani et al. 2019, section 3.1)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.masks import Padding
from transformer.attention.positions import Encoding, Positions, Sinusoidal, Sizes
from transformer.block import Context
from transformer.initial import Initial, Xavier
from transformer.layers import Dense, Embedding, Parameters
from transformer.residual import PreNorm, Residual
from transformer.tower import Tower


def signs(key, shape, dtype=jnp.float32):
    """1 or -1, each as likely: the words of a sentence are told apart by their places from the first step."""
    return jax.random.rademacher(key, shape, dtype)


class StoryTransformer(Tower, kw_only=True):
    """logits = W·tower([q, x_1, .., x_M])_0 + b, with a vector for the question q and one for each sentence x_i, the latest
    first:

        x_i = sum over j of f_j * E[x_ij],   f_j [D] learnt for each place of a word of a sentence, and of a question.

    Attributes:
      vocab: words V, of which 0 is none; the answers are among them. Left out of a config, it is the data's.

    The others are those of `Tower`.
    """
    vocab: int
    layers: int = 6
    heads: int = 4
    width: int = 128
    activation: str = 'relu'
    positions: Positions = Sinusoidal(at='layers')
    residual: Residual = PreNorm()
    initial: Initial = Xavier()

    @nn.compact
    def __call__(self, story, question, *, key=None):
        """story [B, M, J], the latest sentence first, 0 for no word, question [B, J] -> {'logits' [B, V], 'hidden'
        [B, 1 + M, D]}, and with adaptive halting {'ponder' [B, 1 + M]}; key=None: no dropout."""
        memory, length = story.shape[1:]
        learnt = self.variables.get('params', {}).get('places')
        if learnt and length > len(learnt['sentence']):
            raise ValueError(f'A sentence or question has {length} words, but this model has learnt the places of '
                             f'{len(learnt["sentence"])}; shorten it.')
        words = Embedding(self.vocab, self.width, kernel_init=self.initial.embedding(self.layers), numerics=self.numerics,
                          name='words')
        places = Parameters({name: (signs, (length, self.width)) for name in ('sentence', 'question')}, name='places')()

        def encoded(ids, place):
            return (words(ids) * (jnp.float32(ids > 0)[..., None] * place)).sum(-2) * self.width ** 0.5

        x = jnp.concatenate([encoded(question, places['question'])[:, None], encoded(story, places['sentence'])], 1)
        row = jnp.arange(1 + memory)
        there = 1 + jnp.where((story != 0).any(-1), row[1:], 0).max(1)  # [B]: behind the oldest sentence is nothing
        sizes = Sizes(1 + memory, self.width, self.heads, self.each_head, self.initial.embedding(self.layers))
        shared = Parameters(self.positions.parameters(sizes), name='positions')()
        context = Context(self.mask & Padding(there), Encoding(self.positions, shared, row, row, sizes))
        x, _, more = self.through_blocks(self.numerics.cast(x), context, key=key)
        logits = Dense(self.vocab, kernel_init=self.initial.feed_forward(self.layers)['kernel_init'], numerics=self.numerics,
                       name='answer')(x[:, 0])
        return {'logits': logits, 'hidden': x} | more
