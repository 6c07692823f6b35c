"""configs/mup.py: its grids, the slopes, and the way to the tables and the pictures."""

import contextlib
import dataclasses
import io
import json
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest

import sweep
from configs import mup
from tests import experiments

NAMES = 'block_0/hidden', 'block_1/attention/scores', 'logits'


class MuPTest(experiments.TestCase):
    def test_points_are_values_of_existing_fields(self):
        whole = mup.sweep()
        whole.check(mup.get_config(), {}, self.folder)
        widths = 32, 64, 128, 256, 512
        self.assertEqual([*whole.points], [f'{form}-{width}' for form in ('standard', 'mup') for width in widths])
        config = whole.config_of('mup-256', mup.get_config(), {}, self.folder)
        self.assertEqual((config.model.width, config.model.initial), (256, 'MuP(scale=0.0688, base=64, zero=True)'))
        rates = mup.sweep('rates')
        rates.check(mup.get_config('rates'), {}, self.folder)
        self.assertLen(rates.points, 2 * 3 * 9)
        self.assertEqual(rates.config_of('standard-256-0.0055', mup.get_config('rates'), {}, self.folder).model.initial,
                         'Scaled(scale=0.0344)')
        np.testing.assert_allclose(np.diff(np.log(mup.RATES)), np.log(2) / 2)
        with self.assertRaisesRegex(ValueError, "no variant 'rate'.*did you mean 'rates'"):
            mup.sweep('rate')

    def test_slopes_are_those_of_powers_of_the_width(self):
        widths, powers = [32, 64, 256], np.array([0.0, 1.0, -0.5])
        sizes = 3.0 * np.power.outer(np.array(widths, float), powers)
        np.testing.assert_allclose(mup.slopes(widths, sizes), powers, atol=1e-12)

    def test_sizes_of_runs_become_a_table_and_a_picture(self):
        folders = {}
        for form, power in (('standard', 1.0), ('mup', 0.0)):
            for width in (32, 128):
                runs = [self.folder / f'{form}-{width}-{number}' for number in range(2)]
                folders[f'{form}-{width}'] = runs
                for folder in runs:
                    folder.mkdir()
                    rows = [{'step': step, 'split': 'sizes', 'hidden': 1.0} | dict.fromkeys(NAMES, step * width ** power)
                            for step in (1, 2)]
                    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
        table = mup.sizes_table(folders)
        self.assertEqual([*table], ['standard-32', 'standard-128', 'standard-slope', 'mup-32', 'mup-128', 'mup-slope'])
        self.assertEqual([*table['mup-32']], [*NAMES])
        self.assertEqual((table['standard-128']['logits'].mean, table['standard-128']['logits'].count), (256.0, 2))
        self.assertAlmostEqual(table['standard-slope']['logits'].mean, 1.0)
        self.assertAlmostEqual(table['mup-slope']['logits'].mean, 0.0)
        figure = mup.sizes_drawn(folders, table)
        self.assertLen([axes for axes in figure.axes if axes.get_lines()], 2 * len(NAMES))
        self.assertEqual(figure.axes[2].get_title(), 'standard form, logits\nslope 1.00')
        figure.savefig(io.BytesIO(), format='png')
        only = mup.sizes_table({'mup-32': folders['mup-32'], 'mup-128': []})
        self.assertEqual([*only], ['mup-32'])

    def test_the_best_rate_is_that_of_the_lowest_loss_that_is_a_number(self):
        nan = float('nan')
        self.assertEqual(mup.best({0.1: [2.0, 4.0], 0.2: [1.0, 4.0], 0.4: [1.0, nan]}), 0.2)
        self.assertTrue(np.isnan(mup.best({0.1: [nan]})))

    def test_losses_of_runs_become_a_table_and_a_picture(self):
        folders = {}
        for form in ('standard', 'mup'):
            for rate in (0.001, 0.002, 0.004):
                folder = self.folder / f'{form}-64-{rate}'
                folder.mkdir()
                folders[folder.name] = [folder]
                loss = 2.0 + abs(rate - (0.002 if form == 'mup' else 0.001))
                (folder / 'metrics.jsonl').write_text(json.dumps({'step': 9, 'split': 'valid', 'loss': loss}) + '\n')
        table = mup.rates_table(folders)
        self.assertEqual({row: columns['best rate'].mean for row, columns in table.items()},
                         {'standard-64': 0.001, 'mup-64': 0.002})
        self.assertEqual(table['mup-64']['0.002'].mean, 2.0)
        figure = mup.rates_drawn(folders, table)
        self.assertIn('width 64, best at 0.002', [text.get_text() for text in figure.axes[1].get_legend().get_texts()])
        figure.savefig(io.BytesIO(), format='png')

    @pytest.mark.slow
    def test_from_text_to_the_table(self):
        small = {'data.path': str(self.text), 'data.documents': 'line', 'data.train': 'train[:90%]',
                 'data.valid': 'train[90%:]', 'data.length': 8, 'model.length': 8, 'mesh.data': 1}
        with mock.patch.object(mup, 'WIDTHS', (16, 32)):
            whole = mup.sweep()
        points = {name: point | {'train.steps': 2} for name, point in whole.points.items()}
        with contextlib.redirect_stdout(io.StringIO()):
            config = experiments.changed(mup.get_config(), **small)
            self.assertEqual(sweep.run(dataclasses.replace(whole, points=points), config, {}, self.folder / 'mup', 'mup'), 0)
        table = json.loads((self.folder / 'mup' / 'mup.json').read_text())
        self.assertIn('mup-slope', table)
        self.assertTrue(all(np.isfinite(list(row.values())).all() for row in table.values()))
        self.assertTrue((self.folder / 'mup' / 'plots' / 'mup.png').is_file())


if __name__ == '__main__':
    absltest.main()
