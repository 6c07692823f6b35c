import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from tests import models
from transformer.layers.norm import LayerNorm, Norm, OverBatch, RMSNorm, normed
from transformer.layers.numerics import Numerics
from transformer.layers.stack import Stack
from transformer.layers.universal import Universal
from transformer.models.gpt import Gpt

KEY = jax.random.key(0)


class Normed(nn.Module):
    """A module that normalises."""
    norm: Norm
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x, train=False):
        return normed(self.norm, x, 'some_norm', self.numerics, train)


class StoredTest(parameterized.TestCase):

    @parameterized.parameters(LayerNorm(), LayerNorm(bias=False), RMSNorm())
    def test_the_gradient_stores_the_input_in_its_own_type_and_numbers_of_each_row(self, norm):
        layer, x = Normed(norm, Numerics('bfloat16')), jnp.ones((16, 64), jnp.bfloat16)
        variables = layer.init(KEY, x)
        _, backward = jax.vjp(lambda params, x: layer.apply({'params': params}, x), variables['params'], x)
        large = [leaf for leaf in jax.tree.leaves(backward) if leaf.size >= x.size]
        self.assertEqual([leaf.dtype for leaf in large], [jnp.bfloat16])

    @parameterized.parameters(LayerNorm(epsilon=0.1), LayerNorm(bias=False), RMSNorm(epsilon=0.1))
    def test_gradients_are_those_of_the_formula(self, norm):
        with jax.enable_x64(True):
            rng = np.random.default_rng(0)
            x, params = rng.normal(size=(3, 4, 6)) * 2 + 1, {name: rng.normal(size=6) for name in norm.parameters(6)}
            pull = rng.normal(size=x.shape)

            def formula(params, x):
                centered = x - x.mean(-1, keepdims=True) if isinstance(norm, LayerNorm) else x
                y = centered / jnp.sqrt(jnp.square(centered).mean(-1, keepdims=True) + norm.epsilon) * params['scale']
                return ((y + params.get('bias', 0.0)) * pull).sum()

            found = jax.grad(lambda params, x: (norm(params, x) * pull).sum(), (0, 1))(params, x)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found,
                         jax.grad(formula, (0, 1))(params, x))


class RMSNormTest(absltest.TestCase):
    def test_equals_the_formula(self):
        rng = np.random.default_rng(0)
        x, scale = rng.normal(size=(4, 6)) * 3 + 1, rng.normal(size=6)
        wanted = x / np.sqrt((x ** 2).mean(-1, keepdims=True) + 0.1) * scale
        norm = RMSNorm(epsilon=0.1)
        self.assertEqual({name: one.shape for name, one in norm.parameters(6).items()}, {'scale': (6,)})
        np.testing.assert_allclose(norm({'scale': jnp.float32(scale)}, jnp.float32(x)), wanted, atol=1e-5)

    def test_what_comes_out_has_the_type_of_the_products(self):
        layer, x = Normed(RMSNorm(), Numerics('bfloat16')), jnp.ones((2, 4), jnp.bfloat16)
        self.assertEqual(layer.apply(layer.init(KEY, x), x).dtype, jnp.bfloat16)


class LayerNormTest(parameterized.TestCase):
    def test_textbook_example(self):
        layer, x = Normed(LayerNorm()), jnp.array([[1.0, 2.0], [2.0, 3.0]])
        np.testing.assert_allclose(layer.apply(layer.init(KEY, x), x), [[-1, 1], [-1, 1]], atol=1e-4)

    def test_equals_the_formula(self):
        rng = np.random.default_rng(0)
        x, scale, bias = rng.normal(size=(4, 6)) * 3 + 1, rng.normal(size=6), rng.normal(size=6)
        wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1) * scale + bias
        params = {'scale': jnp.float32(scale), 'bias': jnp.float32(bias)}
        np.testing.assert_allclose(LayerNorm(epsilon=0.1)(params, jnp.float32(x)), wanted, atol=1e-5)

    def test_gradients_equal_central_differences_in_float64(self):
        rng = np.random.default_rng(0)
        x, scale, pull = rng.normal(size=(3, 5)) * 2 + 1, rng.normal(size=5), rng.normal(size=(3, 5))

        def exact(x, scale):
            return (((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale) * pull).sum()

        def ours(x, scale):
            return (LayerNorm(bias=False)({'scale': scale}, x) * pull).sum()

        found = jax.grad(ours, (0, 1))(jnp.float32(x), jnp.float32(scale))
        for i, (point, gradient) in enumerate(zip((x, scale), found)):
            for place in np.ndindex(point.shape):
                step = np.zeros_like(point)
                step[place] = 1e-6
                low, high = ([x, scale] for _ in range(2))
                low[i], high[i] = point - step, point + step
                self.assertAlmostEqual((exact(*high) - exact(*low)) / 2e-6, float(gradient[place]), delta=2e-5)

    def test_without_bias(self):
        x, scale = jnp.arange(8.0).reshape(2, 4) ** 2, {'scale': jnp.full(4, 3.0)}
        self.assertEqual(set(LayerNorm(bias=False).parameters(4)), {'scale'})
        with_it = LayerNorm()(scale | {'bias': jnp.full(4, 0.5)}, x)
        np.testing.assert_allclose(LayerNorm(bias=False)(scale, x), with_it - 0.5, atol=1e-6)

    def test_statistics_of_bfloat16_are_float32(self):
        x = (100 + jnp.arange(256.0)).astype(jnp.bfloat16)  # in bfloat16 the mean alone would be off by a whole unit
        layer = Normed(LayerNorm(), Numerics('bfloat16'))
        variables = layer.init(KEY, x)
        self.assertEqual(variables['params']['some_norm']['scale'].dtype, jnp.float32)
        y, exact = layer.apply(variables, x), np.asarray(x, np.float64)
        self.assertEqual(y.dtype, jnp.bfloat16)
        np.testing.assert_allclose(np.asarray(y, np.float64), (exact - exact.mean()) / exact.std(), atol=8e-3)


class OverBatchTest(parameterized.TestCase):
    """Batch norm in a Transformer."""

    def test_equals_the_formula_in_training_and_elsewhere(self):
        rng = np.random.default_rng(0)
        with jax.enable_x64(True):
            numerics = Numerics('float64', True, 'float64')
            norm, x = OverBatch(momentum=0.25), 3.0 + rng.normal(size=(4, 5, 3))
            module = Normed(norm, numerics)
            start = module.init(jax.random.key(0), x)
            params = {'some_norm': {'scale': rng.normal(size=3), 'bias': rng.normal(size=3)}}
            mean, variance = x.reshape(-1, 3).mean(0), x.reshape(-1, 3).var(0)
            y, moved = module.apply({'params': params, 'statistics': start['statistics']}, x, True, mutable=['statistics'])
            own = params['some_norm']
            formula = lambda mean, variance: (x - mean) / np.sqrt(variance + 1e-5) * own['scale'] + own['bias']
            np.testing.assert_allclose(y, formula(mean, variance), rtol=1e-12)
            np.testing.assert_allclose(norm(own, x), formula(mean, variance), rtol=1e-12)
            running = moved['statistics']['some_norm']
            np.testing.assert_allclose(running['mean'], 0.25 * mean, rtol=1e-12)
            np.testing.assert_allclose(running['variance'], 0.75 + 0.25 * variance * 20 / 19, rtol=1e-12)
            y = module.apply({'params': params} | moved, x)
            np.testing.assert_allclose(y, formula(running['mean'], running['variance']), rtol=1e-12)

    def test_every_norm_of_a_model_gathers_moments_in_training_alone(self):
        model = models.build(Gpt, vocab=11, width=8, heads=2, layers=1, length=8, norm=OverBatch(), embedding_norm=True)
        tokens = np.arange(12).reshape(2, 6) % 11
        start = model.init(jax.random.key(0), tokens)
        names = {'embedding_norm', 'norm', 'attention_norm', 'feed_forward_norm'}
        self.assertEqual({*start['statistics'], *start['statistics']['block_0']} - {'block_0'}, names)
        for key, moves in ((jax.random.key(1), True), (None, False)):
            given = {'params': start['params'], 'statistics': start['statistics']}
            _, changed = model.apply(given, tokens, key=key, mutable=['statistics'])
            same = jax.tree.map(lambda x, y: bool((x == y).all()), start['statistics'], changed['statistics'])
            self.assertEqual({*jax.tree.leaves(same)}, {not moves})

    @parameterized.parameters({'scan': True}, {'remat': 'full'}, {'depth': Universal()})
    def test_layers_that_do_not_run_one_by_one_are_refused(self, **fields):
        with self.assertRaisesRegex(ValueError, r'norm=OverBatch\(.*leave out scan, remat and depth'):
            Stack(norm=OverBatch(), **fields)

    def test_a_momentum_above_1_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'expected a momentum in'):
            OverBatch(momentum=1.5)


if __name__ == '__main__':
    absltest.main()
