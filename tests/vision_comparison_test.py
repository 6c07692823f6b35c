"""The comparison of models of images: its points, their costs, and the way from data to the table and the pictures."""

import contextlib
import dataclasses
import io
import json

import pytest
from absl.testing import absltest, parameterized

import sweep
from configs import vision_comparison
from tests import experiments
from training.report.sweeps import Estimate, Point

TINY = {'train.steps': 2, 'log.every_steps': 1, 'checkpoint.every_steps': 1, 'mesh.data': 1,
        'optimizer.schedule.warmup_steps': 1, 'data.batch_size': 8}
DIGITS = {'data.source': 'digits', 'data.path': '', 'data.train': 'train[:64]', 'data.valid': 'train[64:74]'}
SMALL = {'model.layers': 1, 'model.heads': 2, 'model.width': 8}
MAE = {f'model.{part}.{field}': size for part in ('encoder', 'decoder')
       for field, size in (('layers', 1), ('heads', 2), ('width', 8))} | {'evals.probe.train': 'train[:64]'}
FEW = {'data.train': 'train[:32]'}
OWN = {'resnet': {'model.widths': (4,), 'model.depths': (1,), 'model.stem.width': 4}, 'mae': MAE | {'train.steps': 3},
       'mae_random': MAE, 'mae_tuned': {}, 'mae_1000': FEW, 'random_1000': FEW, 'vit_1000': SMALL | FEW}


class VisionComparisonTest(experiments.TestCase):

    @parameterized.parameters(
        ('', "takes a folder of data and one of models, deit, mae, textbook; '' was given"),
        (',mae', "',mae' was given"), ('data,swin', "one of models, deit, .*; 'data,swin' was given"))
    def test_other_variants(self, variant, message):
        with self.assertRaisesRegex(ValueError, message):
            vision_comparison.sweep(variant)

    def test_every_point_has_a_valid_config_and_follows_what_it_starts_from(self):
        whole = vision_comparison.sweep(str(self.folder))
        first = vision_comparison.get_config(str(self.folder))
        whole.check(first, {}, self.folder / 'runs')
        self.assertEqual(first, whole.config_of('resnet', first, {}, self.folder))
        after = {name: point.after for name, point in whole.all_points.items() if point.after}
        self.assertEqual(after, {
            'deit_hard': ['resnet'], 'deit_soft': ['resnet'], 'mae_tuned': ['mae'], 'mae_1000': ['mae'],
            'random_1000': ['mae_random']})
        self.assertLen(whole.points, 6 + 3 + 6 + 2)
        self.assertEqual(whole.groups, {name: [name] for name in whole.points})

    def test_parts_are_points_of_the_whole(self):
        whole, found = vision_comparison.sweep('data').points, {}
        for part in vision_comparison.points_of('data'):
            points = vision_comparison.sweep(f'data,{part}').points
            for name, point in points.items():
                self.assertEqual(point, whole[name])
                self.assertContainsSubset(point.after, points)
            found |= points
        self.assertEqual({*found}, {*whole})

    def test_nothing_is_trained_on_what_is_held_out(self):
        for name, point in vision_comparison.sweep('data').all_points.items():
            if not point.after:
                config = vision_comparison.sweep('data').config_of(name, vision_comparison.get_config('data'), {}, self.folder)
                self.assertEqual(config.data.valid, 'train[55000:]', name)
                self.assertIn(config.data.train, ('train[:55000]', 'train[:1000]'), name)
                self.assertEqual(config.data.path, 'data/fashion_mnist')

    def test_test_images_are_measured_where_they_are(self):
        folder = self.folder / 'fashion_mnist'
        folder.mkdir()
        for there in False, True:
            if there:
                (folder / 't10k-images-idx3-ubyte.gz').touch()
            made = vision_comparison.sweep(str(self.folder))
            self.assertEqual(made.measure is vision_comparison.measure_tested, there)
            for name in 'swin', 'deit_hard', 'mae_tuned':
                self.assertEqual('test' in made.all_points[name].fields['evals'], there)

    def trained(self, part):
        """The table of a part whose networks and data are small."""
        whole = vision_comparison.sweep(f'{self.folder},{part}')
        small = {name: Point(point.config, point.fields | TINY | (
            {} if point.after else DIGITS) | OWN.get(name, SMALL)) for name, point in whole.all_points.items()}
        folder = self.folder / 'runs'
        with contextlib.redirect_stdout(io.StringIO()):
            code = sweep.run(dataclasses.replace(whole, points=small), vision_comparison.get_config('data'), {}, folder,
                             'vision_comparison')
        self.assertEqual(code, 0)
        table = json.loads((folder / 'vision_comparison.json').read_text())
        self.assertEqual([*table], [*whole.points])
        for name, row in table.items():
            self.assertEqual([*row], ['valid accuracy', 'probe accuracy', 'parameters', 'TFLOP', 'seconds', 'cores'])
            evaluation, other = ('probe', 'valid') if name in ('mae', 'mae_random') else ('valid', 'probe')
            self.assertEqual(row[f'{evaluation} accuracy'], experiments.rows(folder / name, evaluation)[-1]['accuracy'])
            self.assertIsNone(row[f'{other} accuracy'])
        return table

    @pytest.mark.slow
    def test_distillation_from_data_to_the_table_and_the_picture(self):
        table, folder = self.trained('deit'), self.folder / 'runs'
        self.assertGreater(table['deit_hard']['TFLOP'], table['vit_cls']['TFLOP'])  # that of the teacher is added
        self.assertEqual(table['deit_hard']['parameters'] - table['vit_cls']['parameters'], 2 * 8 + 8 * 10 + 10)
        self.assertTrue((folder / 'plots' / 'vision_comparison.png').is_file())
        self.assertNotEqual(experiments.rows(folder / 'deit_hard', 'valid')[-1]['distillation'],
                            experiments.rows(folder / 'deit_soft', 'valid')[-1]['distillation'])

    @pytest.mark.slow
    def test_masked_autoencoding_from_data_to_the_table_and_the_picture(self):
        table, folder = self.trained('mae'), self.folder / 'runs'
        for name, start in ('mae_tuned', 'mae'), ('mae_1000', 'mae'), ('random_1000', 'mae_random'):
            self.assertIn(f'parameters from {folder / start}', (folder / f'{name}.log').read_text())
        self.assertEqual(table['mae_1000']['parameters'], table['random_1000']['parameters'])
        self.assertTrue((folder / 'plots' / 'vision_comparison_mae.png').is_file())

    def test_pictures_are_those_of_the_points(self):
        row = lambda i: {column: Estimate.of([value]) for column, value in {
            'valid accuracy': 0.9 + i / 1000, 'probe accuracy': 0.5 + i / 1000, 'parameters': 1000 + i, 'TFLOP': 100.0 + i,
            'seconds': 60.0}.items()}
        for part, wanted in {'': {'', 'mae'}, ',models': {''}, ',textbook': {''}, ',deit': {''}, ',mae': {'mae'}}.items():
            points = vision_comparison.sweep(f'data{part}').points
            table = {name: row(i) for i, name in enumerate(points)}
            drawn = vision_comparison.picture({name: [] for name in points}, table)
            self.assertEqual({*drawn}, wanted)
            if part == ',models':
                left, right = drawn[''].axes
                self.assertEqual({float(line.get_xdata()[0]) for line in left.get_lines()}, {100.0 + i for i in range(6)})
                self.assertEqual({round(1e6 * float(line.get_xdata()[0])) for line in right.get_lines()},
                                 {1000 + i for i in range(6)})
                self.assertEqual({round(float(line.get_ydata()[0]), 6) for line in left.get_lines()},
                                 {90 + i / 10 for i in range(6)})
            if part == ',mae':  # of an encoder the accuracy of the probe
                bars = [round(bar.get_width(), 6) for bar in drawn['mae'].axes[0].patches]
                self.assertEqual(bars, [50.1, 50.0, 90.2, 90.5, 90.4, 90.3])


if __name__ == '__main__':
    absltest.main()
