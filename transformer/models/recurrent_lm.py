"""A recurrent language model (Mikolov et al. 2010; with LSTM cells and dropout Zaremba et al. 2014)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.layers.dense import Dense
from transformer.layers.dropout import dropout, fold
from transformer.layers.embedding import Embedding
from transformer.layers.initial import Initial, Xavier
from transformer.layers.numerics import Numerics
from transformer.layers.roles import table
from transformer.layers.sharding import BATCH, constrain
from transformer.models.recurrent import Cell, Layer, Lstm, run


class RecurrentLm(nn.Module):
    """logits = layers(E[token])·Eᵀ if tied, else layers(E[token])·W + b.

    The state starts from zeros in every row and in every document of a packed row. Rows of any length can be evaluated.

    Attributes:
      vocab: vocabulary size V; by default the tokenizer's.
      length: the largest number of tokens in a row, in training and in generation.
      width: D, of the embedding and of every layer.
      cell: 'Lstm()', 'Gru()' or 'Rnn()'.
      dropout: rate on the embedding and on the output of each layer, not on the recurrent connections (Zaremba et al. 2014,
        eq. 3).
      tied: use the embedding as the output layer (Press and Wolf 2017).
      initial: initialisation of the embedding and of the matrix of each gate, as for a Transformer of as many layers.
      dense_gradient: compute the gradient of dense layers as in `transformer.layers.numerics`, instead of by JAX's rule.
    """
    vocab: int
    length: int = 1024
    layers: int = 2
    width: int = 256
    cell: Cell = Lstm()
    dropout: float = 0.0
    tied: bool = True
    initial: Initial = Xavier()
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    attentions = {}  # no heads that `head_mask` could switch off

    @nn.compact
    def __call__(self, inputs: jax.Array, *, segments: jax.Array | None = None, positions: jax.Array | None = None,
                 key: jax.Array | None = None, cache: dict | None = None, capture: tuple = ()) -> dict:
        """inputs [B, T] -> {'logits' [B, T, V], 'hidden' [B, T, D]}, and with a cache also {'cache'}.

        Args:
          segments: [B, T], numbers of packed documents (0 = padding, which does not change the state); None: each row is one
            document.
          positions: [B, T]; a document begins at 0. None: 0..T-1.
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; `inputs` are then the next tokens, at `positions`, one document a row.
          capture: ignored; this model has no attention to capture.
        """
        numerics = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype)
        begins, there = None, None  # where documents begin (None: at the row's start), and where tokens are (None: everywhere)
        if positions is not None or cache is not None:
            begins = jnp.broadcast_to((jnp.arange(inputs.shape[1]) if positions is None else positions) == 0, inputs.shape)
        if segments is not None:
            there = segments != 0
            if cache is None:
                change = segments != jnp.roll(segments, 1, 1)
                begins = change if begins is None else begins | change
            begins = begins & there
        kernel_init = self.initial.feed_forward(self.layers)['kernel_init']
        tokens = Embedding(self.vocab, self.width, kernel_init=self.initial.embedding(self.layers), numerics=numerics,
                           name='tokens')
        layers = [(Layer(self.cell, self.width, kernel_init, numerics, name=f'layer_{i}'),) for i in range(self.layers)]
        x = dropout(constrain(tokens(inputs), BATCH), self.dropout, fold(key, 'embedding'))
        x, cache_out = run(layers, x, cache, there=there, begins=begins, rate=self.dropout, key=key)
        x = dropout(numerics.cast(constrain(x, BATCH)), self.dropout, fold(key, 'output'))
        output = tokens.attend if self.tied else Dense(
            self.vocab, role=table(1), kernel_init=kernel_init, numerics=numerics, name='output')
        outputs = {'logits': output(x), 'hidden': x}
        return outputs if cache is None else outputs | {'cache': cache_out}

    def init_cache(self, batch: int, length: int | None = None) -> dict:
        """The states of `batch` rows before their first tokens; their size does not depend on `length`."""
        return {f'layer_{i}': self.cell.first(batch, self.width) for i in range(self.layers)}
