import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from transformer.layers import Dense, Embedding, LayerNorm, RMSNorm, dropout, fold
from transformer.numerics import Numerics

KEY = jax.random.key(0)


class FoldTest(parameterized.TestCase):
    def test_streams_differ_by_name_and_number_and_repeat(self):
        keys = [fold(KEY, *names) for names in (('a',), ('b',), ('a', 0), ('a', 1), ('a', 'b'), ('b', 'a'), ())]
        self.assertLen({tuple(np.asarray(jax.random.key_data(key))) for key in keys}, len(keys))
        self.assertTrue(jnp.array_equal(jax.random.key_data(fold(KEY, 'a', 1)), jax.random.key_data(keys[3])))

    def test_no_key_stays_none(self):
        self.assertIsNone(fold(None, 'a', 1))


class DropoutTest(parameterized.TestCase):
    @parameterized.parameters('float32', 'bfloat16')
    def test_drops_the_rate_and_scales_the_rest(self, dtype):
        y = dropout(jnp.ones((200, 200), dtype), 0.25, KEY)
        self.assertEqual(y.dtype, dtype)
        self.assertAlmostEqual(float((y == 0).mean()), 0.25, delta=0.01)
        np.testing.assert_allclose(np.unique(np.asarray(y, np.float32)), [0.0, 4 / 3], rtol=4e-3)

    def test_neighbours_are_dropped_independently(self):
        for width in (7, 8):  # pairs of elements share a random word
            dropped = np.asarray(dropout(jnp.ones((20_000, width)), 0.3, KEY) == 0, np.float64)
            np.testing.assert_allclose(dropped.mean(0), 0.3, atol=0.015)
            np.testing.assert_allclose(np.corrcoef(dropped.T), np.eye(width), atol=0.03)

    def test_a_rate_of_nearly_one_drops_nearly_all(self):
        self.assertLess(float((dropout(jnp.ones(10_000), 0.999999, KEY) != 0).mean()), 0.001)

    def test_depends_on_the_key_alone(self):
        x = jnp.ones(100)
        self.assertTrue(jnp.array_equal(dropout(x, 0.5, KEY), dropout(x, 0.5, KEY)))
        self.assertFalse(jnp.array_equal(dropout(x, 0.5, KEY), dropout(x, 0.5, fold(KEY, 1))))

    def test_without_key_or_rate_nothing_happens(self):
        x = jnp.arange(5.0)
        self.assertTrue(jnp.array_equal(dropout(x, 0.5, None), x))
        self.assertTrue(jnp.array_equal(dropout(x, 0.0, KEY), x))

    @parameterized.parameters(1.0, -0.1)
    def test_a_rate_outside_0_to_1_is_refused_in_evaluation_too(self, rate):
        with self.assertRaisesRegex(ValueError, r'expected a rate in \[0, 1\)'):
            dropout(jnp.ones(3), rate, None)


class DenseTest(parameterized.TestCase):
    def test_equals_numpy_and_names_its_parameters(self):
        rng = np.random.default_rng(0)
        x, kernel, bias = (rng.normal(size=s).astype(np.float32) for s in ((2, 3, 4, 5), (4, 5, 6, 2), (6, 2)))
        layer = Dense((6, 2), axes=2)
        shapes = jax.tree.map(jnp.shape, layer.init(KEY, x)['params'])
        self.assertEqual(shapes, {'kernel': (4, 5, 6, 2), 'bias': (6, 2)})
        y = layer.apply({'params': {'kernel': kernel, 'bias': bias}}, x)
        np.testing.assert_allclose(y, np.einsum('btij,ijkl->btkl', x, kernel) + bias, atol=1e-5)

    def test_without_bias(self):
        self.assertEqual(set(Dense(3, bias=False).init(KEY, jnp.ones((2, 4)))['params']), {'kernel'})

    @parameterized.parameters(((64, 2, 32), 1, 64), ((16, 4, 64), 2, 64))
    def test_fans_of_the_initialiser_are_rows_and_columns_of_the_matrix(self, kernel, axes, fan_in):
        layer = Dense(kernel[axes:], axes=axes, kernel_init=nn.initializers.lecun_normal())
        got = layer.init(KEY, jnp.ones((1, *kernel[:axes])))['params']['kernel']
        self.assertAlmostEqual(float(got.std()) * fan_in ** 0.5, 1.0, delta=0.05)


class EmbeddingTest(parameterized.TestCase):
    def test_looks_up_rows_and_projects_onto_them(self):
        table = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
        layer, variables = Embedding(5, 3), {'params': {'embedding': table}}
        ids = jnp.array([[4, 0, 4]])
        np.testing.assert_array_equal(layer.apply(variables, ids), table[np.array([[4, 0, 4]])])
        x = np.ones((2, 3), np.float32)
        np.testing.assert_allclose(layer.apply(variables, x, method='attend'), x @ table.T, rtol=1e-6)


class RMSNormTest(absltest.TestCase):
    def test_equals_the_formula(self):
        rng = np.random.default_rng(0)
        x, scale = rng.normal(size=(4, 6)) * 3 + 1, rng.normal(size=6)
        wanted = x / np.sqrt((x ** 2).mean(-1, keepdims=True) + 0.1) * scale
        layer = RMSNorm(epsilon=0.1)
        self.assertEqual(jax.tree.map(np.shape, layer.init(KEY, jnp.float32(x))['params']), {'scale': (6,)})
        np.testing.assert_allclose(layer.apply({'params': {'scale': jnp.float32(scale)}}, jnp.float32(x)), wanted, atol=1e-5)

    def test_what_comes_out_has_the_type_of_the_products(self):
        layer, x = RMSNorm(numerics=Numerics('bfloat16')), jnp.ones((2, 4), jnp.bfloat16)
        self.assertEqual(layer.apply(layer.init(KEY, x), x).dtype, jnp.bfloat16)


class LayerNormTest(parameterized.TestCase):
    def test_textbook_example(self):
        layer, x = LayerNorm(), jnp.array([[1.0, 2.0], [2.0, 3.0]])
        np.testing.assert_allclose(layer.apply(layer.init(KEY, x), x), [[-1, 1], [-1, 1]], atol=1e-4)

    def test_equals_the_formula(self):
        rng = np.random.default_rng(0)
        x, scale, bias = rng.normal(size=(4, 6)) * 3 + 1, rng.normal(size=6), rng.normal(size=6)
        wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1) * scale + bias
        params = {'scale': jnp.float32(scale), 'bias': jnp.float32(bias)}
        np.testing.assert_allclose(LayerNorm(epsilon=0.1).apply({'params': params}, jnp.float32(x)), wanted, atol=1e-5)

    def test_gradients_equal_central_differences_in_float64(self):
        rng = np.random.default_rng(0)
        x, scale, pull = rng.normal(size=(3, 5)) * 2 + 1, rng.normal(size=5), rng.normal(size=(3, 5))

        def exact(x, scale):
            return (((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale) * pull).sum()

        def ours(x, scale):
            return (LayerNorm(bias=False).apply({'params': {'scale': scale}}, x) * pull).sum()

        found = jax.grad(ours, (0, 1))(jnp.float32(x), jnp.float32(scale))
        for i, (point, gradient) in enumerate(zip((x, scale), found)):
            for place in np.ndindex(point.shape):
                step = np.zeros_like(point)
                step[place] = 1e-6
                low, high = ([x, scale] for _ in range(2))
                low[i], high[i] = point - step, point + step
                self.assertAlmostEqual((exact(*high) - exact(*low)) / 2e-6, float(gradient[place]), delta=2e-5)

    def test_without_bias(self):
        self.assertEqual(set(LayerNorm(bias=False).init(KEY, jnp.ones((2, 4)))['params']), {'scale'})

    def test_statistics_of_bfloat16_are_float32(self):
        x = (100 + jnp.arange(256.0)).astype(jnp.bfloat16)  # in bfloat16 the mean alone would be off by a whole unit
        layer = LayerNorm(numerics=Numerics('bfloat16'))
        variables = layer.init(KEY, x)
        self.assertEqual(variables['params']['scale'].dtype, jnp.float32)
        y, exact = layer.apply(variables, x), np.asarray(x, np.float64)
        self.assertEqual(y.dtype, jnp.bfloat16)
        np.testing.assert_allclose(np.asarray(y, np.float64), (exact - exact.mean()) / exact.std(), atol=8e-3)


if __name__ == '__main__':
    absltest.main()
