import numpy as np
from absl.testing import absltest

from transformer.attention.masks.analysis import documents, places, real, require_next, segments_of
from transformer.attention.masks.data import Padding, Segments
from transformer.attention.masks.patterns import Causal, Full, Window

OWN, OTHER = np.array([[1, 1, 2, 2, 0], [3, 3, 3, 0, 0]]), np.array([[2, 2, 1], [3, 0, 0]])


class DocumentsTest(absltest.TestCase):
    def test_numbers_say_what_the_masks_do(self):
        segments = Segments(OWN, OTHER)
        for mask in (segments, Padding(np.array([2, 3])), Causal() & segments & Padding(np.array([1, 3]))):
            query, key = segments_of(mask, 5, 3)
            pattern = np.asarray(Causal()(np.arange(5), np.arange(3))) if mask.causal else True
            same = (np.asarray(query)[:, :, None] == np.asarray(key)[:, None]) & (np.asarray(key) != 0)[:, None]
            wanted = np.broadcast_to(np.asarray(mask(np.arange(5), np.arange(3))), (2, 5, 3))
            np.testing.assert_array_equal(np.broadcast_to(same & pattern, (2, 5, 3)), wanted)

    def test_patterns_alone_tell_nothing(self):
        self.assertIsNone(segments_of(Causal() & Window(3), 5, 5))
        self.assertEmpty(documents(Causal() & Padding(np.array([3]))))
        self.assertLen(documents((Causal() | Padding(np.array([3]))) & Segments(OWN, OWN)), 1)

    def test_what_it_cannot_tell_is_refused(self):
        for mask, sentence in ((Full() | Padding(np.array([1, 2])), 'is not a pattern joined'),
                               (Padding(np.ones((2, 5), int)), 'differ between the queries of a row'),
                               (Segments(OWN, OWN) & Segments(OWN, OWN), '2 terms of Segments; combine them into one')):
            with self.assertRaisesRegex(ValueError, sentence):
                segments_of(mask, 5, 5)

    def test_places_begin_with_each_document(self):
        np.testing.assert_array_equal(places(OWN), [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]])

    def test_real_are_the_positions_before_the_lengths(self):
        positions = np.array([[0, 1, 2], [4, 5, 6]])
        np.testing.assert_array_equal(real(Causal() & Padding(np.array([2, 6])), positions), [[1, 1, 0], [1, 1, 0]])
        np.testing.assert_array_equal(real(Causal(), positions), np.ones((2, 3)))

    def test_a_state_must_be_continued_where_it_ends(self):
        out = require_next(np.ones((3, 1, 2)), np.array([0, 4, 4]), np.array([[0], [4], [5]]))
        np.testing.assert_array_equal(np.isnan(out[:, 0, 0]), [False, False, True])


if __name__ == '__main__':
    absltest.main()
