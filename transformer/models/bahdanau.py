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
    """Recurrent layers over the source, in both directions if asked for: annotations [B, S, H or 2·H], and the last states.

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
    """Recurrent layers that begin with the encoder's last states and take up the source as `attention` says.

    Attributes:
      layer: constructor of a layer, called with a name.
      kernel_init: initialiser of the matrices that are no gate's.
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
          encoded: (annotations [B, S, D], {'layer_0': last state, ..}, visible [B, S]); None: they are in the cache.
          there: [R, T], None: everywhere.
          cache: {'layer_0': state, .., 'output', 'past', 'source'}; None: it is not returned either.
          shown: `aux` has the weights of attention, {'cross_attention', 'attention' [R, 1, T, S]}.
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
        """The cache before the first step, but for the states of the layers."""
        state = {'output': jnp.zeros((rows, self.width))} if self.attention.feeding else {}
        return state | ({'past': jnp.zeros((rows, length, self.width))} if self.attention.past else {}) | {'source': {}}

    def _first(self, last):
        """The encoder's last states, of both directions if it has two, through tanh(s·W + b) if they are wider (after Bahdanau
        et al. 2015, appendix A.2.2, where the state of the direction that ends at the first word goes in alone)."""
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
        (first, bias), _ = weights[0]  # the embedding goes through for all steps at once, what enters step by step
        inputs = now | {'given': self.numerics.dense(x, first[:embedding]) + self.numerics.cast(bias)}  # [R, T, G·H]
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
    """logits = decoder(E[target], encoder(E[source]))·W + b: with the defaults the model of Bahdanau et al. 2015,
    but for its maxout layer below the output.

    A row holds one pair: segments tell tokens from padding, and must not number packed pairs.

    Attributes:
      vocab: vocabulary size V of the targets; left out of a config, it is the tokenizer's.
      source_vocab: that of the sources, if it is another; 0: one vocabulary for both. Left out of a config, it is the
        data's.
      source_length, length: the longest row of the encoder and of the decoder.
      layers: of the encoder, and as many of the decoder.
      width: H of every layer (and of each direction of the encoder).
      embedding: width of the embeddings; 0 stands for `width`.
      cell: 'Gru()', 'Lstm()' or 'Rnn()'.
      bidirectional: the encoder runs in both directions, and its annotations are 2·H wide.
      attention: 'Bahdanau()', 'Luong()' or 'NoAttention()', each with its own fields.
      share: sources and targets have one embedding.
      tied: the output layer is the embedding of the targets (Press and Wolf 2017); if not, it is a dense one.
      dropout: rate between the layers.
      outer_dropout: rate on the embeddings and on what the output layer is given.
      initial: how embeddings and the matrix of each gate begin; of its choices by layer, as for a Transformer.
      dense_gradient: the gradient of dense layers as in `transformer.layers.numerics`, instead of JAX's rule.
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

    attentions = {}  # it has no heads that could be switched off

    packs = False  # a run whose rows hold several pairs is refused

    @nn.compact
    def __call__(self, inputs: jax.Array | None = None, *, decoder_inputs: jax.Array, segments: jax.Array | None = None,
                 positions: jax.Array | None = None, decoder_segments: jax.Array | None = None,
                 decoder_positions: jax.Array | None = None, key: jax.Array | None = None, cache: dict | None = None,
                 capture: tuple = ()) -> dict:
        """Sources [B, S] and what precedes each target [B, T] -> {'logits' [B, T, V], 'hidden' [B, T, H]}, with a cache also
        {'cache'}, and where 'attention' is captured its weights, {'decoder/cross_attention', 'decoder/attention' [B, 1, T, S]}.

        Args:
          inputs: sources; with a cache in the first call only.
          segments, decoder_segments: [B, S], [B, T], 0 = padding; None: there is none.
          positions: not needed, a state knows the order.
          decoder_positions: where in its sequence each token is; None: 0, 1, ...
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; decoder_inputs are then the next tokens. What is kept of the source is under 'source' and
            has its B rows; with K·B rows in decoder_inputs, each source has K of them, one after the other.
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
        """An empty cache for `batch` rows of up to `length` tokens, by default as many as the decoder takes."""
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
        """(of sources, of targets)."""
        width = self.embedding or self.width
        if self.tied and width != self.width:
            raise ValueError(f'model.tied=True makes the embedding the output layer, but it is {width} wide and the decoder '
                             f'{self.width}; leave out model.embedding, or set model.tied=False.')
        return pair_embeddings(self.vocab, self.source_vocab, (width, width), self.share, self.initial.embedding(self.layers),
                               numerics)

    def _require_room(self, what, length, field):
        if length > getattr(self, field):
            raise ValueError(f'A {what} of {length} tokens is longer than the {getattr(self, field)} that this model takes; '
                             f'shorten it or train with model.{field}={length}.')
