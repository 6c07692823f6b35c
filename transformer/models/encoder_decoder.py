"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.context import Source
from transformer.attention.masks.data import Padding, Segments
from transformer.attention.masks.patterns import Causal
from transformer.attention.mechanism import Mechanism, Softmax
from transformer.attention.positions.absolute import Sinusoidal
from transformer.layers.activations import Relu
from transformer.layers.dropout import fold
from transformer.layers.embedding import pair_embeddings
from transformer.layers.feed_forward import Mlp
from transformer.layers.heads import Head, NextWords, body_of, in_blocks
from transformer.layers.initial import Xavier
from transformer.layers.numerics import Numerics, array_type
from transformer.layers.residual import PostNorm
from transformer.layers.stack import Heads, Stack, of_one_document

# Section 3 and table 3 (base) of the paper.
BASE = Stack(layers=6, heads=8, width=512, feed_forward=Mlp(activation=Relu()), positions=Sinusoidal(), residual=PostNorm(),
             initial=Xavier())


class EncoderDecoder(nn.Module):
    """logits = decoder(E[target], encoder(E[source]))·Eᵀ, by default with the blocks of the paper's figure 1.

    Attributes:
      vocab: vocabulary size V of the targets; by default the tokenizer's.
      source_vocab: vocabulary size of the sources; 0: one vocabulary for both; by default the data's.
      source_length, length: the largest number of tokens in a row of the encoder and of the decoder.
      encoder, decoder: the two stacks of blocks, each with its own sizes.
      cross_attention: the mechanism by which the decoder attends to the source.
      share: use one embedding for sources and targets (section 3.4).
      scale_embedding: multiply embeddings by sqrt(D) (section 3.4).
      head: maps the decoder's hidden states to outputs: 'NextWords()', with `tied=False, bias=True` for a dense output layer;
        where the decoder reads the source again "Classes(classes=3, at='last')", 'TokenClasses(classes=9)' or 'Span()'.
      dense_gradient: compute the gradient of dense layers as in `transformer.layers.numerics`, instead of by JAX's rule.
    """
    vocab: int
    source_vocab: int
    source_length: int = 512
    length: int = 512
    encoder: Stack = BASE
    decoder: Stack = dataclasses.replace(BASE, mask=Causal())
    cross_attention: Mechanism = Softmax()
    share: bool = True
    scale_embedding: bool = True
    head: Head = NextWords()
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    @property
    def packs(self) -> bool:
        """Whether it tells apart the documents of a row, by `segments`."""
        return self.encoder.packs and self.decoder.packs and self.cross_attention.packed

    @property
    def attentions(self) -> dict:
        """{name: `Heads`} of the attention layers whose heads `head_mask` can switch off."""
        return {'encoder/attention': Heads(self.encoder, 'encoder'), 'decoder/attention': Heads(self.decoder, 'decoder'),
                'decoder/cross_attention': Heads(self.decoder, 'decoder', 'cross_kept')}

    @nn.compact
    def __call__(self, inputs: jax.Array | None = None, *, decoder_inputs: jax.Array, segments: jax.Array | None = None,
                 positions: jax.Array | None = None, decoder_segments: jax.Array | None = None,
                 decoder_positions: jax.Array | None = None, key: jax.Array | None = None, cache: dict | None = None,
                 block: int = 0, head_mask: Mapping | None = None, capture: tuple = ()) -> dict:
        """Applies the encoder to `inputs` [B, S] and the decoder to `decoder_inputs` [B, T], the targets shifted right.

        Returns:
          {'hidden' [B, T, D], 'logits' [B, T, V]} (or the outputs of another head) and the `aux` of the stacks under
          'encoder/..' and 'decoder/..'; with adaptive halting {'ponder' [B, T], 'source_ponder' [B, S]}; with `inputs` also
          {'source_hidden' [B, S, D]}; with a cache {'cache'}.

        Args:
          inputs: the source tokens; with a cache, given in the first call only.
          segments, decoder_segments: [B, S], [B, T], numbers of the pairs packed in a row (0 = padding); a token attends only
            within its own pair.
          positions, decoder_positions: the position of each token in its sequence; None: 0, 1, ...
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; `decoder_inputs` are then the next tokens. At every depth, the entry 'source' holds the
            projected source, with its B rows; if `decoder_inputs` has K·B rows, each source serves K consecutive ones.
          block: give the logits as `BlockedLogits` of so many positions; 0: whole.
          head_mask: {'encoder/attention', 'decoder/attention', 'decoder/cross_attention': factors}, as in `Context`.
          capture: as in `Context`.
        """
        numerics, heads = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype), head_mask or {}
        self.decoder.require_causal()
        self.cross_attention.require_length(self.source_length)
        source_tokens, target_tokens = pair_embeddings(
            self.vocab, self.source_vocab, (self.encoder.width, self.decoder.width), self.share,
            (self.encoder.table_init, self.decoder.table_init), numerics)
        hidden, aux = None, {}
        if inputs is not None:
            if segments is None:
                segments = jnp.ones(inputs.shape, jnp.int32)
            hidden, _, aux = OverRows(self.encoder, self.source_length, numerics, name='encoder')(
                self._embedded(source_tokens, inputs, self.encoder), segments=segments, positions=positions,
                key=fold(key, 'encoder'), what='source', field='model.source_length', head_mask=_of('encoder', heads),
                capture=capture)
            lengths = (segments != 0).sum(1)
            hidden = hidden if self.cross_attention.packed else of_one_document(hidden, segments)
        else:
            lengths = cache['source']['lengths']
        if cache is None and decoder_segments is None:
            decoder_segments = jnp.ones(decoder_inputs.shape, jnp.int32)
        apart = cache is None and self.cross_attention.packed
        seen = Segments(decoder_segments, segments) if apart else Padding(lengths)
        x, new, more = OverRows(self.decoder, self.length, numerics, name='decoder')(
            self._embedded(target_tokens, decoder_inputs, self.decoder), segments=decoder_segments,
            positions=decoder_positions, key=fold(key, 'decoder'), cache=cache, source=Source(hidden, seen),
            cross=self.cross_attention if cache is None else self.cross_attention.decoding,
            head_mask=_of('decoder', heads), capture=capture)
        outputs = {'hidden': x} | _named('encoder', 'source_ponder', aux) | _named('decoder', 'ponder', more)
        outputs |= self.head(x, body_of(self.decoder, numerics, target_tokens, self.vocab), segments=decoder_segments, key=key,
                             **in_blocks(self.head, block))
        outputs |= {} if hidden is None else {'source_hidden': hidden}
        return outputs if cache is None else outputs | {'cache': new | {'source': {'lengths': lengths}}}

    def _embedded(self, tokens, ids, stack):
        return tokens(ids) * ((stack.width / stack.multiple) ** 0.5 if self.scale_embedding else 1.0)

    def init_cache(self, batch: int, length: int | None = None) -> dict:
        """An empty cache for `batch` rows of up to `length` tokens, by default the decoder's length."""
        return self.decoder.empty_cache(batch, length or self.length, array_type(self.dtype))


class OverRows(nn.Module):
    """`Stack.over_rows` as a module, with a scope of its own for the parameters."""
    stack: Stack
    length: int
    numerics: Numerics

    @nn.compact
    def __call__(self, x: jax.Array, **given: Any) -> tuple:
        """As `Stack.over_rows`."""
        return self.stack.over_rows(x, length=self.length, numerics=self.numerics, **given)


def _of(stack, factors):
    """The entries of a head mask for one of the stacks."""
    return {name.removeprefix(f'{stack}/'): x for name, x in factors.items() if name.startswith(f'{stack}/')}


def _named(stack, ponder, aux):
    """The `aux` of a stack under the names of the model's outputs."""
    return {ponder if name == 'ponder' else f'{stack}/{name}': x for name, x in aux.items()}
