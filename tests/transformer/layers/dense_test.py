import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from transformer.layers.dense import Dense
from transformer.layers.dropout import dropout, fold
from transformer.layers.embedding import Embedding

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


if __name__ == '__main__':
    absltest.main()
