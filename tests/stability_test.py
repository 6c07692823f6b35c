"""configs/stability.py as a command: a grid of tiny runs that is stopped, continued, and drawn."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from unittest import mock

from absl.testing import absltest, parameterized
from PIL import Image

from configs import stability
from tests import experiments
from tests.train_test import at

GRID = [('pre', 'scaled', True), ('post', 'xavier', False)]
NAMES = ['pre-scaled-warm', 'post-xavier-cold']


class StabilityTest(experiments.TestCase):

    def config(self):
        return experiments.changed(stability.get_config(), **{
            'data.source': 'files', 'data.path': str(self.text), 'data.documents': 'line', 'data.valid': 'train[90%:]',
            'data.length': 16, 'data.batch_size': 8, 'model.length': 16, 'model.layers': 2, 'model.heads': 2,
            'model.width': 8, 'train.steps': 3, 'optimizer.schedule.warmup_steps': 2, 'mesh.data': 1})

    def train(self, folder):
        out = io.StringIO()
        with mock.patch.object(stability, 'GRID', GRID), contextlib.redirect_stdout(out):
            return stability.train_grid(self.config(), folder), out.getvalue().splitlines()

    def test_the_grid_is_trained_continued_and_drawn(self):
        folder = self.folder / 'grid'
        with at(('training.report', 'Report.scalars', 5, 'after'), lambda: os.kill(os.getpid(), signal.SIGTERM)):
            code, lines = self.train(folder)  # in the second run: the first has three rows of training and one of evaluation
        self.assertEqual(code, 143)
        self.assertLen(lines, 1)
        first = experiments.metrics(folder / NAMES[0])
        code, lines = self.train(folder)
        self.assertEqual(code, 0)
        self.assertEqual([line.partition(':')[0] for line in lines], [*NAMES, str(folder / 'plots' / 'stability.png')])
        self.assertEqual(experiments.metrics(folder / NAMES[0]), first)
        self.assertIn('resumed from step 1', (folder / f'{NAMES[1]}.log').read_text())
        for name, line in zip(NAMES, lines):
            rows = experiments.rows(folder / name, 'train')
            self.assertEqual([row['step'] for row in rows], [1, 2, 3])
            self.assertContainsSubset({'grad_norm/block_0', 'grad_norm/block_1'}, rows[0])
            first_rate = rows[0]['learning_rate'] / stability.get_config().optimizer.learning_rate
            self.assertAlmostEqual(first_rate, 0.5 if 'warm' in name else 1.0, places=5)
            self.assertIn(f'{experiments.rows(folder / name, "valid")[-1]["loss"]:.3f} nats a byte', line)
        with Image.open(folder / 'plots' / 'stability.png') as image:
            self.assertGreater(min(image.size), 500)

    def test_a_point_that_diverges_is_drawn_too(self):
        config, folder = self.config(), self.folder / 'grid'
        config.optimizer.learning_rate = 1e30
        with mock.patch.object(stability, 'GRID', GRID[-1:]), contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(stability.train_grid(config, folder), 0)
        self.assertIn('updates skipped', out.getvalue())
        self.assertTrue((folder / 'plots' / 'stability.png').is_file())

    def test_points_are_values_of_existing_fields(self):
        points = dict(stability.points(stability.get_config()))
        self.assertLen(points, 2 * 2 * 2 + 2)
        for name, (residual, initial, warmup) in {
                'post-xavier-warm': ('PostNorm()', 'Xavier()', True),
                'pre-scaled-cold': ('PreNorm()', 'Scaled(scale=0.07)', False),
                'rezero-xavier-cold': ('ReZero()', 'Xavier()', False),
                'tfixup-tfixup-cold': ('NoNorm()', 'TFixup()', False)}.items():
            model, schedule = points[name].model, points[name].optimizer.schedule
            self.assertEqual((model.residual, model.initial, schedule.warmup_steps > 0), (residual, initial, warmup))

    @parameterized.parameters(('--wokdir=here', 'There is no flag --wokdir; did you mean .workdir.'),
                              ('--workdir=gs://bucket/grid', 'gs://bucket/grid is a remote path'))
    def test_a_mistake_is_one_sentence(self, argument, sentence):
        done = subprocess.run([sys.executable, '-m', 'configs.stability', argument], capture_output=True, text=True,
                              cwd=experiments.ROOT, check=False)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertRegex(done.stderr, f'^stability.*{sentence}.*\n$')


if __name__ == '__main__':
    absltest.main()
