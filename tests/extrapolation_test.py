"""configs/extrapolation.py as a command: tiny runs that are stopped, continued, measured on longer rows, and drawn."""

import contextlib
import io
import json
import os
import signal
from unittest import mock

import numpy as np
from absl.testing import absltest
from PIL import Image

from configs import extrapolation
from tests import experiments
from tests.train_test import at
from training import run as runs
from transformer.attention.positions import Rotary

VARIANTS = {name: extrapolation.VARIANTS[name] for name in ('learned', 'rotary', 'alibi')}


class ExtrapolationTest(experiments.TestCase):

    def config(self):
        return experiments.changed(extrapolation.get_config(), **{
            'data.source': 'files', 'data.path': str(self.text), 'data.valid': 'train[:]', 'data.train': 'all',
            'data.length': 16, 'data.batch_size': 8, 'model.length': 16, 'model.layers': 1, 'model.heads': 2,
            'model.width': 8, 'train.steps': 3, 'log.every_steps': 1, 'optimizer.schedule.warmup_steps': 2, 'mesh.data': 1})

    def train(self, folder):
        out = io.StringIO()
        with (mock.patch.object(extrapolation, 'VARIANTS', VARIANTS), mock.patch.object(extrapolation, 'LENGTHS', (16, 32)),
              contextlib.redirect_stdout(out)):
            return extrapolation.train_grid(self.config(), folder), out.getvalue().splitlines()

    def test_the_grid_is_trained_continued_measured_and_drawn(self):
        folder = self.folder / 'grid'
        with at(('training.report', 'Report.scalars', 5, 'after'), lambda: os.kill(os.getpid(), signal.SIGTERM)):
            code, lines = self.train(folder)  # in the second run: the first has three rows of training and one of evaluation
        self.assertEqual(code, 143)
        self.assertEqual([line.split()[0] for line in lines[1:]], ['learned'])
        code, lines = self.train(folder)
        self.assertEqual(code, 0)
        self.assertEqual([line.split()[0] for line in lines[1:]],
                         ['learned', 'rotary', 'rotary_linear', 'rotary_ntk', 'alibi', str(folder / 'plots/extrapolation.png')])
        measured = json.loads((folder / 'extrapolation.json').read_text())
        for name, losses in measured.items():
            variant = name.partition('_')[0]
            self.assertAlmostEqual(losses['16'], experiments.rows(folder / variant, 'valid')[-1]['loss'], places=4)
            self.assertEqual(losses['32'] is None, name == 'learned')
            self.assertIn(extrapolation.line(name, losses), lines)
        self.assertIn('n/a', lines[1])
        self.assertLen({losses['32'] for losses in measured.values()}, 5)  # each its own
        snapshot = runs.load(folder / 'rotary')
        for scaling in extrapolation.SCALINGS:
            twice = extrapolation.loss(snapshot, Rotary(scaling=scaling, factor=2.0), 32)
            self.assertAlmostEqual(measured[f'rotary_{scaling}']['32'], twice, places=6)
        with Image.open(folder / 'plots' / 'extrapolation.png') as image:
            self.assertGreater(min(image.size), 500)

    def test_longer_rows_give_more_context_to_every_byte_and_score_each_once(self):
        folder = self.folder / 'grid'
        with mock.patch.object(extrapolation, 'VARIANTS', {'alibi': 'Alibi()'}):
            _, config = next(extrapolation.points(self.config()))
        experiments.train(config, folder)
        snapshot = runs.load(folder)
        batches = {length: [batch for batch in snapshot.data.evaluation('valid', 4, context=length)] for length in (16, 32)}
        counts = {length: sum(batch['weights'].sum() for batch in found) for length, found in batches.items()}
        self.assertEqual(counts[16], counts[32])
        params, loss = snapshot.params, 0.0
        for batch in batches[32]:
            inputs = {name: batch[name] for name in ('inputs', 'segments', 'positions')}
            logits = np.float64(snapshot.model.apply({'params': params}, **inputs)['logits'])
            logits -= logits.max(-1, keepdims=True)
            chances = np.take_along_axis(logits, batch['targets'][..., None], -1)[..., 0] - np.log(np.exp(logits).sum(-1))
            loss -= (chances * batch['weights']).sum()
        measured = extrapolation.loss(snapshot, snapshot.model.positions, 32)
        self.assertAlmostEqual(measured, float(loss / counts[32]), places=4)

    def test_points_are_values_of_existing_fields(self):
        points = dict(extrapolation.points(extrapolation.get_config()))
        self.assertEqual(set(points), set(extrapolation.VARIANTS))
        for name, config in points.items():
            self.assertEqual(config.model.positions, extrapolation.get_config(name).model.positions)


if __name__ == '__main__':
    absltest.main()
