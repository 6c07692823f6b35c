"""What a sweep makes of its points: configs, groups, numbers and the table; sweep.py itself is in tests/sweep_test.py."""

import json
import math
import pathlib
import tempfile

from absl.testing import absltest, parameterized

from configs import base
from tests import experiments
from training import workdir
from training.config import cli, schema
from training.report import sweeps
from training.report.sweeps import Estimate, Point, Sweep


class NumberTest(parameterized.TestCase):
    @parameterized.parameters(
        ([1.5046], '1.505'), ([2], '2'), ([0.05], '0.05000'), ([math.nan], 'nan'), ([1.0, 2.0, 4.5], '2.500 ± 1.8'),
        ([3, 5], '4.000 ± 1.4'))
    def test_how_it_reads(self, values, text):
        self.assertEqual(str(Estimate.of(values)), text)

    def test_deviation(self):
        number = Estimate.of([1.0, 2.0, 6.0])
        self.assertEqual((number.mean, number.count), (3.0, 3))
        self.assertAlmostEqual(number.deviation, math.sqrt((4 + 1 + 9) / 2))
        self.assertTrue(math.isnan(Estimate.of([1.0]).deviation))


class SweepTest(parameterized.TestCase):
    def test_points_that_differ_in_their_seed_alone_are_one_group(self):
        points = {'a-0': {'seed': 0}, 'b1': {'seed': 1, 'model.width': 8}, 'a-1': {'seed': 1},
                  'b2': {'model.width': 8, 'seed': 2}, 'c': {'model.width': 16}}
        self.assertEqual(Sweep(points).groups, {'a': ['a-0', 'a-1'], 'b': ['b1', 'b2'], 'c': ['c']})
        self.assertEqual(Sweep({'x': {}, 'y': {'seed': 3}}).groups, {'x': ['x', 'y']})  # with no letter in common

    def test_points_that_do_not_even_differ_in_their_seed_are_groups_of_their_own(self):
        sweep = Sweep({'plain': {}, 'usual': {}, 'wide': {'model.width': 8}})
        self.assertEqual(sweep.groups, {'plain': ['plain'], 'usual': ['usual'], 'wide': ['wide']})
        self.assertEqual(sweep.seeded(0, 2).groups, {name: [f'{name}-0', f'{name}-1'] for name in sweep.points})
        starts = Sweep({'a-0': {'seed': 0}, 'a-1': {'seed': 1}, 'b-0': Point('x.py:{a-0}'), 'b-1': Point('x.py:{a-1}')})
        self.assertEqual(starts.groups, {'a': ['a-0', 'a-1'], 'b': ['b-0', 'b-1']})  # from another seed

    def test_seeds_that_are_added(self):
        sweep = Sweep({'gpt2': {}, 'wide': {'model.width': 16}}).seeded(9, 12)
        self.assertEqual(sweep.points['gpt2-0'], Point(fields={'seed': 9}))
        self.assertEqual(sweep.points['wide-11'], Point(fields={'model.width': 16, 'seed': 20}))
        self.assertEqual({name: len(points) for name, points in sweep.groups.items()}, {'gpt2': 12, 'wide': 12})

    def test_a_group_of_fields_is_replaced_as_a_whole(self):
        config = experiments.tiny('text')
        other = base.optimizer('training.optimizer:Lion', learning_rate=1e-4,
                               schedule=base.part('training.schedules:ConstantRate'))
        sweep = Sweep({'lion': {'optimizer': other}, 'adam': {'optimizer.learning_rate': 1}})
        made = {name: sweep.config_of(name, config, {}, pathlib.Path('runs')) for name in sweep.points}
        self.assertEqual(made['lion'].optimizer.to_dict(), other.to_dict())
        self.assertEqual((made['adam'].optimizer.learning_rate, made['adam'].optimizer.name), (1.0, config.optimizer.name))
        self.assertEqual(config.optimizer.learning_rate, 1e-2)
        self.assertTrue(made['lion'].is_locked)


class PointTest(parameterized.TestCase):
    def test_a_point_has_a_config_of_its_own_and_starts_from_another(self):
        sweep = Sweep({'own': {'train.steps': 3}, 'other': Point('configs/gpt_char.py', {'train.steps': 5}),
                       'more': Point(fields={'init_from': '{own}', 'train.steps': 4})})
        given = {'seed': 7}
        make = lambda name: sweep.config_of(name, experiments.tiny('text', **given), given, pathlib.Path('runs', 'all'))
        self.assertEqual((make('more').init_from, make('more').train.steps, make('more').seed), ('runs/all/own', 4, 7))
        alone = schema.changed(cli.load_config('configs/gpt_char.py')[0], {'train.steps': 5, 'seed': 7})
        self.assertEqual(make('other').to_dict(), alone.to_dict())
        self.assertEqual([point.after for point in sweep.all_points.values()], [[], [], ['own']])

    def test_a_point_goes_on_after_its_sweep_has_moved(self):
        sweep = Sweep({'own': {}, 'other': {}, 'more': Point(fields={'init_from': '{own}'})})
        make = lambda folder: sweep.config_of('more', experiments.tiny('text'), {}, folder)
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            (folder / 'more').mkdir()
            for told, same in (('runs/all/own', True), ('/elsewhere/own', True), ('runs/all/other', False), ('', False)):
                workdir.save_config(folder / 'more', schema.changed(make(folder), {'init_from': told}))
                self.assertEqual(make(folder).init_from, told if same else str(folder / 'own'))
                if same:
                    workdir.check_unchanged(folder / 'more', make(folder))

    def test_points_start_from_those_of_their_seed(self):
        sweep = Sweep({'first': {}, 'second': Point('configs/classify.py:{first}', {'train.steps': 2})}).seeded(3, 2)
        self.assertEqual(sweep.points['second-1'], Point('configs/classify.py:{first-1}', {'train.steps': 2, 'seed': 4}))
        self.assertEqual(sweep.groups, {'first': ['first-0', 'first-1'], 'second': ['second-0', 'second-1']})
        others = Sweep({'a-1': {}, 'a-2': {'model.width': 4}, 'b': Point('x.py:{a-1}'), 'c': Point('x.py:{a-2}')})
        self.assertLen(others.groups, 4)

    def test_points_start_from_points_before_them(self):
        for points in ({'a': Point('x.py:{b}'), 'b': {}}, {'a': Point('x.py:{a}')}, {'a': Point('x.py:{c}')}):
            with self.assertRaisesRegex(ValueError, "'a' of the sweep starts from '[abc]', which is no point before it"):
                Sweep(points).check(experiments.tiny('text'), {}, pathlib.Path('runs'))

    def test_a_flag_for_a_field_that_a_point_sets_itself(self):
        """It would not apply to that point, so it is refused before any is trained, unless it says the same."""
        sweep = Sweep({'a': {}, 'b': {'train.steps': 3}, 'c': Point('configs/classify.py:{a}', {'model.layers': 2}),
                       'd': {'optimizer': experiments.tiny('text').optimizer}})
        folder, config = pathlib.Path('runs'), experiments.tiny('text')
        for given, said in (({'seed': 5, 'train.steps': 4}, "'b' of the sweep sets train.steps=3 itself, which "
                                                            '--config.train.steps=4 does not change; leave that out'),
                            ({'model.layers': 4}, "'c' of the sweep sets model.layers=2 itself"),
                            ({'optimizer.clip': 0.5}, "'d' of the sweep sets optimizer itself, which --config.optimizer.clip")):
            with self.subTest(said), self.assertRaisesRegex(ValueError, said):
                sweep.check(config, given, folder)
        with self.assertRaisesRegex(ValueError, "'b' of the sweep sets train.steps=3 itself"):
            sweep.config_of('b', config, {'train.steps': 4}, folder)
        sweep.check(config, {'seed': 5, 'train.steps': 3, 'model.layers': 2}, folder)


class TableTest(absltest.TestCase):
    TABLE = {**sweeps.rows('rotary', [{'': {'16': 1.5, '32': 2.25}, 'ntk': {'16': 1.5, '32': 2.0}},
                                      {'': {'16': 2.5, '32': 2.25}, 'ntk': {'16': 1.5, '32': 2.0}}]),
             **sweeps.rows('learned', [{'': {'16': math.inf, '32': None}}])}

    def test_rows(self):
        self.assertEqual(list(self.TABLE), ['rotary', 'rotary_ntk', 'learned'])
        self.assertEqual(self.TABLE['rotary']['32'], Estimate(2.25, 0.0, 2))
        self.assertIsNone(self.TABLE['learned']['32'])

    def test_lines(self):
        self.assertEqual(sweeps.lines(self.TABLE, 'bytes', wide=14), [
            f'{"bytes":28}            16            32', f'{"rotary":28}  2.000 ± 0.71     2.250 ± 0',
            f'{"rotary_ntk":28}     1.500 ± 0     2.000 ± 0', f'{"learned":28}           inf           n/a'])
        wide = sweeps.rows('resnet', 2 * [{'': {'parameters': 272474, 'seconds': 1.5}}])
        self.assertEqual([line.split() for line in sweeps.lines(wide)], [
            ['parameters', 'seconds'], ['resnet', '2.725e+05', '±', '0', '1.500', '±', '0']])

    def test_rows_with_other_columns_have_a_heading_of_their_own(self):
        rows = {'a': {'loss': Estimate.of([2.0])}, 'b': {'loss': Estimate.of([3.0])},
                'c': {'accuracy': Estimate.of([0.5]), 'loss': Estimate.of([1.0])}}
        found = [line.split() for line in sweeps.lines(rows, 'point')]
        self.assertEqual(found, [['point', 'loss'], ['a', '2.000'], ['b', '3.000'], ['point', 'accuracy', 'loss'],
                                 ['c', '0.5000', '1.000']])
        self.assertEqual([line.split() for line in sweeps.lines(rows, 'point', columns=('loss',))], found[1:])

    def test_json(self):
        found = json.loads(sweeps.as_json(self.TABLE))
        self.assertEqual(found['rotary']['32'], {'mean': 2.25, 'deviation': 0.0, 'count': 2})
        self.assertEqual(found['learned'], {'16': 'inf', '32': None})


if __name__ == '__main__':
    absltest.main()
