"""A run with a companion: a student that is distilled from another run (transformer/tasks/distillation.py)."""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import signal
import tempfile
from unittest import mock

import jax
import numpy as np
import pytest
from absl.testing import absltest

from configs import base, distill
from tests import experiments
from tests.train_test import ROW_WRITTEN, at
from training import mesh as meshes
from training import run as runs
from training import workdir
from training.config import cli
from transformer.evaluators.base import Evaluator

LAYERS = 4


@dataclasses.dataclass(frozen=True)
class Nothing(Evaluator):
    """Measures nothing."""

    def __call__(self, snapshot, batches):
        return {'none': 0.0}


class CompanionsTest(experiments.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.shared = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        cls.addClassCleanup(shutil.rmtree, cls.shared)
        (cls.shared / 'text.txt').write_text(experiments.lines(80))
        cls.teaching(cls.shared / 'run')

    @classmethod
    def teaching(cls, folder, **changes):
        """Trains a BERT on masked words, for two steps."""
        code, out = experiments.train(experiments.tiny_reader(cls.shared / 'text.txt', 'masked', **{
            'data.pairs': 'none', 'task': base.part('transformer.tasks.masked:MaskedTokens'),
            'model.head': 'MaskedWords()', 'model.layers': LAYERS, 'model.dropout': 0.1, 'train.steps': 2,
            'log.every_steps': 2, 'optimizer.average_decay': 0.9} | changes), folder)
        assert code == 0, out

    def setUp(self):
        super().setUp()
        self.teacher, self.student = self.folder / 'teacher', self.folder / 'student'

    def taught(self, **changes):
        """The config of the student of a teacher that is copied there, a BERT on masked words."""
        shutil.copytree(self.shared / 'run', self.teacher)
        return self.config(**changes)

    def config(self, **changes):
        return experiments.changed(distill.get_config(str(self.teacher)), **{
            'train.steps': 4, 'log.every_steps': 2, 'checkpoint.every_steps': 2, 'optimizer.schedule.warmup_steps': 1,
            'optimizer.learning_rate': 1e-2, 'mesh.data': 1, 'evals.valid.every_steps': 2} | changes)

    def trained(self, config, folder, code=0):
        found, out = experiments.train(config, folder)
        self.assertEqual(found, code, out)
        return out

    def refused(self, *arguments, script='eval'):
        done = experiments.call(script, f'--workdir={self.student}', *arguments, stdin=b'key [MASK]\n')
        self.assertEqual(done.code, 1, done)
        return done.err

    def test_a_student_begins_with_every_second_layer(self):
        config = self.taught()
        run = runs.build(config, meshes.make(1), source=self.teacher)
        state, made = run.init_from(self.teacher)
        there = runs.load(self.teacher).params
        self.assertEqual((config.model.layers, list(made)), (2, []))
        for i in range(config.model.layers):
            jax.tree.map(np.testing.assert_array_equal, state.params[f'block_{i}'], there[f'block_{2 * i}'])
        self.assertEqual(dict(distill.every_second(5)), {f'block_{i}/(.*)': rf'keep:block_{2 * i}/\1' for i in (1, 2)})
        deeper = runs.build(experiments.changed(config, **{'model.layers': LAYERS}), meshes.make(1), source=self.teacher)
        _, made = deeper.init_from(self.teacher)
        self.assertEqual({name.partition('/')[0] for name in made}, {'block_2', 'block_3'})
        # the parameters of the teacher are its average, as in evaluation, and lie like a run's own; no constants of the step
        jax.tree.map(np.testing.assert_array_equal, run.companions.variables['teacher'], {'params': there})
        split = runs.build(config, meshes.make(2, 2, 2), source=self.teacher)
        query = split.companions.variables['teacher']['params']['block_2']['attention']['query']['kernel']
        self.assertEqual({shard.data.shape for shard in query.addressable_shards}, {(8, 1, 8)})
        step = jax.make_jaxpr(run.step_function)(state, next(run.data.train(0)), run.companions.variables)
        self.assertLess(max(np.size(x) for x in step.consts) if step.consts else 0, 16)
        self.assertNotIn('teacher', str(jax.tree.structure(run.shapes.tree())))

    def test_a_student_goes_on_with_its_teacher(self):
        self.student.mkdir()
        workdir.save_config(self.student, self.taught())
        config, _ = cli.load_config(f'configs/finetune.py:{self.student}')
        self.assertEqual(config.companions.to_dict(), {'teacher': str(self.teacher)})
        run = runs.build(config, meshes.make(1), source=self.teacher)
        self.assertEqual([*run.companions.models], ['teacher'])
        with experiments.own_flags():
            cli.override(config, ['--config.companions.teacher=elsewhere'])
        self.assertEqual(config.companions.teacher, 'elsewhere')

    def test_a_student_has_the_heads_of_its_layers(self):
        self.taught()
        found, teacher = distill.begun(str(self.teacher), 'distill')
        with teacher.unlocked():
            teacher.model.kept = ((0,), (1,), (0, 1), ())  # of a teacher that was pruned
        with mock.patch.object(distill, 'begun', lambda *given: (found, teacher)):
            self.assertEqual([*self.config().model.kept], [(0,), (0, 1)])

    @pytest.mark.slow
    def test_a_student_of_layers_that_share_their_parameters_has_them_all(self):
        self.teaching(self.teacher, **{'model.depth': 'Groups(groups=2)'})
        config = self.config()
        run = runs.build(config, meshes.make(1), source=self.teacher)
        state, made = run.init_from(self.teacher)
        self.assertEqual((config.model.layers, list(made)), (2, []))
        there = runs.load(self.teacher).params
        for block in ('block_0', 'block_1'):
            jax.tree.map(np.testing.assert_array_equal, state.params[block], there[block])

    @pytest.mark.slow
    def test_microbatches_dispatch_and_devices_change_nothing(self):
        self.taught()
        rows = {}
        several = {'train.microbatches': 2, 'train.dispatch': 2, 'mesh.data': 2, 'mesh.fsdp': 2, 'mesh.tensor': 2}
        for name, more in (('one', {}), ('several', several)):
            self.trained(self.config(**{'model.dropout': 0.0}, **more), self.folder / name)
            rows[name] = [row for split in ('train', 'valid') for row in experiments.rows(self.folder / name, split)]
        self.assertContainsSubset({'soft', 'masked', 'cosine', 'accuracy'}, rows['one'][0])
        for row, wanted in zip(rows['several'], rows['one'], strict=True):
            for metric in wanted.keys() - {'split'}:
                np.testing.assert_allclose(row[metric], wanted[metric], rtol=2e-4, atol=2e-5, err_msg=metric)

    @pytest.mark.slow
    def test_a_stopped_run_ends_in_the_same_bits(self):
        config = self.taught()
        self.trained(config, self.folder / 'whole')
        with at(ROW_WRITTEN, functools.partial(os.kill, os.getpid(), signal.SIGTERM)):
            self.trained(config, self.student, 143)
        moved = self.folder / 'moved'  # which the digest allows
        self.teacher.rename(moved)
        self.assertIn('where there is no run', self.refusal(config))
        self.assertIn('resumed from step 2', self.trained(
            experiments.changed(config, **{'companions.teacher': str(moved)}), self.student))
        self.assertEqual(experiments.metrics(self.student), experiments.metrics(self.folder / 'whole'))
        self.assertEqual(experiments.bits(self.student), experiments.bits(self.folder / 'whole'))

    def refusal(self, config, folder=None):
        with self.assertRaises(ValueError) as caught:
            experiments.train(config, folder or self.student)
        return str(caught.exception)

    @pytest.mark.slow
    def test_another_teacher_is_refused(self):
        config = self.taught()
        self.trained(config, self.student)
        environment = json.loads((self.student / 'environment.json').read_text())
        self.assertSameElements(environment['companions'], ['teacher'])
        more = experiments.changed(workdir.load_config(self.teacher), **{'train.steps': 3})
        self.trained(more, self.teacher)
        longer = experiments.changed(config, **{'train.steps': 6})
        self.assertRegex(self.refusal(longer), 'The companion teacher is not the model that it was when the run in .* began; ')
        done = experiments.call('eval', f'--workdir={self.student}')
        self.assertIn('eval.py: the companion teacher has changed since the run began', done.err)
        self.assertEqual(done.code, 0)

    @pytest.mark.slow
    def test_it_is_used_and_measured_and_predicts_without_its_teacher(self):
        config = self.taught()
        self.trained(config, self.student)
        done = experiments.call('eval', f'--workdir={self.student}')
        self.assertEqual(done.err.count('teacher'), 0)
        self.assertEqual(json.loads(done.out.splitlines()[-1])['soft'], experiments.rows(self.student, 'valid')[-1]['soft'])
        self.assertEqual(experiments.call('eval', f'--workdir={self.student}', f'--heads={self.folder / "h.png"}').code, 0)
        shutil.rmtree(self.teacher)
        alone = experiments.call('eval', f'--workdir={self.student}')
        said = f"companions.teacher is '{self.teacher}', where there is no run, so the loss is left out, and what else needs it"
        self.assertIn(said, alone.err)
        found, whole = (json.loads(one.out.splitlines()[-1]) for one in (alone, done))
        self.assertEqual(whole.keys() - found.keys(), {'soft', 'cosine', 'loss'})
        self.assertEqual(found | {'weight': whole['weight']}, {name: whole[name] for name in found})
        self.assertRegex(self.refused(f'--heads={self.folder / "h.png"}'),
                         f"^eval.py: companions.teacher is '{self.teacher}', where there is no run; restore")
        other = experiments.changed(workdir.load_config(self.student), **{
            'evals.nothing': base.evaluation('tests.training.companions_test:Nothing', split='valid')})
        workdir.save_config(self.student, other)
        with mock.patch.dict(os.environ, HEED_MODULES='tests'):  # an evaluator that does not apply the teacher
            done = experiments.call('eval', f'--workdir={self.student}', '--evaluator=nothing')
        self.assertEqual(json.loads(done.out.splitlines()[-1])['none'], 0.0, done.err)
        self.assertNotIn('where there is no run', done.err)
        with mock.patch.dict(os.environ, HEED_MODULES='tests'):
            said = experiments.call('predict', f'--workdir={self.student}', '--json', stdin=b'key [MASK] value\n')
        found = json.loads(said.out)
        self.assertRegex(found['filled'], r'^key \w+ value$', said.err)
        snapshot = runs.load(self.student, data=1)
        ids, types, (place,) = snapshot.data.read_masked('key [MASK] value')
        logits = snapshot.apply(**snapshot.run.task.inputs(snapshot.data.rows([(ids, types)], 8) | {
            'masked': np.zeros((1, 1), np.int32)}))['logits'][0, place]
        best = found['masks'][0][0]
        self.assertEqual(best['id'], int(np.argmax(logits[:snapshot.data.facts['vocab']])))
        self.assertAlmostEqual(best['probability'], float(jax.nn.softmax(logits)[best['id']]), places=5)

    def test_what_does_not_fit_is_refused(self):
        self.taught()
        for changes, message in (
                ({'init_from': '', 'data.tokenizer': 'WordPiece(vocab=60)'},
                 r"companions.teacher is .*, whose tokenizer differs from this run's, .* same, or start from it with --conf"),
                ({'companions.teacher': ''}, "companions.teacher is ''; set it to the workdir"),
                ({'companions.teacher': str(self.folder / 'nowhere')}, 'where there is no run; restore the run whose'),
                ({'companions': {'coach': str(self.teacher)}},
                 "applies a companion 'teacher', .*, but the config names coach; set companions.teacher to"),
                ({'companions': {}}, "applies a companion 'teacher', .*, but the config names none"),
                ({'model.width': 8, 'init_rules': (('.*', 'fresh'),)},
                 'are 16 wide and those of the model 8, .* or set task.cosine=0.0'),
                ({'model.vocab': 199, 'init_rules': (('.*', 'fresh'),)}, r'The logits of companions.teacher are \[.*\] and'),
        ):
            with self.subTest(changes), self.assertRaisesRegex(ValueError, message):
                other = self.config(**changes)
                runs.build(other, meshes.make(1), source=self.teacher if other.init_from else None)

    @pytest.mark.slow
    def test_classes_are_taught_to_a_smaller_student(self):
        self.text.write_text(experiments.readings('labelled'))
        self.trained(experiments.tiny_reader(self.text, 'labelled', **{'model.layers': 2}), self.teacher)
        self.trained(self.config(**{'train.steps': 20}), self.student)
        self.assertGreater(experiments.rows(self.student, 'valid')[-1]['accuracy'], 0.9)
        self.text.write_text(self.text.read_text().replace('\tyes', '\tgood'))
        other = experiments.changed(self.config(), **{'init_from': ''})
        self.assertRegex(self.refusal(other, self.folder / 'other'), "whose classes differ from this run's")


if __name__ == '__main__':
    absltest.main()
