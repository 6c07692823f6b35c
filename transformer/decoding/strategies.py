"""Strategies: how `transformer.decoding.generate` chooses tokens, and which hypotheses it extends.

A strategy is called once for every new token, with the logits of the next one, and moves a `Search` on.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.decoding.constraints import Anything, Constraint, Output, constrained, require

MOST = 4096  # hypotheses of a row
_BLOCK = 128  # tokens that `top` looks at together
_TINY = 1e-9  # the least coverage that counts, so that its logarithm is finite


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """Outputs, K of them in every row.

    Attributes:
      tokens: [B, K, L], the prompt and what was chosen.
      score: [B, K]; -inf: there is none.
      length: [B, K], how many tokens were chosen, `end` among them.
      finished: [B, K], whether the last one is `end`.
    """
    tokens: jax.Array
    score: jax.Array
    length: jax.Array
    finished: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Search:
    """The search in all rows.

    Attributes:
      live: the hypotheses that are extended; their score is the sum of the log-probabilities of their tokens.
      pool: in beam search the best that have ended, best first in each group, with their final scores; else None.
      begin, limit: [B], where what is chosen begins, and how many tokens may be.
      count: how many were chosen.
      done: [B], rows that are finished.
      coverage: [B, K, S], how much attention each position of the source got, with that for the next token; None: not known.
      source: [B, S], which of these positions are there; None with coverage None.
      end: the token that ends an output.
    """
    live: Hypotheses
    pool: Hypotheses | None
    begin: jax.Array
    limit: jax.Array
    count: jax.Array
    done: jax.Array
    coverage: jax.Array | None
    source: jax.Array | None
    end: int = dataclasses.field(metadata=dict(static=True))

    @property
    def best(self) -> Any:
        """The outputs found."""
        return self.live if self.pool is None else self.pool

    @property
    def last(self) -> jax.Array:
        """[B]: whether there is room for one more token only."""
        return self.count + 1 >= self.limit

    def output(self, part: slice = slice(None)) -> Output:
        """What constraints see of some of the hypotheses."""
        return Output(self.live.tokens[:, part], self.begin, self.count, self.end)

    def written(self, tokens: jax.Array, new: jax.Array) -> jax.Array:
        """tokens [B, K, L] with new [B, K] behind what is there."""
        at = jnp.arange(tokens.shape[-1]) == (self.begin + self.count)[:, None, None]
        return jnp.where(at, new[..., None], tokens)


class Strategy(abc.ABC):
    """Base of the strategies, frozen dataclasses.

    Attributes:
      constraint: what an output may be.
      size: the number K of hypotheses of a row that are extended.
      count: how many outputs a row gets.
      distinct: whether equal ones are one.
      covers: whether coverage is needed, which takes attention to a source.
    """
    constraint: Constraint
    size = count = 1
    distinct, covers = True, False

    def begin(self, tokens: jax.Array) -> tuple:
        """(live, pool) of a `Search`, for prompts [B, L]."""
        tokens = jnp.repeat(tokens[:, None], self.size, 1)
        shape = tokens.shape[:2]
        return Hypotheses(tokens, jnp.zeros(shape), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool)), None

    @abc.abstractmethod
    def __call__(self, logits: jax.Array, search: 'Search', keys: jax.Array) -> tuple:
        """One more token.

        Args:
          logits: [B, K, V] of the next token, V as many as may be chosen.
          keys: [B, K] random keys.
        Returns:
          (search, parents [B, K]: the hypothesis that each new one extends; None: each extends itself).
        """


def top(x: jax.Array, n: int) -> Sequence[jax.Array]:
    """The n largest of the last axis and where they are, as `jax.lax.top_k`, which on a CPU takes three times as long: the n
    largest are in the n blocks whose maxima are largest."""
    *front, size = x.shape
    if size <= 2 * n * _BLOCK:
        return jax.lax.top_k(x, n)
    blocks = jnp.pad(x, [(0, 0)] * len(front) + [(0, -size % _BLOCK)], constant_values=-jnp.inf).reshape(*front, -1, _BLOCK)
    chosen = jnp.sort(jax.lax.top_k(blocks.max(-1), n)[1], -1)  # in order: of equal values the first are taken
    value, at = jax.lax.top_k(jnp.take_along_axis(blocks, chosen[..., None], -2).reshape(*front, -1), n)
    return value, jnp.take_along_axis(chosen, at // _BLOCK, -1) * _BLOCK + at % _BLOCK


def _nucleus(logits, top_p):
    """The logits of the smallest set of tokens whose probability reaches top_p, -inf for the others; equal ones stay together.

    The lowest probability in the set is found by halving an interval of numbers, which are in the order of their bits:
    on a CPU a tenth of the time that sorting takes."""
    share = jax.nn.softmax(logits)
    integers = jnp.dtype(f'int{8 * share.dtype.itemsize}')
    bits = jax.lax.bitcast_convert_type(share, integers)

    def halve(_, ends):
        low, high = ends  # as the least one: low reaches top_p, high does not
        middle = low + (high - low) // 2
        reaches = jnp.where(bits >= middle, share, 0.0).sum(-1, keepdims=True) >= top_p
        return jnp.where(reaches, middle, low), jnp.where(reaches, high, middle)

    low = jnp.zeros_like(bits[..., :1])
    above = int(np.ones((), share.dtype).view(integers)) + 1  # the bits of what comes after 1.0
    low, _ = jax.lax.fori_loop(0, 8 * share.dtype.itemsize - 1, halve, (low, low + above))
    return jnp.where(bits >= low, logits, -jnp.inf)


def _taken(x, at):
    """x [B, K, ..] at [B, J]: [B, J, ..]."""
    return jnp.take_along_axis(x, at.reshape(*at.shape, *(1,) * (x.ndim - 2)), 1)


def _picked(hypotheses, at):
    return jax.tree.map(lambda x: _taken(x, at), hypotheses)


class _Independent(Strategy):
    """Base of the strategies whose hypotheses do not know of each other."""

    @abc.abstractmethod
    def _choose(self, logits, output, keys):
        """(tokens [B, K], their log-probabilities)."""

    def __call__(self, logits: jax.Array, search: 'Search', keys: jax.Array) -> tuple:
        live, last = search.live, search.last
        token, gain = self._choose(logits, search.output(), keys)
        open_ = ~(live.finished | search.done[:, None])
        live = Hypotheses(jnp.where(open_[..., None], search.written(live.tokens, token), live.tokens),
                          live.score + jnp.where(open_, gain, 0.0), live.length + open_,
                          live.finished | open_ & (token == search.end))
        done = search.done | last | live.finished.all(1)
        return dataclasses.replace(search, live=live, count=search.count + 1, done=done), None


@dataclasses.dataclass(frozen=True)
class Greedy(_Independent):
    """The most probable token. The score of an output is log P, the sum of the log-probabilities of its tokens.

    Attributes:
      constraint: what is changed in the log-probabilities, before the choice and in the score.
    """
    constraint: Constraint = Anything()

    def _choose(self, logits, output, keys):
        gain, token = top(constrained(self.constraint, jax.nn.log_softmax(logits), output), 1)
        return token[..., 0], gain[..., 0]


@dataclasses.dataclass(frozen=True)
class Sample(_Independent):
    """A draw from softmax(logits / temperature) among the tokens that are left by, in this order, the `top_k` most probable
    (0: all); the smallest set whose probability reaches `top_p` (Holtzman et al. 2020); and those at least `min_p` times as
    probable as the most probable (Nguyen et al. 2024). The score of an output is log P under the model itself.

    Attributes:
      count: outputs for each prompt, drawn independently.
      constraint: what is changed in the logits, before all else.
    """
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    count: int = 1
    constraint: Constraint = Anything()

    distinct = False

    def __post_init__(self):
        if not (1e-3 <= self.temperature < math.inf and self.top_k >= 0 and 0 < self.top_p <= 1 and 0 <= self.min_p <= 1):
            raise ValueError(f'{self}: expected temperature >= 0.001, top_k >= 0, top_p in (0, 1] and min_p in [0, 1]; '
                             'for the most probable token use Greedy().')
        require(self, 'count', 1 <= self.count <= MOST, f'1 to {MOST:,}')

    @property
    def size(self) -> int:
        return self.count

    def _choose(self, logits, output, keys):
        given, tokens = constrained(self.constraint, logits, output) / self.temperature, None
        if self.top_k:
            given, tokens = top(given, min(self.top_k, given.shape[-1]))
        if self.top_p < 1:
            given = _nucleus(given, self.top_p)
        if self.min_p > 0:
            given = jnp.where(given < given.max(-1, keepdims=True) + math.log(self.min_p), -jnp.inf, given)
        at = jax.vmap(jax.vmap(jax.random.categorical))(keys, given)[..., None]
        token = at if tokens is None else jnp.take_along_axis(tokens, at, -1)
        return token[..., 0], jnp.take_along_axis(jax.nn.log_softmax(logits), token, -1)[..., 0]


@dataclasses.dataclass(frozen=True)
class Beam(Strategy):
    """Beam search with the scores of Wu et al. 2016, section 7, eq. 14:

        score(Y) = log P(Y) / lp(Y) + cp(Y)
        lp(Y) = (k + |Y|)^α / (k + 1)^α
        cp(Y) = β · sum over i of log min(sum over j of p_ij, 1)

    with k = 5, |Y| the number of new tokens, `end` among them, and p_ij the attention to position i of the source with which
    token j is predicted, the mean over layers and heads; tokens forced by the prompt have theirs too.

    Of the `size` best continuations by log P, those that end go to a pool of the `size` best by score; the best `size` others
    are extended. At the longest length all that are left count as outputs, unfinished. A row is done as soon as nothing
    that is extended can still be among the `count` best of its pool: log P only falls, so that no score exceeds
    log P / lp(the longest Y).

    Attributes:
      size: the number of hypotheses that are extended.
      length_penalty: α, 0 or more; above 0 longer outputs are preferred (0.6 to 0.7 in the paper).
      length_offset: k, 0 or more; with 0 it is lp(Y) = |Y|^α, as in Hugging Face transformers.
      coverage_penalty: β, 0 or more (0.2 in the paper); for models that attend to a source.
      count: how many outputs are returned, best first.
      constraint: what is changed in the log-probabilities, before all else and in the score.
    """
    size: int = 4
    length_penalty: float = 0.0
    coverage_penalty: float = 0.0
    count: int = 1
    constraint: Constraint = Anything()
    length_offset: float = 5.0

    groups = 1  # beams that are searched for one after the other
    diversity = 0.0

    def __post_init__(self):
        require(self, 'size', 1 <= self.size <= MOST, f'1 to {MOST:,}; Greedy() is Beam(size=1)')
        require(self, 'count', 1 <= self.count <= self.size, f'1 to the size, {self.size}')
        for name in ('length_penalty', 'coverage_penalty', 'length_offset'):
            require(self, name, 0 <= getattr(self, name) < math.inf, '0 or more')

    @property
    def covers(self) -> bool:
        return self.coverage_penalty > 0

    def begin(self, tokens: jax.Array) -> tuple:
        live, _ = super().begin(tokens)
        none = jnp.full_like(live.score, -jnp.inf)
        first = jnp.arange(self.size) % (self.size // self.groups) == 0  # the others are the same
        return dataclasses.replace(live, score=jnp.where(first, 0.0, none)), dataclasses.replace(live, score=none)

    def __call__(self, logits: jax.Array, search: 'Search', keys: jax.Array) -> tuple:
        log_probabilities = jax.nn.log_softmax(logits)
        per = self.size // self.groups
        used = jnp.zeros((len(logits), 1, logits.shape[-1])) if self.diversity else None  # by the groups before
        found = []
        for group in range(self.groups):
            part = slice(group * per, (group + 1) * per)
            live, pool, parents, used = self._advance(log_probabilities[:, part], search, part, used)
            found.append((live, pool, parents + part.start))
        needed = self.count if self.groups == 1 else per  # several groups may have found the same ones
        hopeless = jnp.stack([self._reachable(live, search.limit) <= pool.score[:, needed - 1]
                              for live, pool, _ in found]).all(0)
        live, pool, parents = jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), *found)
        coverage = None if search.coverage is None else _taken(search.coverage, parents)
        search = dataclasses.replace(search, live=live, pool=pool, count=search.count + 1, coverage=coverage,
                                     done=search.done | search.last | hopeless)
        return search, None if per == 1 else parents

    def _advance(self, log_probabilities, search, part, used):
        """(live, pool, parents, used) of one group, with log-probabilities [B, K, V].

        Args:
          used: [B, 1, V], how often each token was chosen by the groups before; None: not counted.
        """
        live, pool = (jax.tree.map(lambda x: x[:, part], x) for x in (search.live, search.pool))
        size = live.score.shape[1]
        log_probabilities = constrained(self.constraint, log_probabilities, search.output(part))
        diverse = log_probabilities if used is None else log_probabilities - self.diversity * used
        # The best of each hypothesis first, so that nothing is sorted over K·V. At most `size` of twice as many end; of these,
        # those among the best `size` are offered to the pool.
        each = min(2 * size, diverse.shape[-1])
        value, token = top(diverse, each)  # [B, K, each]
        score = live.score[..., None] + jnp.take_along_axis(log_probabilities, token, -1)
        flat = lambda x: x.reshape(len(x), -1)
        value, at = jax.lax.top_k(flat(live.score[..., None] + value), min(2 * size, size * each))
        parents, token, score = at // each, _taken(flat(token), at), _taken(flat(score), at)
        ended = token == search.end

        offered = (ended | search.last[:, None]) & ~search.done[:, None]
        final = self._final(score, search, part, parents)
        new = Hypotheses(search.written(_taken(live.tokens, parents), token), score, jnp.full_like(parents, search.count + 1),
                         ended)
        pool = jax.tree.map(lambda a, b: jnp.concatenate([a, b[:, :size]], 1), pool,
                            dataclasses.replace(new, score=jnp.where(offered, final, -jnp.inf)))
        best = jax.lax.top_k(pool.score, size)[1]
        on = jax.lax.top_k(jnp.where(ended, -jnp.inf, value), size)[1]
        new = dataclasses.replace(new, score=jnp.where(ended, -jnp.inf, score))
        if used is not None:
            rows, first = jnp.arange(len(token))[:, None], slice(size)
            for chosen, there in ((token[:, first], (ended & (value > -jnp.inf))[:, first]),
                                  (_taken(token, on), _taken(new.score, on) > -jnp.inf)):
                used = used.at[rows, 0, chosen].add(there.astype(used.dtype))
        return _picked(new, on), _picked(pool, best), _taken(parents, on), used

    def _length_factor(self, length):
        return ((self.length_offset + length) / (self.length_offset + 1.0)) ** self.length_penalty

    def _final(self, score, search, part, parents):
        """Final scores [B, J] of hypotheses that extend `parents` of a group."""
        score = score / self._length_factor(search.count + 1)
        if not self.covers:
            return score
        covered = jnp.log(jnp.clip(search.coverage[:, part], _TINY, 1.0))
        return score + self.coverage_penalty * _taken(jnp.where(search.source[:, None], covered, 0.0).sum(-1), parents)

    def _reachable(self, live, limit):
        """[B]: no output of these hypotheses gets a better score."""
        return live.score.max(1) / self._length_factor(limit)


@dataclasses.dataclass(frozen=True)
class DiverseBeam(Beam):
    """Diverse beam search (Vijayakumar et al. 2016, algorithm 1) with the Hamming diversity of section 5.1: `groups` beams of
    size / groups hypotheses, which choose their next token one after the other, by

        log P - diversity · (how many hypotheses of the groups before chose this token at this step, `end` too)

    The term counts for that choice only: scores are those of `Beam`. Each group has a pool of its own; the best of all of them
    are returned, where an output that several groups found is one."""
    groups: int = 2
    diversity: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        require(self, 'groups', self.groups >= 1 and self.size % self.groups == 0, f'a divisor of the size, {self.size}')
        require(self, 'diversity', 0 <= self.diversity < math.inf, '0 or more')
