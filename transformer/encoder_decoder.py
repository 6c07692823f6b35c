"""The encoder-decoder Transformer (Vaswani et al. 2017)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.mask_algebra import Mask
from transformer.attention.masks import Causal, Full, Padding, Segments
from transformer.attention.mechanism import Mechanism, Softmax
from transformer.attention.positions import Positions, Sinusoidal
from transformer.block import Source
from transformer.initial import Initial, Xavier
from transformer.layers import Dense, Parameters, fold, zeros
from transformer.outputs import Head
from transformer.pair_embeddings import TIED, pair_embeddings
from transformer.residual import PostNorm, Residual
from transformer.tower import Sequence, Tower


@dataclasses.dataclass(frozen=True)
class TargetWords(Head):
    """{'logits' [B, T, V]}: x·Eᵀ + b, or x·W + b, as `share` of the model says.

    Attributes:
      scale: x is divided by sqrt(D) first, as in T5 where the output layer is the embedding.
      added: b is there whatever W is, zeros at the start, and training does not change it, as in BART's checkpoints.
    """
    scale: bool = False
    added: bool = False
    causal = True

    def __call__(self, model, x, *, tokens, segments=None, masked=None, key=None):
        x = x * model.width ** -0.5 if self.scale else x
        if model.share in TIED:
            logits = tokens.attend(x)
        else:
            logits = Dense(model.vocab, bias=model.bias and not self.added, numerics=model.numerics, name='output',
                           kernel_init=model.initial.feed_forward(model.layers)['kernel_init'])(x)
        if self.added:
            b = Parameters({'bias': (zeros, (model.vocab,))}, name='added')()['bias']
            logits = logits + jax.lax.stop_gradient(model.numerics.cast(b))
        return {'logits': logits}


class EncoderDecoder(Tower, kw_only=True):
    """logits = decoder(E[target], encoder(E[source]))·Eᵀ: blocks as figure 1 of the paper with the defaults.

    Attributes:
      vocab: vocabulary size V of the targets; left out of a config, it is the tokenizer's.
      source_vocab: that of the sources, if it is another; 0: one vocabulary for both. Left out of a config, it is the data's.
      source_length, length: the longest row of the encoder and of the decoder.
      encoder_layers: blocks of the encoder; 0: as many as the decoder's, `layers`.
      share: which embeddings are one table: 'all', sources, targets and output layer (section 3.4); 'inputs', sources and
        targets; 'output', targets and output layer; 'none'. Where the output layer is of its own, it is a dense one.
      scale_embedding: embeddings are multiplied by sqrt(D) (section 3.4).
      head: what is made of the decoder's hidden states: 'TargetWords()', or where the decoder reads the source once more
        "Classes(classes=3, at='last')", 'TokenClasses(classes=9)' or 'Span()'.
      attention, mask: what mixes positions of the decoder, and which of them see which.
      encoder_attention, encoder_mask: the same in the encoder.
      cross_attention: what mixes positions of the source into those of the decoder.

    The others are those of `Tower`, the same in the encoder and in the decoder.
    """
    vocab: int
    source_vocab: int
    source_length: int = 512
    length: int = 512
    layers: int = 6
    encoder_layers: int = 0
    heads: int = 8
    width: int = 512
    activation: str = 'relu'
    share: str = 'all'
    scale_embedding: bool = True
    head: Head = TargetWords()
    positions: Positions = Sinusoidal()
    mask: Mask = Causal()
    encoder_attention: Mechanism = Softmax()
    encoder_mask: Mask = Full()
    cross_attention: Mechanism = Softmax()
    residual: Residual = PostNorm()
    initial: Initial = Xavier()

    @nn.compact
    def __call__(self, inputs=None, *, decoder_inputs, segments=None, positions=None, decoder_segments=None,
                 decoder_positions=None, key=None, cache=None):
        """Sources [B, S] and what precedes each target [B, T] -> {'hidden' [B, T, D]} and what the head gives, {'logits' [B,
        T, V]}; where sources are given also {'source_hidden' [B, S, D]}, with a cache {'cache'}, with adaptive halting
        {'ponder' [B, T], 'source_ponder' [B, S]}.

        Args:
          inputs: sources; with a cache in the first call only.
          segments, decoder_segments: [B, S], [B, T], pairs packed in a row (0 = padding): tokens see their own pair.
          positions, decoder_positions: where in its sequence each token is; None: 0, 1, ...
          key: random key of training; None switches dropout off.
          cache: from `init_cache`; decoder_inputs are then the next tokens. What is kept of the source is under 'source', at
            every depth, and has its B rows; with K·B rows in decoder_inputs, each source has K of them, one after the other.
        """
        decoder = self._tower('decoder', length=self.length, mask=self.mask, attention=self.attention)
        decoder.require_causal()
        self.cross_attention.require_length(self.source_length)
        source_tokens, target_tokens = pair_embeddings(self, self.width, self.numerics)
        if inputs is not None:
            if segments is None:
                segments = jnp.ones(inputs.shape, jnp.int32)
            encoder = self._tower('encoder', length=self.source_length, mask=self.encoder_mask,
                                  attention=self.encoder_attention, layers=self.encoder_layers or self.layers)
            hidden, _, pondered = encoder(self._embedded(source_tokens, inputs), segments=segments, positions=positions,
                                          key=fold(key, 'encoder'), what='source', field='model.source_length')
            lengths = (segments != 0).sum(1)
        else:
            hidden, lengths, pondered = None, cache['source']['lengths'], {}
        if cache is None and decoder_segments is None:
            decoder_segments = jnp.ones(decoder_inputs.shape, jnp.int32)
        seen = Padding(lengths) if cache is not None else Segments(decoder_segments, segments)
        x, new, more = decoder(
            self._embedded(target_tokens, decoder_inputs), segments=decoder_segments, positions=decoder_positions,
            key=fold(key, 'decoder'), cache=cache, source=Source(hidden, seen), cross=self.cross_attention)
        outputs = {'hidden': x} | more | {f'source_{name}': time for name, time in pondered.items()}
        outputs |= self.head(self, x, tokens=target_tokens, segments=decoder_segments, key=key)
        outputs |= {} if hidden is None else {'source_hidden': hidden}
        return outputs if cache is None else outputs | {'cache': new | {'source': {'lengths': lengths}}}

    def _tower(self, name, **fields):
        """The encoder or the decoder, with the fields of `Tower` that it shares with the other."""
        common = {field.name for field in dataclasses.fields(Tower)} - {'parent', 'name', 'attention', 'mask'}
        return Sequence(**{field: getattr(self, field) for field in common} | fields, name=name)

    def _embedded(self, tokens, ids):
        return tokens(ids) * (self.width ** 0.5 if self.scale_embedding else 1.0)

    def init_cache(self, batch, length=None):
        """An empty cache for `batch` rows of up to `length` tokens, by default as many as the decoder takes."""
        tower = self._tower(None, mask=self.mask, attention=self.attention, parent=None)
        return tower.empty_cache(batch, length or self.length)
