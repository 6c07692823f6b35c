"""The critical batch size on hyperbolas that are known."""

import numpy as np
from absl.testing import absltest, parameterized

from training.report import critical_batch
from training.report.critical_batch import Critical, critical

TRUTH = Critical(150.0, 6e5, 0.0)  # B_crit 4000
BATCHES = 2.0 ** np.arange(10, 17)


def reached(noise=0.0, seed=0, batches=BATCHES):
    """Steps and tokens of the batches, with a relative error of the steps."""
    steps = TRUTH.at(batches)[0] * np.exp(noise * np.random.default_rng(seed).normal(size=batches.shape))
    return steps, steps * batches


class CriticalTest(parameterized.TestCase):
    def test_the_hyperbola_is_that_of_the_paper(self):
        steps, tokens = TRUTH.at(BATCHES)
        np.testing.assert_allclose(tokens, steps * BATCHES)
        np.testing.assert_allclose((steps / TRUTH.steps - 1) * (tokens / TRUTH.tokens - 1), 1.0)
        np.testing.assert_allclose(TRUTH.at(TRUTH.batch), (2 * TRUTH.steps, 2 * TRUTH.tokens))

    def test_it_is_found_from_its_points(self):
        found = critical(*reached())
        self.assertAlmostEqual(found.steps / TRUTH.steps, 1.0, places=6)
        self.assertAlmostEqual(found.tokens / TRUTH.tokens, 1.0, places=6)
        self.assertAlmostEqual(found.batch / TRUTH.batch, 1.0, places=6)
        self.assertLess(found.error, 1e-6)

    def test_noise_moves_it_by_its_standard_error(self):
        found = [critical(*reached(0.03, seed)) for seed in range(200)]
        off = np.log([one.batch / TRUTH.batch for one in found])
        self.assertLess(abs(off.mean()), 0.02)
        self.assertAlmostEqual(off.std() / np.mean([one.error for one in found]), 1.0, delta=0.2)
        for one in found:
            self.assertAlmostEqual(one.steps / TRUTH.steps, 1.0, delta=0.15)
            self.assertAlmostEqual(one.tokens / TRUTH.tokens, 1.0, delta=0.15)

    def test_a_relative_error_weighs_as_much_at_any_batch(self):
        """The least squares of log S, against those of its linear form by a general solver."""
        from scipy import optimize

        steps, tokens = reached(0.1)
        wanted = optimize.least_squares(lambda x: np.log(np.exp(x[0]) + np.exp(x[1]) / BATCHES) - np.log(steps),
                                        np.log([steps.min(), tokens.min()]), xtol=1e-14, ftol=1e-14, gtol=1e-14)
        found = critical(steps, tokens)
        np.testing.assert_allclose(np.log([found.steps, found.tokens]), wanted.x, atol=1e-6)
        jacobian = wanted.jac
        covariance = np.linalg.inv(jacobian.T @ jacobian) * 2 * wanted.cost / (len(steps) - 2)
        self.assertAlmostEqual(found.error, np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]), places=5)

    @parameterized.parameters(
        (lambda: critical(*reached(batches=BATCHES[:3])), 'There are 3 batch sizes that reach the loss; .* needs 4'),
        (lambda: critical([10.0] * 5, [100.0] * 5), 'There are 1 batch sizes'),
        (lambda: critical([], []), 'There are 0 batch sizes'),
        (lambda: critical([1.0, 2.0, 0.0, 4.0], [1.0] * 4), r'Number 2 of the steps is 0\.0; leave out'),
        (lambda: critical([1.0] * 4, [1.0, np.nan, 1.0, 1.0]), 'Number 1 of the tokens is nan; leave out'),
        (lambda: critical([1.0] * 4, [1.0] * 5), r'the shape \(4,\) and the tokens \(5,\)'),
        (lambda: critical(*reached(batches=BATCHES[3:])), r'outside of the batches tried, 8192 to 6\.554e\+04 .*smaller ones'),
        (lambda: critical(*reached(batches=2.0 ** np.arange(6, 11))), 'outside of the batches tried.*larger ones'),
        (lambda: critical([100.0] * 5, 100 * BATCHES[:5]), 'smaller ones'),
        (lambda: critical(1e6 / BATCHES, [1e6] * 7), 'larger ones'))
    def test_what_has_no_critical_batch(self, call, message):
        with self.assertRaisesRegex(ValueError, message):
            call()

    def test_four_batches_suffice(self):
        self.assertEqual(critical_batch.LEAST, 4)
        self.assertAlmostEqual(critical(*reached(batches=BATCHES[1:5])).batch, TRUTH.batch, places=2)


if __name__ == '__main__':
    absltest.main()
