import numpy as np
from absl.testing import absltest, parameterized

from data.text import packing, tokens

RNG = np.random.default_rng(0)


class Store(tokens.Tokens):
    """Tokens in memory, of documents that begin at the multiples of 5."""

    offsets = np.arange(0, 20, 5)

    def __init__(self, ids, begin=-1):
        super().__init__(None, begin)
        self.__dict__['ids'] = ids


def documents(*sizes):
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def pieces(counts):
    counts = np.array(counts, np.int32)
    return packing.Pieces(np.cumsum(counts, dtype=np.int64) - counts, counts, np.zeros_like(counts))


class WindowsTest(parameterized.TestCase):
    def test_pieces_of_documents(self):
        cut = packing.windows(documents(5, 1, 4, 8), 4, 4)
        self.assertEqual(cut.starts.tolist(), [0, 4, 5, 6, 10, 14])
        self.assertEqual(cut.counts.tolist(), [4, 1, 1, 4, 4, 4])
        self.assertFalse(cut.skips.any())

    @parameterized.product(context=[1, 4, 7], stride=[1, 3, 4, 7])
    def test_every_target_is_scored_once_with_its_context(self, context, stride):
        if stride > context:
            return
        offsets = documents(*RNG.integers(1, 30, 40))
        scored = np.zeros(offsets[-1], int)
        cut = packing.windows(offsets, context, stride)
        for start, count, skip in zip(cut.starts, cut.counts, cut.skips, strict=True):
            document = np.searchsorted(offsets, start, side='right') - 1
            self.assertLessEqual(start + count, offsets[document + 1])
            self.assertEqual((start - offsets[document]) % stride, 0)
            self.assertLess(skip, count)
            scored[start + skip : start + count] += 1
        np.testing.assert_array_equal(scored, 1)


class StrippedTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 3, 7)
    def test_no_piece_begins_or_ends_between_documents(self, room):
        """As a loop does, of documents end to end, many of them empty: each piece is cut to its tokens of documents."""
        for sizes in ([0, 0, 0], [0, 0, 5, 0, 0, 0, 0, 4, 1, 0, 0], RNG.integers(0, 3, 60)):
            offsets = documents(*(np.array(sizes) + 1))
            size = int(offsets[-1]) + 1
            begins, counts = packing.documents(offsets, size, False)
            text = np.setdiff1d(np.arange(size), offsets)
            whole = packing.stretches(offsets[:1] + 1, offsets[-1:] - offsets[:1] - 1, room)
            wanted = [text[(text >= start) & (text < start + count)] for start, count in zip(*whole)]
            wanted = [(one[0], one[-1] + 1 - one[0]) for one in wanted if len(one)]
            starts, counts = packing.stripped(*whole, begins, counts)
            self.assertEqual(list(zip(starts[counts > 0], counts[counts > 0])), wanted)
            self.assertGreaterEqual(counts.min(), 0)


class RowsTest(parameterized.TestCase):
    def test_first_fit(self):
        rows = packing.first_fit(pieces([3, 4, 2, 1, 5]), 5)
        self.assertEqual(np.diff(rows.bounds).tolist(), [2, 2, 1])
        self.assertEqual(rows.pieces.counts.tolist(), [3, 2, 4, 1, 5])

    def test_first_fit_looks_back_at_64_rows(self):
        rows = packing.first_fit(pieces([4] * 65 + [1, 1]), 5)
        self.assertEqual(np.diff(rows.bounds).tolist(), [1, 2, 2] + [1] * 62)

    def test_first_fit_of_many(self):
        counts = RNG.integers(1, 33, 5000)
        rows = packing.first_fit(pieces(counts), 32)
        self.assertCountEqual(rows.pieces.starts.tolist(), pieces(counts).starts.tolist())
        used = np.add.reduceat(rows.pieces.counts, rows.bounds[:-1])
        self.assertLessEqual(used.max(), 32)
        self.assertGreater(counts.sum() / (32 * len(rows)), 0.9)

    def test_concat_fills_rows_and_returns_the_rest(self):
        for counts in ([3, 4, 2, 1, 5], [5, 5, 5], [1, 1], [7], RNG.integers(1, 40, 300)):
            rows, left = packing.concat(pieces(counts), 5)
            self.assertLen(rows, sum(counts) // 5)
            self.assertEqual(left.counts.sum(), sum(counts) % 5)
            if len(rows):
                np.testing.assert_array_equal(np.add.reduceat(rows.pieces.counts, rows.bounds[:-1]), 5)
            order = [
                s + i for p in (rows.pieces, left) for s, c in zip(p.starts, p.counts, strict=True) for i in range(c)
            ]
            self.assertEqual(order, list(range(sum(counts))))

    def test_batch(self):
        ids = np.arange(100, 120).astype(np.uint16)
        rows = packing.first_fit(packing.Pieces(np.array([0, 5, 3]), np.array([3, 4, 2]), np.array([0, 2, 0])), 6)
        batch = rows.batch(np.array([0, 1, 0]), Store(ids), 6)
        expected = {
            'inputs': [[100, 101, 102, 103, 104, 0], [105, 106, 107, 108, 0, 0]],
            'targets': [[101, 102, 103, 104, 105, 0], [106, 107, 108, 109, 0, 0]],
            'weights': [[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 0, 0]],
            'segments': [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]],
            'positions': [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]],
        }
        self.assertEqual(list(batch), list(expected))
        for name, value in expected.items():
            np.testing.assert_array_equal(batch[name], [*value, value[0]], err_msg=name)
            self.assertEqual(batch[name].dtype, np.float32 if name == 'weights' else np.int32)
        other = rows.batch(np.array([0, 1, 0]), Store(ids, begin=7), 6)
        expected['inputs'] = [[7, 101, 102, 103, 104, 0], [7, 106, 107, 108, 0, 0]]
        for name, value in expected.items():
            np.testing.assert_array_equal(other[name], [*value, value[0]], err_msg=name)


if __name__ == '__main__':
    absltest.main()
