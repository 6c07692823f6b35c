"""Layers behind the interface of attention that have no weights of positions: a convolution and a recurrence of the values,
which mix all heads and have width D = K·Hv, and attention between channels.

There are no weights to drop: `dropout` acts only on the branches.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.masks.analysis import real, require_next, segments_of
from transformer.attention.mechanism import Given, Mechanism
from transformer.layers import roles
from transformer.layers.initial import xavier, zeros
from transformer.layers.numerics import wide
from transformer.layers.roles import Wanted


class Alternative(Mechanism):
    """Base of mechanisms without weights of positions; by default they use only the value projection."""

    cross = shown = scored = patterns = False
    projections = ('value',)

    def weights(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                given: Given = Given()) -> jax.Array:
        """[B, 1, T, S], the influence of each value on each output: |∂o_t/∂v_s · v_s| / |v_s|, with norms of vectors [D]. For
        a mechanism that multiplies the values by a matrix, these are the absolute values of its entries."""
        given = dataclasses.replace(given, rate=0.0)
        outputs = lambda x: wide(_flat(self(parameters, query, key, x, given)))
        norm = lambda x: jnp.linalg.norm(wide(x), axis=-1)

        out, pull = jax.vjp(outputs, value)
        push = jax.linear_transpose(pull, out)  # as jax.jvp, but works if only the gradient is defined

        def of_source(s):  # [B, T]
            only = jnp.where((jnp.arange(value.shape[1]) == s)[:, None, None], value, 0)
            return norm(push((only,))[0])

        gains = jax.lax.map(of_source, jnp.arange(value.shape[1]), batch_size=16)  # [S, B, T]
        return jnp.moveaxis(gains, 0, 2)[:, None] / jnp.maximum(norm(_flat(value)), 1e-30)[:, None, None]


def _flat(value):
    batch, length, heads, width = value.shape
    return value.reshape(batch, length, heads * width)  # [B, T, D]


@dataclasses.dataclass(frozen=True)
class Convolution(Alternative):
    """o_t = sum over j < kernel of v_(t + j - before)·W_j + b, W_j [D, D], within a document (Gehring et al. 2017, section
    3.2, without its gate). Under a causal mask the kernel ends at t, otherwise it is centred: before = kernel // 2.

    Attributes:
      kernel: the number of positions that contribute to an output.
    """
    kernel: int = 3

    def __post_init__(self):
        if self.kernel < 1:
            raise ValueError(f'{self}: kernel is {self.kernel}; expected at least 1.')

    def parameters(self, query: Any, key: Any, value: Any) -> dict:
        width = value.shape[2] * value.shape[3]
        matrix = lambda key, shape, *dtype: xavier()(key, (self.kernel * width, width), *dtype).reshape(shape)
        kernel = Wanted(matrix, (self.kernel, width, width), roles.matrix((1,), (2,)))
        return {'kernel': kernel, 'bias': Wanted(zeros, (width,))}

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        before = self.kernel - 1 if given.mask.causal else self.kernel // 2
        behind, length = self.kernel - 1 - before, value.shape[1]
        x = jnp.pad(_flat(value), ((0, 0), (before, behind), (0, 0)))
        documents = segments_of(given.mask, length, length)
        visible = None
        if documents is not None:
            own, other = documents
            other = jnp.pad(other, ((0, 0), (before, behind)))
            visible = lambda j: ((other[:, j:j + length] == own) & (other[:, j:j + length] != 0))[..., None]
        return self._taps(parameters, x, value.shape, given.numerics, visible)

    def _taps(self, parameters, x, shape, numerics, visible=None):
        """x [B, T + kernel - 1, D] -> [B, T, K, Hv]."""
        out = parameters['bias']
        for j in range(self.kernel):
            tap = x[:, j:j + shape[1]]
            tap = tap if visible is None else jnp.where(visible(j), tap, 0)
            out = out + wide(numerics.dense(tap, parameters['kernel'][j]))
        return numerics.cast(out).reshape(shape)

    def empty_cache(self, batch: int, length: int, heads: int, key_heads: int, width: int, dtype: str) -> dict:
        """The last kernel - 1 values."""
        return {'recent': jnp.zeros((batch, self.kernel - 1, key_heads * width), dtype), 'count': jnp.zeros(batch, jnp.int32)}

    def step(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array, cache: dict,
             positions: jax.Array, given: Given) -> tuple[jax.Array, dict]:
        there = real(given.mask, positions).sum(1)
        x = jnp.concatenate([cache['recent'], _flat(value)], 1)
        out = self._taps(parameters, x, value.shape, given.numerics)
        at = there[:, None] + jnp.arange(self.kernel - 1)  # the last kernel - 1 that are not padding
        recent = jnp.take_along_axis(x, at[..., None], 1)
        return require_next(out, cache['count'], positions), {'recent': recent, 'count': cache['count'] + there}


@dataclasses.dataclass(frozen=True)
class Recurrence(Alternative):
    """A recurrent state h [D], zeros at the start of each document: o_t = h_t, with

        gated     z, r = sigmoid(v_t·W + h_(t-1)·U + b);  h_t = (1 - z)·h_(t-1) + z·tanh(v_t + r·(h_(t-1)·U') + b')
        ungated   h_t = tanh(v_t + h_(t-1)·U' + b')

    (Cho et al. 2014, eq. 5-8, with r after the product; Elman 1990.)

    Attributes:
      gated: whether the recurrence has gates.
    """
    gated: bool = True

    bidirectional = regions = False

    def parameters(self, query: Any, key: Any, value: Any) -> dict:
        width = value.shape[2] * value.shape[3]
        orthogonal, rows = nn.initializers.orthogonal(), 3 if self.gated else 1
        matrices = lambda key, shape, *dtype: jnp.concatenate(
            [orthogonal(k, (width, width), *dtype) for k in jax.random.split(key, rows)], 1)
        wanted = {'recurrent': Wanted(matrices, (width, rows * width), roles.matrix()), 'bias': Wanted(zeros, (rows * width,))}
        return wanted | ({'input': Wanted(xavier(), (width, 2 * width), roles.matrix())} if self.gated else {})

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        documents = segments_of(given.mask, value.shape[1], value.shape[1])
        there, begins = jnp.ones((1, value.shape[1]), bool), jnp.zeros((1, value.shape[1]), bool)
        if documents is not None:
            own, other = documents
            there = other != 0
            begins = jnp.concatenate([jnp.zeros_like(own[:, :1], bool), own[:, 1:] != own[:, :-1]], 1)
        out, _ = self._run(parameters, value, there, begins, jnp.zeros((len(value), _flat(value).shape[-1])), given.numerics)
        if documents is not None:
            out = jnp.where((documents[0] != 0)[..., None], out, 0.0)
        return given.numerics.cast(out).reshape(value.shape)

    def empty_cache(self, batch: int, length: int, heads: int, key_heads: int, width: int, dtype: str) -> dict:
        """h, whose size does not depend on the length."""
        return {'state': jnp.zeros((batch, key_heads * width)), 'count': jnp.zeros(batch, jnp.int32)}

    def step(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array, cache: dict,
             positions: jax.Array, given: Given) -> tuple[jax.Array, dict]:
        there = real(given.mask, positions)
        out, state = self._run(parameters, value, there, jnp.zeros_like(there), cache['state'], given.numerics)
        out = given.numerics.cast(require_next(out, cache['count'], positions)).reshape(value.shape)
        return out, {'state': state, 'count': cache['count'] + there.sum(1)}

    def _run(self, parameters, value, there, begins, state, numerics):
        """([B, T, D], the last state): positions that are not `there` leave the state unchanged."""
        x = _flat(value)
        width, bias = x.shape[-1], parameters['bias']
        inputs = wide(x) + bias[-width:]
        if self.gated:
            gates = numerics.scores('BTD,DE->BTE', x, parameters['input']) + bias[:2 * width]
            inputs = jnp.concatenate([gates, inputs], -1)

        def step(state, given):
            inputs, there, begins = given
            state = jnp.where(begins[:, None], 0.0, state)
            turned = numerics.scores('BD,DE->BE', state, parameters['recurrent'])
            if self.gated:
                update, reset = jnp.split(jax.nn.sigmoid(inputs[:, :2 * width] + turned[:, :2 * width]), 2, 1)
                new = state + update * (jnp.tanh(inputs[:, 2 * width:] + reset * turned[:, 2 * width:]) - state)
            else:
                new = jnp.tanh(inputs + turned)
            state = jnp.where(there[:, None], new, state)
            return state, state

        by_time = lambda x: jnp.swapaxes(jnp.broadcast_to(x, (len(value), *x.shape[1:])), 0, 1)
        state, out = jax.lax.scan(step, state, tuple(map(by_time, (inputs, there, begins))))
        return jnp.swapaxes(out, 0, 1), state
