"""What a student of images learns from its teacher, against a loop in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from absl.testing import absltest, parameterized

from tests import models
from tests.models import build, changed
from tests.transformer.tasks.distillation_test import Pair, divergence
from training import step as steps
from vit.models.vit import Vit
from vit.tasks.augment import Mixup
from vit.tasks.distillation import Distillation, Hard, Soft

B, C = 5, 4
DRAW = np.random.default_rng(0)
BATCH = {'image': DRAW.normal(size=(B, 4, 6, 1)), 'label': np.array([0, 3, 1, 2, 1]),
         'example_weights': np.float32([1, 1, 0, 1, 1])}
KEY = jax.random.key(0)
logits = lambda: 3 * DRAW.normal(size=(B, C))
VIT = build(Vit, classes=C, patch=2, layers=1, heads=2, width=8, distillation='logits', dtype='float64',
            parameter_dtype='float64')


def loss(task, forward, key=None, train=False, batch=BATCH):
    return task.loss(forward, batch, key=key, step=0, train=train)


def total(task, terms):
    return sum(c * terms[name][0] / terms[name][1] for name, c in task.coefficients.items())


class DistillationTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(jax.enable_x64(True))

    @parameterized.product(soft=(False, True), share=(0.1, 0.5, 1.0), smoothing=(0.0, 0.1), tokens=(1, 2))
    def test_equals_a_loop_in_float64(self, soft, share, smoothing, tokens):
        """Touvron et al. 2021, eq. 2 and 3; a student with one head learns both with it."""
        student = {'logits': logits()}
        if tokens == 2:
            student = {'cls_logits': student['logits'], 'distillation_logits': logits()}
            student['logits'] = (student['cls_logits'] + student['distillation_logits']) / 2
        teacher = {'logits': logits()}
        task = Distillation(targets=Soft(temperature=2.5) if soft else Hard(), share=share, label_smoothing=smoothing)
        found = loss(task, Pair(student, teacher))
        value, right, agreed, rows, alone = 0.0, 0, 0, [0, 1, 3, 4], {}
        for row in rows:
            one = student.get('cls_logits', student['logits'])[row]
            other = student.get('distillation_logits', student['logits'])[row]
            target = np.full(C, smoothing / C)
            target[BATCH['label'][row]] += 1 - smoothing
            of_teacher = teacher['logits'][row]
            taught = divergence(of_teacher, other, 2.5) if soft else -scipy.special.log_softmax(other)[of_teacher.argmax()]
            value += (1 - share) * -target @ scipy.special.log_softmax(one) + share * taught
            right += student['logits'][row].argmax() == BATCH['label'][row]
            agreed += other.argmax() == of_teacher.argmax()
            for token in ('cls', 'distillation') if tokens == 2 else ():
                name = f'{token}_accuracy'
                alone[name] = alone.get(name, 0) + (student[f'{token}_logits'][row].argmax() == BATCH['label'][row])
        np.testing.assert_allclose(float(total(task, found)), value / 4, rtol=1e-12)
        self.assertEqual(tuple(map(float, found['accuracy'])), (right, 4))
        self.assertEqual(tuple(map(float, found['agreement'])), (agreed, 4))
        self.assertEqual({name: float(pair[0]) for name, pair in found.items() if name.endswith('_accuracy')}, alone)

    def test_the_paper_s_values(self):
        self.assertEqual(Distillation().coefficients, {'cross_entropy': 0.5, 'distillation': 0.5})
        self.assertEqual((Distillation().targets, Soft().temperature), (Hard(), 3.0))
        self.assertEqual(Distillation(share=1.0).coefficients, {'distillation': 1.0})

    def test_the_teacher_sees_the_augmented_pixels_without_a_key(self):
        forward = Pair({'logits': logits()}, {'logits': logits()})
        found = loss(Distillation(augment=Mixup(alpha=1.0)), forward, key=KEY, train=True)
        self.assertIs(forward.given['student'].pop('key'), KEY)
        self.assertEqual(forward.given['student'].keys(), forward.given['teacher'].keys())
        for given in forward.given.values():
            self.assertGreater(np.abs(given['image'] - BATCH['image']).max(), 0.1)
        np.testing.assert_array_equal(forward.given['student']['image'], forward.given['teacher']['image'])
        # labels of single pixels of constant images are mixed as the images are
        image = np.broadcast_to(np.eye(C)[BATCH['label']][:, None, :, None], (B, 1, C, 1))
        batch = BATCH | {'image': image}
        found = loss(Distillation(augment=Mixup(alpha=1.0)), forward, key=KEY, train=True, batch=batch)
        mixed = np.asarray(forward.given['student']['image'])[:, 0, :, 0]
        wanted = -(mixed * scipy.special.log_softmax(forward.student['logits'], -1)).sum(-1) @ BATCH['example_weights']
        np.testing.assert_allclose(float(found['cross_entropy'][0]), wanted, rtol=1e-12)

    @parameterized.parameters(Distillation(), Distillation(targets=Soft()))
    def test_each_head_learns_from_its_own_target_and_the_teacher_stays(self, task):
        """The gradients of the two heads in float64 against those of two losses apart; of the teacher there is none."""
        teacher = changed(VIT, distillation='none', pool='mean', width=4)
        params, own = ({name: np.float64(x) if not isinstance(x, dict) else jax.tree.map(np.float64, x) for name, x in
                        models.drawn(model, BATCH['image']).items()} for model in (VIT, teacher))

        def value(params, own, coefficients):
            forward = steps.Forward(steps.applied(VIT, params), {'teacher': (teacher, own)})
            terms = loss(task, forward)
            return sum(coefficients.get(name, 0.0) * terms[name][0] / terms[name][1] for name in task.coefficients)

        slopes = jax.jit(jax.grad(value))(params, own, task.coefficients)
        for head, term in (('head', 'cross_entropy'), ('distillation_head', 'distillation')):
            alone = jax.jit(jax.grad(value))(params, own, {term: task.coefficients[term]})
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14), slopes[head], alone[head])
            other = {'head': 'distillation_head', 'distillation_head': 'head'}[head]
            self.assertEqual(max(float(jnp.abs(x).max()) for x in jax.tree.leaves(alone[other])), 0.0)
            self.assertGreater(float(jnp.abs(alone[head]['kernel']).max()), 1e-3)

    def test_equal_logits_leave_nothing_to_learn(self):
        same = logits()
        found = loss(Distillation(targets=Soft()), Pair({'logits': logits(), 'distillation_logits': same}, {'logits': same}))
        self.assertAlmostEqual(float(found['distillation'][0]), 0.0, places=12)
        self.assertEqual(float(found['agreement'][0]), 4)

    @parameterized.parameters(
        (lambda: Distillation(share=0.0), r'task.share is 0.0; expected the share of the teacher'),
        (lambda: Distillation(share=1.1), r'task.share is 1.1'),
        (lambda: Soft(temperature=0.0), r'Soft\(temperature=0.0\): expected a temperature above 0'),
        (lambda: loss(Distillation(), Pair({'logits': logits()}, {'logits': logits()[:, 1:]})),
         r'The logits of companions.teacher are \[5, 3\] and those of the model \[5, 4\]'),
        (lambda: loss(Distillation(), Pair({'logits': logits()}, {'pooled': 0})),
         'Distillation compares logits, but the teacher gives pooled'))
    def test_refused(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()


if __name__ == '__main__':
    absltest.main()
