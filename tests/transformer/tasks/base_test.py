import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest, parameterized

from data.points import Curve
from training import step as steps
from transformer.attention.pooling import Pooling
from transformer.tasks.base import Task, example_weights
from transformer.tasks.language_model import NextToken, SequenceToSequence
from transformer.tasks.losses import cross_entropy
from transformer.tasks.pooling import PooledClassification, PooledRegression


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


class PonderingTest(absltest.TestCase):
    def test_each_stack_that_halts_has_its_metric_and_all_have_to_if_steps_are_charged(self):
        ones = jnp.ones((2, 3))
        batch = {'segments': np.ones((2, 3)), 'decoder_segments': np.array([[1, 1, 0]] * 2)}
        charges = lambda task, *names: task.charges(dict.fromkeys(names, ones), batch)
        free, paid = SequenceToSequence(), SequenceToSequence(ponder=0.1)
        self.assertEqual(charges(free), {})
        self.assertEqual(charges(free, 'ponder'), {'ponder': (4, 4)})
        self.assertEqual(charges(free, 'source_ponder'), {'source_ponder': (6, 6)})
        self.assertEqual(charges(paid, 'ponder', 'source_ponder'), {'ponder': (4, 4), 'source_ponder': (6, 6)})
        for names, message in ((['ponder'], 'set model.encoder.depth, if'),
                               ([], 'set model.decoder.depth and model.encoder.depth, if')):
            with self.assertRaisesRegex(ValueError, f'charges for steps, .*, or {message} .* to Universal.halting=True.'):
                charges(paid, *names)
        with self.assertRaisesRegex(ValueError, 'set model.depth, if the model has it, to Universal'):
            charges(NextToken(ponder=0.1))


class PooledTest(parameterized.TestCase):
    def test_a_point_is_told_its_own_number_to_leave_itself_out(self):
        batch = {'query': 1, 'own': 2, 'target': 3}
        self.assertEqual(PooledRegression().inputs(batch), {'query': 1, 'own': 2})
        self.assertEqual(PooledRegression(leave_one_out=False).inputs(batch), {'query': 1})

    @parameterized.parameters(None, (1, 0, 1))
    def test_regression(self, *weights):
        given = jnp.float32(weights) if len(weights) == 3 else None
        estimate, target = jnp.float32([[1, 2], [0, 5], [3, 3]]), jnp.float32([[0, 0], [0, 0], [3, 4]])
        batch = {'target': target} | ({} if given is None else {'example_weights': given})
        terms = PooledRegression().terms({'estimate': estimate, 'width': jnp.float32([0.5, 2.0])}, batch)
        total, count = (31.0, 3.0) if given is None else (6.0, 2.0)
        self.assertEqual({name: tuple(map(float, pair)) for name, pair in terms.items()},
                         {'loss': (total, count), 'width_0': (0.5 * count, count), 'width_1': (2 * count, count)})

    def test_one_width_is_called_width(self):
        ones = jnp.ones((2, 1))
        terms = lambda outputs: set(PooledRegression().terms({'estimate': ones} | outputs, {'target': ones}))
        self.assertEqual(terms({'width': jnp.float32(0.5)}), {'loss', 'width'})
        self.assertEqual(terms({}), {'loss'})  # of a kernel without one

    def test_classification_is_guarded_against_zeros(self):
        estimate = jnp.float32([[0.25, 0.75], [1.0, 0.0], [0.0, 0.0], [0.4, 0.6]])  # the third is out of every key's reach
        batch = {'target': jnp.eye(2)[jnp.array([0, 1, 0, 1])]}
        task = PooledClassification(floor=1e-3)
        loss = lambda estimate: task.terms({'estimate': estimate}, batch)['loss'][0]
        self.assertAlmostEqual(float(loss(estimate)), -math.log(0.25) - 2 * math.log(1e-3) - math.log(0.6), places=5)
        self.assertTrue(jnp.isfinite(jax.grad(loss)(estimate)).all())
        np.testing.assert_array_equal(task.terms({'estimate': estimate}, batch)['accuracy'], [1, 4])

    @parameterized.parameters(0.0, 1.0, -1.0, math.nan)
    def test_a_floor_without_a_meaning_is_refused(self, floor):
        with self.assertRaisesRegex(ValueError, 'expected a probability above 0 and below 1'):
            PooledClassification(floor=floor)

    def test_a_width_fitted_without_leave_one_out_collapses(self):
        data = Curve(batch_size=40).open(None)
        model, optimizer = Pooling(**data.facts), optax.adam(0.1)
        batches = {split: next(iter(data.evaluation(split, 50))) for split in ('train', 'valid')}

        def fitted(task):
            def loss(params, split):
                forward = steps.applied(model, params)
                total, weight = task.loss(forward, batches[split], key=None, step=0, train=False)['loss']
                return total / weight

            def step(carry, _):
                params, state = carry
                updates, state = optimizer.update(jax.grad(loss)(params, 'train'), state)
                return (optax.apply_updates(params, updates), state), None

            params = {'log_width': jnp.zeros(())}
            (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), length=200)
            return jnp.exp(params['log_width']), loss(params, 'train'), loss(params, 'valid')

        width, train, valid = jax.jit(lambda: fitted(PooledRegression()))()
        self.assertBetween(width, 0.3, 0.6)
        self.assertLess(valid, 0.3)
        seen_width, seen_train, seen_valid = jax.jit(lambda: fitted(PooledRegression(leave_one_out=False)))()
        self.assertLess(seen_width, 0.01)
        self.assertLess(seen_train, 0.05 * train)
        self.assertGreater(seen_valid, 4 * valid)


class ExampleWeightsTest(parameterized.TestCase):
    def test_ones_unless_the_batch_is_padded(self):
        np.testing.assert_array_equal(example_weights({}, 3), [1, 1, 1])
        np.testing.assert_array_equal(example_weights({'example_weights': np.array([1, 0, 0])}, 3), [1, 0, 0])


if __name__ == '__main__':
    absltest.main()
