import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.layers.activations import Gelu, GeluTanh, Relu, Silu, gelu

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
        np.testing.assert_allclose(GeluTanh()(points), 0.5 * POINTS * (1 + np.tanh(inner)), atol=2e-6)
        np.testing.assert_array_equal(Relu()(points), np.maximum(np.float32(POINTS), 0))
        np.testing.assert_allclose(Silu()(points), POINTS / (1 + np.exp(-POINTS)), atol=2e-6)
        self.assertGreater(float(jnp.abs(GeluTanh()(points) - Gelu()(points)).max()), 1e-4)


if __name__ == '__main__':
    absltest.main()
