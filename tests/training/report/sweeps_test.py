"""What a sweep makes of its points: configs, groups, numbers and the table; sweep.py itself is in tests/sweep_test.py."""

import json
import math

from absl.testing import absltest, parameterized

from configs import base
from tests import experiments
from training.report import sweeps
from training.report.sweeps import Estimate, Sweep


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

    def test_seeds_that_are_added(self):
        sweep = Sweep({'gpt2': {}, 'wide': {'model.width': 16}}).seeded(9, 12)
        self.assertEqual(sweep.points['gpt2-0'], {'seed': 9})
        self.assertEqual(sweep.points['wide-11'], {'model.width': 16, 'seed': 20})
        self.assertEqual({name: len(points) for name, points in sweep.groups.items()}, {'gpt2': 12, 'wide': 12})

    def test_a_group_of_fields_is_replaced_as_a_whole(self):
        config = experiments.tiny('text')
        other = base.optimizer('training.optimizer:Lion', learning_rate=1e-4,
                               schedule=base.part('training.schedules:ConstantRate'))
        made = Sweep({'lion': {'optimizer': other}, 'adam': {'optimizer.learning_rate': 1}}).configs(config)
        self.assertEqual(made['lion'].optimizer.to_dict(), other.to_dict())
        self.assertEqual((made['adam'].optimizer.learning_rate, made['adam'].optimizer.name), (1.0, config.optimizer.name))
        self.assertEqual(config.optimizer.learning_rate, 1e-2)
        self.assertTrue(made['lion'].is_locked)


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

    def test_json(self):
        found = json.loads(sweeps.as_json(self.TABLE))
        self.assertEqual(found['rotary']['32'], {'mean': 2.25, 'deviation': 0.0, 'count': 2})
        self.assertEqual(found['learned'], {'16': 'inf', '32': None})


if __name__ == '__main__':
    absltest.main()
