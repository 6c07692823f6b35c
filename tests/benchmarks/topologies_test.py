"""benchmarks/topologies.py: which compiler is asked for which devices, and what is said if there is none."""

import types
from unittest import mock

from absl.testing import absltest, parameterized

from benchmarks import topologies


class DevicesTest(parameterized.TestCase):

    @parameterized.parameters(('v9', 'tpu'), ('h100:8', 'gpu'))
    def test_what_is_no_slice_is_one_sentence(self, name, kind):
        wrong = mock.patch('jax.experimental.topologies.get_topology_desc', side_effect=RuntimeError('no compiler\nmore'))
        for there, install in ((True, ''), (False, fr'install "{topologies.EXTRAS[kind]}", and '.replace('[', r'\['))):
            with wrong, mock.patch.object(topologies, 'available', return_value=there), \
                    self.assertRaisesRegex(ValueError, fr'^--topology={name} cannot be compiled for \(no compiler\); '
                                                       fr'{install}name a slice such as v5e:4x4, or h100:8.$'):
                topologies.devices_of(name)

    @parameterized.parameters('9', '0', '', '2x4')
    def test_gpus_of_one_machine(self, count):
        with self.assertRaisesRegex(ValueError, f'^--topology=h100:{count} has {count or "no"} GPUs; name one to eight'):
            topologies.devices_of(f'h100:{count}')

    @parameterized.parameters(
        ('v5e:2x2', {'platform': 'tpu'}),
        ('v4:2x2x2', {'platform': 'tpu', 'chip_config_name': 'megacore'}),
        ('v5e:1x1', {'platform': 'tpu', 'chips_per_host_bounds': (1, 1, 1)}),
        ('h100:4', {'platform': 'cuda', 'topology': '1x1x4', 'target_config': topologies.H100}))
    def test_which_compiler_is_asked(self, name, asked):
        found = types.SimpleNamespace(devices=['one'])
        with mock.patch('jax.experimental.topologies.get_topology_desc', return_value=found) as described:
            self.assertEqual(topologies.devices_of(name), ['one'])
        self.assertEqual(described.call_args.kwargs, {'topology_name': name} | asked)


if __name__ == '__main__':
    absltest.main()
