import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.layers.activations import Gelu, GeluTanh, LeakyRelu, QuickGelu, Relu, Silu, Tanh, activated, gelu

POINTS = np.linspace(-8, 8, 401)


class ActivationsTest(parameterized.TestCase):
    def test_gelu_is_exact_to_float32_rounding(self):
        distribution = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in POINTS])
        density = np.exp(-POINTS ** 2 / 2) / math.sqrt(2 * math.pi)
        points = jnp.float32(POINTS)
        np.testing.assert_allclose(Gelu()(points), POINTS * distribution, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(jax.vmap(jax.grad(gelu))(points), distribution + POINTS * density, atol=1e-6)

    def test_the_others_follow_their_formulas(self):
        inner = math.sqrt(2 / math.pi) * (POINTS + 0.044715 * POINTS ** 3)
        points = jnp.float32(POINTS)
        np.testing.assert_allclose(GeluTanh()(points), 0.5 * POINTS * (1 + np.tanh(inner)), rtol=1e-6, atol=2e-6)
        np.testing.assert_array_equal(Relu()(points), np.maximum(np.float32(POINTS), 0))
        np.testing.assert_allclose(Silu()(points), POINTS / (1 + np.exp(-POINTS)), atol=2e-6)
        np.testing.assert_allclose(QuickGelu()(points), POINTS / (1 + np.exp(-1.702 * POINTS)), atol=2e-6)
        np.testing.assert_allclose(LeakyRelu(0.1)(points), np.where(POINTS < 0, 0.1 * POINTS, POINTS), rtol=1e-6)
        self.assertGreater(float(jnp.abs(GeluTanh()(points) - Gelu()(points)).max()), 1e-4)

    @parameterized.parameters(Gelu(), GeluTanh(), Relu(), Silu(), QuickGelu(), LeakyRelu(), Tanh())
    def test_what_the_gradient_stores(self, activation):
        x = jnp.linspace(-3, 3, 64, dtype=jnp.bfloat16)
        y, backward = jax.vjp(lambda x: activated(activation, x), x)
        self.assertEqual([(leaf.dtype, leaf.shape) for leaf in jax.tree.leaves(backward)], [(jnp.bfloat16, x.shape)])
        exact = activation(jnp.float32(x))
        np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))
        wanted = jax.vjp(activation, jnp.float32(x))[1](jnp.ones(x.shape))[0].astype(jnp.bfloat16)
        np.testing.assert_array_equal(backward(jnp.ones_like(x))[0], wanted)


if __name__ == '__main__':
    absltest.main()
