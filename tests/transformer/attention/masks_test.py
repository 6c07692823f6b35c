import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from transformer.attention import masks
from transformer.attention.masks import Causal, Full, Segments, Window

ROW = jnp.arange(6)
I, J = np.indices((6, 6))
TERMS = {
    'full': (Full(), np.ones((6, 6), bool)),
    'causal': (Causal(), J <= I),
    'window': (Window(2), abs(I - J) < 2),
    'and': (Causal() & Window(3), (J <= I) & (I - J < 3)),
    'or': (Causal() | Window(2), J <= I + 1),
    'not': (~Causal(), J > I),
    'nested': (~(Causal() & ~Window(2)), ~((J <= I) & (abs(I - J) >= 2))),
}


class MasksTest(parameterized.TestCase):
    @parameterized.named_parameters(*((name, *case) for name, case in TERMS.items()))
    def test_pattern(self, mask, wanted):
        np.testing.assert_array_equal(np.broadcast_to(mask(ROW, ROW), (6, 6)), wanted)

    @parameterized.named_parameters(*((name, *case) for name, case in TERMS.items()))
    def test_positions_of_each_row_of_a_batch_count(self, mask, wanted):
        queries = jnp.array([[4], [1]])  # cached decoding: one query at a place of its own in every row
        got = np.broadcast_to(mask(queries, ROW), (2, 1, 6))
        np.testing.assert_array_equal(got[:, 0], wanted[[4, 1]])

    @parameterized.named_parameters(*((name, case[0]) for name, case in TERMS.items()))
    def test_is_hashable_and_its_repr_is_the_expression(self, mask):
        again = eval(repr(mask), vars(masks))
        self.assertEqual(again, mask)
        self.assertEqual(hash(again), hash(mask))

    def test_segments_see_their_own_document_and_never_padding(self):
        numbers = jnp.array([[1, 1, 2, 2, 0, 0], [1, 2, 3, 3, 3, 0]])
        got = Segments(numbers, numbers)(ROW, ROW)
        for b, t, s in np.ndindex(2, 6, 6):
            self.assertEqual(bool(got[b, t, s]), bool(numbers[b, t] == numbers[b, s] != 0), (b, t, s))
        both = (Causal() & Segments(numbers, numbers))(ROW, ROW)
        np.testing.assert_array_equal(both, np.asarray(got) & (J <= I))

    def test_segments_of_queries_and_keys_may_differ_in_length(self):
        got = Segments(jnp.array([[2, 1]]), jnp.array([[1, 2, 0]]))(jnp.arange(2), jnp.arange(3))
        np.testing.assert_array_equal(got, [[[False, True, False], [True, False, False]]])

    def test_a_window_that_does_not_hold_the_query_is_refused(self):
        with self.assertRaisesRegex(ValueError, r'Window\(size=0\).*at least 1'):
            Window(0)


if __name__ == '__main__':
    absltest.main()
