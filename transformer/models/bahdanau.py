"""The recurrent encoder-decoder, with the attention of Bahdanau or of Luong, or none."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.layers.dense import Dense, Parameters
from transformer.layers.dropout import dropout, fold
from transformer.layers.embedding import pair_embeddings
from transformer.layers.initial import Initial, Xavier
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import Wanted, matrix, table
from transformer.layers.sharding import BATCH, constrain
from transformer.models.recurrent import Cell, Gru, Layer, run, scan, stay
from transformer.models.recurrent_attention import Attended, Bahdanau, RecurrentAttention, keys_of


class Encoder(nn.Module):
    """Recurrent layers over the source, optionally in both directions; returns the annotations [B, S, H or 2·H] and the last
    states.

    Attributes:
      layer: constructor of a layer, called with a name.
    """
    layer: Callable
    layers: int
    bidirectional: bool
    dropout: float

    @nn.compact
    def __call__(self, x: jax.Array, there: jax.Array | None, key: jax.Array | None) -> tuple:
        directions = ('', '_reverse') if self.bidirectional else ('',)
        layers = [tuple(self.layer(name=f'layer_{i}{end}') for end in directions) for i in range(self.layers)]
        return run(layers, x, there=there, rate=self.dropout, key=key)


class Decoder(nn.Module):
    """Recurrent layers that start from the encoder's last states and attend to the source by `attention`.

    Attributes:
      layer: constructor of a layer, called with a name.
      kernel_init: initialiser of all matrices but those of the gates.
    """
    layer: Callable
    layers: int
    width: int
    attention: RecurrentAttention
    dropout: float
    kernel_init: Callable
    numerics: Numerics

    @nn.compact
    def __call__(self, x: jax.Array, encoded: Any, *, there: jax.Array | None, positions: jax.Array, key: jax.Array | None,
                 cache: dict | None, shown: bool = False) -> tuple:
        """Embeddings x [R, T, E] -> (the inputs of the output layer [R, T, H], cache, aux).

        Args:
          encoded: (annotations [B, S, D], {'layer_0': last state, ..}, visible [B, S]); None: read them from the cache.
          there: [R, T], True at tokens, False at padding; None: no padding.
          cache: {'layer_0': state, .., 'output', 'past', 'source'}; None: no cache is read or returned.
          shown: return the attention weights in `aux`, {'cross_attention', 'attention' [R, 1, T, S]}.
        """
        part = self.attention
        state = dict(self.empty(*x.shape[:2]) if cache is None else cache)
        source = state.pop('source')
        if encoded is not None:
            annotations, last, visible = encoded
            state |= self._first(last)
            source = {'values': self.numerics.cast(annotations), 'visible': visible}
            if part.score is None:
                source = {'last': self.numerics.cast(last[f'layer_{self.layers - 1}']['hidden'])}
        layers = [self.layer(name=f'layer_{i}') for i in range(self.layers)]
        straight = partial(run, [(layer,) for layer in layers], states=state, there=there, rate=self.dropout, key=key)
        if part.score is None:
            context = jnp.repeat(source['last'], len(x) // len(source['last']), 0)[:, None]
            out, state = straight(jnp.concatenate([x, jnp.broadcast_to(context, (*x.shape[:2], context.shape[-1]))], -1))
            return out, None if cache is None else state | {'source': source}, {}

        kernels, others, source = self._attention(source)
        keep = None
        if part.dropout and key is not None:
            ones = jnp.ones((*x.shape[:2], others['source'].values.shape[1]))
            keep = dropout(ones, part.dropout, fold(key, 'weights'))
        if part.stepwise:
            now = {'positions': positions, 'there': there, 'keep': keep}
            out, weights, state = self._steps(layers, kernels, others, x, state, now, key, shown)
        else:
            dense = lambda name, x: self.numerics.dense(x, kernels[name])
            hidden, state = straight(x)
            context, weights = part.contexts(dense, others['source'], hidden, positions, self.numerics, keep=keep)
            out = self._combined(dense, hidden, context)
        aux = {name: one[:, None] for name, one in weights.items()} if shown else {}
        return out, None if cache is None else state | {'source': source}, aux

    def empty(self, rows: int, length: int) -> dict:
        """The cache before the first step, without the states of the layers."""
        state = {'output': jnp.zeros((rows, self.width))} if self.attention.feeding else {}
        return state | ({'past': jnp.zeros((rows, length, self.width))} if self.attention.past else {}) | {'source': {}}

    def _first(self, last):
        """The decoder's first states: the encoder's last ones, or tanh(s·W + b) of them where their width differs. Bahdanau et
        al. 2015, appendix A.2.2, use the backward direction alone; here s joins both directions."""
        def fit(keys, x):
            name = '_'.join(key.key for key in keys)
            dense = Dense(self.width, kernel_init=self.kernel_init, numerics=self.numerics, name=f'first_{name}')
            return x if x.shape[-1] == self.width else jnp.tanh(wide(dense(x)))
        return jax.tree_util.tree_map_with_path(fit, last)

    def _attention(self, source):
        """({name: kernel}, {'source': Attended, 'own': parameters}, source with keys)."""
        part, width, source_width = self.attention, self.width, source['values'].shape[-1]
        parameters, own = Parameters(part.parameters(width, source_width), numerics=self.numerics, name='cross_attention')(), {}
        kernels = {name: parameters[name] for name in ('window',) if name in parameters}
        if part.past:
            own = Parameters(part.score.parameters(1, 1, width, width), numerics=self.numerics, name='attention')()
        if part.combined:
            wanted = {'kernel': Wanted(self.kernel_init, (part.context_width(width, source_width) + width, width), matrix())}
            kernels['combined'] = Parameters(wanted, numerics=self.numerics, name='combined')()['kernel']
        if 'keys' not in source:
            source = source | {'keys': keys_of(part.score, parameters, source['values'], width, self.numerics)}
        return kernels, {'source': Attended(parameters, **source), 'own': own}, source

    def _combined(self, dense, hidden, context):
        if not self.attention.combined:
            return hidden
        return jnp.tanh(dense('combined', jnp.concatenate([context, hidden], -1)))

    def _steps(self, layers, kernels, others, x, state, now, key, shown):
        """(the inputs of the output layer [R, T, H], {name: weights [R, T, S]}, state), one position after the other."""
        part, width, embedding = self.attention, self.width, x.shape[-1]
        context_width = part.context_width(width, others['source'].values.shape[-1])
        entering = context_width if part.early else width if part.feeding else 0
        weights = [layer.weights(width if i else embedding + entering) for i, layer in enumerate(layers)]
        (first, bias), _ = weights[0]  # embeddings are projected for all steps at once, the context or output step by step
        inputs = now | {'given': self.numerics.plus(self.numerics.dense(x, first[:embedding]), bias)}  # [R, T, G·H]
        kernels, biases = kernels | ({'entering': first[embedding:]} if entering else {}), {}
        for i, (given, own) in enumerate(weights):
            kernels[f'state_{i}'], biases[f'state_{i}'] = own
            if i:
                kernels[f'input_{i}'], biases[f'input_{i}'] = given
                if key is not None and self.dropout:
                    inputs[f'keep_{i}'] = dropout(jnp.ones((*x.shape[:2], width)), self.dropout, fold(key, 'layer', i))
        inputs = {name: a.swapaxes(0, 1) for name, a in inputs.items() if a is not None}
        cells = [layer.cell for layer in layers]

        def step(dense, others, state, now):
            out, weights, state = self._step(cells, dense, others, state, now)
            return state, (out, weights if shown else {})

        state, (out, weights) = scan(step, kernels, others | {'biases': biases}, state, inputs, self.numerics)
        return out.swapaxes(0, 1), {name: one.swapaxes(0, 1) for name, one in weights.items()}, state

    def _step(self, cells, dense, others, state, now):
        """(the inputs of the output layer [R, H], {name: weights [R, S]}, the new state) of one position."""
        part, top = self.attention, f'layer_{len(cells) - 1}'

        def look(hidden):
            own = None
            if part.past:
                before = jnp.arange(state['past'].shape[1]) < now['positions'][:, None]
                own = Attended(others['own'], state['past'], before)
            keep = now['keep'][:, None] if 'keep' in now else None
            context, weights = part.contexts(dense, others['source'], hidden[:, None], now['positions'][:, None],
                                             self.numerics, own, keep)
            return context[:, 0], {name: one[:, 0] for name, one in weights.items()}

        def biased(name, x):
            bias = others['biases'][name]
            return dense(name, x) if bias is None else dense(name, x) + bias

        given, new = now['given'], dict(state)
        if part.early:
            context, weights = look(state[top]['hidden'])
            given = given + dense('entering', context)
        elif part.feeding:
            given = given + dense('entering', state['output'])
        for i, cell in enumerate(cells):
            old = state[f'layer_{i}']
            new[f'layer_{i}'] = cell(given, biased(f'state_{i}', old['hidden']), old)
            hidden = new[f'layer_{i}']['hidden']
            if i + 1 < len(cells):
                given = biased(f'input_{i + 1}', hidden * now.get(f'keep_{i + 1}', 1.0))
        if not part.early:
            context, weights = look(hidden)
        out = self._combined(dense, hidden, context)
        if part.feeding:
            new['output'] = out
        if part.past:
            at = jnp.arange(len(out)), now['positions']
            new['past'] = state['past'].at[at].set(stay(hidden, state['past'][at], now.get('there')))
        stays = {name: stay(new[name], state[name], now.get('there')) for name in new if name != 'past'}
        return out, weights, new | stays


class RecurrentEncoderDecoder(nn.Module):
    """logits = decoder(E[target], encoder(E[source]))·W + b, by default the model of Bahdanau et al. 2015 without its maxout
    layer before the output.

    A row holds one pair: segments distinguish tokens from padding only; packed pairs are not supported.

    Attributes:
      vocab: vocabulary size V of the targets; by default the tokenizer's.
      source_vocab: vocabulary size of the sources; 0: one vocabulary for both; by default the data's.
      source_length, length: the largest number of tokens in a row of the encoder and of the decoder.
      layers: number of layers of the encoder, and of the decoder.
      width: H of every layer (and of each direction of the encoder).
      embedding: width of the embeddings; 0 stands for `width`.
      cell: 'Gru()', 'Lstm()' or 'Rnn()'.
      bidirectional: run the encoder in both directions, which makes its annotations 2·H wide.
      attention: 'Bahdanau()', 'Luong()' or 'NoAttention()', each with its own fields.
      share: use one embedding for sources and targets.
      tied: use the embedding of the targets as the output layer (Press and Wolf 2017); False: a dense output layer.
      dropout: rate between the layers.
      outer_dropout: rate on the embeddings and on the inputs of the output layer.
      initial: initialisation of the embeddings and of the matrix of each gate, as for a Transformer of as many layers.
      dense_gradient: compute the gradient of dense layers as in `transformer.layers.numerics`, instead of by JAX's rule.
    """
    vocab: int
    source_vocab: int
    source_length: int = 512
    length: int = 512
    layers: int = 1
    width: int = 256
    embedding: int = 0
    cell: Cell = Gru()
    bidirectional: bool = True
    attention: RecurrentAttention = Bahdanau()
    share: bool = False
    tied: bool = False
    dropout: float = 0.0
    outer_dropout: float = 0.0
    initial: Initial = Xavier()
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    attentions = {}  # no heads that `head_mask` could switch off
    packs = False  # training refuses rows of several pairs

    @nn.compact
    def __call__(self, inputs: jax.Array | None = None, *, decoder_inputs: jax.Array, segments: jax.Array | None = None,
                 positions: jax.Array | None = None, decoder_segments: jax.Array | None = None,
                 decoder_positions: jax.Array | None = None, key: jax.Array | None = None, cache: dict | None = None,
                 capture: tuple = ()) -> dict:
        """Applies the encoder to `inputs` [B, S] and the decoder to `decoder_inputs` [B, T], the targets shifted right.

        Returns:
          {'logits' [B, T, V], 'hidden' [B, T, H]}, with a cache also {'cache'}; where 'attention' is captured, also its
          weights, {'decoder/cross_attention', 'decoder/attention' [B, 1, T, S]}.

        Args:
          inputs: the source tokens; with a cache, given in the first call only.
          segments, decoder_segments: [B, S], [B, T], 0 = padding; None: no padding.
          positions: ignored; the state carries the order.
          decoder_positions: the position of each token in its sequence; None: 0, 1, ...
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; `decoder_inputs` are then the next tokens. The entry 'source' holds the projected source,
            with its B rows; if `decoder_inputs` has K·B rows, each source serves K consecutive ones.
        """
        numerics = self._numerics()
        kernel_init = self.initial.feed_forward(self.layers)['kernel_init']
        source_tokens, target_tokens = self._embeddings(numerics)
        drop = lambda name, x: dropout(constrain(numerics.cast(x), BATCH), self.outer_dropout, fold(key, name))
        if self.attention.score:
            self.attention.score.require_length(max(self.source_length, self.length if self.attention.past else 0))
        encoded = None
        if inputs is not None:
            self._require_room('source', inputs.shape[1], 'source_length')
            visible = jnp.ones(inputs.shape, bool) if segments is None else segments != 0
            encoder = Encoder(self._layer(numerics), self.layers, self.bidirectional, self.dropout, name='encoder')
            encoded = (*encoder(drop('source', source_tokens(inputs)), None if segments is None else visible,
                                fold(key, 'encoder')), visible)
        self._require_room('row', decoder_inputs.shape[1], 'length')
        if decoder_positions is None:
            decoder_positions = jnp.broadcast_to(jnp.arange(decoder_inputs.shape[1]), decoder_inputs.shape)
        x, cache, aux = self._decoder(numerics, name='decoder')(
            drop('embedding', target_tokens(decoder_inputs)), encoded, positions=decoder_positions,
            there=None if decoder_segments is None else decoder_segments != 0, key=fold(key, 'decoder'), cache=cache,
            shown='attention' in capture)
        x = drop('output', x)
        output = target_tokens.attend if self.tied else Dense(
            self.vocab, role=table(1), kernel_init=kernel_init, numerics=numerics, name='output')
        outputs = {'logits': output(x), 'hidden': x} | {f'decoder/{name}': weights for name, weights in aux.items()}
        return outputs if cache is None else outputs | {'cache': cache}

    def init_cache(self, batch: int, length: int | None = None) -> dict:
        """An empty cache for `batch` rows of up to `length` tokens, by default the decoder's length."""
        states = {f'layer_{i}': self.cell.first(batch, self.width) for i in range(self.layers)}
        decoder = self._decoder(self._numerics(), parent=None)
        return states | decoder.empty(batch, length or self.length)

    def _numerics(self):
        return Numerics(self.dtype, self.dense_gradient, self.parameter_dtype)

    def _layer(self, numerics):
        return partial(Layer, self.cell, self.width, self.initial.feed_forward(self.layers)['kernel_init'], numerics)

    def _decoder(self, numerics, **named):
        return Decoder(self._layer(numerics), self.layers, self.width, self.attention, self.dropout,
                       self.initial.feed_forward(self.layers)['kernel_init'], numerics, **named)

    def _embeddings(self, numerics):
        """(the embedding of sources, the embedding of targets)."""
        width = self.embedding or self.width
        if self.tied and width != self.width:
            raise ValueError(f'model.tied=True makes the embedding the output layer, but it is {width} wide and the decoder '
                             f'{self.width}; leave out model.embedding, or set model.tied=False.')
        kernel_init = self.initial.embedding(self.layers)
        return pair_embeddings(self.vocab, self.source_vocab, (width,) * 2, self.share, (kernel_init,) * 2, numerics)

    def _require_room(self, what, length, field):
        if length > getattr(self, field):
            raise ValueError(f'A {what} of {length} tokens is longer than the {getattr(self, field)} that this model takes; '
                             f'shorten it, or train with model.{field}={length}.')
