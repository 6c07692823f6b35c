"""Recurrent cells, and layers of them that run along the positions of a row.

A state is a dict of arrays [B, H] in at least float32, of which `hidden` is the output of the layer. One product projects the
inputs of all steps before the first step; each step then multiplies its state alone.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.layers.dense import Dense
from transformer.layers.dropout import dropout, fold
from transformer.layers.initial import xavier
from transformer.layers.numerics import Numerics
from transformer.layers.sharding import several


class Cell(abc.ABC):
    """Base of the cells: one step of recurrence.

    Attributes:
      gates: G; a step projects its input, and its state, to G vectors of width H.
      states: names of the arrays of a state.
      state_bias: whether the projection of the state has its own bias.
    """
    gates = 1
    states = ('hidden',)
    state_bias = False

    @abc.abstractmethod
    def __call__(self, given: jax.Array, own: jax.Array, state: dict) -> dict:
        """given = x·W + b and own = hidden·U [+ its bias], both [B, G·H] in the order of the docstring, state -> new state."""

    def first(self, batch: int, width: int) -> dict:
        """The state before the first step: zeros."""
        return {name: jnp.zeros((batch, width)) for name in self.states}


@dataclasses.dataclass(frozen=True)
class Rnn(Cell):
    """h' = tanh(x·W + h·U + b) (Elman 1990)."""

    def __call__(self, given: jax.Array, own: jax.Array, state: dict) -> dict:
        return {'hidden': jnp.tanh(given + own)}


@dataclasses.dataclass(frozen=True)
class Gru(Cell):
    """The gated recurrent unit (Cho et al. 2014, eq. 5-8), with U_n and its bias c_n before the reset gate, as cuDNN and
    PyTorch have it:

        r = σ(x·W_r + b_r + h·U_r + c_r)      z = σ(x·W_z + b_z + h·U_z + c_z)
        n = tanh(x·W_n + b_n + r ⊙ (h·U_n + c_n))      h' = (1 - z) ⊙ n + z ⊙ h

    The paper has (r ⊙ h)·U_n, which needs two successive products in a step."""
    gates = 3
    state_bias = True

    def __call__(self, given: jax.Array, own: jax.Array, state: dict) -> dict:
        width = given.shape[-1] // 3
        r, z = jnp.split(jax.nn.sigmoid(given[..., :2 * width] + own[..., :2 * width]), 2, -1)
        n = jnp.tanh(given[..., 2 * width:] + r * own[..., 2 * width:])
        return {'hidden': n + z * (state['hidden'] - n)}


@dataclasses.dataclass(frozen=True)
class Lstm(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997) with a forget gate (Gers et al. 2000):

        i, f, o = σ(..), σ(.. + forget_bias), σ(..)      g = tanh(..)      c' = f ⊙ c + i ⊙ g      h' = o ⊙ tanh(c')

    each of x·W + h·U + b; in the matrices the order is i, f, g, o.

    Attributes:
      forget_bias: 1 keeps the forget gate open at the start of training (Jozefowicz et al. 2015, section 5).
    """
    forget_bias: float = 1.0
    gates = 4
    states = ('hidden', 'cell')

    def __call__(self, given: jax.Array, own: jax.Array, state: dict) -> dict:
        i, f, g, o = jnp.split(given + own, 4, -1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f + self.forget_bias), jnp.tanh(g), jax.nn.sigmoid(o)
        cell = f * state['cell'] + i * g
        return {'hidden': o * jnp.tanh(cell), 'cell': cell}


def scan(step: Callable, kernels: Mapping, others: Any, state: Any, inputs: Any, numerics: Numerics = Numerics(),
         reverse: bool = False) -> tuple:
    """lax.scan of step(dense, others, state, input) -> (state, output) along the first axis of `inputs`, in which
    dense(name, x) = x·kernels[name] in at least float32, [.., D] -> [.., F], is for each name called once.

    JAX's own gradient adds xᵀ·dy to dW in every step. Here the backward steps compute dy alone, and dW is one product over the
    rows of all steps. Everything else that a step is differentiated with respect to must be in `others`, a pytree."""
    return _scan(step, numerics, reverse, kernels, others, state, inputs)


def _product(numerics, x, kernel):
    return numerics.scores('RD,DF->RF', x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], -1)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _scan(step, numerics, reverse, kernels, others, state, inputs):
    dense = lambda name, x: _product(numerics, x, kernels[name])
    return jax.lax.scan(lambda state, x: step(dense, others, state, x), state, inputs, reverse=reverse)


def _scan_forward(step, numerics, reverse, kernels, others, state, inputs):
    def one(others, state, x, taps):
        factors = {}

        def dense(name, x):
            factors[name] = numerics.cast(x)
            y = _product(numerics, x, kernels[name])
            return _tapped(y, taps[name]) if taps else y

        state, y = step(dense, others, state, x)
        return state, (y, factors)

    def run(others, state, inputs, taps):
        state, (outputs, factors) = jax.lax.scan(lambda state, x: one(others, state, *x), state, (inputs, taps),
                                                 reverse=reverse)
        return (state, outputs), factors

    first = jax.tree.map(lambda x: x[0], inputs)
    shapes = jax.eval_shape(one, others, state, first, None)[1][1]
    steps = len(jax.tree.leaves(inputs)[0])
    taps = {name: jnp.zeros((steps, *x.shape[:-1], kernels[name].shape[-1])) for name, x in shapes.items()}
    outputs, back, factors = jax.vjp(run, others, state, inputs, taps, has_aux=True)
    return outputs, (back, factors)


def _scan_backward(step, numerics, reverse, residuals, cotangents):
    back, factors = residuals
    *rest, dy = back(cotangents)
    if several():  # rows are sharded over devices: merging their axis with that of the steps would gather them
        flat, equation = lambda x: x.reshape(len(x), -1, x.shape[-1]), 'TRD,TRF->DF'
    else:  # takes a tenth less time on a CPU
        flat, equation = lambda x: x.reshape(-1, x.shape[-1]), 'RD,RF->DF'
    kernels = {name: numerics.scores(equation, flat(x), flat(dy[name])) for name, x in factors.items()}
    return kernels, *rest


_scan.defvjp(_scan_forward, _scan_backward)


@jax.custom_jvp
def _tapped(y, tap):
    """y; its gradient is passed to `tap` as well."""
    return y


@_tapped.defjvp
def _tapped_jvp(primals, tangents):
    return primals[0], tangents[0] + tangents[1]


def each_gate(initialiser: Callable, gates: int) -> Callable:
    """An initialiser of the matrices of all gates side by side, [D, G·H], from that of one matrix [D, H]."""
    return lambda key, shape, *dtype: jnp.concatenate(
        [initialiser(k, (shape[0], shape[1] // gates), *dtype) for k in jax.random.split(key, gates)], 1)


class Layer(nn.Module):
    """One layer: a cell of width H, and its parameters `input` (W, b) and `state` (U).

    Attributes:
      kernel_init: initialiser of the matrices [.., H] of each gate.
    """
    cell: Cell
    width: int
    kernel_init: Callable = xavier()
    numerics: Numerics = Numerics()

    @nn.compact
    def weights(self, inputs: int) -> tuple:
        """((W [D, G·H], b [G·H]), (U [H, G·H], its bias or None)) for inputs of width D."""
        gates = self.cell.gates
        dense = partial(Dense, gates * self.width, kernel_init=each_gate(self.kernel_init, gates), numerics=self.numerics)
        return (dense(name='input').weights((inputs,)),
                dense(bias=self.cell.state_bias, name='state').weights((self.width,)))

    def __call__(self, x: jax.Array, state: Any = None, *, there: jax.Array | None = None, begins: jax.Array | None = None,
                 reverse: bool = False) -> tuple:
        """x [T, B, D] -> (hidden [T, B, H], the last state).

        Args:
          state: the state before the first step; None: zeros.
          there: [T, B], True at tokens; the state does not change at padding.
          begins: [T, B], True where the state is reset to zeros.
          reverse: run from the last position to the first.
        """
        (kernel, bias), (own, own_bias) = self.weights(x.shape[-1])
        dense = self.numerics.dense
        given = dense(x.swapaxes(0, 1), kernel).swapaxes(0, 1) if several() else dense(x, kernel)  # as in _scan_backward
        given = self.numerics.plus(given, bias)  # [T, B, G·H]
        state = self.cell.first(x.shape[1], self.width) if state is None else state

        def step(dense, own_bias, state, now):
            if begins is not None:
                state = {name: jnp.where(now['begins'][:, None], 0.0, x) for name, x in state.items()}
            product = dense('state', state['hidden'])
            new = self.cell(now['given'], product if own_bias is None else product + own_bias, state)
            new = stay(new, state, now.get('there'))
            return new, new['hidden']

        inputs = {'given': given, 'there': there, 'begins': begins}
        inputs = {name: x for name, x in inputs.items() if x is not None}
        state, hidden = scan(step, {'state': own}, own_bias, state, inputs, self.numerics, reverse)
        return hidden, state


def stay(new: Any, old: Any, there: jax.Array | None) -> Any:
    """The new state in rows with a token (`there` [B]), the old state in the others; None: the new state in all rows."""
    return new if there is None else jax.tree.map(
        lambda n, o: jnp.where(there.reshape(-1, *(1,) * (n.ndim - 1)), n, o), new, old)


def run(layers: Sequence, x: jax.Array, states: Mapping | None = None, *, there: jax.Array | None = None,
        begins: jax.Array | None = None, rate: float = 0.0, key: jax.Array | None = None) -> tuple:
    """Applies stacked layers: x [B, T, D] -> (hidden [B, T, H], {'layer_0': its last state, ..}).

    Args:
      layers: a tuple for each layer, of one `Layer`, or of a forward and a backward one, whose outputs and states are
        concatenated to a width of 2·H.
      states: {'layer_0': the state before the first step, ..}, for layers of one direction; None: zeros.
      there, begins: [B, T], as in `Layer`.
      rate, key: dropout between the layers (Zaremba et al. 2014).
    """
    x, new = x.swapaxes(0, 1), {}  # [T, B, D]
    there, begins = (None if a is None else a.T for a in (there, begins))
    for i, directions in enumerate(layers):
        x = dropout(x, rate, fold(key, 'layer', i)) if i else x
        name = f'layer_{i}'
        ends = [layer(x, None if states is None else states[name], there=there, begins=begins, reverse=bool(backward))
                for backward, layer in enumerate(directions)]
        x, new[name] = jax.tree.map(lambda *parts: jnp.concatenate(parts, -1), *ends) if len(ends) > 1 else ends[0]
    return x.swapaxes(0, 1), new
