"""One device and eight, and one batch and its microbatches, give the same step of the models of images, in float64."""

import dataclasses
import functools

import jax
import numpy as np
from absl.testing import absltest, parameterized

from configs import base
from tests import experiments
from tests.marks import slow_but
from training import mesh as meshes
from training import run as runs
from training import step as steps
from vit.tasks.augment import Unmixed


def config(kind, folder):
    """The config of a small model on digits, random in all that its training may have at random."""
    if kind == 'mae':
        c = experiments.tiny_autoencoder().unlock()
        c.evals = {}
    else:
        c = experiments.tiny_images('vit' if kind == 'deit' else kind).unlock()
    if kind == 'deit':
        c.model.distillation = 'logits'
        c.task = base.part('vit.tasks.distillation:Distillation', targets='Soft()', augment='Mixup(alpha=0.8)')
        c.companions.teacher = str(folder / 'teacher')
    if kind in ('swin', 'davit'):
        c.model.dropout, c.model.drop_path = 0.1, 0.3
    c.dtype = c.parameter_dtype = 'float64'
    c.optimizer.eps = 1e-3  # Adam would blow up the gradient of a key's bias, which is nothing but rounding
    return c.lock()


def drawn(shapes):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda s: rng.uniform(0.2, 1.0, s.shape) * np.where(rng.random(s.shape) < 0.5, -1, 1), shapes)


def begun(run):
    """The state of a run with parameters from numpy, none of them 0."""
    statistics = jax.tree.map(np.abs, drawn(run.shapes.statistics))
    return run.begun_with({'params': drawn(run.shapes.params), 'statistics': statistics})


def assert_same(found, wanted):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10), jax.device_get(found), wanted)


@slow_but('test_eight_devices_learn_what_one_does', 'mae')
class DevicesTest(experiments.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(jax.enable_x64(True))

    def built(self, kind, *sizes):
        if kind == 'deit' and not (self.folder / 'teacher').exists():
            teacher = self.built('resnet', 1)
            runs.write(self.folder / 'teacher', teacher, begun(teacher).tree())
        return runs.build(config(kind, self.folder), meshes.make(*sizes))

    @parameterized.named_parameters(*((kind, kind) for kind in ('swin', 'davit', 'mae', 'deit', 'resnet')))
    def test_eight_devices_learn_what_one_does(self, kind):
        found = []
        for sizes in ((1, 1, 1), (2, 2, 2)):
            run = self.built(kind, *sizes)
            state, step, batches = begun(run), run.compile(), run.data.train(0)
            for _ in range(2):
                state, report = step(state, meshes.put(next(batches), run.mesh))
            found.append(jax.device_get((state.params, state.statistics, report['sums'], report['grad_norms'])))
        assert_same(found[1], found[0])
        self.assertGreater(min(found[0][-1].values()), 1e-3)

    @parameterized.parameters('mae', 'deit')
    def test_microbatches_give_the_gradient_of_the_batch(self, kind):
        """Of masks that the batch brings, and of images that are not mixed: each microbatch has a key of its own."""
        run = self.built(kind, 1)
        task, batch = run.task, next(run.data.train(0))
        if kind == 'mae':
            batch['noise'] = np.random.default_rng(0).random((8, 16))
        else:
            task = dataclasses.replace(task, augment=Unmixed())
        others = steps.with_models(run.companions.models, run.companions.variables)
        batch['example_weights'] = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0])  # microbatches of unequal weight
        whole, parts = (jax.jit(functools.partial(
            steps.gradients, run.model, task, key=jax.random.key(0), step=0, microbatches=count, companions=others))(
                drawn(run.shapes.params), batch)[:3] for count in (1, 4))
        assert_same(parts, whole)
        self.assertGreater(min(map(float, jax.tree.leaves(steps.group_norms(whole[0])))), 1e-3)


if __name__ == '__main__':
    absltest.main()
