"""configs/critical_batch.py: its grid, what is read from runs, and the way to the table and the picture."""

import contextlib
import dataclasses
import io
import json
import math

import pytest
from absl.testing import absltest

import sweep
from configs import critical_batch
from tests import experiments
from training import workdir
from training.report.critical_batch import Critical
from training.report.sweeps import Estimate

TRUTH = Critical(90.0, 2.7e5, 0.0)  # B_crit 3000


def row(rows, noise=9000.0):
    steps = float(TRUTH.at(rows * critical_batch.LENGTH)[0])
    found = {'batch': rows * critical_batch.LENGTH, 'rate': 0.01, 'steps': steps,
             'bytes': steps * rows * critical_batch.LENGTH, 'noise scale': noise}
    return {column: Estimate.of([value]) for column, value in found.items()}


class CriticalBatchTest(experiments.TestCase):
    def run_of(self, name, losses, noise=((2, 40.0, 2.0), (4, 80.0, 1.0)), **changes):
        """A folder with the held-out loss after each step, and the variance and the square of the gradient after some."""
        folder = self.folder / name
        folder.mkdir()
        workdir.save_config(folder, experiments.changed(critical_batch.get_config(), **changes))
        found = [{'step': step, 'split': 'valid', 'loss': loss} for step, loss in losses.items()]
        found += [{'step': step, 'split': 'noise', 'gradient_variance': variance, 'gradient_squared': squared}
                  for step, variance, squared in noise]
        (folder / 'metrics.jsonl').write_text(''.join(json.dumps(one) + '\n' for one in found))
        return folder

    def test_points_are_values_of_existing_fields(self):
        whole = critical_batch.sweep()
        whole.check(critical_batch.get_config(), {}, self.folder)
        self.assertEqual({int(name.partition('-')[0]) for name in whole.points}, {8 * 2 ** i for i in range(7)})
        for name in whole.points:
            config = whole.config_of(name, critical_batch.get_config(), {}, self.folder)
            rows, rate = name.split('-', 1)
            self.assertEqual((config.data.batch_size, config.optimizer.learning_rate), (int(rows), float(rate)))
            self.assertLessEqual(config.train.steps * int(rows) * critical_batch.LENGTH, 10.8e6)  # no byte is read twice
            self.assertGreaterEqual(config.train.steps // config.evals.valid.every_steps, 20)
        self.assertEqual(critical_batch.rates(8), [*critical_batch.RATES])
        self.assertEqual(critical_batch.rates(8 * 16), [2 * rate for rate in critical_batch.RATES])

    def test_steps_are_interpolated_and_the_noise_with_them(self):
        target = critical_batch.TARGET
        folder = self.run_of('a', {1: target + 1, 2: target + 0.3, 4: target - 0.1, 8: target + 0.1})
        steps, noise = critical_batch.reached(folder, 128)
        self.assertAlmostEqual(steps, 2 ** 1.75)  # three quarters of the way, in log steps
        share = (steps - 2) / 2
        self.assertAlmostEqual(noise, 128 * (40 + 40 * share) / (2 - share))
        self.assertEqual(critical_batch.reached(self.run_of('b', {2: target + 1, 4: target + 0.1}), 128), (None, None))
        self.assertEqual(critical_batch.reached(self.run_of('c', {2: target - 1}), 128), (2.0, 128 * 20))
        self.assertEqual(critical_batch.reached(self.run_of('d', {2: target}, [(2, 1.0, -1.0)]), 128), (2.0, None))
        self.assertEqual(critical_batch.reached(self.run_of('e', {1: math.nan, 2: target}), 128), (2.0, 128 * 20))

    def test_the_rate_with_the_fewest_steps_counts(self):
        of = lambda *runs: critical_batch.row_of(1024, {rate: found for rate, *found in runs})
        found = of((0.1, (300.0, 7.0)), (0.2, (200.0, 8.0)), (0.3, (None, None)))
        self.assertEqual({name: number.mean for name, number in found.items()},
                         {'batch': 1024, 'rate': 0.2, 'steps': 200.0, 'bytes': 204_800.0, 'noise scale': 8.0})
        seeds = of((0.1, (300.0, 7.0), (200.0, 9.0)), (0.2, (100.0, 8.0), (None, None)), (0.3,))
        self.assertEqual((seeds['rate'].mean, seeds['steps'].mean, seeds['steps'].count), (0.1, 250.0, 2))
        none = of((0.1, (None, None)))
        self.assertEqual((none['steps'], none['noise scale']), (None, None))
        self.assertIsNone(of((0.1, (300.0, None)))['noise scale'])

    def test_runs_become_a_table_with_the_fit(self):
        target, folders = critical_batch.TARGET, {}
        for rows in (8, 32, 128, 512):
            steps = float(TRUTH.at(rows * 128)[0])
            for rate, worse in ((0.01, 1), (0.02, 2)):
                name = f'{rows}-{rate}'
                folders[name] = [self.run_of(name, {
                    step: target + math.log(worse * steps / step)
                    for step in map(int, (worse * steps / 2, worse * steps * 2))})]
        table = critical_batch.table_of(folders)
        self.assertEqual([*table], ['8', '32', '128', '512', 'fit'])
        self.assertEqual({row['rate'].mean for name, row in table.items() if name != 'fit'}, {0.01})
        for column, wanted in (('batch', TRUTH.batch), ('steps', TRUTH.steps), ('bytes', TRUTH.tokens)):
            self.assertAlmostEqual(table['fit'][column].mean / wanted, 1.0, places=5)
        self.assertNotIn('fit', critical_batch.table_of({name: runs for name, runs in folders.items() if name[0] != '8'}))

    def test_bytes_are_those_of_rows_of_any_length(self):
        folder = self.run_of('8-0.01', {2: critical_batch.TARGET}, **{'data.length': 64})
        row = critical_batch.table_of({'8-0.01': [folder], '8-0.02': []})['8']
        self.assertEqual({name: number.mean for name, number in row.items()},
                         {'batch': 8 * 64, 'rate': 0.01, 'steps': 2.0, 'bytes': 2 * 8 * 64, 'noise scale': 64 * 20})

    def test_picture(self):
        table = {str(rows): row(rows, 5000.0 + rows) for rows in critical_batch.STEPS} | {'fit': row(8)}
        figure = critical_batch.picture({}, table)
        hyperbola, noise = figure.axes
        self.assertLen(hyperbola.texts, 7)
        self.assertAlmostEqual(noise.get_lines()[0].get_ydata()[0] / 3000, 1.0, places=5)
        self.assertIn('The critical batch, 3,000 bytes (3,000 to 3,000 by one standard error)', critical_batch.fitted(table)[1])
        figure.savefig(io.BytesIO(), format='png')
        for kind in (8, 16, 32, 64):
            table[str(kind)] |= dict.fromkeys(('rate', 'steps', 'bytes', 'noise scale'))
        figure = critical_batch.picture({}, table)
        self.assertLen(figure.axes[0].texts, 3)
        fit, said = critical_batch.fitted(table)
        self.assertIsNone(fit)
        self.assertIn('There are 3 batch sizes that reach the loss', said)
        figure.savefig(io.BytesIO(), format='png')
        for one in table.values():
            one['noise scale'] = None
        critical_batch.picture({}, table).savefig(io.BytesIO(), format='png')
        nothing = {name: one | dict.fromkeys(('rate', 'steps', 'bytes', 'noise scale')) for name, one in table.items()}
        critical_batch.picture({}, nothing).savefig(io.BytesIO(), format='png')

    def test_batches_whose_best_rate_is_the_last_tried_are_named(self):
        lowest, middle, highest = critical_batch.rates(8)
        of = lambda rate: row(8) | {'rate': Estimate.of([rate])}
        self.assertEqual(critical_batch.edges({'8': of(middle)}), '')
        for rate in lowest, highest:
            self.assertEqual(critical_batch.edges({'8': of(rate), '16': of(critical_batch.rates(16)[1])}),
                             ' Another rate might be better still for 8 rows.')

    @pytest.mark.slow
    def test_from_text_to_the_table(self):
        whole = critical_batch.sweep()
        name = next(iter(whole.points))
        points = {name: whole.points[name] | {'train.steps': 2, 'log.every_steps': 1, 'mesh.data': 1,
                                              'evals.valid.every_steps': 1, 'evals.noise.every_steps': 1}}
        config = experiments.changed(critical_batch.get_config(), **{
            'data.source': 'auto', 'data.path': str(self.text), 'data.train': 'train[:50%]', 'data.valid': 'train[50%:]',
            'evals.noise.split': 'train[50%:]'})
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(sweep.run(dataclasses.replace(whole, points=points, draw=None), config, {}, self.folder / 'runs',
                                       'critical_batch'), 0)
        table = json.loads((self.folder / 'runs' / 'critical_batch.json').read_text())
        self.assertEqual(table, {'8': {'batch': 1024, 'rate': None, 'steps': None, 'bytes': None, 'noise scale': None}})
        noise = experiments.rows(self.folder / 'runs' / name, 'noise')
        self.assertLen(noise, 2)
        self.assertGreater(noise[0]['gradient_variance'], 0)


if __name__ == '__main__':
    absltest.main()
