import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import recurrent_reference
from transformer.models.recurrent import Gru, Layer, Lstm, Rnn, run, scan

CELLS = (Rnn(), Gru(), Lstm(forget_bias=0.7))
RNG = np.random.default_rng(0)
B, T, D, H = 3, 6, 4, 5
X = RNG.normal(size=(B, T, D))
THERE = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0]], bool)
BEGINS = np.array([[0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]], bool)


def drawn(shapes):
    return jax.tree.map(lambda s: (0.5 * RNG.normal(size=s.shape)).astype(np.float32), shapes)


def layers_of(cell, directions):
    """(modules, parameters) of two layers."""
    modules, params, inputs = [], [], D
    for _ in range(2):
        modules.append((Layer(cell, H),) * directions)
        shapes = jax.eval_shape(lambda n=inputs: Layer(cell, H).init(jax.random.key(0), jnp.zeros((1, 1, n))))['params']
        params.append(tuple(drawn(shapes) for _ in range(directions)))
        inputs = directions * H
    return modules, params


@functools.partial(jax.jit, static_argnums=0)
def apply(modules, params, x, states, there, begins):
    bound = [[partial_apply(module, one) for module, one in zip(*pair)] for pair in zip(modules, params)]
    return run(bound, x, states, there=there, begins=begins)


def partial_apply(module, params):
    return lambda *args, **more: module.apply({'params': params}, *args, **more)


def numpy_run(cell, params, x, states=None, there=None, begins=None):
    last = {}
    for i, directions in enumerate(params):
        first = None if states is None else states[f'layer_{i}']
        found = [recurrent_reference.layer(cell, one, x, there, begins, bool(backward), first)
                 for backward, one in enumerate(directions)]
        x = np.concatenate([out for out, _ in found], -1)
        last[f'layer_{i}'] = {name: np.concatenate([end[name] for _, end in found], -1) for name in cell.states}
    return x, last


CASES = {
    'whole rows': dict(directions=1), 'padding, both directions': dict(directions=2, there=THERE),
    'packed documents and a first state': dict(directions=1, there=THERE, begins=BEGINS & THERE, first=True)}


class LayersTest(parameterized.TestCase):
    @parameterized.product(cell=CELLS, case=tuple(CASES))
    def test_layers_are_a_loop_over_rows_and_positions(self, cell, case):
        given = dict(CASES[case])
        modules, params = layers_of(cell, given.pop('directions'))
        states = None
        if given.pop('first', False):
            states = {f'layer_{i}': {name: RNG.normal(size=(B, H)) for name in cell.states} for i in range(2)}
        wanted = numpy_run(cell, params, X, states, **given)
        found = apply(tuple(modules), params, X, states, given.get('there'), given.get('begins'))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found, wanted)

    @parameterized.parameters(*CELLS)
    def test_the_gradient_is_the_slope_of_the_loop(self, cell):
        modules, params = layers_of(cell, 2)
        factors = RNG.normal(size=(B, T, 2 * H))

        @jax.jit
        def loss(params, x):
            hidden, last = apply(tuple(modules), params, x, None, THERE, None)
            return (hidden * factors).sum() + sum(jnp.square(a).sum() for a in jax.tree.leaves(last))

        def numpy_loss(params, x):
            hidden, last = numpy_run(cell, params, x, there=THERE)
            return (hidden * factors).sum() + sum(np.square(a).sum() for a in jax.tree.leaves(last))

        gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, jnp.asarray(X))
        point = jax.tree.map(lambda a: np.asarray(a, np.float64), (params, X))
        leaves, tree = jax.tree.flatten(point)
        for i, leaf in enumerate(leaves):  # along one direction for each array
            way = RNG.normal(size=leaf.shape)
            moved = [tree.unflatten([*leaves[:i], leaf + step * way, *leaves[i + 1:]]) for step in (1e-5, -1e-5)]
            slope = (numpy_loss(*moved[0]) - numpy_loss(*moved[1])) / 2e-5
            np.testing.assert_allclose((jax.tree.leaves(gradient)[i] * way).sum(), slope, rtol=1e-4, atol=1e-4)

    def test_padding_says_nothing(self):
        modules, params = layers_of(Gru(), 2)
        rows = [np.where(THERE[..., None], X, fill) for fill in (0.0, 9.0)]
        (hidden, last), (other, last_too) = (apply(tuple(modules), params, x, None, THERE, None) for x in rows)
        np.testing.assert_array_equal(hidden, other)
        jax.tree.map(np.testing.assert_array_equal, last, last_too)

    def test_dropout_stands_between_the_layers_alone(self):
        modules, params = layers_of(Rnn(), 1)
        bound = [[partial_apply(*pair[0], *pair[1])] for pair in zip(modules, params)]
        one = run(bound[:1], X, rate=0.5, key=jax.random.key(0))[0]
        np.testing.assert_array_equal(one, run(bound[:1], X)[0])
        two = [np.asarray(run(bound, X, rate=0.5, key=key)[0]) for key in (None, jax.random.key(0), jax.random.key(1))]
        np.testing.assert_array_equal(two[0], run(bound, X)[0])
        self.assertGreater(np.abs(two[1] - two[0]).max(), 1e-2)
        self.assertGreater(np.abs(two[2] - two[1]).max(), 1e-2)

    def test_a_forget_bias_is_added_within_the_gate(self):
        modules, params = layers_of(Lstm(forget_bias=2.0), 1)
        moved = jax.tree.map(np.copy, params)
        for (one,) in moved:
            one['input']['bias'][H:2 * H] += 2.0
        without = tuple((Layer(Lstm(forget_bias=0.0), H),) for _ in modules)
        np.testing.assert_allclose(apply(tuple(modules), params, X, None, None, None)[0],
                                   apply(without, moved, X, None, None, None)[0], atol=1e-6)


class ScanTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_its_gradients_are_those_of_lax_scan(self, reverse):
        kernels = drawn({'a': jax.ShapeDtypeStruct((H, H), float), 'b': jax.ShapeDtypeStruct((2 * H, H), float)})
        given = {'x': RNG.normal(size=(T, B, H)).astype(np.float32), 'number': np.arange(T)}
        others, state = RNG.normal(size=H).astype(np.float32), RNG.normal(size=(B, H)).astype(np.float32)

        def step(dense, others, state, now):
            inner = jnp.sin(dense('a', state * others)) * now['number']
            state = jnp.tanh(dense('b', jnp.concatenate([inner, now['x']], -1)) + 0.1 * state)
            return state, inner * 2

        def ours(kernels, others, state, x):
            return scan(step, kernels, others, state, given | {'x': x}, reverse=reverse)

        def plain(kernels, others, state, x):
            dense = lambda name, x: x @ kernels[name]
            return jax.lax.scan(lambda state, now: step(dense, others, state, now), state, given | {'x': x}, reverse=reverse)

        def found(function):
            outputs = lambda *args: sum(jnp.square(a).sum() for a in jax.tree.leaves(function(*args)))
            return jax.jit(lambda *args: (function(*args), jax.grad(outputs, argnums=(0, 1, 2, 3))(*args)))(
                kernels, others, state, given['x'])

        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found(ours), found(plain))

    def test_no_outer_products_are_added_up_in_the_steps_back(self):
        # One product of all steps' rows, [T·B, H] by [T·B, 4·H], and none of [B, H] by [B, 4·H].
        layer = Layer(Lstm(), H)
        params = jax.eval_shape(lambda: layer.init(jax.random.key(0), jnp.zeros((T, B, D))))
        loss = lambda params, x: layer.apply(params, x)[0].sum()
        text = jax.jit(jax.grad(loss)).lower(params, jax.ShapeDtypeStruct((T, B, D), jnp.float32)).compile().as_text()
        made = [line for line in text.splitlines() if ' dot(' in line and f'f32[{H},{4 * H}]' in line.split(' dot(')[0]]
        self.assertLen(made, 1, made)


if __name__ == '__main__':
    absltest.main()
