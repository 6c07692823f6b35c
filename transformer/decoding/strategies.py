"""Strategies: how `transformer.decoding.generate` chooses tokens, and which hypotheses it extends.

A strategy is called once for every new token, with the logits of the next token and a `Search`, and returns the new `Search`.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
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
    """K outputs in every row.

    Attributes:
      tokens: [B, K, L], the prompt and the chosen tokens.
      score: [B, K]; -inf for an empty place.
      length: [B, K], number of chosen tokens, `end` included.
      finished: [B, K], whether the last token is `end`.
    """
    tokens: jax.Array
    score: jax.Array
    length: jax.Array
    finished: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Search:
    """The state of the search in all rows.

    Attributes:
      live: the hypotheses that are extended; their score is the sum of the log-probabilities of their tokens.
      pool: in beam search the best finished hypotheses, best first in each group, with their final scores; else None.
      begin, limit: [B], where the chosen tokens begin, and their largest number.
      count: number of chosen tokens.
      done: [B], True for finished rows.
      coverage: [B, K, S], the attention to each position of the source, summed over all tokens up to the next one; None: not
        computed.
      source: [B, S], True at the tokens of the source; None with coverage None.
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
        """The outputs to return."""
        return self.live if self.pool is None else self.pool

    @property
    def last(self) -> jax.Array:
        """[B]: whether there is room for one more token only."""
        return self.count + 1 >= self.limit

    def output(self, part: slice = slice(None)) -> Output:
        """The `Output` of some of the hypotheses, for constraints."""
        return Output(self.live.tokens[:, part], self.begin, self.count, self.end)

    def written(self, tokens: jax.Array, new: jax.Array) -> jax.Array:
        """tokens [B, K, L], extended by new [B, K]."""
        at = jnp.arange(tokens.shape[-1]) == (self.begin + self.count)[:, None, None]
        return jnp.where(at, new[..., None], tokens)


class Strategy(abc.ABC):
    """Base of the strategies, frozen dataclasses.

    Attributes:
      constraint: restricts the tokens.
      size: K, the number of hypotheses of a row that are extended.
      count: the number of outputs of a row.
      distinct: whether to return equal outputs once only.
      covers: whether coverage is needed, which requires attention to a source.
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
          logits: [B, K, V] of the next token, where V is the number of tokens to choose from.
          keys: [B, K] random keys.
        Returns:
          (search, parents [B, K]: the hypothesis that each new one extends; None: each extends itself).
        """


@dataclasses.dataclass(frozen=True)
class _Watched(Strategy):
    strategy: Strategy
    watch: Callable[[int], None]

    size = property(lambda self: self.strategy.size)
    count = property(lambda self: self.strategy.count)
    distinct = property(lambda self: self.strategy.distinct)
    covers = property(lambda self: self.strategy.covers)
    constraint = property(lambda self: self.strategy.constraint)

    def begin(self, tokens: jax.Array) -> tuple:
        return self.strategy.begin(tokens)

    def __call__(self, logits: jax.Array, search: 'Search', keys: jax.Array) -> tuple:
        found, parents = self.strategy(logits, search, keys)
        at = jnp.minimum(search.begin[0] + search.count, found.live.tokens.shape[-1] - 1)
        jax.debug.callback(self.watch, found.live.tokens[0, 0, at], ordered=True)
        return found, parents


def watched(strategy: Strategy, watch: Callable[[int], None]) -> Strategy:
    """A strategy that also calls `watch` with each token of the first prompt, the end included, as soon as it is chosen.

    The strategy itself if it has several hypotheses, whose tokens are known only at the end. A program is compiled for each
    `watch`. Call jax.effects_barrier() to wait for the last call.
    """
    return strategy if strategy.size > 1 else _Watched(strategy, watch)


def top(x: jax.Array, n: int) -> Sequence[jax.Array]:
    """The n largest values along the last axis and their indices, as `jax.lax.top_k`, in a third of its time on a CPU: the n
    largest values are in the n blocks with the largest maxima."""
    *front, size = x.shape
    if size <= 2 * n * _BLOCK:
        return jax.lax.top_k(x, n)
    blocks = jnp.pad(x, [(0, 0)] * len(front) + [(0, -size % _BLOCK)], constant_values=-jnp.inf).reshape(*front, -1, _BLOCK)
    chosen = jnp.sort(jax.lax.top_k(blocks.max(-1), n)[1], -1)  # in order, so that the first of equal values is taken
    value, at = jax.lax.top_k(jnp.take_along_axis(blocks, chosen[..., None], -2).reshape(*front, -1), n)
    return value, jnp.take_along_axis(chosen, at // _BLOCK, -1) * _BLOCK + at % _BLOCK


def _nucleus(logits, top_p):
    """Keeps the logits of the smallest set of tokens whose probability reaches top_p, with all that tie, and sets the others to
    -inf.

    Bisection finds the lowest probability in the set: non-negative floats are ordered as their bits. On a CPU this takes a
    tenth of the time of sorting."""
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
    """Base of the strategies whose hypotheses are independent of each other."""

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
      constraint: changes the log-probabilities, before the choice and in the score.
    """
    constraint: Constraint = Anything()

    def _choose(self, logits, output, keys):
        gain, token = top(constrained(self.constraint, jax.nn.log_softmax(logits), output), 1)
        return token[..., 0], gain[..., 0]


@dataclasses.dataclass(frozen=True)
class Sample(_Independent):
    """Samples from softmax(logits / temperature), restricted in this order to the `top_k` most probable tokens (0: all); the
    smallest set whose probability reaches `top_p` (Holtzman et al. 2020); and the tokens at least `min_p` times as probable as
    the most probable one (Nguyen et al. 2024). The score of an output is log P under the unrestricted model.

    Attributes:
      count: number of outputs for each prompt, drawn independently.
      constraint: changes the logits, before all else.
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

    with k = 5, |Y| the number of new tokens, `end` included, and p_ij the attention to position i of the source when token j is
    predicted, averaged over layers and heads; tokens forced by the prompt count too.

    Of the `size` best continuations by log P, those that end enter a pool, which keeps the `size` best by score; the `size`
    best of the others are extended. At the longest length all remaining hypotheses enter the pool unfinished. A row is done as
    soon as no extended hypothesis can still reach the `count` best of the pool: log P only falls, so that no score exceeds
    log P / lp(the longest Y).

    Attributes:
      size: the number of hypotheses that are extended.
      length_penalty: α, 0 or more; above 0 it prefers longer outputs (0.6 to 0.7 in the paper).
      length_offset: k, 0 or more; 0 gives lp(Y) = |Y|^α, as in Hugging Face transformers.
      coverage_penalty: β, 0 or more (0.2 in the paper); for models that attend to a source.
      count: the number of outputs, best first.
      constraint: changes the log-probabilities, before all else and in the score.
    """
    size: int = 4
    length_penalty: float = 0.0
    coverage_penalty: float = 0.0
    count: int = 1
    constraint: Constraint = Anything()
    length_offset: float = 5.0

    groups = 1  # number of beams, which choose one after the other
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
        used = jnp.zeros((len(logits), 1, logits.shape[-1])) if self.diversity else None  # choices of the earlier groups
        found = []
        for group in range(self.groups):
            part = slice(group * per, (group + 1) * per)
            live, pool, parents, used = self._advance(log_probabilities[:, part], search, part, used)
            found.append((live, pool, parents + part.start))
        needed = self.count if self.groups == 1 else per  # several groups may find the same outputs
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
          used: [B, 1, V], how often the earlier groups chose each token; None: not counted.
        """
        live, pool = (jax.tree.map(lambda x: x[:, part], x) for x in (search.live, search.pool))
        size = live.score.shape[1]
        log_probabilities = constrained(self.constraint, log_probabilities, search.output(part))
        diverse = log_probabilities if used is None else log_probabilities - self.diversity * used
        # The best of each hypothesis first, to avoid a sort over K·V. At most `size` of the 2·`size` best end; those among the
        # best `size` are offered to the pool.
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
        """[B]: an upper bound of the scores that these hypotheses can reach."""
        return live.score.max(1) / self._length_factor(limit)


@dataclasses.dataclass(frozen=True)
class DiverseBeam(Beam):
    """Diverse beam search (Vijayakumar et al. 2016, algorithm 1) with the Hamming diversity of section 5.1: `groups` beams of
    size / groups hypotheses, which choose their next token one after the other, by

        log P - diversity · (number of hypotheses of earlier groups that chose this token at this step, `end` included)

    The diversity affects the choice only; scores are those of `Beam`. Each group has its own pool; the best of all pools are
    returned, and an output that several groups found is returned once."""
    groups: int = 2
    diversity: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        require(self, 'groups', self.groups >= 1 and self.size % self.groups == 0, f'a divisor of the size, {self.size}')
        require(self, 'diversity', 0 <= self.diversity < math.inf, '0 or more')
