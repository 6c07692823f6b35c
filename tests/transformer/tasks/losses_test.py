from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.tasks import losses
from transformer.tasks.losses import correct, cross_entropy, log_z_squared, uniform_cross_entropy

LOGITS = np.random.default_rng(0).normal(size=(2, 3, 7)) * 4
TARGETS = np.array([[0, 6, 3], [2, 2, 5]])


class CrossEntropyTest(parameterized.TestCase):
    def test_equals_float64(self):
        probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
        wanted = -np.log(np.take_along_axis(probabilities, TARGETS[..., None], -1)[..., 0])
        np.testing.assert_allclose(cross_entropy(jnp.float32(LOGITS), TARGETS), wanted, rtol=1e-5)

    def test_gradient_is_softmax_minus_one_hot(self):
        gradient = jax.grad(lambda logits: cross_entropy(logits, TARGETS).sum())(jnp.float32(LOGITS))
        wanted = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True) - np.eye(7)[TARGETS]
        np.testing.assert_allclose(gradient, wanted, atol=1e-6)

    def test_large_logits_stay_finite(self):
        np.testing.assert_allclose(cross_entropy(jnp.array([1e4, 0.0, -1e4]), jnp.array(1)), 1e4)

    def test_bfloat16_logits_are_computed_in_float32(self):
        logits = jnp.asarray(LOGITS, jnp.bfloat16)
        loss = cross_entropy(logits, TARGETS)
        self.assertEqual(loss.dtype, jnp.float32)
        np.testing.assert_array_equal(loss, cross_entropy(logits.astype(jnp.float32), TARGETS))


class CorrectTest(parameterized.TestCase):
    def test_one_where_the_largest_logit_is_the_target(self):
        targets = LOGITS.argmax(-1)
        targets[0, 1] = (targets[0, 1] + 1) % 7
        np.testing.assert_array_equal(correct(jnp.float32(LOGITS), targets), [[1, 0, 1], [1, 1, 1]])

    @parameterized.parameters(jnp.float32, jnp.bfloat16)
    def test_equals_argmax_with_ties(self, dtype):
        logits = np.random.default_rng(0).integers(-2, 3, size=(40, 5))  # many rows have their largest number twice
        for target in range(5):
            right = correct(jnp.asarray(logits, dtype), jnp.full(40, target))
            np.testing.assert_array_equal(right, logits.argmax(-1) == target)

    def test_masked_logits(self):
        np.testing.assert_array_equal(correct(jnp.array([[-jnp.inf, 1.0, -jnp.inf]] * 2), jnp.array([0, 1])), [0, 1])

    def test_nothing_is_right_among_nan(self):
        np.testing.assert_array_equal(correct(jnp.array([[1.0, jnp.nan], [jnp.nan] * 2]), jnp.array([0, 1])), [0, 0])


class CorrectOnAcceleratorsTest(CorrectTest):
    """The same, in the form that reads logits once."""

    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch.object(losses, 'platform', lambda: 'tpu'))


class RegularisersTest(parameterized.TestCase):
    LOG_Z = np.log(np.exp(LOGITS).sum(-1))

    def test_uniform_cross_entropy_equals_float64(self):
        wanted = -(LOGITS - self.LOG_Z[..., None]).mean(-1)
        np.testing.assert_allclose(uniform_cross_entropy(jnp.float32(LOGITS)), wanted, rtol=1e-5)

    def test_log_z_squared_equals_float64(self):
        np.testing.assert_allclose(log_z_squared(jnp.float32(LOGITS)), self.LOG_Z ** 2, rtol=1e-5)
        # unlike cross-entropy it changes when all logits rise together
        np.testing.assert_allclose(log_z_squared(jnp.float32(LOGITS + 1)), (self.LOG_Z + 1) ** 2, rtol=1e-5)

    @parameterized.parameters(uniform_cross_entropy, log_z_squared)
    def test_bfloat16_logits_are_computed_in_float32(self, loss):
        logits = jnp.asarray(LOGITS, jnp.bfloat16)
        self.assertEqual(loss(logits).dtype, jnp.float32)
        np.testing.assert_array_equal(loss(logits), loss(logits.astype(jnp.float32)))


if __name__ == '__main__':
    absltest.main()
