"""A ViT with a distillation token, taught by another run on images (configs/deit_fashion_mnist.py)."""

import json
import pathlib
import shutil
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest

from configs import base, deit_fashion_mnist
from data.images import labelled
from tests import experiments
from training import mesh as meshes
from training import run as runs


class DeitTest(experiments.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        cls.addClassCleanup(shutil.rmtree, cls.shared)
        cls.teacher = cls.shared / 'teacher'
        code, out = experiments.train(experiments.changed(experiments.tiny_images(), **{'model.pool': 'mean'}), cls.teacher)
        assert code == 0, out

    def config(self, **changes):
        return experiments.changed(deit_fashion_mnist.get_config(str(self.teacher)), **{
            'train.steps': 2, 'data.batch_size': 8, 'log.every_steps': 1, 'checkpoint.every_steps': 1, 'model.layers': 1,
            'model.width': 16, 'model.heads': 2, 'mesh.data': 1, 'evals.mistakes': None,
            'optimizer.schedule.warmup_steps': 1} | changes)

    def refused(self, message, **changes):
        with self.assertRaisesRegex(ValueError, message):
            runs.build(self.config(**changes), meshes.make(1))

    def test_the_small_vit_learns_from_the_data_of_its_teacher(self):
        config = deit_fashion_mnist.get_config(str(self.teacher))
        self.assertEqual((config.companions.teacher, config.data.source, config.data.batch_size),
                         (str(self.teacher), 'digits', 128))
        self.assertEqual((config.model.layers, config.model.width, config.model.distillation), (6, 112, 'logits'))
        run = runs.build(config, meshes.make(1))
        self.assertEqual(run.parameters(), 922_228 - 45 * 112)  # the digits have 4 instead of 49 patches

    @pytest.mark.slow
    def test_a_student_is_trained_measured_and_used(self):
        before, student = experiments.bits(self.teacher), self.folder / 'student'
        code, out = experiments.train(self.config(), student)
        self.assertEqual(code, 0, out)
        rows = experiments.rows(student, 'valid')
        self.assertContainsSubset({'cross_entropy', 'uniform', 'distillation', 'accuracy', 'agreement'}, rows[-1])
        self.assertEqual(experiments.bits(self.teacher), before)
        self.assertFalse(any('teacher' in name for name in experiments.bits(student)))
        code, _ = experiments.train(self.config(**{'train.steps': 3}), student)
        self.assertEqual(code, 0)
        done = experiments.call('eval', f'--workdir={student}')
        measured = json.loads(done.out.splitlines()[-1])
        self.assertEqual(measured['distillation'],
                         experiments.rows(student, 'valid')[-1]['distillation'])
        image, = experiments.save_digits(self.folder, [3])
        out = self.folder / 'out.png'
        done = experiments.call('eval', f'--workdir={student}', f'--attention={out}', f'--input={image}')
        self.assertEqual(np.shape(experiments.said(done)['rollout']), (2, 2), done.err)
        self.assertEqual(experiments.call('predict', f'--workdir={student}', f'--input={image}').code, 0)
        config = json.loads((student / 'config.json').read_text())
        config['companions']['teacher'] = str(self.folder / 'gone')
        (student / 'config.json').write_text(json.dumps(config))
        alone = experiments.call('eval', f'--workdir={student}')
        self.assertIn('where there is no run, so the loss is left out, and what', alone.err)
        found = json.loads(alone.out.splitlines()[-1])
        self.assertEqual(found, {name: measured[name] for name in found})
        self.assertEqual(measured.keys() - found.keys(), {'distillation', 'agreement', 'loss'})
        config['task']['share'] = 1.0  # no term of the loss is left
        (student / 'config.json').write_text(json.dumps(config))
        alone = experiments.call('eval', f'--workdir={student}')
        self.assertEqual(json.loads(alone.out.splitlines()[-1])['accuracy'], measured['accuracy'])
        against = experiments.call('eval', f'--workdir={self.teacher}', f'--against={student}')
        self.assertEqual((against.code, against.err.count('where there is no run')), (0, 1), against.err)

    @pytest.mark.slow
    def test_a_resnet_teaches_by_its_running_moments(self):
        """With other running moments of the teacher the student learns something else."""
        config = experiments.changed(experiments.tiny_images(), **{'model': base.part(
            'vit.models.resnet:Resnet', block='Basic()', widths=(8,), depths=(1,))})
        teacher, slopes = self.folder / 'teacher', []
        self.assertEqual(experiments.train(config, teacher)[0], 0)
        run = runs.build(self.config(**{'companions.teacher': str(teacher), 'task.targets': 'Soft()'}), meshes.make(1))
        batch = {name: jnp.asarray(x) for name, x in next(run.data.train(0)).items()}
        state, frozen = run.init(), run.companions.variables
        for factor in (1.0, 4.0):
            moved = {'teacher': frozen['teacher'] | {'statistics': jax.tree.map(
                lambda x: factor * x + factor - 1, frozen['teacher']['statistics'])}}  # noqa: B023
            slopes.append(float(run.step_function(state, batch, moved)[1]['grad_norms']['distillation_head']))
        self.assertGreater(abs(slopes[0] / slopes[1] - 1), 1e-3)

    def test_a_teacher_that_does_not_fit_is_refused(self):
        steps = 'Normalize(mean=(0.5,), std=(0.5,))'
        for changes, message in (
                ({'data.size': 16}, f"companions.teacher is '{self.teacher}', whose image size differs from this run's"),
                ({'data.channels': 3}, "whose image size differs from this run's"),
                ({'data.steps': steps}, "whose image normalisation differs from this run's"),
                ({'companions.teacher': str(self.folder / 'nowhere')}, 'where there is no run; restore the run whose'),
                ({'companions': {}}, "applies a companion 'teacher', .*, but the config names none")):
            with self.subTest(changes):
                self.refused(message, **changes)
        first = labelled.OpenImages.__init__

        def turned(images, *given):  # the same classes in another order
            first(images, *given)
            if given[-1] is None:
                images.meanings = images.meanings | {'classes': labelled.cache.key(*reversed(images.classes))}

        with mock.patch.object(labelled.OpenImages, '__init__', turned):
            self.refused("whose classes differ from this run's, .* name a run with the same\\.")

    def test_what_is_no_run_on_images_is_refused(self):
        with self.assertRaisesRegex(ValueError, 'distils a run on images; name its workdir'):
            deit_fashion_mnist.get_config()
        text = self.folder / 'text'
        shutil.copytree(self.teacher, text)
        config = json.loads((text / 'config.json').read_text())
        config['data']['pipeline'] = 'data.text.documents:Text'
        (text / 'config.json').write_text(json.dumps(config))
        with self.assertRaisesRegex(ValueError, 'is a run on data.text.documents:Text; .* distils runs on data.images'):
            deit_fashion_mnist.get_config(str(text))


if __name__ == '__main__':
    absltest.main()
