"""benchmarks/plan.py: its numbers, with CPUs for TPUs, and its sentences."""

import json
import types
from unittest import mock

import jax
from absl.testing import absltest, parameterized

from benchmarks import plan
from configs import gpt2
from tests import experiments
from training import mesh as meshes
from training.host import devices
from training.report import flops

CHIP = devices.Chip(memory=16e9, bandwidth=8e11, links=2e11, price=1.2)


def figures(**changes):
    """Chips in place of this machine's CPUs."""
    found = {'chip': lambda device: CHIP, 'peak_flops': lambda device, dtype: 1e12} | changes
    return mock.patch.multiple(plan, **found)


class MeasureTest(experiments.TestCase):

    def test_every_number(self):
        config = experiments.tiny(self.text, **{'mesh.data': 2, 'mesh.fsdp': 2, 'train.steps': 100, 'energy.watts': 1000.0})
        with figures():
            row = plan.measure(config, 'tiny', jax.devices()[:4])
        self.assertEqual((row['device'], row['rows'], row['tokens'], row['fits']), ('4 x cpu', 8, 128, True))
        bounds = row['bounds_ms']
        self.assertEqual(set(bounds), {'products', 'memory', 'links'})
        self.assertEqual((row['limited_by'], row['step_ms']), ('memory', max(bounds.values())))
        self.assertAlmostEqual(bounds['memory'], 1e3 * row['traffic_gb'] / 800, delta=0.01)
        self.assertTrue(any('fsdp' in one['axes'] for one in row['collectives']))
        memory = row['memory_gb']
        self.assertLessEqual(memory['parameters'], memory['optimizer'])
        hours = row['steps'] * row['step_ms'] / 3.6e6
        self.assertAlmostEqual(row['dollars'], 4 * 1.2 * hours, delta=0.01)
        self.assertAlmostEqual(row['days'], hours / 24, delta=1e-3)
        self.assertIn('kwh', row)
        text = '\n'.join(plan.lines(json.loads(json.dumps(row))))
        self.assertIn('tiny on 4 x cpu, data=2 fsdp=2, 8 rows in 2 microbatches', text)
        self.assertIn('100 steps:', text)

    def test_a_step_that_is_too_large_says_what_to_change(self):
        with figures(chip=lambda device: devices.Chip(1e3, 8e11, 2e11, 1.2)):
            row = plan.measure(experiments.tiny(self.text), 'tiny', jax.devices()[:2])
        self.assertFalse(row['fits'])
        self.assertIn('It does not fit. Parameters, optimizer and other state take', '\n'.join(plan.lines(row)))

    def test_what_the_compiler_refuses_too(self):
        message = ('RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (17.56G) '
                   'exceeds available HBM (15.75G).')
        error = mock.patch.object(jax.stages.Lowered, 'compile', side_effect=jax.errors.JaxRuntimeError(message))
        with figures(), error:
            row = plan.measure(experiments.tiny(self.text), 'tiny', jax.devices()[:1])
            self.assertFalse(row['fits'])
            self.assertAlmostEqual(row['memory_gb']['there is'], 15.75 * 2**30 / 1e9, places=3)
            self.assertIn('All but the state takes 18.9 GB: try --config.train.microbatches=4', row['advice'])
        with error as broken, self.assertRaisesRegex(jax.errors.JaxRuntimeError, 'another'):
            broken.side_effect = jax.errors.JaxRuntimeError('another')
            plan.measure(experiments.tiny(self.text), 'tiny', jax.devices()[:1])

    def test_the_search_takes_the_shortest_step_that_fits(self):
        def measured(config, name, devices):
            split, micro, remat = config.mesh.fsdp == -1, config.train.microbatches, config.model.remat
            fits = micro >= (2 if split else 4) // (2 if remat == 'full' else 1)
            cost = {'none': 3, 'dots': 4, 'full': 5}[remat] + micro + split
            return {'mesh': {'data': 1 if split else 2, 'fsdp': 2 if split else 1, 'tensor': 1}, 'fits': fits} | (
                {'step_ms': cost} if fits else {})
        with mock.patch.object(plan, 'measure', measured):
            found = plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:2])
        self.assertEqual(found['step_ms'], 6)  # split, none, in two microbatches
        self.assertEqual(found['tried'][0], {'mesh': found['mesh'], 'remat': 'none', 'microbatches': 2, 'step_ms': 6})
        self.assertIsNone(found['tried'][-1]['step_ms'])
        with mock.patch.object(plan, 'measure', lambda *_: {'mesh': {}, 'fits': False}), \
                self.assertRaisesRegex(ValueError, 'fit into 2 x cpu; take more chips'):
            plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:2])


class ModelFlopTest(experiments.TestCase):

    def test_six_per_parameter_and_token_and_attention_once(self):
        config = experiments.tiny(self.text, **{'model.remat': 'full', 'model.layers': 2, 'train.microbatches': 1})
        mesh = meshes.make(1, 1, 1, jax.devices()[:1])
        run = plan.runs.build(config, mesh)
        tokens, length, width, layers = 8 * 16, 16, 8, 2
        tables = width * (16 + run.model.vocab)  # the head is the table of tokens, and counts
        in_products = run.parameters() - tables - sum(
            int(s.size) for s in jax.tree.leaves(run.shapes.params) if s.ndim == 1) - layers * 3 * width
        expected = 6 * tokens * (in_products + width * run.model.vocab)
        expected += layers * 12 * tokens * width * (length + 1) / 2
        self.assertEqual(plan.model_flop(config, mesh), expected)
        self.assertGreater(flops.count_jaxpr(run.trace(run.longest).jaxpr), expected)

    def test_visible(self):
        from transformer.attention.masks.patterns import Alternate, Causal, Full, Window
        shapes = {'inputs': ((2, 4), int)}
        self.assertEqual(plan.visible(Causal(), shapes), 10 / 16)
        self.assertEqual(plan.visible(Alternate(even=Full(), odd=Causal() & Window(size=1)), shapes), (1 + 4 / 16) / 2)
        self.assertEqual(plan.visible(Causal(), {'image': ((2, 4, 4, 3), float)}), 1)


class AdviceTest(parameterized.TestCase):

    @parameterized.parameters(
        ({}, {'parameters': 9e9}, 20e9, r'take 9.0 GB of each chip: split them, --config.mesh.data=1 --config.mesh.fsdp=-1'),
        ({'mesh.fsdp': 8}, {'parameters': 17e9}, 20e9, 'The state alone takes 17.0 GB of each chip: take more chips'),
        ({}, {'parameters': 1e9}, 25e9, 'takes 24.0 GB: try --config.train.microbatches=64 or --config.model.remat=full'))
    def test_what_makes_it_fit(self, changes, state, needed, sentence):
        config = experiments.changed(gpt2.get_config('124m'), **changes)
        self.assertRegex(plan.advice(config, state, needed, 16e9), sentence)


class DevicesTest(absltest.TestCase):

    def test_what_is_no_slice_is_one_sentence(self):
        wrong = mock.patch('jax.experimental.topologies.get_topology_desc', side_effect=RuntimeError('no libtpu\nmore'))
        with wrong, self.assertRaisesRegex(ValueError, r'--topology=v9 cannot be compiled for \(no libtpu\); install'):
            plan.devices_of('v9')
        found = types.SimpleNamespace(devices=['one'])
        with mock.patch('jax.experimental.topologies.get_topology_desc', return_value=found) as described:
            self.assertEqual(plan.devices_of('v5e:2x2'), ['one'])
        self.assertEqual(described.call_args.kwargs, {'platform': 'tpu', 'topology_name': 'v5e:2x2'})


if __name__ == '__main__':
    absltest.main()
