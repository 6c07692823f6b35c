import operator

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies

from tests.transformer.attention.masks_test import DATA, LENGTH, PATTERNS, ROW
from transformer.attention import masks
from transformer.attention.mask_algebra import EMPTY, FULL, PARTIAL, blocks, conjuncts
from transformer.attention.masks import Causal, Window


class AlgebraTest(parameterized.TestCase):
    def test_the_defaults_are_not_written(self):
        self.assertEqual(repr(Causal() & ~Window(3)), '(Causal() & ~Window(size=3))')

    def test_conjuncts(self):
        either = Window(2) | Causal()
        self.assertEqual(conjuncts(Causal() & (either & Window(3))), [Causal(), either, Window(3)])
        self.assertEqual(conjuncts(either), [either])

    def test_a_mask_is_joined_with_masks_alone(self):
        for join in (operator.and_, operator.or_):
            with self.assertRaises(TypeError):
                join(Causal(), np.ones((3, 3), bool))


class BlocksTest(parameterized.TestCase):
    @hypothesis.settings(max_examples=150, deadline=None)
    @hypothesis.given(PATTERNS, strategies.integers(1, LENGTH), strategies.integers(1, LENGTH), strategies.integers(1, 5),
                      strategies.integers(1, 5))
    def test_what_is_said_of_a_pattern_is_exact(self, mask, queries, keys, height, width):
        whole = masks.dense(mask, LENGTH)[:queries, :keys]
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

    def test_data_under_a_pattern_leave_the_empty_blocks_empty(self):
        state = blocks(Causal() & DATA[0], LENGTH, LENGTH, (4, 4))
        np.testing.assert_array_equal(state, [[1, 0, 0], [1, 1, 0], [1, 1, 1]])

    def test_long_patterns_are_not_looked_at_pair_by_pair(self):
        looked = []

        class Watched(Window):
            def __call__(self, query, key):
                looked.append(query.size * key.size)
                return super().__call__(query, key)

        state = blocks(Causal() & Watched(256), 1 << 15, 1 << 15, (256, 256))
        self.assertEqual(np.count_nonzero(state), 2 * 128 - 1)
        self.assertLess(sum(looked), 300 * 256 ** 2)  # of 2^30 pairs


if __name__ == '__main__':
    absltest.main()
