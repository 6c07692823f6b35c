"""What a model makes of its hidden states: a part of a config, `model.head`.

The modules that a head makes are the model's own, so that `pooler/kernel` is the name of a parameter.
"""

import abc
import dataclasses

import jax.numpy as jnp

from transformer.block import ACTIVATIONS
from transformer.layers import Dense, Parameters, dropout, fold, zeros


class Head(abc.ABC):
    """Base of the heads of a tower over tokens (transformer/tower.py:Sequence).

    Attributes:
      causal: whether it predicts what later positions hold, which none may see then.
    """
    causal = False

    @abc.abstractmethod
    def __call__(self, model, x, *, tokens, segments=None, masked=None, key=None):
        """Hidden states [B, T, D] -> outputs by name.

        Args:
          model: the model, whose fields say how layers are made.
          tokens: its embedding.
          segments: [B, T], 0 = padding; None: there is none.
          masked: [B, M], the positions whose words are predicted; None: all, M = T.
          key: random key of training; None switches dropout off.
        """


def dense(model, features, name, bias=True):
    return Dense(features, bias=bias, kernel_init=model.initial.embedding(model.layers), numerics=model.numerics, name=name)


def pooled(model, x):
    """tanh(x·W + b) of the state [B, D] that stands for a row (Devlin et al. 2019, section 3.1; the layer is in their code)."""
    y = dense(model, model.width, 'pooler')(x)
    return model.numerics.cast(jnp.tanh(y.astype(jnp.float32)))


def require_classes(head):
    if head.classes < 1:
        raise ValueError(f'{head}: classes is {head.classes}; expected how many there are.')


@dataclasses.dataclass(frozen=True)
class NoHead(Head):
    """Hidden states alone, which every model gives; with `pooler` also {'pooled' [B, D]}, of the first position."""
    pooler: bool = False

    def __call__(self, model, x, *, tokens, segments=None, masked=None, key=None):
        return {'pooled': pooled(model, x[:, 0])} if self.pooler else {}


@dataclasses.dataclass(frozen=True)
class NextWords(Head):
    """{'logits' [B, T, V]}: x·Eᵀ, of the word that follows each position.

    Attributes:
      tied: the output layer is the token embedding E (Press and Wolf 2017); else a matrix of its own.
    """
    tied: bool = True
    causal = True

    def __call__(self, model, x, *, tokens, segments=None, masked=None, key=None):
        return {'logits': (tokens.attend if self.tied else dense(model, model.vocab, 'output', bias=False))(x)}


@dataclasses.dataclass(frozen=True)
class MaskedWords(Head):
    """{'logits' [B, M, V]}: norm(activation(x·W + b))·Eᵀ + c, with the token embedding E (Devlin et al. 2019, section 3.1,
    task 1)."""

    def __call__(self, model, x, *, tokens, segments=None, masked=None, key=None):
        if masked is not None:
            x = jnp.take_along_axis(x, masked[..., None], 1)  # [B, M, D]
        x = dense(model, model.width, 'transform')(x)
        x = model.numerics.cast(ACTIVATIONS[model.activation](x.astype(jnp.float32)))
        x = model.norm_layer()(name='transform_norm')(x)
        bias = Parameters({'bias': (zeros, (model.vocab,))}, name='output')()['bias']
        return {'logits': tokens.attend(x) + model.numerics.cast(bias)}


@dataclasses.dataclass(frozen=True)
class NextSentence(Head):
    """{'next_logits' [B, 2]}: whether the second text follows the first, 0, or not, 1 (section 3.1, task 2)."""

    def __call__(self, model, x, *, tokens, segments=None, masked=None, key=None):
        return {'next_logits': dense(model, 2, 'next_sentence')(pooled(model, x[:, 0]))}


@dataclasses.dataclass(frozen=True)
class Pretraining(Head):
    """Both tasks of BERT: the outputs of `MaskedWords` and of `NextSentence`."""

    def __call__(self, model, x, **given):
        return MaskedWords()(model, x, **given) | NextSentence()(model, x, **given)


@dataclasses.dataclass(frozen=True)
class Classes(Head):
    """{'logits' [B, classes]}: of the state of one position, which stands for the row.

    Attributes:
      at: 'first', or 'last' before the padding, which has seen all others in a causal model.
      pooler: it goes through tanh(x·W + b) first.
      bias: of the last layer.
      dropout: rate on what the last layer is given; -1: the model's.
      twice: the same on what the pooler is given, as in RoBERTa and BART.
    """
    classes: int
    at: str = 'first'
    pooler: bool = True
    bias: bool = True
    dropout: float = -1.0
    twice: bool = False

    def __post_init__(self):
        require_classes(self)
        if self.at not in ('first', 'last'):
            raise ValueError(f'{self}: at is {self.at!r}; expected first or last.')

    def __call__(self, model, x, *, tokens, segments=None, masked=None, key=None):
        if self.at == 'first':
            x = x[:, 0]
        elif segments is None:
            x = x[:, -1]
        else:
            last = jnp.where(segments != 0, jnp.arange(x.shape[1]), 0).max(1)
            x = jnp.take_along_axis(x, last[:, None, None], 1)[:, 0]
        rate = model.rate(self.dropout)
        if self.pooler:
            x = pooled(model, dropout(x, rate if self.twice else 0.0, fold(key, 'pooler')))
        x = dropout(x, rate, fold(key, 'head'))
        return {'logits': dense(model, self.classes, 'classes', self.bias)(x)}


@dataclasses.dataclass(frozen=True)
class TokenClasses(Head):
    """{'logits' [B, T, classes]}, of every position (section 5.3).

    Attributes:
      dropout: rate on what the layer is given; -1: the model's.
    """
    classes: int
    dropout: float = -1.0

    def __post_init__(self):
        require_classes(self)

    def __call__(self, model, x, *, tokens, segments=None, masked=None, key=None):
        return {'logits': dense(model, self.classes, 'classes')(dropout(x, model.rate(self.dropout), fold(key, 'head')))}


@dataclasses.dataclass(frozen=True)
class Span(Head):
    """{'start_logits', 'end_logits' [B, T]}: where an answer begins and where it ends (section 4.2)."""

    def __call__(self, model, x, *, tokens, segments=None, masked=None, key=None):
        logits = dense(model, 2, 'span')(x)
        return {'start_logits': logits[..., 0], 'end_logits': logits[..., 1]}
