"""Mechanisms that mix positions: softmax attention, its cheaper forms and alternatives, behind one interface.

A mechanism is a part of a config (`model.attention`): pure functions of parameters and arrays. `MultiHead` projects to its
queries, keys and values, and from its output. It declares what it supports, and `check` refuses the rest in one sentence.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.by_layer import ByLayer
from transformer.attention.kernels.attend import attend, scores_of, weights_of
from transformer.attention.kernels.terms import terms_of
from transformer.attention.masks import analysis, patterns
from transformer.attention.masks.algebra import Mask
from transformer.attention.masks.patterns import Full
from transformer.attention.scores import ScaledDot, Score
from transformer.layers.numerics import Numerics


@dataclasses.dataclass(frozen=True)
class Given:
    """The arguments of a mechanism besides queries, keys and values.

    Attributes:
      mask: which query may attend to which key.
      bias: entries for the scores, as in `kernels.attend`, from the position encoding.
      positions: (positions of queries, positions of keys); None: 0, 1, ...
      rate, dropout_key: dropout on the weights.
    """
    mask: Mask = Full()
    bias: tuple = ()
    positions: Any = None
    rate: float = 0.0
    dropout_key: Any = None
    numerics: Numerics = Numerics()


class Mechanism(abc.ABC):
    """Base of the mechanisms.

    Attributes:
      causal: supports causal masks, under which an output does not depend on later positions.
      bidirectional: supports masks that are not causal.
      cross: supports keys and values from another source than the queries.
      cached: supports decoding one position at a time, from `empty_cache`.
      shown: its output is a matrix of weights (or an equivalent one) times the values; if not, `weights` are gains.
      free_length: supports other lengths than that of initialisation.
      scored: has scores, to which position encodings can add.
      patterns: supports any mask; if not, Full and Causal only, with Padding or Segments.
      packed: supports several documents in a row (Segments); if not, padded rows only.
      regions: supports Segments that are not runs of positions, as in shifted windows of an image.
      projections: the projections that it uses.
      period: the number of layers after which the mechanisms of `of_layer` repeat.
    """
    causal = bidirectional = cross = cached = shown = free_length = scored = patterns = packed = regions = True
    projections = ('query', 'key', 'value')
    period = 1

    def of_layer(self, number: int) -> 'Mechanism':
        """The mechanism of one layer; only `AlternateAttention` has several."""
        return self

    @property
    def decoding(self) -> 'Mechanism':
        """The mechanism by which a decoder with a cache attends to a source, the same but for its kernel."""
        return self

    def parameters(self, query: Any, key: Any, value: Any) -> dict:
        """{name: `Wanted`} of its parameters, for arrays (or shapes) as in `__call__`."""
        return {}

    @abc.abstractmethod
    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        """query [B, T, N, H], key [B, S, K, H], value [B, S, K, Hv] -> [B, T, N, Hv]."""

    @abc.abstractmethod
    def weights(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                given: Given = Given()) -> jax.Array:
        """The matrix [B, N, T, S] for which output = matrix · value; without such a matrix (`shown`), gains."""

    def scores(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
               given: Given = Given()) -> tuple[jax.Array, jax.Array] | None:
        """The scores [B, N, T, S] of which the weights are the softmax, and booleans that broadcast to them, True where
        visible; None if the mechanism has no scores."""
        return None

    def empty_cache(self, batch: int, length: int, heads: int, key_heads: int, width: int, dtype: str) -> dict:
        """The cache of one layer for up to `length` positions, a dict of arrays: here keys [B, K, S, H] and values
        [B, K, H, S], the layouts of the products of a step. XLA on a CPU would transpose any other layout for every token."""
        return {'key': jnp.zeros((batch, key_heads, length, width), dtype),
                'value': jnp.zeros((batch, key_heads, width, length), dtype)}

    def step(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array, cache: dict,
             positions: jax.Array, given: Given) -> tuple[jax.Array, dict]:
        """(output, updated cache) for queries, keys and values at `positions` [B, T], which follow those in the cache.

        In a batch of prompts of different lengths, the mask contains a Padding with these lengths."""
        rows = jnp.arange(query.shape[0])[:, None]
        cache = {'key': cache['key'].at[rows, :, positions].set(key),
                 'value': cache['value'].at[rows, :, :, positions].set(value)}
        key, value = jnp.swapaxes(cache['key'], 1, 2), cache['value'].transpose(0, 3, 1, 2)
        given = dataclasses.replace(given, positions=(positions, jnp.arange(key.shape[1])))
        return self(parameters, query, key, value, given), cache

    def require_length(self, length: int) -> None:
        """Raises ValueError for rows that are too long; only `Synthesizer` and the score `Location` have a largest length."""
        return

    def check(self, mask: Mask, *, cross: bool = False, cached: bool = False, biased: bool = False, placed: bool = False,
              shared: bool = False) -> None:
        """Raises ValueError, in one sentence, for a use that this mechanism does not support."""
        pattern, _ = analysis.parts(mask)
        if cross and cached:
            raise ValueError('A cache is for attention of a sequence to itself; leave it out where keys have another source.')
        if cross and not self.cross:
            raise ValueError(f'attention={self} mixes one sequence with itself and cannot look at another; use Softmax().')
        if cached and not self.cached:
            raise ValueError(f'attention={self} has no cached decoding, so it cannot generate; '
                             'leave out the evaluators that do.')
        if mask.causal and not self.causal:
            raise ValueError(f'attention={self} mixes along the whole length and has no causal form, but the mask is {pattern};'
                             ' use another attention, or a model that sees everything.')
        if not mask.causal and not self.bidirectional:
            raise ValueError(f'attention={self} looks back only, but the mask is {pattern}; use Causal(), or another.')
        if not self.patterns and pattern not in (patterns.Full(), patterns.Causal()):
            raise ValueError(f'attention={self} cannot leave out single pairs as the mask {pattern or mask} does; '
                             'use Full() or Causal(), or attention=Softmax().')
        if not self.packed and analysis.documents(mask):
            raise ValueError(f'attention={self} cannot keep documents in one row apart; give each a row of its own, without '
                             'segments, or use attention=Softmax().')
        if not self.regions and not all(term.runs for term in analysis.documents(mask)):
            raise ValueError(f'attention={self} needs documents that are runs of positions, as the regions of shifted windows '
                             'are not; use Windows() without a shift, or attention=Softmax().')
        if placed and not {'query', 'key'} & set(self.projections):
            raise ValueError(f'attention={self} has no queries and keys that could know positions; use an encoding that enters '
                             'at the input, such as Learned() or Sinusoidal().')
        if shared and 'query' not in self.projections:
            raise ValueError(f'attention={self} has no queries that could share heads of keys; leave out key_heads.')
        if biased and not self.scored:
            raise ValueError(f'attention={self} has no scores that a position encoding could add to; use one that enters '
                             'at the input, such as Learned() or Sinusoidal().')

    def check_shapes(self, wanted: Mapping, held: Mapping) -> None:
        """Raises ValueError if parameters have shapes for rows of another length."""
        for name, one in wanted.items():
            if name in held and held[name].shape != tuple(one.shape):
                raise ValueError(f'attention={self} has {name} of shape {held[name].shape}, for the rows that it began with, '
                                 f'but these need {tuple(one.shape)}; give it rows of that length, or use attention=Softmax().')


@dataclasses.dataclass(frozen=True)
class Softmax(Mechanism):
    """softmax(score(q, k))·v (Vaswani et al. 2017, eq. 1).

    Attributes:
      score: the score of a query and a key, one of `transformer.attention.scores`.
      implementation: the kernel, as in `kernels.attend`; cached decoding always uses 'auto'.
    """
    score: Score = ScaledDot()
    implementation: str = 'auto'

    def parameters(self, query: Any, key: Any, value: Any) -> dict:
        return self.score.parameters(query.shape[2], key.shape[2], query.shape[3], key.shape[3])

    @property
    def decoding(self) -> Mechanism:
        return dataclasses.replace(self, implementation='auto')

    def require_length(self, length: int) -> None:
        self.score.require_length(length)

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        query, key, bias = self._prepared(parameters, query, key, given)
        implementation = self.implementation if given.positions is None else 'auto'
        return attend(query, key, value, mask=given.mask, bias=bias, positions=given.positions, rate=given.rate,
                      dropout_key=given.dropout_key, implementation=implementation, numerics=given.numerics)

    def weights(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                given: Given = Given()) -> jax.Array:
        query, key, bias = self._prepared(parameters, query, key, given)
        return weights_of(query, key, mask=given.mask, bias=bias, positions=given.positions, numerics=given.numerics)

    def scores(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
               given: Given = Given()) -> tuple[jax.Array, jax.Array]:
        query, key, bias = self._prepared(parameters, query, key, given)
        return scores_of(query, key, mask=given.mask, bias=bias, positions=given.positions, numerics=given.numerics)

    def _prepared(self, parameters, query, key, given):
        width = query.shape[-1]
        places = analysis.places_of(given.mask) if given.positions is None else None
        query, key, bias = self.score.prepare(parameters, query, key, given.numerics, places and places[1])
        for term in terms_of(given.bias):
            if query.shape[-1] != width and term.by_content:
                raise ValueError(f'score={self.score} makes queries {query.shape[-1]} wide, but {term} multiplies '
                                 f'heads of {width} with its own; give the score that width, or use T5Bias() or Alibi().')
        return query, key, bias + given.bias


@dataclasses.dataclass(frozen=True)
class AlternateAttention(ByLayer, Mechanism):
    """Layers 0, 2, 4, ... of a stack have the mechanism `even`, the others `odd`."""
    even: Mechanism
    odd: Mechanism

    @property
    def free_length(self) -> bool:
        return self.even.free_length and self.odd.free_length

    @property
    def packed(self) -> bool:
        return self.even.packed and self.odd.packed

    @property
    def decoding(self) -> Mechanism:
        return AlternateAttention(self.even.decoding, self.odd.decoding)

    def require_length(self, length: int) -> None:
        self.even.require_length(length)
        self.odd.require_length(length)

    weights = ByLayer.__call__
