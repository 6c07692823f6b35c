"""Constraints on the outputs of `transformer.decoding.generate`, as changes to the scores of the next token.

A constraint is called with scores [B, K, V] (log-probabilities in greedy decoding and beam search, logits in sampling) and
the `Output` so far, and sets the scores of forbidden tokens to -inf. `A() & B()` applies A, then B. If all tokens are
forbidden, `end` is allowed, or every token if there is no `end` (`constrained`).
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
    """The outputs so far.

    Attributes:
      tokens: [B, K, L], the prompt of each row, then the chosen tokens, then undefined entries.
      begin: [B], the length of the prompt, where the chosen tokens begin.
      count: number of chosen tokens, the same in all rows.
      end: the token that ends an output; a number outside of the vocabulary for none.
    """
    tokens: jax.Array
    begin: jax.Array
    count: jax.Array
    end: int = dataclasses.field(metadata=dict(static=True))

    @property
    def there(self) -> jax.Array:
        """[B, 1, L]: True at the tokens of the prompt and the chosen ones."""
        return jnp.arange(self.tokens.shape[-1]) < (self.begin + self.count)[:, None, None]

    def window(self, start: jax.Array, size: int) -> jax.Array:
        """[B, K, size]: the tokens from start [B] on."""
        at = start[:, None, None] + jnp.arange(size)
        return jnp.take_along_axis(self.tokens, jnp.clip(at, 0, self.tokens.shape[-1] - 1), -1)


class Constraint(abc.ABC):
    """Base of the constraints, frozen dataclasses; combine with &."""

    @abc.abstractmethod
    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        """scores [B, K, V] of the next token -> new scores, -inf for forbidden tokens."""

    def require_vocab(self, vocab: int) -> None:
        """Raises ValueError if the constraint names tokens outside of a vocabulary of that size."""
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
    """The constraints that & joins, in order; () for Anything()."""
    if isinstance(constraint, _Both):
        return *parts_of(constraint.first), *parts_of(constraint.second)
    return () if constraint == Anything() else (constraint,)


def constrained(constraint: Constraint, scores: jax.Array, output: Output) -> jax.Array:
    """The scores under a constraint; at least one token stays allowed for every hypothesis (see above)."""
    if constraint == Anything():
        return scores
    new = constraint(scores, output)
    stuck = ~(new > -jnp.inf).any(-1, keepdims=True)
    allowed = _only(output.end, scores) if 0 <= output.end < scores.shape[-1] else scores
    return jnp.where(stuck, allowed, new)


def _is(token, scores):
    """[V]: True at `token`."""
    return jnp.arange(scores.shape[-1]) == token


def _only(token, scores):
    return jnp.where(_is(token, scores), scores, -jnp.inf)


def _marked(tokens, where, scores):
    """[B, K, V] booleans: the tokens [B, K, L] that occur `where`."""
    rows, slots = (jnp.arange(n) for n in scores.shape[:2])
    tokens = jnp.where(where, tokens, scores.shape[-1])  # out of range, so that `set` drops it
    return jnp.zeros(scores.shape, bool).at[rows[:, None, None], slots[:, None], tokens].set(True, mode='drop')


def require(part: Any, name: str, ok: Any, expected: str) -> None:
    """Raises ValueError that names a field of a constraint or a strategy, unless `ok`."""
    if not ok:
        raise ValueError(f'{part}: {name} is {getattr(part, name)}; expected {expected}.')


@dataclasses.dataclass(frozen=True)
class Anything(Constraint):
    """No constraint."""

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        return scores


@dataclasses.dataclass(frozen=True)
class MinLength(Constraint):
    """Forbids `end` before so many new tokens."""
    tokens: int

    def __post_init__(self):
        require(self, 'tokens', self.tokens >= 0, '0 or more')

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        return jnp.where(_is(output.end, scores) & (output.count < self.tokens), -jnp.inf, scores)


@dataclasses.dataclass(frozen=True)
class MaxLength(Constraint):
    """Allows only `end` after so many new tokens, so that outputs are finished rather than cut; `steps` of `generate` must
    leave room for it."""
    tokens: int

    def __post_init__(self):
        require(self, 'tokens', self.tokens >= 0, '0 or more')

    def __call__(self, scores: jax.Array, output: Output) -> jax.Array:
        return jnp.where((output.count < self.tokens) | _is(output.end, scores), scores, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class Repetition(Constraint):
    """Changes the score x of a token that the prompt or the output contains to x / penalty if x > 0 and x · penalty otherwise.
    On logits this is eq. 2 of Keskar et al. 2019, extended to negative logits; on log-probabilities, which are at most 0, it
    raises the probability to the power `penalty`. Scores are not normalised again.

    Attributes:
      penalty: 1 has no effect; above 1 repetitions are fewer, below 1 more. The paper's 1.2 is for logits: log-probabilities
        of nearly certain tokens need a larger one.
      end: whether to change the score of `end` too; False by default, as a prompt may begin with `end`.
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
    """Forbids n-grams that the prompt or the output contains (Paulus et al. 2018, section 2.5). `end` is always allowed, as a
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
        last = output.window(output.begin + output.count - size, size)  # and the next token are an n-gram
        starts = tokens.shape[-1] - size  # n-gram i = 0, 1, ... is tokens[i : i + size] and the token after it
        same = [tokens[..., j:j + starts] == last[..., j, None] for j in range(size)]
        repeated = jnp.stack([*same, jnp.broadcast_to(output.there[..., size:], (*tokens.shape[:2], starts))]).all(0)
        return jnp.where(_marked(tokens[..., size:], repeated, scores) & ~_is(output.end, scores), -jnp.inf, scores)


@dataclasses.dataclass(frozen=True)
class Choices(Constraint):
    """Allows only the given outputs, tuples of token ids, each followed by `end`."""
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
    """Forces this token to be the first new one after a prompt of one token, such as the start token of a decoder; its
    log-probability counts as 0."""
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
    """Forbids these tokens, a tuple of ids."""
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
