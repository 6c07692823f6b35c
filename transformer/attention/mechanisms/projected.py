"""Attention to fewer keys than there are positions: projected along the length, or compressed by a strided convolution."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.kernels.attend import attend, weights_of
from transformer.attention.masks.analysis import parts, places, segments_of
from transformer.attention.masks.data import Explicit
from transformer.attention.mechanism import Given, Mechanism
from transformer.layers import roles
from transformer.layers.initial import normal, xavier
from transformer.layers.numerics import real_dtype
from transformer.layers.roles import Wanted


@dataclasses.dataclass(frozen=True)
class Linformer(Mechanism):
    """softmax(q·(E·K)ᵀ / sqrt(H))·(F·V) with learnt E and F [rank, S] (Wang et al. 2020, eq. 7): S keys become `rank`.

    Every row of E·K depends on the whole length, so that there is no causal form, and E and F fit only one length. The
    projections leave padding out.

    Attributes:
      rank: k of the paper; all heads share E and F ("headwise sharing", section 4).
      shared: keys and values share one matrix as well ("key-value sharing").
    """
    rank: int = 64
    shared: bool = False

    causal = cached = free_length = scored = patterns = packed = False

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f'{self}: rank is {self.rank}; expected at least 1.')

    def parameters(self, query: Any, key: Any, value: Any) -> dict:
        # A variance of 1 / S makes a sum of S keys as large as one of them.
        one = Wanted(normal(key.shape[1] ** -0.5), (self.rank, key.shape[1]), roles.matrix((1,), (0,)))
        return {'projection': one} if self.shared else {'key': one, 'value': one}

    def _matrices(self, parameters):
        return (parameters['projection'],) * 2 if self.shared else (parameters['key'], parameters['value'])

    def _compressed(self, parameters, query, key, value, given):
        documents = segments_of(given.mask, query.shape[1], key.shape[1])
        if documents is not None:
            there = (documents[1] != 0)[..., None, None]
            key, value = jnp.where(there, key, 0), jnp.where(there, value, 0)
        return (given.numerics.einsum('RS,BSKH->BRKH', matrix, x)
                for matrix, x in zip(self._matrices(parameters), (key, value)))

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        key, value = self._compressed(parameters, query, key, value, given)
        return attend(query, key, value, rate=given.rate, dropout_key=given.dropout_key, numerics=given.numerics)

    def weights(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                given: Given = Given()) -> jax.Array:
        """softmax(...)·F: rows need not sum to 1, and entries may be negative."""
        short, _ = self._compressed(parameters, query, key, value, given)
        matrix = given.numerics.scores('BNTR,RS->BNTS', weights_of(query, short, numerics=given.numerics),
                                       self._matrices(parameters)[1])
        documents = segments_of(given.mask, query.shape[1], key.shape[1])
        return matrix if documents is None else jnp.where((documents[1] != 0)[:, None, None], matrix, 0.0)


@dataclasses.dataclass(frozen=True)
class MemoryCompressed(Mechanism):
    """Attention to keys and values convolved with kernel and stride `factor` (Liu et al. 2018, section 4.2.3):

        k'_w = sum over j < factor of k_(factor·w + j)·W_j,    W_j [H, H] for each head; the same for values

    Windows start at the beginning of each document; positions after the last whole window belong to none. A query sees a window
    if it may see all positions in it: under a causal mask none that ends after the query, so the first factor - 1 see nothing.

    Attributes:
      factor: the number of positions that are merged into one; 3 in the paper.
    """
    factor: int = 3

    scored = regions = False

    def __post_init__(self):
        if self.factor < 1:
            raise ValueError(f'{self}: factor is {self.factor}; expected at least 1.')

    def parameters(self, query: Any, key: Any, value: Any) -> dict:
        def kernel(x):
            heads, width = x.shape[2:]
            each = lambda key, *dtype: xavier()(key, (self.factor * width, width), *dtype).reshape(self.factor, width, width)
            matrix = lambda key, shape, *dtype: jnp.stack([each(one, *dtype) for one in jax.random.split(key, heads)], 1)
            return Wanted(matrix, (self.factor, heads, width, width), roles.matrix((0, 2), (3,), heads=1, shared=True))
        return {'key': kernel(key), 'value': kernel(value)}

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        ends, _, mask = self._windows(given, len(key), query.shape[1], key.shape[1])
        key, value = (self._convolved(parameters[name], x, ends, given.numerics)
                      for name, x in (('key', key), ('value', value)))
        return attend(query, key, value, mask=mask, rate=given.rate, dropout_key=given.dropout_key, numerics=given.numerics)

    def weights(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                given: Given = Given()) -> jax.Array:
        """The weight of each window, shared evenly among its positions: the output is this matrix times the values if their
        W_j are I / factor; other W_j mix the values across their width, which no matrix over positions can show."""
        ends, whole, mask = self._windows(given, len(key), query.shape[1], key.shape[1])
        short = self._convolved(parameters['key'], key, ends, given.numerics)
        behind = ends[..., None] - jnp.arange(key.shape[1])
        inside = (behind >= 0) & (behind < self.factor) & whole[..., None]  # [B, W, S]
        return jnp.einsum('BNTW,BWS->BNTS', weights_of(query, short, mask=mask, numerics=given.numerics),
                          inside.astype(real_dtype()) / self.factor, precision='highest')

    def _convolved(self, kernel, x, ends, numerics):
        """[B, S, K, H] -> [B, W, K, H]."""
        taps = [jnp.take_along_axis(x, self._tap(ends, j)[..., None, None], 1) for j in range(self.factor)]
        return numerics.cast(sum(numerics.scores('BWKH,KHJ->BWKJ', tap, kernel[j]) for j, tap in enumerate(taps)))

    def _tap(self, ends, j):
        return jnp.maximum(ends - (self.factor - 1 - j), 0)

    def _windows(self, given, batch, queries, keys):
        """(the last positions of the windows [B, W], which of these windows exist, the mask from queries to windows)."""
        documents = segments_of(given.mask, queries, keys)
        own, number = (jnp.ones((1, length), jnp.int32) for length in (queries, keys)) if documents is None else documents
        number = jnp.broadcast_to(number, (batch, keys))
        last = (places(number) % self.factor == self.factor - 1) & (number != 0)
        # Windows do not overlap, so that at most keys // factor of them end in a row.
        ends = jnp.argsort(~last, axis=1, stable=True)[:, :max(keys // self.factor, 1)]
        whole = jnp.take_along_axis(last, ends, 1)

        pattern, _ = parts(given.mask)
        t = jnp.arange(queries) if given.positions is None else given.positions[0]
        seen = [pattern(t, self._tap(ends, j)) for j in range(self.factor)]
        visible = functools.reduce(jnp.logical_and, seen, whole[:, None])
        visible = visible & (own[:, :, None] == jnp.take_along_axis(number, ends, 1)[:, None])
        return ends, whole, Explicit(visible)
