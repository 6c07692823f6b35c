"""What a student learns from its teacher, against a loop in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from absl.testing import absltest, parameterized

from tests import models
from training import step as steps
from transformer.layers.stack import Stack
from transformer.models.bert import Bert
from transformer.tasks.distillation import Distillation, DistilledClasses

B, T, M, V, D, C = 3, 6, 2, 7, 4, 3
DRAW = np.random.default_rng(0)
BATCH = {
    'inputs': DRAW.integers(V, size=(B, T)), 'positions': np.tile(np.arange(T), (B, 1)),
    'types': np.zeros((B, T), int), 'segments': np.array([[1] * 6, [1] * 4 + [0] * 2, [0] * 6]),
    'masked': np.array([[1, 4], [2, 0], [0, 0]]), 'targets': DRAW.integers(V, size=(B, M)),
    'weights': np.float32([[1, 2], [1, 0], [0, 0]]), 'label': np.array([0, 2, 1]), 'example_weights': np.float32([1, 1, 0])}


class Pair:
    """A student and a teacher with these outputs; `given` are the inputs of both."""

    def __init__(self, student, teacher):
        self.student, self.other, self.given = student, teacher, {}

    def __call__(self, **inputs):
        self.given['student'] = inputs
        return self.student

    def lacks(self, name):
        return False

    def teacher(self, **inputs):
        self.given['teacher'] = inputs
        return self.other


def outputs(*shape):
    return {'logits': 3 * DRAW.normal(size=shape), 'hidden': DRAW.normal(size=(B, T, D))}


def loss(task, forward, key=None, train=False):
    return task.loss(forward, BATCH, key=key, step=0, train=train)


def divergence(teacher, student, temperature):
    """T²·KL of logits [V] and [V]."""
    p, q = (scipy.special.softmax(x / temperature) for x in (teacher, student))
    return temperature ** 2 * sum(a * (np.log(a) - np.log(b)) for a, b in zip(p, q))


class DistillationTest(parameterized.TestCase):
    def assert_terms(self, found, wanted):
        self.assertSameElements(found, wanted)
        for name, numbers in wanted.items():
            np.testing.assert_allclose([float(x) for x in found[name]], numbers, rtol=1e-12, err_msg=name)

    @parameterized.product(temperature=(1.0, 2.0), masked_only=(False, True))
    def test_equals_a_loop_in_float64(self, temperature, masked_only):
        student, teacher = (outputs(B, M if masked_only else T, V) for _ in range(2))
        task = Distillation(temperature=temperature, masked_only=masked_only)
        with jax.enable_x64(True):
            found = loss(task, Pair(student, teacher))
            found = {name: [float(x) for x in pair] for name, pair in found.items()}
        soft, masked, right, cosine = 0.0, 0.0, 0.0, 0.0
        for row in range(B):
            for m in range(M):
                place = m if masked_only else BATCH['masked'][row, m]
                weight, logits = BATCH['weights'][row, m], student['logits'][row, place]
                masked -= weight * scipy.special.log_softmax(logits)[BATCH['targets'][row, m]]
                right += weight * (logits.argmax() == BATCH['targets'][row, m])
                if masked_only:
                    soft += weight * divergence(teacher['logits'][row, m], logits, temperature)
            for t in range(T):
                if BATCH['segments'][row, t]:
                    a, b = student['hidden'][row, t], teacher['hidden'][row, t]
                    cosine += 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
                    if not masked_only:
                        soft += divergence(teacher['logits'][row, t], student['logits'][row, t], temperature)
        there, words = BATCH['segments'].sum(), BATCH['weights'].sum()
        self.assert_terms(found, {'soft': (soft, words if masked_only else there), 'masked': (masked, words),
                                  'accuracy': (right, words), 'cosine': (cosine, there)})
        self.assertEqual('masked' in task.inputs(BATCH), masked_only)

    def test_classes_equal_a_loop_in_float64(self):
        student, teacher = ({'logits': 3 * DRAW.normal(size=(B, C))} for _ in range(2))
        with jax.enable_x64(True):
            found = {name: [float(x) for x in pair] for name, pair in loss(DistilledClasses(temperature=3.0),
                                                                           Pair(student, teacher)).items()}
        sums = dict.fromkeys(found, 0.0)
        for row in range(2):  # the third pads the batch
            logits, label = student['logits'][row], BATCH['label'][row]
            sums['soft'] += divergence(teacher['logits'][row], logits, 3.0)
            sums['hard'] -= scipy.special.log_softmax(logits)[label]
            sums['accuracy'] += logits.argmax() == label
        self.assert_terms(found, {name: (total, 2) for name, total in sums.items()})

    def test_pairs_in_both_orders_have_the_sum_of_their_logits(self):
        batch = BATCH | {name: np.stack([BATCH[name]] * 2, 1) for name in ('inputs', 'positions', 'types', 'segments')}
        pair = Pair(*({'logits': DRAW.normal(size=(2 * B, C))} for _ in range(2)))
        found = DistilledClasses().loss(pair, batch, key=None, step=0, train=False)
        self.assertEqual(pair.given['student']['inputs'].shape, (2 * B, T))
        summed = Pair(*({'logits': one['logits'].reshape(B, 2, C).sum(1)} for one in (pair.student, pair.other)))
        wanted = loss(DistilledClasses(), summed)
        self.assertSameElements(found, wanted)
        for name, numbers in wanted.items():
            np.testing.assert_allclose(found[name], numbers, rtol=1e-5, err_msg=name)

    @parameterized.parameters(Distillation(masked=0.0), Distillation(masked=0.0, masked_only=True))
    def test_a_student_that_is_its_teacher_has_nothing_to_learn(self, task):
        self.enter_context(jax.enable_x64(True))
        model = Bert(vocab=V, length=T, stack=Stack(layers=1, heads=2, width=8), dtype='float64', parameter_dtype='float64')
        params = jax.tree.map(np.float64, models.drawn(model, BATCH['inputs']))

        def total(own):
            terms = loss(task, steps.Forward(steps.applied(model, own), {'teacher': (model, params)}))
            return sum(c * terms[name][0] for name, c in task.coefficients.items())

        gradient = jax.jit(jax.value_and_grad(total))
        norm = lambda tree: max(float(jnp.abs(x).max()) for x in jax.tree.leaves(tree))
        (value, slopes), (other, steep) = gradient(params), gradient(jax.tree.map(lambda x: 1.1 * x, params))
        self.assertLess(max(abs(float(value)), norm(slopes)), 1e-12)
        self.assertGreater(min(float(other), norm(steep)), 1e-3)

    def test_the_teacher_has_no_dropout_and_no_key(self):
        forward = Pair(outputs(B, T, V), outputs(B, T, V))
        loss(Distillation(), forward, key='key', train=True)
        self.assertEqual(forward.given['student'].pop('key'), 'key')
        self.assertEqual(forward.given['student'].keys(), forward.given['teacher'].keys())

    def test_factors(self):
        self.assertEqual(Distillation().coefficients, {'soft': 5.0, 'masked': 2.0, 'cosine': 1.0})
        self.assertEqual(DistilledClasses(soft=0.0).coefficients, {'hard': 0.5})
        both = Pair(outputs(B, T, V), outputs(B, T, V))
        for left_out in ('soft', 'cosine'):
            self.assertNotIn(left_out, loss(Distillation(**{left_out: 0.0}), both))
        self.assertIn('masked', loss(Distillation(masked=0.0), both))  # a metric
        for fields in (dict(soft=-1.0), dict(soft=0.0, masked=0.0, cosine=0.0), dict(temperature=0.0)):
            with self.assertRaisesRegex(ValueError, 'of task: expected factors of 0 or more'):
                Distillation(**fields)

    def test_what_cannot_be_compared_is_refused(self):
        both = outputs(B, T, V), outputs(B, T, V + 1)
        with self.assertRaisesRegex(ValueError, r'The logits of companions.teacher are \[3, 6, 8\] and those of the model \[3'):
            loss(Distillation(), Pair(*both))
        with self.assertRaisesRegex(ValueError, 'compares logits, but the teacher gives hidden; give it a head'):
            loss(Distillation(), Pair(both[0], {'hidden': both[1]['hidden']}))
        wide = both[0] | {'hidden': np.zeros((B, T, 9))}
        with self.assertRaisesRegex(ValueError, 'are 9 wide and those of the model 4, .* set task.cosine=0.0'):
            loss(Distillation(), Pair(both[0], wide))
        loss(Distillation(cosine=0.0), Pair(both[0], wide))


if __name__ == '__main__':
    absltest.main()
