import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.block import ACTIVATIONS, Block, Context, FeedForward, gelu

KEY = jax.random.key(0)
POINTS = np.linspace(-8, 8, 401)


class ActivationsTest(parameterized.TestCase):
    def test_gelu_is_exact_to_float32_rounding(self):
        distribution = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in POINTS])
        density = np.exp(-POINTS ** 2 / 2) / math.sqrt(2 * math.pi)
        points = jnp.float32(POINTS)
        np.testing.assert_allclose(gelu(points), POINTS * distribution, rtol=5e-7, atol=6e-7)
        np.testing.assert_allclose(jax.vmap(jax.grad(gelu))(points), distribution + POINTS * density, atol=6e-7)

    def test_the_approximation_and_relu_follow_their_formulas(self):
        inner = math.sqrt(2 / math.pi) * (POINTS + 0.044715 * POINTS ** 3)
        points = jnp.float32(POINTS)
        np.testing.assert_allclose(ACTIVATIONS['gelu_tanh'](points), 0.5 * POINTS * (1 + np.tanh(inner)), atol=2e-6)
        np.testing.assert_array_equal(ACTIVATIONS['relu'](points), np.maximum(np.float32(POINTS), 0))
        self.assertGreater(float(jnp.abs(ACTIVATIONS['gelu_tanh'](points) - gelu(points)).max()), 1e-4)


class FeedForwardTest(parameterized.TestCase):
    @parameterized.product(bias=[True, False], activation=list(ACTIVATIONS))
    def test_equals_the_formula(self, bias, activation):
        layer, rng = FeedForward(8, activation, bias=bias), np.random.default_rng(0)
        x = rng.normal(size=(2, 3, 4)).astype(np.float32)
        shapes = jax.eval_shape(lambda: layer.init(KEY, x))['params']
        self.assertEqual('bias' in shapes['input'], bias)
        params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), shapes)
        add = lambda y, part: y + params[part].get('bias', 0.0)
        inner = np.asarray(ACTIVATIONS[activation](add(x @ params['input']['kernel'], 'input')))
        np.testing.assert_allclose(jax.jit(layer.apply)({'params': params}, x),
                                   add(inner @ params['output']['kernel'], 'output'), rtol=1e-4, atol=1e-5)

    @parameterized.product(bias=[True, False], activation=list(ACTIVATIONS))
    def test_with_a_gate(self, bias, activation):
        layer, rng = FeedForward(8, activation, gated=True, bias=bias), np.random.default_rng(0)
        x = rng.normal(size=(2, 3, 4)).astype(np.float32)
        shapes = jax.eval_shape(lambda: layer.init(KEY, x))['params']
        self.assertSameElements(shapes, ['gate', 'linear', 'output'])
        params = jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), shapes)
        dense = lambda y, part: y @ params[part]['kernel'] + params[part].get('bias', 0.0)
        inner = np.asarray(ACTIVATIONS[activation](dense(x, 'gate'))) * dense(x, 'linear')
        np.testing.assert_allclose(jax.jit(layer.apply)({'params': params}, x), dense(inner, 'output'), rtol=1e-4, atol=1e-4)

    def test_initialisers_of_the_two_kernels(self):
        layer = FeedForward(8, kernel_init=nn.initializers.ones, output_init=nn.initializers.zeros)
        params = layer.init(KEY, np.ones((1, 2, 4), np.float32))['params']
        np.testing.assert_array_equal(params['input']['kernel'], 1.0)
        np.testing.assert_array_equal(params['output']['kernel'], 0.0)

    def test_dropout_needs_a_key(self):
        ones = nn.initializers.ones
        layer, x = FeedForward(8, dropout=0.5, kernel_init=ones, output_init=ones), np.ones((1, 9, 4), np.float32)
        variables = layer.init(KEY, x)
        whole = 8 * gelu(4.0)
        np.testing.assert_allclose(layer.apply(variables, x), whole, rtol=1e-6)
        dropped = np.asarray(layer.apply(variables, x, key=KEY))
        self.assertGreater(np.abs(dropped - whole).max(), 1.0)
        np.testing.assert_allclose(dropped * 4 / whole, np.round(dropped * 4 / whole), atol=1e-5)  # k of 8, times 2

    def test_an_unknown_activation_is_refused(self):
        with self.assertRaisesRegex(ValueError, "activation is 'gleu'; expected one of gelu, gelu_tanh, relu"):
            jax.eval_shape(lambda: FeedForward(8, 'gleu').init(KEY, jnp.ones((1, 2, 4))))


class Attention(nn.Module):
    """Stands for attention: adds what it was given, so that a test sees what arrives."""

    def __call__(self, x, *, mask, encoding, key, cache, positions, head_mask):
        return x * mask + positions, cache and {'seen': cache['seen'] + 1}


class Double(nn.Module):
    def __call__(self, x, *, key=None):
        return 2 * x


class BlockTest(parameterized.TestCase):
    def test_is_pre_norm_with_two_residual_branches(self):
        block = Block(Attention, Double, partial(nn.LayerNorm, use_scale=False, use_bias=False))
        norm = lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
        y, cache = block.apply({}, x, Context(mask=3.0, positions=0.5), cache={'seen': 0})
        middle = x + norm(x) * 3.0 + 0.5
        np.testing.assert_allclose(y, middle + 2 * norm(middle), atol=1e-5)
        self.assertEqual(cache, {'seen': 1})

    def test_dropout_reaches_each_branch_with_a_key_of_its_own(self):
        block = Block(Attention, Double, partial(nn.LayerNorm, use_scale=False, use_bias=False), dropout=0.5)
        x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
        context = Context(mask=3.0, positions=0.0)
        apply = lambda key: block.apply({}, x, context, key=key)[0]
        self.assertTrue(jnp.array_equal(apply(None), block.clone(dropout=0.0).apply({}, x, context)[0]))
        self.assertTrue(jnp.array_equal(apply(KEY), apply(KEY)))
        self.assertFalse(jnp.array_equal(apply(KEY), apply(jax.random.key(1))))


if __name__ == '__main__':
    absltest.main()
