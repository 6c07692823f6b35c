import json
import os
import re
import time
import types
from unittest import mock

import ml_collections
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from configs import base
from tests import experiments
from training.report import energy

DEFAULTS = {'watts': 0.0, 'pue': 2.0, 'grams_per_kwh': 500.0}
HOUR_AT_1000_W = {'seconds': 3600.0, 'joules': 3.6e6}


def line(spent=None, **fields):
    return energy.line(ml_collections.ConfigDict(DEFAULTS | fields), spent or HOUR_AT_1000_W)


def mesh(kind, count, platform='gpu'):
    device = types.SimpleNamespace(device_kind=kind, platform=platform)
    return types.SimpleNamespace(size=count, devices=np.array([device] * count, object))


class FormulaTest(parameterized.TestCase):
    # Strubell et al. 2019, table 3: W, hours, kWh·PUE, pounds of CO2e, with PUE 1.58 and 0.954 pounds a kWh. The table rounds
    # to whole numbers, hence the tolerance of a half. Its hours are rounded too: BERT's 79 are 79.2 in section 2.1.
    @parameterized.parameters(
        (1415.78, 12, 27, 26), (1515.43, 84, 201, 192), (517.66, 336, 275, 262), (12041.51, 79.2, 1507, 1438),
        (1515.43, 274120, 656347, 626155))
    def test_equals_the_table_of_strubell_et_al(self, watts, hours, kwh, pounds):
        ours = energy.kilowatt_hours(watts, 3600 * hours, 1.58)
        self.assertAlmostEqual(ours, kwh, delta=0.5)
        kilograms_per_pound = 0.45359237
        theirs = energy.kilograms_co2e(ours, 0.954 * kilograms_per_pound * 1e3) / kilograms_per_pound
        self.assertAlmostEqual(theirs, pounds, delta=0.5)


class WattsTest(parameterized.TestCase):
    def test_accelerators_of_a_mesh_add_up(self):
        self.assertEqual(energy.full_load_watts(mesh('NVIDIA H100 80GB HBM3', 8)), 5600)
        self.assertIsNone(energy.full_load_watts(mesh('NVIDIA Unheard Of', 8)))

    def test_devices_of_a_processor_share_its_cores(self):
        with mock.patch.object(os, 'sched_getaffinity', lambda _: {0, 1, 5}):
            self.assertEqual(energy.full_load_watts(mesh('cpu', 8, 'cpu')), 36)


class LineTest(parameterized.TestCase):
    def test_power_of_the_devices(self):
        self.assertEqual(line(), 'energy: about 2 kWh, 1 kg CO2e (1,000 W at full load x 1h00m, PUE 2, 500 g/kWh); '
                         'set --config.energy.* for your machine')

    @parameterized.parameters(
        (dict(watts=50.0), '100 Wh, 50 g CO2e (50 W x 1h00m, PUE 2, 500 g/kWh)'),
        (dict(pue=1.0), '1 kWh, 500 g CO2e (1,000 W at full load x 1h00m, PUE 1, 500 g/kWh)'),
        (dict(grams_per_kwh=50.0), '2 kWh, 100 g CO2e (1,000 W at full load x 1h00m, PUE 2, 50 g/kWh)'))
    def test_each_field_counts(self, fields, shown):
        self.assertIn(f' about {shown}; ', line(**fields))

    def test_every_field_is_tried(self):
        self.assertEqual(set(base.config().energy), set(DEFAULTS))

    def test_small_and_large_runs_are_readable(self):
        self.assertIn('about 0.0333 Wh, 0.0167 g CO2e (12 W at full load x 5s,', line({'seconds': 5.0, 'joules': 60.0}))
        self.assertIn('about 2 GWh, 1 kt CO2e (1e+06 W at', line({'seconds': 3.6e6, 'joules': 3.6e12}))

    def test_power_that_is_not_known_is_not_guessed(self):
        unknown = {'seconds': 80.0, 'joules': None}
        self.assertEqual(line(unknown), 'energy: unknown, as the power of the devices is unknown; set --config.energy.watts '
                         'to their total power in W (1m20s, PUE 2, 500 g/kWh)')
        self.assertIn('about 2 Wh, 1 g CO2e (45 W x 1m20s', line(unknown, watts=45.0))


class AddTest(absltest.TestCase):
    def test_time_and_energy_add_up_over_devices(self):
        once = energy.add(energy.NOTHING, 100.0, 3.0)
        self.assertEqual(energy.add(once, 10.0, 5.0), {'seconds': 8.0, 'joules': 350.0})

    def test_what_is_not_known_once_stays_so(self):
        for first, second in ((None, 10.0), (10.0, None)):
            spent = energy.add(energy.add(energy.NOTHING, first, 1.0), second, 2.0)
            self.assertEqual(spent, {'seconds': 3.0, 'joules': None})


class RunTest(experiments.TestCase):
    """A run that is stopped, killed and resumed, and what it says."""

    def setUp(self):
        super().setUp()
        self.run_folder = self.folder / 'run'

    def train(self, steps, watts, **changes):
        """(what is printed of the energy, seconds that it took), on devices of so many watts."""
        start = time.perf_counter()
        with mock.patch.object(energy, 'full_load_watts', lambda mesh: watts):
            code, out = experiments.train(experiments.tiny(self.text, **{'train.steps': steps}, **changes), self.run_folder)
        self.assertEqual(code, 0, out)
        return re.search('^energy: .*$', out, re.MULTILINE)[0], time.perf_counter() - start

    def spent(self, step):
        file = self.run_folder / 'checkpoints' / str(step) / 'meta' / 'metadata'
        return json.loads(file.read_text())['content']['user']['energy']

    @pytest.mark.slow
    def test_a_resumed_run_adds_up(self):
        said, took = self.train(2, 1000.0)
        first = self.spent(2)
        self.assertBetween(first['seconds'], 0.01, took)
        self.assertAlmostEqual(first['joules'], 1000 * first['seconds'])
        self.assertEqual(said, energy.line(experiments.tiny(self.text).energy, first))
        with (mock.patch('training.checkpoint.Checkpoints.save', side_effect=SystemExit), self.assertRaises(SystemExit)):
            self.train(4, 500.0)  # its time is lost, and counts neither here nor twice
        said, took = self.train(4, 10.0)
        second = self.spent(4)
        self.assertBetween(second['seconds'] - first['seconds'], 0.01, took)
        self.assertAlmostEqual(second['joules'] - first['joules'], 10 * (second['seconds'] - first['seconds']))
        self.assertEqual(said, energy.line(experiments.tiny(self.text).energy, second))

        said_again, _ = self.train(4, 99.0)  # finished: shown as it was, wherever that is
        self.assertEqual(said_again, said)
        said_again, _ = self.train(4, 99.0, **{'energy.watts': 7.0, 'energy.pue': 1.25, 'energy.grams_per_kwh': 80.0})
        self.assertIn('(7 W x ', said_again)
        self.assertIn(', PUE 1.25, 80 g/kWh)', said_again)


if __name__ == '__main__':
    absltest.main()
