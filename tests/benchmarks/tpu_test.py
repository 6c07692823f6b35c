"""benchmarks/tpu.py: every number of its line, with CPUs for TPUs."""

import types
from unittest import mock

import jax
from absl.testing import absltest

from benchmarks import tpu
from tests import experiments


class TpuTest(experiments.TestCase):

    def test_every_number(self):
        config = experiments.changed(experiments.tiny_images(), **{'mesh.data': -1})
        row = tpu.measure(config, 'tiny', jax.devices()[:4])
        self.assertEqual(list(row), [
            'config', 'device', 'jax', 'dtype', 'parameters', 'rows', 'compile_s', 'step_gflop', 'arguments_gb',
            'temporaries_gb', 'traffic_gb', 'gflop', 'products_ms'])
        self.assertEqual((row['device'], row['rows'], row['products_ms']), ('4 x cpu', 8, None))
        self.assertGreater(row['compile_s'], 0)

    def test_what_is_no_slice_is_one_sentence(self):
        wrong = mock.patch('jax.experimental.topologies.get_topology_desc', side_effect=RuntimeError('no libtpu\nmore'))
        with wrong, self.assertRaisesRegex(ValueError, r'--topology=v9 cannot be compiled for \(no libtpu\); install'):
            tpu.devices_of('v9')
        found = types.SimpleNamespace(devices=['one'])
        with mock.patch('jax.experimental.topologies.get_topology_desc', return_value=found) as described:
            self.assertEqual(tpu.devices_of('v5e:2x2'), ['one'])
        self.assertEqual(described.call_args.kwargs, {'platform': 'tpu', 'topology_name': 'v5e:2x2'})


if __name__ == '__main__':
    absltest.main()
