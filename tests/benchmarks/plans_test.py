"""benchmarks/plans.py: its shapes are the published ones, its table is that of its lines, and its sentences."""

import errno
import functools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
from absl.testing import absltest, parameterized

from benchmarks import plans, topologies
from tests import experiments, models
from training.config import cli, resolve

# Parameters: those of the released checkpoints; of T5-3B what its paper's tables give; of MaxText's what its
# base.yml with global_parameter_scale=16 or 32 makes, layers * (4 * width * 8192 + 3 * width * inner + 2 * width) and the ends.
SIZES = {'ViT-L/16': 304_326_632, 'Llama 7B': 6_738_415_616, 'Llama 3.1 8B': 8_030_261_248, 'Llama 3.1 70B': 70_553_706_496,
         'T5-3B': 2_851_598_336, 'MaxText 16B': 15_831_666_688, 'MaxText 32B': 31_663_333_376}
PLAN = {'case': 'GPT-2 124M', 'topology': 'v5e:4x4', 'device': '16 x TPU v5 lite', 'rows': 512, 'fits': True,
        'memory_gb': {'all': 13.54, 'there is': 17.2, 'temporaries': 11.8}, 'traffic_gb': 104.1, 'step_tflop': 457.9,
        'bounds_ms': {'memory': 127.1, 'products': 145.27, 'links': 3.06}, 'mfu': 0.911,
        'collectives': [{'sent': 0.5, 'hidden': 0.5}, {'sent': 0.11, 'hidden': 0.0}]}


class ShapesTest(parameterized.TestCase):

    @parameterized.parameters(*SIZES)
    def test_number_of_parameters(self, case):
        config, _, changes = plans.CASES[case]
        config = experiments.changed(cli.load_config(f'configs/{config}')[0], **changes)
        extra = {'vocab': config.model.get('vocab'), 'source_vocab': 0, 'classes': 1000, 'dtype': 'bfloat16'}
        model = resolve.construct(config.model, extra=extra)
        inputs = jnp.zeros((1, 224, 224, 3)) if 'patch' in config.model else jnp.zeros((1, 1), jnp.int32)
        more = {'decoder_inputs': inputs} if 'source_length' in config.model else {}

        def size(layers):
            small = models.changed(model, layers=layers, scan=False, remat='none')
            shapes = jax.eval_shape(functools.partial(small.init, **more), jax.random.key(0), inputs)['params']
            return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))

        one, two = size(1), size(2)
        layers = model.decoder.layers if more else config.model.layers
        self.assertEqual(one + (layers - 1) * (two - one), SIZES[case])

    @parameterized.parameters(*plans.CASES)
    def test_every_case_is_a_config_and_a_slice(self, case):
        config, topology, changes = plans.CASES[case]
        made, _ = cli.load_config(f'configs/{config}')
        for field in changes:
            self.assertTrue(functools.reduce(lambda group, name: group is not None and name in group and group[name],
                                             field.split('.')[:-1], made), field)
        self.assertRegex(topology, r'^(v\d[ep]?:\d+x\d+(x\d+)?|h100:[1-8])$')


class TableTest(parameterized.TestCase):

    def test_a_line_of_each(self):
        large, weak = PLAN | {'case': 'GPT-3 175B', 'fits': False}, PLAN | {'case': 'GPT-2 124M, fsdp, 16 chips'}
        head, _, row, other = plans.table([PLAN, weak, large])
        self.assertEqual(row, '| GPT-2 124M | 16 of v5e | 512 | 13.5 of 17.2 GB | 11.8 GB | 104.1 GB, 127.1 ms | '
                              '457.9 TFLOP, 145.3 ms | 0.61 GB, 3.1 ms | 91 % |')
        self.assertEqual(head.count('|'), row.count('|'))
        self.assertEqual(head.count('|'), other.count('|'))
        self.assertIn('does not fit', other)
        head, _, row = plans.weak_table([PLAN, weak, large])
        self.assertEqual(row, '| GPT-2 124M, fsdp, 16 chips | 16 | 0.61 GB | 82 % | 3.1 ms | 145.3 ms | 91 % |')
        self.assertEqual(head.count('|'), row.count('|'))

    def test_a_case_takes_the_place_of_its_earlier_line(self):
        lines = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / 'plans.jsonl'
        lines.write_text(''.join(f'{json.dumps(PLAN | {"case": case})}\n' for case in ('GPT-2 124M', 'GPT-3 175B')))
        done = subprocess.CompletedProcess([], 0, 'words\n' + json.dumps(PLAN | {'rows': 1024}) + '\n')
        with mock.patch.object(plans, 'LINES', lines), mock.patch('subprocess.run', return_value=done) as run, \
                mock.patch('builtins.print'):
            plans.main(['GPT-2 124M'])
            self.assertEqual([(case, plan['rows']) for case, plan in plans.read().items()],
                             [('GPT-2 124M', 1024), ('GPT-3 175B', 512)])
        self.assertEqual(run.call_args.args[0][1:], [
            '-m', 'benchmarks.plan', '--config=configs/gpt2.py:124m', '--topology=v5e:4x4', '--config.train.microbatches=1'])

    def test_lines_that_others_write_meanwhile_are_kept(self):
        lines = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / 'plans.jsonl'

        def planned(case):
            lines.write_text(json.dumps(PLAN | {'case': 'GPT-3 175B'}) + '\n')
            return PLAN
        with mock.patch.multiple(plans, LINES=lines, planned=planned), mock.patch('builtins.print'):
            plans.main(['GPT-2 124M'])
            self.assertEqual([*plans.read()], ['GPT-2 124M', 'GPT-3 175B'])

    @parameterized.parameters('{"case": "GPT-3 1', '12', '{"rows": 512}')
    def test_a_damaged_line_is_refused_before_the_first_plan(self, torn):
        lines = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / 'plans.jsonl'
        lines.write_text(f'{json.dumps(PLAN)}\n{torn}')
        with mock.patch.multiple(plans, LINES=lines, planned=mock.DEFAULT) as fakes, self.assertRaisesRegex(
                ValueError, f'^Line 2 of {lines} is damaged, expected .*: delete that line, and plan its case again.$'):
            plans.main(['GPT-2 124M'])
        fakes['planned'].assert_not_called()

    def test_a_plan_that_cannot_be_written_is_printed_and_the_earlier_lines_stay(self):
        lines = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / 'plans.jsonl'
        lines.write_text(before := f'{json.dumps(PLAN | {"case": "GPT-3 175B"})}\n')
        full = mock.patch.object(os, 'fsync', side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with mock.patch.multiple(plans, LINES=lines, planned=lambda case: PLAN), full, mock.patch('builtins.print') as said, \
                self.assertRaisesRegex(ValueError, 'cannot be written .No space left'):
            plans.main(['GPT-2 124M'])
        self.assertEqual(json.loads(said.call_args_list[0].args[0]), PLAN)
        self.assertEqual(lines.read_text(), before)

    def test_all_cases_with_a_compiler_are_planned_and_failures_named_at_the_end(self):
        gpus = [case for case in plans.CASES if case.endswith(', H100')]
        with mock.patch.object(topologies, 'available', lambda kind: kind == 'gpu'), mock.patch('builtins.print') as said, \
                mock.patch.object(plans, 'planned', side_effect=[ValueError(f'No {case}.') for case in gpus]) as planned, \
                self.assertRaisesRegex(ValueError, '^' + ' '.join(f'No {case}.' for case in gpus) + '$'):
            plans.main([])
        self.assertEqual([call.args[0] for call in planned.call_args_list], gpus)
        self.assertStartsWith(said.call_args_list[0].args[0],
                              'left out, as their compiler is not installed: GPT-2 124M, ViT-Ti/16')

    def test_what_is_wrong_is_one_sentence(self):
        done = subprocess.run([sys.executable, '-m', 'benchmarks.plans', 'GPT-2'], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertRegex(done.stderr, "^plans.py: There is no case 'GPT-2'; .*GPT-2 124M.*\n$")
        with mock.patch('subprocess.run', return_value=subprocess.CompletedProcess([], 3, '')), \
                self.assertRaisesRegex(ValueError, 'The plan of GPT-3 175B ended with exit code 3'):
            plans.main(['GPT-3 175B'])


if __name__ == '__main__':
    absltest.main()
