"""benchmarks/complexity.py: what it measures, on functions whose depth and paths are known, and its output."""

import contextlib
import io
import json
import pathlib
import tempfile
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from benchmarks import complexity

# What the formulas leave out: there is no block before the first, and values have a one beside them, for the sums.
WIDTH, SIZE = complexity.WIDTH, complexity.SIZE
LEFT_OUT = {'window, by blocks': -4 * SIZE ** 2 * WIDTH, 'linear, in chunks': 4096 * (4 * WIDTH + 2 * SIZE),
            'linear, recurrent': 4096 * (4 * WIDTH + (4 * WIDTH + 2))}  # in brackets, the position itself


def longest(function, *shapes):
    jaxpr = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, 'float32') for shape in shapes)).jaxpr
    return complexity.chains(jaxpr, [0.0] * len(shapes))


class ChainsTest(absltest.TestCase):
    def test_operations_that_wait_for_each_other(self):
        self.assertEqual(longest(lambda x, y: (x + y, jnp.sin(x + y) * x, y), (2,), (2,)), [1, 3, 0])
        self.assertEqual(longest(jax.jit(lambda x: jnp.sin(jnp.cos(x))), (2,)), [2])
        self.assertEqual(longest(lambda x: jnp.ones(2) + x, (2,)), [1])  # constants are there already

    def test_a_loop_counts_its_state_through_all_turns(self):
        def scanned(x, rows):
            # from state to state 2 operations, of a row 1 more before that, to what comes out 1
            return jax.lax.scan(lambda c, row: (jnp.sin(c + jnp.cos(row)), jnp.exp(c)), x, rows)
        self.assertEqual(longest(scanned, (3,), (7, 3)), [1 + 2 * 7, 1 + 2 * 6 + 1])

    def test_a_loop_whose_state_waits_for_nothing_is_as_long_as_a_turn(self):
        scanned = lambda x, rows: jax.lax.scan(lambda c, row: (jnp.sin(row), jnp.cos(jnp.sin(row))), x, rows)
        self.assertEqual(longest(scanned, (3,), (7, 3)), [1, 2])

    def test_states_that_feed_each_other(self):
        # only b goes around, in 1 operation; a is made of b in 3
        turn = lambda c, _: ((jnp.sin(jnp.cos(jnp.tan(c[1]))), jnp.exp(c[1])), None)
        scanned = lambda a, b: jax.lax.scan(turn, (a, b), None, length=5)[0]
        self.assertEqual(longest(scanned, (2,), (2,)), [4 + 3, 5])


class MeasureTest(parameterized.TestCase):
    def test_turns_between_positions(self):
        t, s = np.indices((9, 9))
        lower = lambda x: np.where(s <= t, x, np.inf)
        found = {name: complexity.turns(complexity.LAYERS[name], 9) for name in (
            'self-attention', 'convolution', 'recurrence', 'linear, recurrent')}
        np.testing.assert_array_equal(found['self-attention'], lower(0))
        np.testing.assert_array_equal(found['convolution'], np.where(t - s < 3, lower(0), np.inf))
        np.testing.assert_array_equal(found['recurrence'], lower(t - s))
        np.testing.assert_array_equal(found['linear, recurrent'], lower(t - s))

    @parameterized.parameters(*complexity.LAYERS)
    def test_measured_is_as_the_formulas_say(self, name):
        half, whole = (complexity.measure(name, length) for length in (2048, 4096))
        self.assertNotIn('path', whole)
        self.assertEqual(whole['flops'], complexity.formula(name, 'flops', 4096) + LEFT_OUT.get(name, 0))
        if complexity.LAYERS[name].formulas['steps'][0] == '1':
            self.assertEqual(whole['steps'], half['steps'])
        else:  # n or n / r, with a constant of operations for each, and some once
            self.assertAlmostEqual((whole['steps'] - half['steps']) / half['steps'], 1.0, delta=0.5)
            turns = complexity.formula(name, 'steps', 4096) - complexity.formula(name, 'steps', 2048)
            self.assertBetween((whole['steps'] - half['steps']) / turns, 1, 12)

    @pytest.mark.slow
    def test_paths(self):
        with mock.patch.object(complexity, 'LONGEST_PATH', 129):
            path = {name: complexity.measure(name, 129)['path'] for name in complexity.LAYERS}
        self.assertEqual(path.pop('window, by blocks') // 3, 1)  # 3 layers, and turns of the loop
        self.assertEqual(path, {'self-attention': 1, 'window, dense': 3, 'linear, in chunks': 3, 'linear, recurrent': 129,
                                'convolution': 64, 'recurrence': 129, 'channel groups': 1})

    def test_table_lines_and_picture(self):
        out = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(out):
            with mock.patch.object(complexity, 'longest_path', lambda layer, length: length):  # what it finds: test_paths
                complexity.main([8, 16], folder)
            files = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
        self.assertEqual(set(files), {'complexity.txt', 'complexity.jsonl', 'complexity.png'})
        rows = [json.loads(line) for line in files['complexity.jsonl'].splitlines()]
        self.assertEqual({(row['layer'], row['length']) for row in rows},
                         {(name, length) for name in complexity.LAYERS for length in (8, 16)})
        self.assertTrue(out.getvalue().startswith(files['complexity.txt'].decode().rstrip('\n')))
        self.assertEqual(json.loads(out.getvalue().splitlines()[-1]), rows[-1])
        self.assertStartsWith(files['complexity.png'], b'\x89PNG')


if __name__ == '__main__':
    absltest.main()
