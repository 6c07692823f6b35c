import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.losses import cross_entropy
from transformer.tasks import NextToken, Task, example_weights


class Echo(Task):
    def inputs(self, batch):
        return {'inputs': batch['inputs']}

    def terms(self, outputs, batch):
        return outputs


class TaskTest(parameterized.TestCase):
    def test_the_key_reaches_the_model_in_training_alone(self):
        forward = lambda **inputs: inputs
        loss = lambda train: Echo().loss(forward, {'inputs': 1, 'targets': 2}, key='key', step=0, train=train)
        self.assertEqual(loss(True), {'inputs': 1, 'key': 'key'})
        self.assertEqual(loss(False), {'inputs': 1, 'key': None})

    def test_a_task_has_one_term_called_loss_unless_it_says_otherwise(self):
        self.assertEqual(Echo().coefficients, {'loss': 1.0})


class NextTokenTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        self.batch = {name: rng.integers(5, size=(2, 3)) for name in ('inputs', 'targets', 'segments', 'positions')}
        self.batch['weights'] = jnp.array([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
        self.logits = jnp.float32(rng.normal(size=(2, 3, 5)))

    def test_the_model_is_given_tokens_segments_and_positions(self):
        self.assertEqual(set(NextToken().inputs(self.batch)), {'inputs', 'segments', 'positions'})

    def test_sums_are_over_positions_of_weight_one(self):
        targets = self.batch['targets']
        loss, accuracy = (NextToken().terms({'logits': self.logits}, self.batch)[t] for t in ('loss', 'accuracy'))
        chosen = [(0, 0), (0, 2), (1, 0)]
        self.assertAlmostEqual(float(loss[0]), sum(float(cross_entropy(self.logits[i], targets[i])) for i in chosen), places=5)
        self.assertEqual(float(accuracy[0]), sum(float(self.logits[i].argmax() == targets[i]) for i in chosen))
        self.assertEqual((float(loss[1]), float(accuracy[1])), (3.0, 3.0))

    def test_positions_of_weight_zero_change_nothing(self):
        loss = lambda logits: NextToken().terms({'logits': logits}, self.batch)['loss'][0]
        gradient = jax.grad(loss)(self.logits)
        np.testing.assert_array_equal(np.abs(gradient).sum(-1) > 0, self.batch['weights'] > 0)

    @parameterized.parameters((0.1, 0.0), (0.0, 1e-2), (0.3, 0.5))
    def test_smoothing_and_z_loss_equal_float64(self, smoothing, z_loss):
        task = NextToken(label_smoothing=smoothing, z_loss=z_loss)
        logits, weights = np.float64(self.logits), np.float64(self.batch['weights'])
        log_z = np.log(np.exp(logits).sum(-1))
        wanted = (1 - smoothing) * np.eye(5)[self.batch['targets']] + smoothing / 5
        each = -(wanted * (logits - log_z[..., None])).sum(-1) + z_loss * log_z ** 2
        terms = task.terms({'logits': self.logits}, self.batch)
        total = sum(c * terms[t][0] / terms[t][1] for t, c in task.coefficients.items())
        self.assertAlmostEqual(float(total), (weights * each).sum() / weights.sum(), places=5)
        plain = NextToken().terms({'logits': self.logits}, self.batch)['loss']
        np.testing.assert_array_equal(terms['cross_entropy'], plain)

    @parameterized.parameters(dict(label_smoothing=1.0), dict(label_smoothing=-0.1), dict(z_loss=-1.0),
                              dict(z_loss=math.nan))
    def test_values_without_a_meaning_are_refused(self, **fields):
        with self.assertRaisesRegex(ValueError, 'expected a share in .0, 1. and a weight of 0 or more'):
            NextToken(**fields)

    def test_perplexity_leaves_the_regularisers_out(self):
        derived = NextToken(label_smoothing=0.1).derived({'loss': 3.0, 'cross_entropy': 2.0}, {'tokens': 30, 'bytes': 100})
        self.assertEqual(derived, NextToken().derived({'loss': 2.0}, {'tokens': 30, 'bytes': 100}))

    def test_derived_numbers(self):
        derived = NextToken().derived({'loss': 2.0}, {'tokens': 30, 'bytes': 100})
        self.assertAlmostEqual(derived['perplexity'], math.exp(2.0))
        self.assertAlmostEqual(derived['bits_per_byte'], 2.0 * 30 / (math.log(2) * 100))
        self.assertEqual(set(NextToken().derived({'loss': 2.0}, {})), {'perplexity'})
        self.assertTrue(math.isfinite(NextToken().derived({'loss': 1e6}, {})['perplexity']))


class ExampleWeightsTest(parameterized.TestCase):
    def test_ones_unless_the_batch_is_padded(self):
        np.testing.assert_array_equal(example_weights({}, 3), [1, 1, 1])
        np.testing.assert_array_equal(example_weights({'example_weights': np.array([1, 0, 0])}, 3), [1, 0, 0])


if __name__ == '__main__':
    absltest.main()
