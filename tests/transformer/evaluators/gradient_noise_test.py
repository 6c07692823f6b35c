import functools
import types
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.models import build
from transformer.evaluators import gradient_noise
from transformer.evaluators.gradient_noise import GradientNoise
from transformer.models.gpt import Gpt
from transformer.tasks.language_model import NextToken

MODEL = build(Gpt, vocab=11, width=8, heads=2, layers=1, length=6)
RNG = np.random.default_rng(0)


def batch(rows, length=6, padding=0):
    tokens = RNG.integers(11, size=(rows, length + 1))
    return {'inputs': tokens[:, :-1], 'targets': tokens[:, 1:], 'segments': np.ones((rows, length), int),
            'positions': np.tile(np.arange(length), (rows, 1)), 'weights': np.ones((rows, length), np.float32),
            'example_weights': (np.arange(rows) < rows - padding).astype(np.float32)}


def joined(*batches):
    return {name: np.concatenate([one[name] for one in batches]) for name in batches[0]}


def measured(evaluator, batches, task=NextToken()):
    params = models.drawn(MODEL, batches[0]['inputs'])
    run = types.SimpleNamespace(task=task, model=MODEL, forward=forward, companions=types.SimpleNamespace(variables={}))
    run.compiled = lambda function: jax.jit(functools.partial(function, run))
    assert evaluator.check(run, batches) == gradient_noise.NAMES
    return evaluator(types.SimpleNamespace(run=run, params=params, variables={'params': params}), batches)


def forward(apply, frozen):
    return apply


@jax.jit
def of_sum(params, row):
    return models.losses(MODEL, params, row)[1]


def gradients(batches):
    """[rows, parameters] in float64 of the mean loss of each row that is there, one after the other."""
    params, found = models.drawn(MODEL, batches[0]['inputs']), []
    for one in batches:
        for i in np.flatnonzero(one['example_weights']):
            row = {name: x[i:i + 1] for name, x in one.items()}
            tree = of_sum(params, row)
            found.append(np.concatenate([np.float64(x).ravel() for x in jax.tree.leaves(tree)]) / row['weights'].sum())
    return np.stack(found)


class GradientNoiseTest(parameterized.TestCase):
    def require(self, found, of_rows, tokens):
        """The trace of the covariance, and the mean product of the gradients of two different rows."""
        n = len(of_rows)
        variance = of_rows.var(0, ddof=1).sum()
        products = of_rows @ of_rows.T
        squared = (products.sum() - np.trace(products)) / (n * (n - 1))
        self.assertAlmostEqual(found['gradient_variance'] / variance, 1.0, places=4)
        self.assertAlmostEqual(found['gradient_squared'] / squared, 1.0, delta=1e-4 * variance / n / abs(squared) + 1e-4)
        if squared > 0:
            self.assertAlmostEqual(found['noise_scale'] / (tokens * variance / squared), 1.0, places=3)

    @parameterized.parameters(1, 3, 8)
    def test_moments_are_those_of_the_gradients_of_single_rows(self, at_once):
        batches = [batch(4), batch(4, padding=1)]
        found = measured(GradientNoise(at_once=at_once), batches)
        self.assertGreater(found['noise_scale'], 0)
        self.require(found, gradients(batches), 6)

    def test_rows_that_all_agree_have_no_noise(self):
        row = batch(1)
        found = measured(GradientNoise(), [joined(*4 * [row])])
        self.assertAlmostEqual(found['gradient_variance'] / found['gradient_squared'], 0.0, places=5)
        self.assertAlmostEqual(found['gradient_squared'] / np.square(gradients([row])).sum(), 1.0, places=5)

    def test_rows_are_spread_over_the_split(self):
        batches = [batch(4), batch(4), batch(4, padding=3)]  # rows 0 to 8
        found = measured(GradientNoise(rows=3), batches)
        self.require(found, gradients(batches)[[0, 4, 8]], 6)

    def test_rows_of_several_lengths(self):
        batches = [batch(3), batch(3, length=4)]
        self.require(measured(GradientNoise(), batches), gradients(batches), 5)

    def test_weights_of_a_row_average_within_it_and_targets_count(self):
        whole = batch(5)
        whole['weights'][:, :2] = 0.0
        self.require(measured(GradientNoise(), [whole]), gradients([whole]), 4)

    def test_all_terms_of_the_loss_have_a_gradient(self):
        batches = [batch(4)]
        plain, smoothed = (measured(GradientNoise(), batches, task) for task in (NextToken(), NextToken(label_smoothing=0.2)))
        self.assertNotAlmostEqual(smoothed['gradient_variance'] / plain['gradient_variance'], 1.0, places=2)

    def test_a_gradient_below_its_noise_has_no_scale(self):
        batches = [batch(2)]
        with mock.patch.object(gradient_noise, '_moments', lambda *given: (0.0, 2.0, 12.0)):
            found = measured(GradientNoise(), batches)
        self.assertEqual((found['gradient_variance'], found['gradient_squared']), (2.0, -1.0))
        self.assertTrue(np.isnan(found['noise_scale']))

    @parameterized.parameters(
        (GradientNoise(rows=1), 4, 'rows=1 and at_once=8; expected at least 2 rows'),
        (GradientNoise(at_once=0), 4, 'at_once=0'),
        (GradientNoise(), 1, 'needs two rows, but the split has one'))
    def test_refused(self, evaluator, rows, message):
        with self.assertRaisesRegex(ValueError, message):
            measured(evaluator, [batch(rows)])


if __name__ == '__main__':
    absltest.main()
