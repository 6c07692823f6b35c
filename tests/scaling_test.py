"""configs/scaling.py: its grid, what a run costs, and the way to the table and the pictures."""

import contextlib
import dataclasses
import io
import json

import pytest
from absl.testing import absltest, parameterized

import sweep
from configs import scaling
from tests import experiments
from training import mesh as meshes
from training import run as runs
from training import workdir
from training.report import flops
from training.report.scaling import Surface
from training.report.sweeps import Estimate

TRUTH = Surface(1.2, 7.0, 0.3, 40.0, 0.3)


def known(variant):
    """The table of runs that end at the loss of TRUTH."""
    table, grid = {}, scaling.grid(variant)
    for name, (_, layers, width, steps) in zip(scaling.sweep(variant).points, [*grid.points(), grid.last()], strict=True):
        blocks, tokens = 12 * layers * width ** 2, steps * scaling.ROWS * scaling.LENGTH
        size = grid.parameters(layers, width)
        row = {'N': size, 'N of blocks': blocks, 'D': tokens, 'C': steps * grid.cost(layers, width), 'epochs': tokens / 1e7,
               'loss': float(TRUTH(size, tokens))}
        table[name] = {column: Estimate.of([value]) for column, value in row.items()}
    return table


class ScalingTest(experiments.TestCase):
    @parameterized.parameters(('', [5, 5, 5, 5, 5]), ('data', [5, 5, 5, 5, 4]))
    def test_every_budget_is_spent_on_sizes_on_both_sides_of_the_best_that_read_no_token_twice(self, variant, sizes):
        grid = scaling.grid(variant)
        found = grid.points()
        for budget, count in zip(grid.budgets, sizes, strict=True):
            own = [(size, steps) for one, *size, steps in found if one == budget]
            self.assertLen(own, count)
            for size, steps in own:
                self.assertAlmostEqual(steps * grid.cost(*size) / budget, 1.0, delta=0.03)
                self.assertLessEqual(steps * scaling.ROWS * scaling.LENGTH, grid.tokens)
            ratios = [grid.parameters(*size) / (budget / grid.ratio) ** 0.5 for size, _ in own]
            self.assertBetween(1.0, min(ratios), max(ratios))
        budget, *size, steps = grid.last()
        self.assertAlmostEqual(steps * grid.cost(*size) / budget, 1.0, delta=0.001)
        self.assertLessEqual(steps * scaling.ROWS * scaling.LENGTH, grid.tokens)
        self.assertNotIn(budget, grid.budgets)
        whole = scaling.sweep(variant)
        self.assertLen(whole.points, sum(sizes) + 1)
        whole.check(scaling.get_config(variant), {}, self.folder)

    def test_counts_of_kaplan_are_without_the_table_and_attention(self):
        table = {'1e12-2x32': {'N': 32_768, 'N of blocks': 24_576, 'D': 1e6, 'C': 3e11, 'loss': 2.0}}
        table = {name: {column: Estimate.of([value]) for column, value in row.items()} for name, row in table.items()}
        counted, other = scaling.runs_of(table), scaling.runs_of(table, 'N of blocks')
        self.assertEqual((counted.budget.item(), counted.parameters.item(), counted.flops.item()), (1e12, 32_768, 3e11))
        self.assertEqual((other.parameters.item(), other.flops.item()), (24_576, 6 * 24_576 * 1e6))

    def test_kaplans_counts_find_the_best_size_of_a_loss_by_blocks(self):
        """Along curves of C = 6·N·D, on which runs of one budget do not lie."""
        table = {}
        for number, (budget, layers, width, steps) in enumerate(scaling.grid('').points()):
            blocks, tokens = 12 * layers * width ** 2, steps * scaling.ROWS * scaling.LENGTH
            row = {'N': blocks + 256 * width, 'N of blocks': blocks, 'D': tokens, 'C': budget, 'loss': TRUTH(blocks, tokens)}
            table[f'{budget}-{number}'] = {column: Estimate.of([float(value)]) for column, value in row.items()}
        power = scaling.laws(table)["surface, Kaplan's counts"][0]
        self.assertAlmostEqual(power.exponent, TRUTH.exponent, places=4)
        self.assertAlmostEqual(power(1e12) / TRUTH.best(1e12), 1.0, places=3)

    def test_too_few_runs_have_no_law_and_predict_nothing(self):
        table = known('data')
        few = {name: row for name, row in table.items() if name.startswith('3e11')}
        for name, (power, said) in scaling.laws(few).items():
            self.assertIsNone(power, (name, said))
        self.assertEqual(scaling.predicted(few, scaling.parted(table)[1]), [])

    def test_pictures_of_a_known_surface(self):
        table = known('data')
        fitted, held = scaling.parted(table)
        self.assertEqual([*held], ['1e14-4x192'])
        found = scaling.laws(fitted)
        said = {name: text for name, (_, text) in found.items()}
        self.assertIn('a = 0.500, off by 0.0%\n(80 %: 0.500 to 0.500; Huber: 0.500)', said['surface'])
        (flops, loss, guesses), = scaling.predicted(fitted, held)
        self.assertAlmostEqual(flops / 1e14, 1.0, delta=0.001)
        self.assertAlmostEqual(guesses['surface'] / loss, 1.0, places=4)
        self.assertNotAlmostEqual(guesses['joint surface'] / loss, 1.0, places=3)
        drawn = scaling.picture({}, table)
        alone = scaling.of_computation(scaling.runs_of(fitted), found, [])
        self.assertEmpty(alone.axes[0].collections)
        self.assertEqual([*drawn], ['', 'data'])
        curves, equal, best = drawn[''].axes
        self.assertLen(equal.get_lines(), 5 * 2)
        sizes = {row['N'].mean for row in fitted.values()}
        self.assertLen(curves.get_lines(), len(sizes) + (found['parabolas'][0] is not None))
        self.assertLen(curves.collections, 3)
        self.assertLen(best.get_lines(), sum(power is not None for power, _ in found.values()))
        for figure in drawn.values():
            figure.savefig(io.BytesIO(), format='png')

    def test_a_text_that_was_read_again_is_named(self):
        table = known('data')
        self.assertEqual(scaling.repeated(table), '')
        for name, epochs in (('3e11-2x16', 3.0), ('1e14-4x192', 1.2)):
            table[name]['epochs'] = Estimate.of([epochs])
        self.assertStartsWith(scaling.repeated(table), '2 runs have read their text more than once, up to 3.0 times')

    def measured(self, **changes):
        """The row and the config of a run of two steps of 8 rows of 120 bytes, which need not be trained for it."""
        config = experiments.changed(scaling.get_config(), **{
            'data.path': str(self.text), 'data.batch_size': 8, 'data.length': 120, 'train.steps': 2} | changes)
        workdir.save_config(self.folder, config)
        runs.build(config, meshes.make(1)).data.save(self.folder)
        (self.folder / 'metrics.jsonl').write_text('{"step": 2, "split": "valid", "loss": 2.5}\n')
        return scaling.measure(self.folder)[''], config

    @parameterized.parameters({}, {'model.attention': "Softmax(implementation='blockwise')"}, {'model.remat': 'full'},
                              {'train.dispatch': 2})
    def test_a_run_is_measured_by_the_rows_that_it_has_read_and_by_no_kernel(self, **changes):
        row, _ = self.measured(**changes)
        self.assertEqual((row['D'], row['loss']), (2 * 8 * 120, 2.5))
        self.assertAlmostEqual(row['epochs'], row['D'] / (0.9 * self.text.stat().st_size), delta=0.1 * row['epochs'])
        products = 12 * 2 * 32**2 + 257 * 32 + 2 * 2 * 120 * 32  # of weights, and with keys and values, for each byte
        self.assertEqual(row['C'], 6 * row['D'] * products)

    def test_operations_of_a_mechanism_without_kernels(self):
        row, config = self.measured(**{'model.attention': 'Linear()'})
        run = runs.build(config, meshes.make(1))
        self.assertEqual(row['C'], 2 * flops.count_jaxpr(run.trace(run.longest).jaxpr))

    @pytest.mark.slow
    def test_from_text_to_the_table(self):
        whole = scaling.sweep('')
        names = [name for name in whole.points if name.startswith('1e11-')]
        points = {name: whole.points[name] | {'train.steps': 2, 'log.every_steps': 1, 'mesh.data': 1} for name in names}
        config = experiments.changed(scaling.get_config(), **{
            'data.source': 'auto', 'data.path': str(self.text), 'data.train': 'train[:90%]', 'data.valid': 'train[90%:]',
            'data.batch_size': 8})
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(sweep.run(dataclasses.replace(whole, points=points, draw=None), config, {}, self.folder / 'runs',
                                       'scaling'), 0)
        table = json.loads((self.folder / 'runs' / 'scaling.json').read_text())
        self.assertEqual([*table], names)
        for name, row in table.items():
            layers, width = map(int, name.partition('-')[2].split('x'))
            self.assertEqual(row['N'] - row['N of blocks'], scaling.grid('').vocabulary * width)
            self.assertEqual(row['D'], 2 * 8 * 128)
            self.assertAlmostEqual(row['N of blocks'] / (12 * layers * width ** 2), 1.0, delta=0.02)  # and norms
            self.assertEqual(row['C'], 2 * 2 * scaling.grid('').cost(layers, width))
            self.assertEqual(row['loss'], experiments.rows(self.folder / 'runs' / name, 'valid')[-1]['loss'])


if __name__ == '__main__':
    absltest.main()
