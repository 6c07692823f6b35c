"""Constraints: what an output of `transformer.decoding.generate` may be, as a change to the scores of the next token.

A constraint is called with scores [B, K, V] (log-probabilities in greedy decoding and beam search, logits in sampling) and
the `Output` so far; what it forbids becomes -inf. `A() & B()` applies A, then B. Where nothing would be left, `end` is
allowed after all, or without such a token everything (`constrained`).
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Output:
    """What there is so far.

    Attributes:
      tokens: [B, K, L], of each row its prompt and then what was chosen; the rest of it means nothing.
      begin: [B], where what was chosen begins: the length of the prompt.
      count: how many were chosen, the same in all rows.
      end: the token that ends an output; one outside of the vocabulary never does.
    """
    tokens: jax.Array
    begin: jax.Array
    count: jax.Array
    end: int = dataclasses.field(metadata=dict(static=True))

    @property
    def there(self) -> jax.Array:
        """[B, 1, L]: which of the tokens are there."""
        return jnp.arange(self.tokens.shape[-1]) < (self.begin + self.count)[:, None, None]

    def window(self, start: jax.Array, size: int) -> jax.Array:
        """[B, K, size]: the tokens from start [B] on."""
        at = start[:, None, None] + jnp.arange(size)
        return jnp.take_along_axis(self.tokens, jnp.clip(at, 0, self.tokens.shape[-1] - 1), -1)


class Constraint(abc.ABC):
    """Base of the constraints, frozen dataclasses; combine with &."""

    @abc.abstractmethod
    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        """scores [B, K, V] of the next token -> the same, -inf for what is forbidden."""

    def require_vocab(self, vocab: int) -> None:
        """Raises ValueError if it is about tokens beyond a vocabulary of that size."""
        return

    def __and__(self, other: 'Constraint') -> 'Constraint':
        return _Both(self, other) if isinstance(other, Constraint) else NotImplemented


@dataclasses.dataclass(frozen=True, repr=False)
class _Both(Constraint):
    first: Constraint
    second: Constraint

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        return self.second(self.first(scores, output), output)

    def require_vocab(self, vocab: int) -> None:
        self.first.require_vocab(vocab)
        self.second.require_vocab(vocab)

    def __repr__(self):
        return f'({self.first} & {self.second})'


def parts_of(constraint: Constraint) -> tuple:
    """The constraints that & has joined, in order; () of none."""
    if isinstance(constraint, _Both):
        return *parts_of(constraint.first), *parts_of(constraint.second)
    return () if constraint == Anything() else (constraint,)


def constrained(constraint: Constraint, scores: jax.Array, output: Output) -> jax.Array:
    """The scores under a constraint; every hypothesis keeps a choice (see above)."""
    if constraint == Anything():
        return scores
    new = constraint(scores, output)
    stuck = ~(new > -jnp.inf).any(-1, keepdims=True)
    allowed = _only(output.end, scores) if 0 <= output.end < scores.shape[-1] else scores
    return jnp.where(stuck, allowed, new)


def _is(token, scores):
    """[V]: which of the tokens it is."""
    return jnp.arange(scores.shape[-1]) == token


def _only(token, scores):
    return jnp.where(_is(token, scores), scores, -jnp.inf)


def _marked(tokens, where, scores):
    """[B, K, V] booleans: the tokens [B, K, L] that occur `where`."""
    rows, slots = (jnp.arange(n) for n in scores.shape[:2])
    tokens = jnp.where(where, tokens, scores.shape[-1])  # one that is dropped
    return jnp.zeros(scores.shape, bool).at[rows[:, None, None], slots[:, None], tokens].set(True, mode='drop')


def require(part: Any, name: str, ok: Any, expected: str) -> None:
    """Raises ValueError about a field of a constraint or a strategy unless it is `ok`."""
    if not ok:
        raise ValueError(f'{part}: {name} is {getattr(part, name)}; expected {expected}.')


@dataclasses.dataclass(frozen=True)
class Anything(Constraint):
    """No constraint."""

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        return scores


@dataclasses.dataclass(frozen=True)
class MinLength(Constraint):
    """`end` only after at least so many new tokens."""
    tokens: int

    def __post_init__(self):
        require(self, 'tokens', self.tokens >= 0, '0 or more')

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        return jnp.where(_is(output.end, scores) & (output.count < self.tokens), -jnp.inf, scores)


@dataclasses.dataclass(frozen=True)
class MaxLength(Constraint):
    """After so many new tokens only `end`, so that outputs are finished rather than cut; `steps` of `generate` must leave room
    for it."""
    tokens: int

    def __post_init__(self):
        require(self, 'tokens', self.tokens >= 0, '0 or more')

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        return jnp.where((output.count < self.tokens) | _is(output.end, scores), scores, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class Repetition(Constraint):
    """Scores x of tokens that are there already, in the prompt or in what is new, become x / penalty if x > 0 and x · penalty
    otherwise. On logits this is eq. 2 of Keskar et al. 2019 with the sign taken care of; on log-probabilities, which are never
    above 0, it raises the probability to the power `penalty`. Scores are not normalised again.

    Attributes:
      penalty: 1 does nothing; above 1 there are fewer repetitions, below 1 more. The paper's 1.2 is for logits: on
        log-probabilities it hardly changes a token that is nearly certain, which takes a larger one.
      end: whether the score of `end` changes like any other; if not it stays as it is, as a prompt may begin with `end`.
    """
    penalty: float = 1.2
    end: bool = False

    def __post_init__(self):
        require(self, 'penalty', 0 < self.penalty < np.inf, 'a number above 0')

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        seen = _marked(output.tokens, output.there, scores)
        seen = seen if self.end else seen & ~_is(output.end, scores)
        return jnp.where(seen, jnp.where(scores > 0, scores / self.penalty, scores * self.penalty), scores)


@dataclasses.dataclass(frozen=True)
class NoRepeat(Constraint):
    """No n-gram occurs twice (Paulus et al. 2018, section 2.5); those of the prompt count too. `end` may always follow: a
    prompt may begin with it.

    Attributes:
      ngram: n, in tokens.
    """
    ngram: int = 3

    def __post_init__(self):
        require(self, 'ngram', self.ngram >= 1, '1 or more')

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        size, tokens = self.ngram - 1, output.tokens
        if size >= tokens.shape[-1]:
            return scores
        last = output.window(output.begin + output.count - size, size)  # with which the next token makes an n-gram
        starts = tokens.shape[-1] - size  # n-grams i = 0, 1, ... are tokens[i : i + size] and the token behind
        same = [tokens[..., j:j + starts] == last[..., j, None] for j in range(size)]
        repeated = jnp.stack([*same, jnp.broadcast_to(output.there[..., size:], (*tokens.shape[:2], starts))]).all(0)
        return jnp.where(_marked(tokens[..., size:], repeated, scores) & ~_is(output.end, scores), -jnp.inf, scores)


@dataclasses.dataclass(frozen=True)
class Choices(Constraint):
    """What is new is one of the outputs, tuples of token ids, followed by `end`."""
    outputs: tuple

    def __post_init__(self):
        require(self, 'outputs', self.outputs and all(isinstance(one, tuple) and _are_tokens(one) for one in self.outputs),
                 'a tuple of at least one output, each a tuple of token ids, such as ((5, 2), (7,))')

    def require_vocab(self, vocab: int) -> None:
        require(self, 'outputs', max(map(max, filter(None, self.outputs)), default=-1) < vocab, _ids_below(vocab))

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        longest = max(map(len, self.outputs))
        table = np.full((len(self.outputs), longest + 1), output.end)  # [O, longest + 1]
        for row, one in zip(table, self.outputs):
            row[:len(one)] = one
        lengths = np.array([len(one) for one in self.outputs])
        new = output.window(output.begin, longest)[:, :, None]  # [B, K, 1, longest]
        fits = ((new == table[:, :longest]) | (jnp.arange(longest) >= output.count)).all(-1)  # [B, K, O]
        following = jnp.asarray(table)[:, jnp.minimum(output.count, longest)]  # [O]: the next token of each
        fits &= output.count <= lengths
        return jnp.where(_marked(following, fits & (following >= 0), scores), scores, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class First(Constraint):
    """Behind a prompt of one token, such as the start of a decoder, the first new token is this one; its log-probability counts
    as 0."""
    token: int

    def __post_init__(self):
        require(self, 'token', self.token >= 0, 'the id of a token')

    def require_vocab(self, vocab: int) -> None:
        require(self, 'token', self.token < vocab, _ids_below(vocab))

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        forced = jnp.where(_is(self.token, scores), 0.0, -jnp.inf)
        return jnp.where((output.begin + output.count == 1)[:, None, None], forced, scores)


@dataclasses.dataclass(frozen=True)
class Without(Constraint):
    """None of the tokens, a tuple of ids."""
    tokens: tuple

    def __post_init__(self):
        require(self, 'tokens', _are_tokens(self.tokens), 'a tuple of token ids, such as (5, 2)')

    def require_vocab(self, vocab: int) -> None:
        require(self, 'tokens', max(self.tokens, default=-1) < vocab, _ids_below(vocab))

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        return jnp.where(np.isin(np.arange(scores.shape[-1]), self.tokens), -jnp.inf, scores)


def _ids_below(vocab):
    return f'ids from 0 to {vocab - 1}, as the vocabulary has {vocab}'


def _are_tokens(ids):
    return isinstance(ids, tuple) and all(type(i) is int and i >= 0 for i in ids)
