"""benchmarks/plan.py: its numbers, with CPUs for TPUs, and its sentences."""

import contextlib
import io
import json
import math
import re
import shutil
from unittest import mock

import jax
from absl.testing import absltest, parameterized

from benchmarks import hlo, plan, stand_in
from configs import base, gpt2, t5_small
from tests import experiments
from training import mesh as meshes
from training import run as runs
from training.host import devices
from training.report import flops

CHIP = devices.Chip(memory=16e9, bandwidth=8e11, links=2e11, price=1.2)


def figures(**changes):
    """Chips in place of this machine's CPUs."""
    found = {'chip': lambda device: CHIP, 'peak_flops': lambda device, dtype: 1e12} | changes
    return mock.patch.multiple(plan, **found)


def answer(config, step_ms=1.0, fits=True, parameters=1.0, rest=16.0, memory_ms=0.0):
    """What `plan.measure` says of a config, as far as a search reads it."""
    return {'mesh': {axis: config.mesh[axis] for axis in meshes.AXES}, 'microbatches': config.train.microbatches, 'fits': fits,
            'memory_gb': {'parameters': parameters, 'all': parameters + rest, 'there is': 16.0}, 'step_ms': step_ms,
            'bounds_ms': {'products': step_ms, 'memory': memory_ms}}


class MeasureTest(experiments.TestCase):

    def test_every_number(self):
        config = experiments.tiny(self.text, **{'mesh.data': 2, 'mesh.fsdp': 2, 'train.steps': 10**6, 'energy.watts': 1000.0,
                                                'checkpoint.best': 'valid/loss'})
        slow = devices.Chip(memory=16e9, bandwidth=8e5, links=2e5, price=1.2)  # a step takes a second: rounding hides nothing
        made, real = hlo.Collective('all-to-all', 6_000, (0, 1, 2, 3), 2, 'made up', hidden=True), hlo.Program.collectives
        with figures(chip=lambda device: slow, peak_flops=lambda device, dtype: 1e6, share_of_memory=lambda device: 0.75), \
                mock.patch.object(hlo.Program, 'collectives', lambda program: [*real(program), made]):
            row = plan.measure(config, 'tiny', jax.devices()[:4])
        near = lambda one, other: self.assertAlmostEqual(one / other, 1.0, delta=0.003)
        self.assertEqual(row['memory_gb']['there is'], 12.0)
        self.assertEqual((row['device'], row['rows'], row['tokens'], row['fits']), ('4 x cpu', 8, 128, True))
        collectives = row['collectives']
        self.assertIn({'kind': 'all-to-all', 'axes': 'data fsdp', 'count': 2, 'payload': 12e-6, 'sent': 9e-6, 'hidden': 9e-6},
                      collectives)
        self.assertTrue(any('fsdp' in one['axes'] and one['kind'] != 'all-to-all' for one in collectives))
        self.assertGreater(row['operations']['all-reduce'], 0)
        bounds, step = row['bounds_ms'], row['step_ms'] / 1e3
        self.assertEqual(set(bounds), {'products', 'memory', 'links'})
        self.assertEqual((row['limited_by'], row['step_ms']), ('memory', max(bounds.values())))
        near(bounds['products'], 1e3 * row['step_tflop'] * 1e12 / 4 / 1e6)
        near(bounds['memory'], 1e3 * row['traffic_gb'] * 1e9 / 8e5)
        near(bounds['links'], 1e3 * sum(one['sent'] for one in collectives) * 1e9 / 2e5)
        self.assertAlmostEqual(row['mfu'], row['model_tflop'] * 1e12 / (4 * 1e6 * step), delta=0.001)
        near(row['tokens_per_day'], 128 * 86_400 / step)
        memory = row['memory_gb']
        self.assertLessEqual(memory['parameters'], memory['optimizer'])
        self.assertNotIn('companions', memory)
        seconds = 10**6 * step
        near(row['days'], seconds / 86_400)
        near(row['dollars'], 4 * 1.2 * seconds / 3600)
        near(row['kwh'], 1000 * 1.54 * seconds / 3.6e6)
        near(row['kg_co2e'], row['kwh'] * 458 / 1000)
        text = '\n'.join(plan.lines(json.loads(json.dumps(row | {'host_gb': 2.5, 'step_ms': 4000.0}))))
        self.assertIn('memory of the host for each chip: 2.50 GB', text)
        self.assertIn('there and back, 10.00 GB a step, 2.5 GB/s in that time', text)  # in two microbatches
        self.assertIn('tiny on 4 x cpu, data=2 fsdp=2, 8 rows in 2 microbatches', text)
        self.assertIn('1000000 steps:', text)
        self.assertNotIn('unknown', text)
        self.assertIn('100 steps: 25s', '\n'.join(plan.lines(row | {'steps': 100, 'step_ms': 250.0, 'days': 0.0})))

    def test_a_price_and_a_power_that_are_not_known_are_not_guessed(self):
        slow = devices.Chip(memory=16e9, bandwidth=8e5, links=2e5, price=None)
        with figures(chip=lambda device: slow), mock.patch.object(plan.energy, 'full_load_watts', lambda mesh: None):
            row = plan.measure(experiments.tiny(self.text, **{'mesh.data': -1}), 'tiny', jax.devices()[:2])
        self.assertNoCommonElements(row, ['dollars', 'kwh', 'kg_co2e'])
        text = '\n'.join(plan.lines(row | {'steps': 9000, 'step_ms': 1000.0}))
        self.assertIn('price: unknown, as that of the devices is unknown; multiply yours for an hour of one by 5\n', text)
        self.assertIn('energy: unknown, as the power of the devices is unknown; set --config.energy.watts', text)

    def test_the_parts_of_the_memory_are_all_that_the_program_is_given(self):
        config = experiments.tiny(self.text, **{'mesh.data': 2, 'mesh.fsdp': 2})
        with figures(_giga=lambda size: size):
            memory = plan.measure(config, 'tiny', jax.devices()[:4])['memory_gb']
        run = plan.runs.build(config, meshes.make(2, 2, 1, jax.devices()[:4]))
        self.assertEqual(memory['batch'], sum(math.prod(shape) * 4 for shape, _ in run.longest.values()) // 4)
        self.assertEqual(memory['padding'], 0)

    def test_the_tokens_are_those_to_predict(self):
        self.text.write_text(experiments.pairs(80))
        row = plan.measure(experiments.tiny_pairs(self.text, **{'data.source_length': 12}), 'pairs', jax.devices()[:1])
        self.assertEqual(row['tokens'], 8 * 8)

    def test_a_companion_is_planned_by_its_shapes_alone(self):
        teacher, made, images = self.folder / 'teacher', self.folder / 'made', experiments.tiny_images()
        made.mkdir()
        runs.write(teacher, run := runs.build(images, meshes.make(1)), run.init().tree())
        shutil.rmtree(teacher / 'checkpoints')
        config = experiments.changed(images, **{
            'data.source': 'tfds', 'data.name': 'mnist', 'data.size': 8, 'data.channels': 1, 'companions.teacher': str(teacher),
            'task': base.part('vit.tasks.distillation:Distillation')})
        with figures(_giga=lambda size: size):  # on images whose classes are not those of the teacher
            row = plan.measure(stand_in.replaced(config, made), 'taught', jax.devices()[:1])
        self.assertEqual(row['memory_gb']['companions'], row['memory_gb']['parameters'])

    def test_a_step_that_is_too_large_says_what_to_change(self):
        for count, advised in ((2, 'Parameters, optimizer and other state take'), (1, 'The state alone takes')):
            with figures(chip=lambda device: devices.Chip(1e3, 8e11, 2e11, 1.2)):
                row = plan.measure(experiments.tiny(self.text, **{'mesh.data': -1}), 'tiny', jax.devices()[:count])
            self.assertFalse(row['fits'])
            text = '\n'.join(plan.lines(row))
            self.assertIn(f'It does not fit. {advised}', text)
            self.assertIn(f'tiny on {count} x cpu{", data=2" * (count == 2)}, 8 rows', text)

    def test_what_the_compiler_of_tpus_takes_fits(self):
        with figures(chip=lambda device: devices.Chip(1e3, 8e11, 2e11, 1.2), refuses=lambda device: True):
            row = plan.measure(experiments.tiny(self.text), 'tiny', jax.devices()[:1])
        self.assertTrue(row['fits'])
        self.assertGreater(row['memory_gb']['all'], row['memory_gb']['there is'])
        self.assertIn('It fits, as the compiler takes it; JAX,', '\n'.join(plan.lines(row)))

    def test_what_the_compiler_refuses_too(self):
        message = ('RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (17.56G) '
                   'exceeds available HBM (15.75G).')
        error = mock.patch.object(jax.stages.Lowered, 'compile', side_effect=jax.errors.JaxRuntimeError(message))
        with figures(_giga=lambda size: size), error:
            row = plan.measure(experiments.tiny(self.text), 'tiny', jax.devices()[:1])
            self.assertFalse(row['fits'])
            self.assertEqual((row['memory_gb']['all'], row['memory_gb']['there is']), (17.56 * 2**30, 15.75 * 2**30))
            self.assertIn('All but the state takes 18.9 GB: try --config.train.microbatches=4', row['advice'])
        others = 'another', ('RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 59.79M of 16.00M vmem. Exceeded '
                             'vmem capacity by 43.79M.')  # a kernel's own memory, which is not that of the chip
        for other in others:
            with error as broken, self.assertRaisesRegex(jax.errors.JaxRuntimeError, other[:9]):
                broken.side_effect = jax.errors.JaxRuntimeError(other)
                plan.measure(experiments.tiny(self.text), 'tiny', jax.devices()[:1])

    @parameterized.parameters(
        ('tpu', {'XLA_CLIENT_MEM_FRACTION': '75%'}, 1.0), ('gpu', {'XLA_CLIENT_MEM_FRACTION': ''}, 0.75),
        ('gpu', {'XLA_CLIENT_MEM_FRACTION': '1'}, 1.0), ('gpu', {'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.9'}, 0.9))
    def test_how_much_of_its_memory_a_run_can_have(self, platform, environment, share):
        with mock.patch.dict('os.environ', environment):
            self.assertEqual(plan.share_of_memory(mock.Mock(platform=platform)), share)

    @parameterized.product(name=['XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION'], given=['75%', '75', '0', 'nan'])
    def test_a_share_of_the_memory_that_is_none(self, name, given):
        with mock.patch.dict('os.environ', {name: given}), self.assertRaisesRegex(
                ValueError, f"^{name} is '{given}'; expected a number above 0 and at most 1, such as 0.75.$"):
            plan.share_of_memory(mock.Mock(platform='gpu'))

    @parameterized.parameters(
        ('the total memory required for HLO temporaries (2.76T) exceeds available HBM (15.75G).', 2.76 * 2**40, 15.75 * 2**30),
        ('Ran out of memory in memory space hbm. Used 900.5M of 512.00K hbm.', 900.5 * 2**20, 2**19))
    def test_the_sizes_that_the_compiler_names(self, said, needed, limit):
        self.assertEqual(plan.too_large(said), (needed, limit))

    def test_the_search_takes_the_shortest_step_that_fits(self):
        def measured(config, name, devices):
            split, micro, remat = config.mesh.fsdp > 1, config.train.microbatches, config.model.remat
            fits = micro >= (2 if split else 4) // (2 if remat == 'full' else 1)
            cost = {'none': 3, 'dots': 4, 'full': 5}[remat] + micro + split
            if 'rows' in config.model.attention:
                raise ValueError('not this kernel')
            if 'cudnn' in config.model.attention:
                raise jax.errors.JaxRuntimeError('nor that')
            cost -= 0.5 * ('splash' in config.model.attention)
            return answer(config, cost + 2 * (config.mesh.tensor > 1), fits)
        said = io.StringIO()
        with figures(), mock.patch.object(plan, 'measure', measured), contextlib.redirect_stderr(said):
            found = plan.search(experiments.tiny(self.text, **{'checkpoint.best': 'valid/loss'}), 'tiny', jax.devices()[:2])
        self.assertEqual((found['step_ms'], found['kernel']), (5.5, 'splash'))  # split, none, in two microbatches
        self.assertEqual(found['mesh'], {'data': 1, 'fsdp': 2, 'tensor': 1})
        self.assertEqual(found['tried'][0], {'mesh': found['mesh'], 'remat': 'none', 'kernel': 'splash', 'microbatches': 2,
                                             'step_ms': 5.5})
        self.assertIsNone(found['tried'][-1]['step_ms'])
        self.assertEqual({row['kernel'] for row in found['tried']}, {'auto', 'plain', 'blockwise', 'splash'})
        self.assertIn('kernel=rows: not this kernel', said.getvalue())
        self.assertIn('kernel=cudnn: nor that', said.getvalue())
        self.assertIn('microbatches=1   does not fit', said.getvalue())

    def test_of_equal_steps_the_search_takes_that_with_the_least_traffic(self):
        measured = lambda config, name, devices: answer(config, memory_ms=0.1 + (config.model.remat != 'dots'))
        with figures(), mock.patch.object(plan, 'measure', measured):
            found = plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:1])
        self.assertEqual(found['bounds_ms'], {'products': 1.0, 'memory': 0.1})

    def test_the_search_splits_parameters_as_far_as_their_width_can_be_divided(self):
        config = experiments.tiny(self.text, **{'model.width': 12, 'model.heads': 3, 'model.feed_forward': 'Mlp(inner=16)'})
        meshes_of = []

        def measured(config, name, devices):
            meshes_of.append((config.mesh.data, config.mesh.fsdp, config.mesh.tensor))
            return answer(config)
        with figures(), mock.patch.object(plan, 'measure', measured):
            plan.search(config, 'tiny', jax.devices()[:8])
        self.assertEqual({*meshes_of}, {(8, 1, 1), (2, 4, 1), (4, 2, 1), (4, 1, 2)})

    def test_the_search_goes_on_from_the_best_mesh(self):
        def measured(config, name, devices):
            cost = {(8, 1, 1): 9, (1, 8, 1): 8, (2, 4, 1): 7, (1, 4, 2): 6, (1, 2, 4): 5}
            mesh = config.mesh.data, config.mesh.fsdp, config.mesh.tensor
            return answer(config, cost.get(mesh, 10))
        with figures(), mock.patch.object(plan, 'measure', measured):
            found = plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:8])
        self.assertEqual(found['mesh'], {'data': 1, 'fsdp': 2, 'tensor': 4})

    def test_the_search_tries_numbers_of_microbatches_that_divide_the_rows_and_may_fit(self):
        def measured(config, name, devices):  # fewer than five leave too much of the rest
            return answer(config, fits=config.train.microbatches >= 5, rest=62.0 / config.train.microbatches)
        with figures(), mock.patch.object(plan, 'measure', measured):
            found = plan.search(experiments.tiny(self.text, **{'data.batch_size': 240}), 'tiny', jax.devices()[:8])
        self.assertEqual({row['microbatches']: row['step_ms'] for row in found['tried']}, {1: None, 5: 1.0})

    @parameterized.parameters(('splash', 1, 2), ('auto', 2, 1))
    def test_a_change_that_needs_less_memory_is_tried_with_fewer_microbatches(self, kernel, tensor, fewest):
        def measured(config, name, devices):
            lean = config.mesh.tensor == tensor and (kernel == 'auto' or kernel in config.model.attention)
            least, micro = fewest if lean else 4, config.train.microbatches
            return answer(config, step_ms=micro, fits=micro >= least, rest=15.0 * least / micro)
        with figures(), mock.patch.object(plan, 'measure', measured):
            found = plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:2])
        self.assertEqual((found['kernel'], found['mesh']['tensor'], found['microbatches']), (kernel, tensor, fewest))

    def test_a_search_with_a_kernel_of_the_config(self):
        with figures(), mock.patch.object(plan, 'measure', lambda config, *given: answer(config)):
            config = experiments.tiny(self.text, **{'model.attention': "Softmax(implementation='blockwise')"})
            found = plan.search(config, 'tiny', jax.devices()[:1])
            self.assertEqual(found['tried'][0]['kernel'], 'blockwise')
            self.assertEqual({row['kernel'] for row in found['tried']}, {*plan.KERNELS})
            linear = plan.search(experiments.tiny(self.text, **{'model.attention': 'Linear()'}), 'tiny', jax.devices()[:1])
            self.assertLen(linear['tried'], 3)  # of remat alone

    def test_a_search_in_which_only_split_layers_fit(self):
        def measured(config, name, devices):
            return answer(config, fits=config.mesh.tensor == 4, parameters=20.0)
        with figures(), mock.patch.object(plan, 'measure', measured):
            found = plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:4])
        self.assertEqual((found['mesh']['tensor'], found['tried'][0]['remat']), (4, 'full'))

    def test_a_search_in_which_only_inputs_of_blocks_on_the_host_fit(self):
        def measured(config, name, devices):
            return answer(config, fits=config.model.remat == 'offload', parameters=20.0)
        with figures(), mock.patch.object(plan, 'measure', measured):
            found = plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:4])
        self.assertEqual((found['mesh']['fsdp'], found['tried'][0]['remat']), (4, 'offload'))

    def test_a_search_splits_layers_before_it_moves_inputs_to_the_host(self):
        def measured(config, name, devices):
            return answer(config, fits=config.mesh.tensor > 1 or config.model.remat == 'offload', parameters=20.0)
        with figures(), mock.patch.object(plan, 'measure', measured):
            found = plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:4])
        self.assertGreater(found['mesh']['tensor'], 1)
        self.assertNotIn('offload', {row['remat'] for row in found['tried']})

    @parameterized.parameters((1.0, 29), (20.0, 9))  # meshes, ways of remat, split layers, and microbatches where they help
    def test_a_search_that_finds_nothing(self, state, tried):
        refused = mock.Mock(side_effect=lambda config, *given: answer(config, fits=False, parameters=state))
        with figures(), mock.patch.object(plan, 'measure', refused), \
                self.assertRaisesRegex(ValueError, 'fit into 2 x cpu; take more chips'):
            plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:2])
        self.assertEqual(refused.call_count, tried)

    def test_a_type_without_a_speed_is_refused(self):
        with figures(peak_flops=lambda device, dtype: None), self.assertRaisesRegex(
                ValueError, "dtype is 'float32', for which no speed of cpu is known; give another"):
            plan.measure(experiments.tiny(self.text), 'tiny', jax.devices()[:1])

    def test_a_search_that_cannot_be(self):
        with self.assertRaisesRegex(ValueError, 'no figures of a cpu are known; leave it out'):
            plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:2])
        with figures(), self.assertRaisesRegex(ValueError, 'mesh.*tensor'):
            plan.search(experiments.tiny(self.text, **{'mesh.tensor': 4}), 'tiny', jax.devices()[:2])
        with figures(), self.assertRaisesRegex(ValueError, 'data.batch_size=8 cannot be divided among the 3 parts of 3 x cpu'):
            plan.search(experiments.tiny(self.text), 'tiny', jax.devices()[:3])


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

    def test_attention_with_named_fields_and_other_mechanisms(self):
        mesh = meshes.make(1, 1, 1, jax.devices()[:1])
        flop = lambda attention: plan.model_flop(experiments.tiny(self.text, **{'model.attention': attention}), mesh)
        plain = flop('Softmax()')
        self.assertEqual(flop("Softmax(implementation='blockwise', score=ScaledDot())"), plain)
        self.text.write_text(experiments.pairs(80))
        cross = {plan.model_flop(experiments.tiny_pairs(self.text, **{'model.cross_attention': mechanism}), mesh)
                 for mechanism in ('Softmax()', "Softmax(implementation='blockwise')")}
        self.assertLen(cross, 1)
        self.text.write_text(experiments.lines(80))
        linear = experiments.tiny(self.text, **{'model.attention': 'Linear()', 'model.remat': 'none'})
        run = plan.runs.build(linear, mesh)
        self.assertEqual(flop('Linear()'), flops.count_jaxpr(run.trace(run.longest).jaxpr))

    def test_visible(self):
        from transformer.attention.masks.patterns import Alternate, Causal, Full, Window
        shapes = {'inputs': ((2, 4), int)}
        self.assertEqual(plan.visible(Causal(), shapes), 10 / 16)
        self.assertEqual(plan.visible(Alternate(even=Full(), odd=Causal() & Window(size=1)), shapes), (1 + 4 / 16) / 2)
        self.assertEqual(plan.visible(Causal(), {'image': ((2, 4, 4, 3), float)}), 1)
        seen = mock.Mock(side_effect=Causal(), spec=Causal)
        self.assertEqual(plan.visible(seen, {'inputs': ((2, 1000), int)}), 1001 / 2000)
        self.assertEqual(sum(len(call.args[0]) for call in seen.call_args_list), 1000)
        self.assertLessEqual(max(len(call.args[0]) for call in seen.call_args_list), 128)  # not all of a long row at once


class AdviceTest(parameterized.TestCase):

    @parameterized.parameters(
        ({}, {'parameters': 9e9}, 20e9, r'take 9.0 GB of each chip: split them, --config.mesh.data=2 --config.mesh.fsdp=4'),
        ({'mesh.fsdp': 4, 'mesh.data': 2}, {'parameters': 17e9}, 20e9, 'The state alone takes 17.0 GB of each chip: take more'),
        ({}, {'parameters': 1e9}, 25e9, 'takes 24.0 GB: try --config.train.microbatches=64 or --config.model.remat=full'),
        ({'model.remat': 'full'}, {'parameters': 1e9}, 25e9, 'microbatches=64 or --config.model.remat=offload'),
        ({'data.batch_size': 96, 'train.microbatches': 4}, {'parameters': 1e9}, 25e9, 'try --config.train.microbatches=12 or'))
    def test_what_makes_it_fit(self, changes, state, needed, sentence):
        config, mesh = experiments.changed(gpt2.get_config('124m'), **changes), meshes.make(-1, changes.get('mesh.fsdp', 1))
        self.assertRegex(plan.advice(config, mesh, state, needed, 16e9, {'fsdp': 4, 'tensor': 2}), sentence)

    def test_the_flags_that_it_names_are_those_of_the_stacks(self):
        said = plan.advice(t5_small.get_config('pairs'), meshes.make(8), {'parameters': 1e9}, 20e9, 16e9,
                           {'fsdp': 8, 'tensor': 2})
        self.assertIn('--config.model.decoder.remat=full --config.model.encoder.remat=full', said)

    def test_the_microbatches_that_it_names_can_be_built(self):
        config = experiments.changed(gpt2.get_config('124m'), **{'data.batch_size': 512, 'train.microbatches': 8})
        said = plan.advice(config, meshes.make(8), {'parameters': 1e9}, 200e9, 16e9, {'fsdp': 8, 'tensor': 2})
        micro = int(re.search(r'microbatches=(\d+)', said)[1]) if 'microbatches' in said else None
        self.assertIsNone(micro)  # 128 would be needed, of 512 rows on 8 chips no more than 64 can be
        self.assertIn('try --config.model.remat=full', said)

    def test_several_microbatches_keep_gradients(self):
        config = experiments.changed(gpt2.get_config('124m'), **{'data.batch_size': 512, 'train.microbatches': 1})
        for state, micro in ((1e9, 2), (3e9, 4)):  # 28 GB of rows beside 4 of the state, and 1 or 3 of gradients
            said = plan.advice(config, meshes.make(8), {'parameters': state, 'optimizer': 4e9 - state}, 32e9, 20e9,
                               {'fsdp': 8, 'tensor': 2})
            self.assertIn(f'try --config.train.microbatches={micro} or', said)

    @parameterized.parameters((2, -1, '--config.mesh.tensor=2 --config.train.microbatches=128'), (1, -1, ''), (2, 8, ''))
    def test_chips_that_share_layers_where_rows_are_as_few_as_can_be(self, tensor, fsdp, way):
        for remat, ways in (('offload', [way]), ('full', [way, '--config.model.remat=offload'])):
            config = experiments.changed(gpt2.get_config('124m'), **{
                'data.batch_size': 512, 'train.microbatches': 64, 'model.remat': remat, 'mesh.data': 1, 'mesh.fsdp': fsdp})
            said = plan.advice(config, meshes.make(1, 8), {'parameters': 1e9}, 18e9, 16e9, {'fsdp': 8, 'tensor': tensor})
            wanted = ' or '.join(filter(None, ways)) or 'fewer rows'
            self.assertEqual(said, f'All but the state takes 17.0 GB: try {wanted}.')

    @parameterized.parameters((-1, 8, False), (8, -1, False), (-1, 4, True), (2, -1, True), (-1, 1, True))
    def test_the_mesh_that_it_names_can_be_made(self, data, fsdp, made):
        config = experiments.changed(gpt2.get_config('124m'), **{
            'data.batch_size': 512, 'train.microbatches': 64, 'model.remat': 'full', 'mesh.data': data, 'mesh.fsdp': fsdp})
        said = plan.advice(config, meshes.make(data, fsdp), {'parameters': 1e9}, 18e9, 16e9, {'fsdp': 8, 'tensor': 2})
        self.assertEqual('mesh.tensor=2' in said, made)
        if made:
            self.assertEqual(meshes.make(data, fsdp, 2).size, 8)


if __name__ == '__main__':
    absltest.main()
