import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies

from transformer.attention.masks import algebra, analysis, data, patterns
from transformer.attention.masks.data import Explicit, Marked, Padding, Segments
from transformer.attention.masks.patterns import (
    Alternate,
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

LENGTH = 12
ROW = np.arange(LENGTH)
RANDOM = Random(blocks=4, block=3, length=2 * LENGTH, seed=1)
DRAWN = analysis.dense(RANDOM, LENGTH)
# name: (mask, whether query t sees key s)
TERMS = {
    'full': (Full(), lambda t, s: True),
    'causal': (Causal(), lambda t, s: s <= t),
    'window': (Window(2), lambda t, s: abs(t - s) < 2),
    'window_of_blocks': (Window(2, block=3), lambda t, s: abs(t // 3 - s // 3) < 2),
    'dilated_2': (Dilated(3, 2), lambda t, s: t - s in (-4, -2, 0, 2, 4)),
    'dilated_3': (Dilated(2, 3), lambda t, s: t - s in (-3, 0, 3)),
    'strided': (Strided(4), lambda t, s: (t - s) % 4 == 0),
    'fixed': (Fixed(4, summary=2), lambda t, s: t // 4 == s // 4 or s % 4 in (2, 3)),
    'block': (BlockDiagonal(5), lambda t, s: t // 5 == s // 5),
    'prefix': (Prefix(3), lambda t, s: s < 3),
    'selected': (Selected((2, 7)), lambda t, s: s in (2, 7)),
    'global': (Global(2), lambda t, s: t < 2 or s < 2),
    'global_at': (Global(at=(5,)), lambda t, s: 5 in (t, s)),
    'random': (RANDOM, lambda t, s: bool(DRAWN[t, s])),
    'and': (Causal() & Window(3), lambda t, s: 0 <= t - s < 3),
    'or': (Causal() | Window(2), lambda t, s: s <= t + 1),
    'not': (~Causal(), lambda t, s: s > t),
    'nested': (~(Causal() & ~Window(2)), lambda t, s: not (s <= t and abs(t - s) >= 2)),
    'longformer': (Window(2) | Global(1), lambda t, s: abs(t - s) < 2 or 0 in (t, s)),
    'sparse_transformer': (Causal() & (Window(3) | Strided(3)), lambda t, s: s <= t and (t - s < 3 or (t - s) % 3 == 0)),
    'bigbird': (Window(2, block=3) | Global(3) | RANDOM,
                lambda t, s: abs(t // 3 - s // 3) < 2 or t < 3 or s < 3 or bool(DRAWN[t, s])),
    'prefix_language_model': (Causal() | Prefix(4), lambda t, s: s <= t or s < 4),
}
CASES = [(name, *case) for name, case in TERMS.items()]
NUMBERS = jnp.array([[1] * 5 + [2] * 4 + [0] * 3, [1] * 12])
LENGTHS = jnp.array([5, 0])
DATA = (Segments(NUMBERS, NUMBERS), Padding(LENGTHS), Padding(jnp.broadcast_to(ROW, (2, LENGTH))),
        Explicit(np.random.default_rng(0).random((2, LENGTH, LENGTH)) < 0.3), Marked(jnp.array([[1, 0] * 6, [0] * 12])))
PATTERNS = strategies.recursive(
    strategies.sampled_from([mask for mask, _ in TERMS.values()]),
    lambda inner: strategies.one_of(
        strategies.builds(lambda a, b: a & b, inner, inner), strategies.builds(lambda a, b: a | b, inner, inner),
        strategies.builds(lambda a: ~a, inner)), max_leaves=4)


def table(sees):
    return np.array([[bool(sees(t, s)) for s in range(LENGTH)] for t in range(LENGTH)])


class PatternsTest(parameterized.TestCase):
    @parameterized.named_parameters(CASES)
    def test_pattern(self, mask, sees):
        np.testing.assert_array_equal(analysis.dense(mask, LENGTH), table(sees))
        traced = jax.jit(lambda row: jnp.broadcast_to(mask(row, row), (LENGTH, LENGTH)))(ROW)
        np.testing.assert_array_equal(traced, table(sees))

    @parameterized.named_parameters(CASES)
    def test_positions_of_each_row_of_a_batch_count(self, mask, sees):
        queries = jnp.array([[4], [1]])  # cached decoding: one query at a place of its own in every row
        got = np.broadcast_to(mask(queries, jnp.asarray(ROW)), (2, 1, LENGTH))
        np.testing.assert_array_equal(got[:, 0], table(sees)[[4, 1]])

    @parameterized.named_parameters(CASES)
    def test_is_hashable_and_its_repr_is_the_expression(self, mask, sees):
        again = eval(repr(mask), vars(algebra) | vars(data) | vars(patterns))
        self.assertEqual(again, mask)
        self.assertEqual(hash(again), hash(mask))

    @parameterized.named_parameters(CASES)
    def test_who_is_called_causal_is(self, mask, sees):
        self.assertEqual(mask.causal and bool(np.triu(table(sees), 1).any()), False)

    def test_nothing_under_causal_sees_the_future(self):
        for mask, _ in TERMS.values():
            both = Causal() & (mask | Global(3) | Selected((9,)))
            self.assertTrue(both.causal)
            self.assertFalse(np.triu(analysis.dense(both, LENGTH), 1).any())

    def test_a_dilated_window_leaves_out_every_other_key_unless_told_otherwise(self):
        self.assertEqual(Dilated(3), Dilated(3, 2))

    def test_random_draws_that_many_blocks_of_each_row(self):
        whole = analysis.dense(RANDOM, 2 * LENGTH)
        blocks = whole[::3, ::3]
        np.testing.assert_array_equal(blocks.sum(1), 4)
        self.assertGreater(len(np.unique(blocks, axis=0)), 2)  # each draws its own
        np.testing.assert_array_equal(whole, blocks.repeat(3, 0).repeat(3, 1))
        other = Random(blocks=4, block=3, length=2 * LENGTH, seed=2)
        self.assertTrue((analysis.dense(other, LENGTH) != DRAWN).any())

    @parameterized.parameters(
        (lambda: Window(0), r'Window\(size=0\).*at least 1'), (lambda: Dilated(2, 0), 'step is 0; expected at least 1'),
        (lambda: Random(5, 4, 12), '5 blocks are to be drawn, but a row has 3 of 4'),
        (lambda: analysis.dense(RANDOM, 25), r'Random\(.*is for rows of up to 24 positions, but this one has 25; give it'),
        (lambda: (Causal() & ~(Window(2) | RANDOM)).require_length(25), 'up to 24 positions'),
        (lambda: Alternate(Full(), RANDOM).require_length(25), 'up to 24 positions'),
        (lambda: Window(2 ** 31), 'size is 2147483648; expected at most 2147483647'), (lambda: Prefix(-1), 'length is -1'),
        (lambda: Global(-1), 'tokens is -1'), (lambda: Global(2, at=(3,)), 'give one of the two'),
        (lambda: Global(at=('a',)), r"at is \('a',\); expected positions"), (lambda: Selected((1.5,)), 'expected positions'),
        (lambda: Selected((-1,)), 'whole numbers from 0 on'), (lambda: Fixed(4, summary=9), 'at most the stride, 4'),
        (lambda: Random(1, 4, 12, seed=-1), 'seed is -1'), (lambda: analysis.show(Padding(jnp.ones((2, 5), int)), 6), 'length'),
        (lambda: Fixed(0), 'stride is 0'), (lambda: BlockDiagonal(0), 'size is 0'), (lambda: Strided(0), 'stride is 0'))
    def test_what_makes_no_sense_is_refused(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()


class DataTest(parameterized.TestCase):
    def test_segments_see_their_own_document_and_never_padding(self):
        got = DATA[0](ROW, ROW)
        for b, t, s in np.ndindex(2, LENGTH, LENGTH):
            self.assertEqual(bool(got[b, t, s]), bool(NUMBERS[b, t] == NUMBERS[b, s] != 0), (b, t, s))
        both = (Causal() & DATA[0])(ROW, ROW)
        np.testing.assert_array_equal(both, np.asarray(got) & table(lambda t, s: s <= t))

    def test_segments_of_queries_and_keys_may_differ_in_length(self):
        got = Segments(jnp.array([[2, 1]]), jnp.array([[1, 2, 0]]))(jnp.arange(2), jnp.arange(3))
        np.testing.assert_array_equal(got, [[[False, True, False], [True, False, False]]])

    def test_padding_hides_keys_of_each_row_or_of_each_query(self):
        got = np.broadcast_to(DATA[1](ROW, ROW), (2, LENGTH, LENGTH))
        np.testing.assert_array_equal(got, np.broadcast_to(np.array(LENGTHS)[:, None, None] > ROW, got.shape))
        np.testing.assert_array_equal(DATA[2](ROW, ROW)[0], table(lambda t, s: s < t))

    def test_marked_keys_are_visible_and_no_others(self):
        np.testing.assert_array_equal(DATA[4](ROW, ROW)[0], np.arange(LENGTH)[None] % 2 == 0)
        self.assertFalse(DATA[4](ROW, ROW)[1].any())
        longer = DATA[4](ROW, np.arange(LENGTH + 3))  # a cache
        self.assertEqual(longer.shape, (2, 1, LENGTH + 3))
        self.assertFalse(longer[..., LENGTH:].any())

    def test_prefixes_of_each_row(self):
        got = (Causal() | Padding(LENGTHS))(ROW, ROW)
        np.testing.assert_array_equal(got, [table(lambda t, s: s <= t or s < 5), table(lambda t, s: s <= t)])

    @parameterized.parameters(*DATA, Causal() & ~DATA[0], DATA[1] | DATA[3])
    def test_a_block_of_it_is_the_block_of_the_whole(self, mask):
        whole = np.broadcast_to(mask(ROW, ROW), (2, LENGTH, LENGTH))
        block = mask.cut((4, 3), (6, 5))(ROW[4:7], ROW[6:11])
        np.testing.assert_array_equal(np.broadcast_to(block, (2, 3, 5)), whole[:, 4:7, 6:11])
        padded = mask.pad(2, 3)(np.arange(LENGTH + 2), np.arange(LENGTH + 3))
        padded = np.broadcast_to(padded, (2, LENGTH + 2, LENGTH + 3))
        np.testing.assert_array_equal(padded[:, :LENGTH, :LENGTH], whole)

    def test_parts(self):
        window = Causal() & Window(3)
        self.assertEqual(analysis.parts(window), (window, []))
        self.assertEqual(analysis.parts(Full() & DATA[0] & window & DATA[1]), (window, [DATA[0], DATA[1]]))
        self.assertEqual(analysis.parts(DATA[0]), (Full(), [DATA[0]]))
        self.assertEqual(analysis.parts(Causal() | DATA[1]), (None, []))
        self.assertEqual(analysis.parts(Causal() & ~DATA[1]), (None, []))


class LayersTest(parameterized.TestCase):
    def test_alternate_has_a_mask_for_each_layer(self):
        dense, banded = Causal(), Causal() & Window(3)
        mask = Alternate(dense, banded)
        self.assertEqual([mask.of_layer(i) for i in range(4)], [dense, banded] * 2)
        self.assertEqual((mask.period, mask.causal, banded.period, banded.of_layer(5)), (2, True, 1, banded))
        joined = (mask & Window(5)) | ~Full()
        self.assertEqual((joined.period, joined.of_layer(1)), (2, (banded & Window(5)) | ~Full()))
        nested = Alternate(Alternate(Full(), BlockDiagonal(2)), Causal())
        self.assertEqual([nested.of_layer(i) for i in range(4)], [Full(), Causal(), BlockDiagonal(2), Causal()])
        self.assertEqual(nested.period, 4)
        self.assertFalse(Alternate(Causal(), Full()).causal)
        for ask in (lambda: mask(ROW, ROW), lambda: analysis.dense(mask, LENGTH)):
            with self.assertRaisesRegex(TypeError, 'of_layer'):
                ask()

    def test_reach_grows_with_the_layers(self):
        reached = analysis.reach(Causal() & Window(3), LENGTH, 3)
        for t, s in np.ndindex(reached.shape):
            steps = max(1, -(-(t - s) // 2)) if s <= t else 0
            self.assertEqual(reached[t, s], steps if steps <= 3 else 0)
        self.assertTrue(analysis.reach(Window(2) | Global(1), LENGTH, 2).all())  # two layers, through the global token

    def test_what_a_position_has_stays_and_every_layer_has_its_mask(self):
        reached = analysis.reach(Alternate(Prefix(2), Window(2)), LENGTH, 2)
        wanted = table(lambda t, s: s < 2 or s == t) + 2 * table(lambda t, s: s >= 2 and abs(t - s) == 1)
        np.testing.assert_array_equal(reached, wanted)

    def test_a_picture_of_the_pattern_and_of_what_layers_reach(self):
        def drawn(figure):
            return np.asarray(figure.axes[0].images[0].get_array())

        mask = Window(2) | Global(1)
        np.testing.assert_array_equal(drawn(analysis.show(mask, LENGTH)) > 0, analysis.dense(mask, LENGTH))
        np.testing.assert_array_equal(drawn(analysis.show(Causal() & DATA[0], LENGTH)) > 0, (Causal() & DATA[0])(ROW, ROW)[0])
        deep = drawn(analysis.show(Causal() & Window(2), LENGTH, layers=3))
        np.testing.assert_array_equal(deep, analysis.reach(Causal() & Window(2), LENGTH, 3))
        bar = analysis.show(Causal() & Window(2), LENGTH, layers=3).axes[-1]
        self.assertEqual([label.get_text() for label in bar.get_yticklabels()],
                         ['hidden', 'after 1 layer', 'after 2 layers', 'after 3 layers'])


if __name__ == '__main__':
    absltest.main()
