"""A Transformer over the sentences of a story and a question about it (Dehghani et al. 2019, section 3.1)."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.context import Context
from transformer.attention.masks.data import Padding
from transformer.attention.positions.absolute import Sinusoidal
from transformer.attention.positions.base import Encoding
from transformer.layers.activations import Relu
from transformer.layers.dense import Parameters
from transformer.layers.embedding import Embedding
from transformer.layers.feed_forward import Mlp
from transformer.layers.heads import body_of
from transformer.layers.initial import Xavier
from transformer.layers.numerics import Numerics, real_dtype
from transformer.layers.roles import Wanted, table
from transformer.layers.stack import Heads, Stack, inlined


def signs(key: jax.Array, shape: tuple, dtype: Any = jnp.float32) -> jax.Array:
    """1 or -1 with equal probability, so that places in a sentence differ from the first step on."""
    return jax.random.rademacher(key, shape, dtype)


class StoryTransformer(nn.Module):
    """logits = W·stack([q, x_1, .., x_M])_0 + b, with a vector q for the question and x_i for each sentence, the latest first:

        x_i = sum over j of f_j * E[x_ij],   with a learnt f_j [D] for each place in a sentence, and others for the question.

    Attributes:
      vocab: V, the number of words, with 0 for no word; the answers are among them. By default the data's.
      stack: the blocks; a config sets its fields on the model itself, such as `model.layers`.
      dense_gradient: compute the gradient of dense layers as in `transformer.layers.numerics`, instead of by JAX's rule.
    """
    vocab: int
    stack: Stack = inlined(Stack(layers=6, heads=4, width=128, feed_forward=Mlp(activation=Relu()),
                                 positions=Sinusoidal(at='layers'), initial=Xavier()))
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    @property
    def attentions(self) -> dict:
        """{name: `Heads`} of the attention layers whose heads `head_mask` can switch off."""
        return {'attention': Heads(self.stack)}

    @nn.compact
    def __call__(self, story: jax.Array, question: jax.Array, *, key: jax.Array | None = None, head_mask: Mapping | None = None,
                 capture: tuple = ()) -> dict:
        """story [B, M, J], the latest sentence first, 0 for no word, question [B, J] -> {'logits' [B, V], 'hidden'
        [B, 1 + M, D]} and the `aux` of the stack, with adaptive halting {'ponder' [B, 1 + M]}.

        Args:
          key: random key of training; None switches dropout off.
          head_mask, capture: as in `Context`.
        """
        numerics, stack = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype), self.stack
        memory, length = story.shape[1:]
        learnt = self.variables.get('params', {}).get('places')
        if learnt and length > len(learnt['sentence']):
            raise ValueError(f'A sentence or question has {length} words, but this model has learnt the places of '
                             f'{len(learnt["sentence"])}; shorten it.')
        words = Embedding(self.vocab, stack.width, kernel_init=stack.table_init, numerics=numerics, name='words')
        wanted = Wanted(signs, (length, stack.width), table())
        places = Parameters({name: wanted for name in ('sentence', 'question')}, numerics=numerics, name='places')()

        def encoded(ids, place):
            there = (ids > 0)[..., None].astype(real_dtype())
            return (words(ids) * (there * place)).sum(-2) * (stack.width / stack.multiple) ** 0.5

        x = jnp.concatenate([encoded(question, places['question'])[:, None], encoded(story, places['sentence'])], 1)
        row = jnp.arange(1 + memory)
        there = 1 + jnp.where((story != 0).any(-1), row[1:], 0).max(1)  # [B]: the question and all up to the oldest sentence
        sizes = stack.sizes(1 + memory)
        shared = Parameters(stack.positions.parameters(sizes), numerics=numerics, name='positions')()
        context = Context(stack.mask & Padding(there), Encoding(stack.positions, shared, row, row, sizes),
                          head_mask=head_mask or {}, capture=capture)
        x, _, aux = stack(numerics.cast(x), context, numerics=numerics, key=key)
        body = body_of(stack, numerics)
        logits = body.output(self.vocab, 'answer')(body.readout(x[:, 0]))
        return {'logits': logits, 'hidden': x} | aux
