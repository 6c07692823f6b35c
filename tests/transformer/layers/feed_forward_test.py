import jax
import numpy as np
from absl.testing import absltest, parameterized
from flax import linen as nn

from transformer.layers.activations import Gelu, GeluTanh, Relu, Silu, gelu
from transformer.layers.feed_forward import FeedForwardLayer, Gated, Mlp
from transformer.layers.numerics import Numerics

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
ACTIVATIONS = [Gelu(), GeluTanh(), Relu(), Silu()]


def drawn(layer):
    rng, shapes = np.random.default_rng(1), jax.eval_shape(lambda: layer.init(KEY, X))['params']
    return jax.tree.map(lambda s: rng.normal(size=s.shape).astype(np.float32), shapes)


class FeedForwardTest(parameterized.TestCase):
    @parameterized.product(bias=[True, False], activation=ACTIVATIONS)
    def test_equals_the_formula(self, bias, activation):
        layer = FeedForwardLayer(Mlp(8, activation, bias))
        params = drawn(layer)
        self.assertEqual({name: set(part) for name, part in params.items()},
                         dict.fromkeys(('input', 'output'), {'kernel', 'bias'} if bias else {'kernel'}))
        add = lambda y, part: y + params[part].get('bias', 0.0)
        inner = np.asarray(activation(add(X @ params['input']['kernel'], 'input')))
        y, told = jax.jit(layer.apply)({'params': params}, X)
        np.testing.assert_allclose(y, add(inner @ params['output']['kernel'], 'output'), rtol=1e-4, atol=1e-5)
        self.assertEqual(told, {})

    @parameterized.product(bias=[True, False], activation=ACTIVATIONS)
    def test_with_a_gate(self, bias, activation):
        layer = FeedForwardLayer(Gated(8, activation, bias))
        params = drawn(layer)
        self.assertSameElements(params, ['gate', 'linear', 'output'])
        dense = lambda y, part: y @ params[part]['kernel'] + params[part].get('bias', 0.0)
        inner = np.asarray(activation(dense(X, 'gate'))) * dense(X, 'linear')
        y, _ = jax.jit(layer.apply)({'params': params}, X)
        np.testing.assert_allclose(y, dense(inner, 'output'), rtol=1e-4, atol=1e-4)

    @parameterized.parameters((0, 16), (6, 6))
    def test_the_inner_width_is_four_times_the_outer_unless_told(self, inner, wanted):
        for part, first in ((Mlp(inner), 'input'), (Gated(inner), 'linear')):
            params = drawn(FeedForwardLayer(part))
            self.assertEqual((params[first]['kernel'].shape, params['output']['kernel'].shape), ((4, wanted), (wanted, 4)))

    def test_initialisers_of_the_two_kernels(self):
        layer = FeedForwardLayer(Mlp(8), {'kernel_init': nn.initializers.ones, 'output_init': nn.initializers.zeros})
        params = layer.init(KEY, np.ones((1, 2, 4), np.float32))['params']
        np.testing.assert_array_equal(params['input']['kernel'], 1.0)
        np.testing.assert_array_equal(params['output']['kernel'], 0.0)

    @parameterized.parameters((Mlp, 1), (Gated, 4))
    def test_dropout_needs_a_key(self, part, gain):
        ones = nn.initializers.ones
        layer = FeedForwardLayer(part(8, dropout=0.5), {'kernel_init': ones, 'output_init': ones})
        x = np.ones((1, 9, 4), np.float32)
        variables = {'params': layer.init(KEY, x)['params']}
        whole = 8 * gelu(4.0) * gain
        np.testing.assert_allclose(layer.apply(variables, x)[0], whole, rtol=1e-6)
        dropped = np.asarray(layer.apply(variables, x, key=KEY)[0])
        self.assertGreater(np.abs(dropped - whole).max(), 1.0)
        np.testing.assert_allclose(dropped * 4 / whole, np.round(dropped * 4 / whole), atol=1e-5)  # k of 8, times 2

    def test_activations_are_float32_in_bfloat16(self):
        layer = FeedForwardLayer(Mlp(8), numerics=Numerics('bfloat16'))
        y, _ = layer.apply({'params': drawn(layer)}, X.astype('bfloat16'))
        self.assertEqual(y.dtype, 'bfloat16')
        program = str(jax.make_jaxpr(lambda p: layer.apply({'params': p}, X.astype('bfloat16'))[0])(drawn(layer)))
        self.assertRegex(program, r'f32\[2,3,8\] = erf')

    def test_a_width_below_0_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'inner is -1; expected a width, or 0 for four times that of the model'):
            Gated(inner=-1)


if __name__ == '__main__':
    absltest.main()
