import functools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from transformer.attention.kernels import attend
from transformer.attention.multi_head import MultiHead, empty_cache
from transformer.numerics import Numerics

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 3, 8)).astype(np.float32), RNG.normal(size=(2, 5, 8)).astype(np.float32)
HALF = nn.initializers.normal(0.5)
LAYER = MultiHead(4, kernel_init=HALF, value_init=HALF, output_init=HALF)


def drawn(layer):
    """Variables from numpy, biases included; nothing to compile."""
    shapes = jax.eval_shape(lambda: layer.init(KEY, X))
    return jax.tree.map(lambda s: (0.5 * RNG.normal(size=s.shape)).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnums=0)
def apply(layer, variables, *sources, **more):
    return layer.apply(variables, *sources, **more)


class MultiHeadTest(parameterized.TestCase):
    def test_equals_the_formula_for_two_sources(self):
        variables = drawn(LAYER)
        params = variables['params']
        project = lambda name, x: np.einsum('btd,dnh->btnh', x, params[name]['kernel']) + params[name]['bias']
        mixed = np.asarray(attend(project('query', X), project('key', Y), project('value', Y)))
        wanted = np.einsum('btnh,nhd->btd', mixed, params['output']['kernel']) + params['output']['bias']
        got, cache = apply(LAYER, variables, X, Y)
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        self.assertIsNone(cache)

    def test_without_a_second_source_it_attends_to_itself(self):
        variables = drawn(LAYER)
        np.testing.assert_allclose(apply(LAYER, variables, X)[0], apply(LAYER, variables, X, X)[0], atol=1e-6)

    @parameterized.parameters(True, False)
    def test_parameters(self, bias):
        shapes = jax.tree.map(jnp.shape, jax.eval_shape(lambda: LAYER.clone(bias=bias).init(KEY, X))['params'])
        one, out = {'kernel': (8, 4, 2), 'bias': (4, 2)}, {'kernel': (4, 2, 8), 'bias': (8,)}
        wanted = {'query': one, 'key': one, 'value': one, 'output': out}
        if not bias:
            wanted = {name: {'kernel': part['kernel']} for name, part in wanted.items()}
        self.assertEqual(shapes, wanted)

    @parameterized.parameters('value', 'output')
    def test_values_and_the_output_have_initialisers_of_their_own(self, own):
        layer = LAYER.clone(**{f'{own}_init': nn.initializers.ones})
        kernels = {name: part['kernel'] for name, part in jax.jit(layer.init)(KEY, X)['params'].items()}
        np.testing.assert_array_equal(kernels.pop(own), 1.0)
        for name in kernels:
            self.assertAlmostEqual(float(kernels[name].std()), 0.5, delta=0.1)

    def test_a_key_switches_dropout_of_the_weights_on(self):
        layer = LAYER.clone(dropout=0.5)
        variables = drawn(layer)
        mixed = lambda layer, key: np.asarray(apply(layer, variables, X, key=key)[0])
        np.testing.assert_array_equal(mixed(layer, None), mixed(LAYER, None))
        np.testing.assert_array_equal(mixed(layer, KEY), mixed(layer, KEY))
        self.assertGreater(np.abs(mixed(layer, KEY) - mixed(layer, None)).max(), 1e-2)

    @parameterized.parameters('float32', 'bfloat16')
    def test_one_token_at_a_time_through_the_cache_equals_the_whole(self, dtype):
        layer = LAYER.clone(numerics=Numerics(dtype))
        variables = drawn(layer)
        whole, _ = apply(layer, variables, Y, visible=np.tril(np.ones((5, 5), bool)))
        cache = empty_cache(2, 7, 4, 2, dtype)
        for t in range(5):
            at = np.full((2, 1), t)
            visible = (np.arange(7) <= t)[None, None]
            one, cache = apply(layer, variables, Y[:, t:t + 1], visible=visible, cache=cache, positions=at)
            np.testing.assert_allclose(np.asarray(one[:, 0], np.float32), np.asarray(whole[:, t], np.float32),
                                       atol=1e-5 if dtype == 'float32' else 0.1)
        self.assertEqual(cache['key'].dtype, dtype)
        np.testing.assert_array_equal(cache['value'][:, 5:], np.zeros((2, 2, 4, 2)))

    def test_heads_that_do_not_divide_the_width_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'width 8 is not divisible by 3 heads'):
            jax.eval_shape(lambda: MultiHead(3).init(KEY, X))


if __name__ == '__main__':
    absltest.main()
