"""benchmarks/attention.py: the cases, and every number of their lines, on short rows."""

import contextlib
import functools
import io
import json
import types
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from benchmarks import attention
from training.config import resolve
from transformer.attention.masks.patterns import Causal, Window
from transformer.attention.mechanism import Mechanism, Softmax
from transformer.attention.mechanisms.linear import Linear
from transformer.attention.positions.base import NoPositions, Positions
from transformer.attention.positions.relative import SwinBias
from transformer.attention.scores import Score

of = functools.partial
KEYS = ['case', 'device', 'cores', 'jax', 'ms', 'ms_min', 'ratio', 'mb', 'memory_ratio']
SHORT = {
    'long': tuple(of(attention.kernel, Causal() & Window(20), name, 128) for name in ('blockwise', 'plain')),
    'attention_Linear': tuple(of(attention.mechanism, kind, Causal(), 128) for kind in (Linear(), Softmax())),
    'positions_Swin': tuple(of(attention.layer, kind, 64, 8) for kind in (SwinBias(), NoPositions()))}


def rows(*asked, rounds=1):
    """The lines of main, for --case=... of short rows."""
    given, out = types.SimpleNamespace(FLAGS=types.SimpleNamespace(case=asked, rounds=rounds)), io.StringIO()
    with (mock.patch.object(attention, 'cases', lambda: SHORT), mock.patch.object(attention, 'flags', given),
          contextlib.redirect_stdout(out)):
        attention.main()
    return [json.loads(line) for line in out.getvalue().splitlines()]


class AttentionTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_a_line_for_each_case(self):
        found = rows()
        self.assertEqual([row['case'] for row in found], list(SHORT))
        for row in found:
            alone = row['case'] == 'long'  # of which the second is not run
            self.assertEqual(list(row), [key for key in KEYS if not (alone and key == 'ratio')])
            self.assertLen(row['ms'], 1 if alone else 2)
            self.assertLen(row['mb'], 2)
            for number in (row['cores'], *row['ms'], *row['ms_min'], row.get('ratio', 1), *row['mb'], row['memory_ratio']):
                self.assertGreater(number, 0, row)

    def test_medians_and_the_median_of_the_ratios_without_the_first_turn(self):
        now = 0.0

        def program(milliseconds, megabytes):
            def run(*arrays):
                nonlocal now
                now += next(turns) / 1e3
            turns = iter(milliseconds)
            run.memory_analysis = lambda: types.SimpleNamespace(temp_size_in_bytes=1e6 * megabytes)
            return run

        programs = program((50, 9, 5, 8), 6), program((60, 3, 5, 2), 4)
        with (mock.patch.object(attention, 'compiled', side_effect=programs),
              mock.patch.object(attention, 'time', types.SimpleNamespace(perf_counter=lambda: now))):
            row, = rows('att', rounds=3)
        self.assertEqual(row['case'], 'attention_Linear')
        self.assertEqual((row['ms'], row['ms_min'], row['ratio']), ([8.0, 3.0], [5.0, 2.0], 3.0))
        self.assertEqual((row['mb'], row['memory_ratio']), ([6.0, 4.0], 1.5))

    def test_an_unknown_case_is_refused(self):
        with self.assertRaisesRegex(ValueError, "There is no case 'positions_Swim'.*positions_Swin"):
            rows('long', 'positions_Swim')

    def test_every_part_has_a_case(self):
        known = attention.cases()
        for base, name in ((Score, 'score'), (Mechanism, 'attention'), (Positions, 'positions')):
            parts = {*resolve.subclasses(base)} - {'AlternateAttention'}  # one of two, layer by layer
            self.assertContainsSubset({f'{name}_{part}' for part in parts}, known)
        self.assertContainsSubset(attention.NOT_RUN, known)


if __name__ == '__main__':
    absltest.main()
