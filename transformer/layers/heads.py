"""What a model makes of its hidden states: a part of a config, `model.head`.

The modules that a head makes are the model's own, so that `pooler/kernel` is the name of a parameter.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from transformer.layers.activations import Activation, Gelu
from transformer.layers.dense import Dense, Parameters
from transformer.layers.dropout import dropout, fold
from transformer.layers.initial import zeros
from transformer.layers.norm import LayerNorm, Norm, normed
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import Wanted, table


@dataclasses.dataclass(frozen=True)
class Body:
    """What a head knows of the model that it stands on.

    Attributes:
      width: D, of the hidden states.
      kernel_init: initialiser of matrices.
      norm: the kind of its norms.
      dropout: its rate on branches.
      tokens: the module of its token embedding; None: it has none.
      vocab: V, rows of that.
    """
    width: int
    kernel_init: Callable
    norm: Norm = LayerNorm()
    dropout: float = 0.0
    numerics: Numerics = Numerics()
    tokens: Any = None
    vocab: int = 0

    def rate(self, given: float) -> float:
        """The rate that a field for dropout stands for."""
        return self.dropout if given < 0 else given

    def dense(self, features: int, name: str, bias: bool = True) -> Dense:
        return Dense(features, bias=bias, kernel_init=self.kernel_init, numerics=self.numerics, name=name)

    def output(self, features: int, name: str, bias: bool = True) -> Dense:
        """A dense layer onto words or classes, with a row for each."""
        return Dense(features, bias=bias, kernel_init=self.kernel_init, role=table(1), numerics=self.numerics, name=name)

    def vector(self, name: str) -> jax.Array:
        """A number for each word, NAME/bias [V]."""
        return Parameters({'bias': Wanted(zeros, (self.vocab,))}, numerics=self.numerics, name=name)()['bias']


def body_of(stack: Any, numerics: Numerics, tokens: Any = None, vocab: int = 0) -> Body:
    """What a head on a stack is told."""
    return Body(stack.width, stack.matrix_init, stack.norm, stack.dropout, numerics, tokens, vocab)


@dataclasses.dataclass(frozen=True)
class Head(abc.ABC):
    """Base of the heads.

    Attributes:
      causal: whether it predicts what later positions hold, which none may see then.
    """
    causal = False

    @abc.abstractmethod
    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        """Hidden states [B, T, D] -> outputs by name.

        Args:
          segments: [B, T], 0 = padding; None: there is none.
          masked: [B, M], the positions whose words are predicted; None: all, M = T.
          key: random key of training; None switches dropout off.
        """


def pooled(x: jax.Array, body: Body) -> jax.Array:
    """tanh(x·W + b) of the state [B, D] that stands for a row (Devlin et al. 2019, section 3.1; the layer is in their code)."""
    return body.numerics.cast(jnp.tanh(wide(body.dense(body.width, 'pooler')(x))))


def last_of(x: jax.Array, segments: jax.Array | None) -> jax.Array:
    """The states [B, D] of the last positions of rows [B, T, D] before their padding."""
    if segments is None:
        return x[:, -1]
    last = jnp.where(segments != 0, jnp.arange(x.shape[1]), 0).max(1)
    return jnp.take_along_axis(x, last[:, None, None], 1)[:, 0]


def require_classes(head: Any) -> None:
    if head.classes < 1:
        raise ValueError(f'{head}: classes is {head.classes}; expected how many there are.')


@dataclasses.dataclass(frozen=True)
class NoHead(Head):
    """Hidden states alone, which every model gives; with `pooler` also {'pooled' [B, D]}, of the first position."""
    pooler: bool = False

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        return {'pooled': pooled(x[:, 0], body)} if self.pooler else {}


@dataclasses.dataclass(frozen=True)
class NextWords(Head):
    """{'logits' [B, T, V]}: x·Eᵀ, or x·W + b, of the word that follows each position.

    Attributes:
      tied: the output layer is the token embedding E (Press and Wolf 2017); else a matrix W of its own.
      bias: of an output layer of its own.
      scaled: x is divided by sqrt(D) first, as in T5 where the output layer is the embedding.
      added: a b that training does not change, zeros at the start, whatever the output layer is, as in BART's checkpoints.
    """
    tied: bool = True
    bias: bool = False
    scaled: bool = False
    added: bool = False
    causal = True

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        x = x * body.width ** -0.5 if self.scaled else x
        logits = (body.tokens.attend if self.tied else body.output(body.vocab, 'output', self.bias))(x)
        if self.added:
            b = body.vector('added')
            logits = logits + jax.lax.stop_gradient(body.numerics.cast(b))
        return {'logits': logits}


@dataclasses.dataclass(frozen=True)
class NextWordsAndChoice(NextWords):
    """The outputs of `NextWords` and {'choice_logits' [B]}: x·w + b of the last state before the padding, a score by which one
    of several rows is chosen (Radford et al. 2018, section 3.3).

    Attributes:
      dropout: rate on that state; -1: the model's.
    """
    dropout: float = -1.0

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        state = dropout(last_of(x, segments), body.rate(self.dropout), fold(key, 'head'))
        return super().__call__(x, body) | {'choice_logits': body.output(1, 'choice')(state)[:, 0]}


@dataclasses.dataclass(frozen=True)
class MaskedWords(Head):
    """{'logits' [B, M, V]}: norm(activation(x·W + b))·Eᵀ + c, with the token embedding E (Devlin et al. 2019, section 3.1,
    task 1)."""
    activation: Activation = Gelu()

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        if masked is not None:
            x = jnp.take_along_axis(x, masked[..., None], 1)  # [B, M, D]
        x = body.numerics.cast(self.activation(wide(body.dense(body.width, 'transform')(x))))
        x = normed(body.norm, x, 'transform_norm', body.numerics)
        bias = body.vector('output')
        return {'logits': body.tokens.attend(x) + body.numerics.cast(bias)}


@dataclasses.dataclass(frozen=True)
class NextSentence(Head):
    """{'next_logits' [B, 2]}: whether the second text follows the first, 0, or not, 1 (section 3.1, task 2)."""

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        return {'next_logits': body.output(2, 'next_sentence')(pooled(x[:, 0], body))}


@dataclasses.dataclass(frozen=True)
class Pretraining(MaskedWords):
    """Both tasks of BERT: the outputs of `MaskedWords` and of `NextSentence`."""

    def __call__(self, x: jax.Array, body: Body, **given: Any) -> dict:
        return super().__call__(x, body, **given) | NextSentence()(x, body, **given)


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

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        x = x[:, 0] if self.at == 'first' else last_of(x, segments)
        rate = body.rate(self.dropout)
        if self.pooler:
            x = pooled(dropout(x, rate if self.twice else 0.0, fold(key, 'pooler')), body)
        return {'logits': body.output(self.classes, 'classes', self.bias)(dropout(x, rate, fold(key, 'head')))}


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

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        x = dropout(x, body.rate(self.dropout), fold(key, 'head'))
        return {'logits': body.output(self.classes, 'classes')(x)}


@dataclasses.dataclass(frozen=True)
class Span(Head):
    """{'start_logits', 'end_logits' [B, T]}: where an answer begins and where it ends (section 4.2)."""

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        logits = body.output(2, 'span')(x)
        return {'start_logits': logits[..., 0], 'end_logits': logits[..., 1]}
