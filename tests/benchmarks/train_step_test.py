"""benchmarks/train_step.py: every number of its line, on a tiny config."""

import contextlib
import io
import shutil
import subprocess
import sys
from unittest import mock

import pytest
from absl.testing import absltest

from tests import experiments
from training.host import machine


class TrainStepTest(experiments.TestCase):

    @pytest.mark.slow
    def test_every_number(self):
        from benchmarks import train_step

        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            row = train_step.measure(experiments.tiny(self.text), 'tiny', 5)
        self.assertEqual(out.getvalue(), '')  # the loop's own lines would break the line of JSON
        self.assertEqual(list(row), [
            'config', 'device', 'processor', 'cores', 'jax', 'dtype', 'parameters', 'compile_s', 'step_ms', 'step_ms_min',
            'step_ms_max', 'tokens_per_s', 'achieved_gflops', 'data_wait_share', 'loop_overhead_share', 'save_s',
            'peak_rss_mb'])
        self.assertEqual((row['config'], row['device'], row['dtype']), ('tiny', '1 x cpu', 'float32'))
        self.assertEqual(row['processor'], machine.processor())
        for key in ('cores', 'parameters', 'compile_s', 'step_ms_min', 'achieved_gflops', 'save_s', 'peak_rss_mb'):
            self.assertGreater(row[key], 0, key)
        self.assertBetween(row['step_ms'], row['step_ms_min'], row['step_ms_max'])
        rows, length = 8, 16
        self.assertBetween(row['tokens_per_s'] * row['step_ms'] / 1e3, rows * length * 0.5, rows * length * 1.01)
        self.assertBetween(row['data_wait_share'], 0, 1)
        self.assertLess(row['loop_overhead_share'], 1)

    @pytest.mark.slow
    def test_bare_step_and_loop_take_turns_with_the_same_program(self):
        from benchmarks import train_step

        turns, config = [], experiments.tiny(self.text, **{'train.dispatch': 4})

        def noted(name):
            original = getattr(train_step, name)

            def wrapped(*arguments):
                turns.append((name, config.to_json()))
                return original(*arguments)
            return mock.patch.object(train_step, name, wrapped)

        with noted('time_step'), noted('time_loop'):
            train_step.measure(config, 'tiny', 20)
        self.assertEqual([name for name, _ in turns], ['time_step', 'time_loop'] * 2)
        self.assertLen({config for _, config in turns}, 1)
        row = train_step.measure(experiments.tiny(self.text, **{'train.dispatch': 5}), 'tiny', 5)  # laps of 5, two to warm up
        self.assertGreater(row['step_ms'], 0)

    @pytest.mark.slow
    def test_parameters_of_another_run_bring_no_classes_along(self):
        from benchmarks import train_step
        from training import mesh as meshes
        from training import run as runs

        source, few = self.folder / 'source', self.folder / 'few'
        experiments.train(experiments.tiny_images(), source)
        experiments.save_digits(few, range(60))
        shutil.rmtree(few / '9')
        config = experiments.changed(experiments.tiny_images(), **{
            'data.source': 'folder', 'data.path': str(few), 'data.train': 'all', 'data.valid': 'all', 'init_from': str(source),
            'init_rules': (('head/.*', 'fresh'), ('.*', 'keep'))})
        row = train_step.measure(config, 'few', 20)
        with_ten = runs.build(experiments.tiny_images(), meshes.make(1)).parameters()
        self.assertEqual(row['parameters'], with_ten - (config.model.width + 1))  # a class less in the head

    def test_workdir_is_no_flag_of_it(self):
        done = subprocess.run([sys.executable, '-m', 'benchmarks.train_step', '--workdir=here'], capture_output=True,
                              text=True, cwd=experiments.ROOT)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertRegex(done.stderr, 'There is no flag --workdir; known: steps')


if __name__ == '__main__':
    absltest.main()
