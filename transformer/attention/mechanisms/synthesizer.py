"""Attention whose scores are not products of queries and keys."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.kernels.attend import attend, scores_of, weights_of
from transformer.attention.masks.analysis import places_of
from transformer.attention.mechanism import Given, Mechanism
from transformer.layers import roles
from transformer.layers.initial import normal, xavier, zeros
from transformer.layers.roles import Wanted

KINDS = ('dense', 'random')


@dataclasses.dataclass(frozen=True)
class Synthesizer(Mechanism):
    """softmax(B)·v, with B [T, S] independent of the keys (Tay et al. 2021):

        dense   B_ts = w_s·relu(W·q_t + a) + b_s     from the query alone (eq. 1)
        random  B_ts = R_ts                          learnt (eq. 3), or R1_t·R2_s (eq. 6)

    Both have a causal form, in which masked scores are left out: row t of B depends at most on position t, so that no later
    token changes it; the paper trains decoders with it. Positions count within a document.

    Attributes:
      kind: 'dense' or 'random'.
      length: the number of w_s, or of rows and columns of R; longer rows, and a longer `model.length`, raise ValueError;
        shorter ones use the first.
      rank: dense: the inner width, 0 for H; random: the width of R1 and R2, 0 for a full R.
    """
    kind: str = 'dense'
    length: int = 1024
    rank: int = 0

    cross = free_length = scored = False

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f'{self}: kind is {self.kind!r}; expected one of {", ".join(KINDS)}.')
        if self.length < 1 or self.rank < 0:
            raise ValueError(f'{self}: expected a length of 1 or more and a rank of 0 or more.')

    @property
    def projections(self) -> tuple[str, ...]:
        return ('query', 'value') if self.kind == 'dense' else ('value',)

    def parameters(self, query: Any, key: Any, value: Any) -> dict:
        if self.kind == 'dense':
            heads, width = query.shape[2:]
            inner = self.rank or width
            each = lambda key, shape, *dtype: jax.vmap(lambda k: xavier()(k, shape[1:], *dtype))(
                jax.random.split(key, shape[0]))
            return {'kernel': Wanted(each, (heads, width, inner), roles.matrix((1,), (2,), heads=0)),
                    'bias': Wanted(zeros, (heads, inner), roles.vector(heads=0)),
                    'table': Wanted(normal(inner ** -0.5), (self.length, heads, inner), roles.table(heads=1)),
                    'offset': Wanted(zeros, (heads, self.length), roles.vector(heads=0))}
        heads = value.shape[2]
        if self.rank:
            # The products have an initial variance of 1.
            table = Wanted(normal(self.rank ** -0.25), (self.length, heads, self.rank), roles.table(heads=1, shared=True))
            return {'query': table, 'key': table}
        return {'scores': Wanted(normal(1.0), (heads, self.length, self.length), roles.table(1, heads=0, shared=True))}

    def require_length(self, length: int) -> None:
        if length > self.length:
            raise ValueError(f'{self} is asked for {length} positions, more than its length; shorten the rows, or train with '
                             f'length={length}.')

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        query, key, bias = self._prepared(parameters, query, value, given)
        value = jnp.repeat(value, key.shape[2] // value.shape[2], 2)  # the table has a key for each head of the queries
        return attend(query, key, value, mask=given.mask, bias=bias, positions=given.positions, rate=given.rate,
                      dropout_key=given.dropout_key, numerics=given.numerics)

    def weights(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                given: Given = Given()) -> jax.Array:
        query, key, bias = self._prepared(parameters, query, value, given)
        return weights_of(query, key, mask=given.mask, bias=bias, positions=given.positions, numerics=given.numerics)

    def scores(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
               given: Given = Given()) -> tuple[jax.Array, jax.Array]:
        query, key, bias = self._prepared(parameters, query, value, given)
        return scores_of(query, key, mask=given.mask, bias=bias, positions=given.positions, numerics=given.numerics)

    def empty_cache(self, batch: int, length: int, heads: int, key_heads: int, width: int, dtype: str) -> dict:
        return {'value': jnp.zeros((batch, length, key_heads, width), dtype)}

    def step(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array, cache: dict,
             positions: jax.Array, given: Given) -> tuple[jax.Array, dict]:
        cache = {'value': cache['value'].at[jnp.arange(len(value))[:, None], positions].set(value)}
        at = positions, jnp.arange(cache['value'].shape[1])
        return self(parameters, query, None, cache['value'], dataclasses.replace(given, positions=at)), cache

    def _prepared(self, parameters, query, value, given):
        """(queries, keys, bias) with which `attend` computes softmax(B)·v."""
        batch, keys, heads, _ = value.shape
        self.require_length(keys)
        t = s = jnp.arange(keys)
        if given.positions is not None:
            t, s = given.positions
        elif places := places_of(given.mask):
            t, s = places
        wide = lambda x: jnp.broadcast_to(x, (batch, *x.shape[-3:]))  # a table [B|none, S, N, A] for each row
        if self.kind == 'dense':
            inner = jax.nn.relu(given.numerics.einsum('BTNH,NHA->BTNA', query, parameters['kernel']) + parameters['bias'])
            offset = parameters['offset'][:, s]  # [N, S] or [N, B, S]
            offset = offset[None] if offset.ndim == 2 else jnp.swapaxes(offset, 0, 1)
            return inner * inner.shape[-1] ** 0.5, wide(parameters['table'][s]), (offset[:, :, None],)
        if self.rank:
            return wide(parameters['query'][t]) * self.rank ** 0.5, wide(parameters['key'][s]), ()
        scores = parameters['scores'][:, t[..., :, None], s[..., None, :]]  # [N, T, S] or [N, B, T, S]
        scores = scores[None] if scores.ndim == 3 else jnp.swapaxes(scores, 0, 1)
        queries = t.shape[-1]
        return jnp.zeros((batch, queries, heads, 1)), jnp.zeros((batch, keys, heads, 1)), (scores,)
