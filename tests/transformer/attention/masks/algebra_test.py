import operator

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies

from tests.transformer.attention.masks.patterns_test import DATA, LENGTH, PATTERNS, ROW
from transformer.attention.masks import analysis
from transformer.attention.masks.algebra import EMPTY, FULL, PARTIAL, blocks, conjuncts
from transformer.attention.masks.patterns import (
    BlockDiagonal,
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    Prefix,
    Random,
    Selected,
    Strided,
    Window,
)


class AlgebraTest(parameterized.TestCase):
    def test_the_defaults_are_not_written(self):
        self.assertEqual(repr(Causal() & ~Window(3)), '(Causal() & ~Window(size=3))')

    def test_conjuncts(self):
        either = Window(2) | Causal()
        self.assertEqual(conjuncts(Causal() & (either & Window(3))), [Causal(), either, Window(3)])
        self.assertEqual(conjuncts(either), [either])

    def test_not_twice_is_nothing(self):
        self.assertEqual(~~Causal(), Causal())
        self.assertTrue((~~Causal()).causal)

    def test_a_mask_is_joined_with_masks_alone(self):
        for join in (operator.and_, operator.or_):
            with self.assertRaises(TypeError):
                join(Causal(), np.ones((3, 3), bool))


class BlocksTest(parameterized.TestCase):
    @hypothesis.settings(max_examples=150, deadline=None)
    @hypothesis.given(PATTERNS, strategies.integers(1, LENGTH), strategies.integers(1, LENGTH), strategies.integers(1, 5),
                      strategies.integers(1, 5))
    def test_what_is_said_of_a_pattern_is_exact(self, mask, queries, keys, height, width):
        whole = analysis.dense(mask, LENGTH)[:queries, :keys]
        state = blocks(mask, queries, keys, (height, width))
        self.assertEqual(state.shape, (-(-queries // height), -(-keys // width)))
        for i, j in np.ndindex(state.shape):
            block = whole[i * height:(i + 1) * height, j * width:(j + 1) * width]
            self.assertEqual(state[i, j], FULL if block.all() else PARTIAL if block.any() else EMPTY)

    @hypothesis.settings(max_examples=60, deadline=None)
    @hypothesis.given(PATTERNS, strategies.sampled_from(DATA), strategies.sampled_from(['and', 'or', 'not']))
    def test_with_data_nothing_is_promised_that_does_not_hold(self, pattern, data, joined):
        mask = {'and': pattern & data, 'or': pattern | data, 'not': ~data & pattern}[joined]
        whole = np.broadcast_to(mask(ROW, ROW), (2, LENGTH, LENGTH))
        state = blocks(mask, LENGTH, LENGTH, (3, 4))
        for i, j in np.ndindex(state.shape):
            block = whole[:, i * 3:(i + 1) * 3, j * 4:(j + 1) * 4]
            self.assertFalse((state[i, j] == EMPTY and block.any()) or (state[i, j] == FULL and not block.all()))

    @parameterized.parameters(1, 63, 64, 200, 300)
    def test_large_blocks_are_made_of_small_ones(self, length):
        for mask in (Causal() & (Window(70) | Global(3)), Window(100), Causal() & Strided(65), ~Causal()):
            whole = analysis.dense(mask, length)
            for height, width in ((128, 128), (64, 192)):
                state = blocks(mask, length, length, (height, width))
                self.assertEqual(state.shape, (-(-length // height), -(-length // width)))
                for i, j in np.ndindex(state.shape):
                    block = whole[i * height:(i + 1) * height, j * width:(j + 1) * width]
                    self.assertEqual(state[i, j], FULL if block.all() else PARTIAL if block.any() else EMPTY)

    @parameterized.named_parameters((str(mask), mask) for mask in (
        Full(), Causal(), Window(2), Window(2, block=3), Dilated(3, 2), Dilated(2, 3), Strided(1), Strided(4),
        Fixed(4, summary=2), Fixed(5, summary=0), Fixed(3, summary=3), BlockDiagonal(5), Prefix(3),
        Selected((2, 3, 4, 7)), Global(2), Global(at=(5, 6)),
        Random(blocks=2, block=3, length=LENGTH, seed=1), Random(blocks=0, block=5, length=LENGTH)))
    def test_the_bounds_of_a_pattern_say_it_without_its_pairs(self, mask):
        whole = analysis.dense(mask, LENGTH)
        for t, u, s, r in np.ndindex(LENGTH, 6, LENGTH, 6):
            if t + u < LENGTH and s + r < LENGTH:
                block = whole[t:t + u + 1, s:s + r + 1]
                possible, certain = mask.bounds((t, t + u), (s, s + r))
                self.assertEqual(possible, block.any())
                self.assertTrue(certain == block.all() or (isinstance(mask, Fixed | Global) and not certain))

    def test_long_patterns_are_not_looked_at_pair_by_pair(self):
        looked = []

        class Watched(Full):
            def __call__(self, query, key):
                looked.append(query.size * key.size)
                return super().__call__(query, key)

        length = 1 << 13
        for pattern in (Causal() & Window(256), Window(2, block=64) | Global(128) | Random(3, 64, length), Dilated(64, 4),
                        Causal() & Fixed(512, summary=8), Window(100) | Selected((5, 999)), Window(100) | Global(at=(5, 999))):
            looked.clear()
            state = blocks(pattern & Watched(), length, length, (256, 256))
            self.assertEqual(state.shape, (32, 32))
            self.assertLess(sum(looked), 0.1 * length ** 2, pattern)

    def test_data_under_a_pattern_leave_the_empty_blocks_empty(self):
        state = blocks(Causal() & DATA[0], LENGTH, LENGTH, (4, 4))
        np.testing.assert_array_equal(state, [[1, 0, 0], [1, 1, 0], [1, 1, 1]])


if __name__ == '__main__':
    absltest.main()
