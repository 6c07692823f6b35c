"""Running moments, which no gradient trains, through the scripts: a tiny ResNet on scikit-learn's digits."""

import dataclasses
import json
import os
import signal

import jax
import numpy as np
import pytest
from absl.testing import absltest
from safetensors.numpy import load_file

import heed
from configs import base
from tests import experiments
from tests.train_test import at
from training import mesh as meshes
from training import run as runs
from training.snapshot import Snapshot
from transformer.layers.norm import BatchNorm, BatchNormalized
from vit.layers.stages import Patches


@dataclasses.dataclass(frozen=True)
class NormedPatches(Patches):
    """Stands for the stem of a hybrid, whose model has heads and running moments."""

    def __call__(self, image, width, numerics):
        return BatchNormalized(BatchNorm(), numerics, name='stem_norm')(super().__call__(image, width, numerics))


def config(**changes):
    return experiments.changed(experiments.tiny_images('resnet'), **{
        'log.every_steps': 1, 'checkpoint.every_steps': 1, 'optimizer.average_decay': 0.5} | changes)


def arrays(tree):
    return {name: np.asarray(x) for name, x in meshes.flat(tree).items()}


class StatisticsTest(experiments.TestCase):
    def trained(self, name='run', **changes):
        code, out = experiments.train(config(**changes), self.folder / name)
        self.assertEqual(code, 0, out)
        return self.folder / name

    def assert_same(self, found, wanted, **tolerance):
        self.assertEqual(found.keys(), wanted.keys())
        for name, x in wanted.items():
            np.testing.assert_allclose(found[name], x, err_msg=name, **tolerance or dict(rtol=0, atol=0))

    def test_they_are_saved_resumed_evaluated_and_exported(self):
        whole = self.trained()
        with at(('training.report.report', 'Report.scalars', 1, 'after'), lambda: os.kill(os.getpid(), signal.SIGTERM)):
            code, out = experiments.train(config(), self.folder / 'stopped')
        self.assertEqual(code, 143, out)
        resumed = self.trained('stopped')
        self.assertEqual(experiments.bits(resumed), experiments.bits(whole))

        run = heed.load(whole)
        self.assertLen(jax.tree.leaves(run.variables['statistics']), 2 * 6)
        self.assertGreater(max(np.abs(x).max() for x in arrays(run.variables['statistics']).values()), 0.1)
        image = next(iter(run.snapshot.run.evaluation('valid')))['image']
        outputs = run.model.apply(run.variables, image)
        self.assert_same({'logits': run.logits(image=image)}, {'logits': outputs['logits']}, rtol=0, atol=1e-5)
        alone = np.concatenate([run.logits(image=one[None]) for one in image])  # the other images do not matter
        np.testing.assert_allclose(alone, outputs['logits'], rtol=0, atol=1e-5)
        done = experiments.call('eval', f'--workdir={whole}')
        row = json.loads(done.out.splitlines()[-1])
        self.assertEqual(row['loss'], experiments.rows(whole, 'valid')[-1]['loss'])

        weights = self.folder / 'weights.safetensors'
        self.assertEqual(experiments.call('convert', f'--workdir={whole}', f'--to_safetensors={weights}').code, 0)
        self.assert_same(load_file(weights), arrays(run.params) | arrays(run.variables['statistics']))
        about = json.loads(weights.with_suffix('.json').read_text())
        self.assertEqual({*about['statistics']}, {*arrays(run.variables['statistics'])})

        image = experiments.save_digits(self.folder / 'images', [3])[0]
        for script, flags, message in (
                ('convert', [f'--to_hf={self.folder / "hf"}'], 'train with --config.model.stem.size=7 '
                 '--config.model.stem.stride=2 --config.model.stem.pool=True, or write'),
                ('eval', [f'--attention={self.folder / "a.png"}', f'--input={image}'], 'This Resnet has no attention heads'),
                ('eval', [f'--positions={self.folder / "a.png"}'], 'has learnt no table of positions')):
            done = experiments.call(script, f'--workdir={whole}', *flags)
            self.assertEqual(done.code, 1)
            self.assertIn(message, done.err)

    def test_eight_devices_have_those_of_one(self):
        one, eight = (self.trained(str(count), **{'mesh.data': count}) for count in (1, 8))
        for row, other in zip(experiments.rows(one, 'train'), experiments.rows(eight, 'train')):
            self.assertAlmostEqual(row['loss'], other['loss'], places=5)
        found, wanted = (runs.load(folder, data=1).statistics for folder in (eight, one))
        self.assert_same(arrays(found), arrays(wanted), rtol=1e-4, atol=1e-5)

    def test_another_run_begins_with_them(self):
        first = self.trained(**{'train.steps': 1})
        run = runs.build(config(), meshes.make(1), source=first)
        state, made = run.init_from(first)
        wanted = runs.load(first)
        self.assertEmpty(made)
        self.assert_same(arrays(state.statistics), arrays(wanted.statistics))
        self.assert_same(arrays(state.average_statistics), arrays(wanted.statistics))
        fresh = runs.build(config(init_rules=((r'.*/(mean|variance)', 'fresh'), (r'.*', 'keep'))), meshes.make(1), source=first)
        state, made = fresh.init_from(first)
        self.assertLen(made, 2 * 6)
        self.assertEqual(float(np.abs(arrays(state.statistics)['stem/norm/mean']).max()), 0.0)
        state = run.begun_with(wanted.variables)
        self.assert_same(arrays(state.params) | arrays(state.statistics), arrays(wanted.params) | arrays(wanted.statistics))
        self.assert_same(arrays(state.average_statistics), arrays(wanted.statistics))

    @pytest.mark.slow
    def test_a_run_without_some_heads_keeps_them(self):
        stages = {'stage_0': dict(layers=1, heads=2, width=8, positions='NoPositions()')}
        model = base.part('vit.models.hierarchical:Hierarchical', stem='NormedPatches()', stages=stages)
        run = runs.build(config(model=model), meshes.make(1))
        draw = np.random.default_rng(0)
        drawn = lambda tree: jax.tree.map(lambda x: draw.uniform(0.5, 2, x.shape).astype(x.dtype), tree)
        state = run.begun_with({'params': drawn(run.shapes.params), 'statistics': drawn(run.shapes.statistics)})
        whole, new, out = (self.folder / name for name in ('whole', 'pruned', 'heads.png'))
        runs.write(whole, run, state.tree())
        done = experiments.call('eval', f'--workdir={whole}', f'--heads={out}', '--keep=1', f'--pruned={new}')
        self.assertEqual(done.code, 0, done.err)
        pruned = runs.load(new)
        self.assert_same(arrays(pruned.statistics), arrays(state.statistics))
        losses = {point['heads']: point['loss'] for point in experiments.said(done)['curve']}
        self.assertAlmostEqual(pruned.evaluate('valid')['loss'], losses[1], delta=3e-5)

    def test_a_teacher_has_its_own(self):
        """Of a ViT, which has none; the teacher stays as it is, and its digest covers them."""
        teacher = self.trained('teacher')
        student = experiments.changed(experiments.tiny_images(), **{
            'companions.teacher': str(teacher), 'task': base.part('vit.tasks.distillation:Distillation')})
        run = runs.build(student, meshes.make(1))
        there = runs.load(teacher)
        self.assert_same(arrays(run.companions.variables['teacher']), arrays(there.variables))
        batch = next(run.data.train(0))
        before = jax.device_get(run.companions.variables)
        _, report = jax.jit(run.step_function)(run.init(), batch, run.companions.variables)
        self.assertTrue(np.isfinite(report['loss']))
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(run.companions.variables), before)
        digest = run.companions.digests()
        moved = jax.tree.map(lambda x: x + 1, there.statistics)
        run.companions.snapshots['teacher'] = Snapshot(there.run, there.params, there.step, statistics=moved)
        self.assertNotEqual(run.companions.digests(), digest)

    @pytest.mark.slow
    def test_a_converted_run_is_no_run_to_resume(self):
        run = self.trained(**{'train.steps': 1})
        snapshot = runs.load(run)
        self.assertIn('statistics', snapshot.variables)
        runs.write(self.folder / 'new', snapshot.run, snapshot.variables)
        with self.assertRaisesRegex(ValueError, 'holds parameters alone, for other runs to start from'):
            experiments.train(config(), self.folder / 'new')

    def test_microbatches_of_a_single_value_are_refused(self):
        changes = {'train.microbatches': 8, 'model.stem.stride': 2, 'model.stem.pool': True, 'model.widths': (4,),
                   'model.depths': (1,), 'model.downsample_first': True}
        with self.assertRaisesRegex(ValueError, 'single value has no variance; train with a larger data.batch_size or fewer'):
            experiments.train(config(**changes), self.folder / 'run')
        self.assertFalse((self.folder / 'run').exists())


if __name__ == '__main__':
    absltest.main()
