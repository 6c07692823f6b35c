"""Rows in buckets, of every kind of examples: those of packing='none', each once an epoch, with as little padding as there can
be."""

import collections
import itertools
import json

import numpy as np
from absl.testing import absltest, parameterized

from data.buckets import Buckets, lengths
from data.text.labelled import Labelled
from data.text.preferences import Preferences
from data.text.questions import Questions
from data.text.tagged import Tagged
from tests.data import tiny_tokenizers

DRAW = np.random.default_rng(0)
TEXTS = [' '.join(DRAW.choice(['cat', 'dog', 'sat'], size=n)) + f' x{i}' for i, n in enumerate(DRAW.integers(1, 27, size=45))]
FORMS = {
    Labelled: ('a.tsv', ''.join(f'{text}\t{"no" if i % 2 else "yes"}\n' for i, text in enumerate(TEXTS)), {'header': 'false'}),
    Preferences: ('a.tsv', ''.join(f'{text}\t{text[::-1]}\n' for text in TEXTS), {'header': 'false'}),
    Tagged: ('a.conll', '\n'.join(''.join(f'{word} B-x\n' for word in text.split()) + 'dog O\n' for text in TEXTS), {}),
    Questions: ('a.jsonl', ''.join(json.dumps({'context': text, 'question': 'cat', 'answer': text.split()[-1]}) + '\n'
                                   for text in TEXTS), {'question_length': 2, 'stride': 8}),
}


def row_of(batch, row):
    """What a row holds without its padding, as something to compare and count."""
    size = int((batch['segments'][row] > 0).sum(-1).max())
    tokens = batch['segments'].shape[-1]
    cut = lambda x: x[..., :size] if x.ndim and x.shape[-1] == tokens else x
    return tuple((name, cut(x[row]).tobytes()) for name, x in sorted(batch.items()) if name not in ('row', 'example_weights'))


class ExamplesTest(parameterized.TestCase):
    def opened(self, kind, **more):
        name, text, fields = FORMS[kind]
        path = self.folder / 'texts' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        tokenizer = tiny_tokenizers.word_piece(self.folder, 'cat dog sat')
        return kind(**dict(path=str(path), tokenizer=tokenizer, length=32, batch_size=4, train='all', valid='', test='',
                           packing='buckets') | fields | more).open(None)

    @parameterized.parameters(*FORMS)
    def test_every_row_comes_once_an_epoch_padded_to_its_bucket(self, kind):
        opened, whole = self.opened(kind), self.opened(kind, packing='none')
        known = collections.Counter(row_of(batch, row) for batch in whole.evaluation('train', 1) for row in range(1))
        self.assertGreaterEqual(known.total(), 45)
        iterator, used, tight, seen = opened.train(0), set(), [], collections.Counter()
        for _ in range(round(4 * opened.batches_per_epoch)):  # four epochs fill whole batches
            batch = next(iterator)
            self.assertIn({name: (x.shape, x.dtype.type) for name, x in batch.items()}, opened.buckets)
            length, longest = batch['inputs'].shape[-1], int((batch['segments'] > 0).sum(-1).max())
            used.add(length)
            self.assertLessEqual(longest, length)
            tight.append(length == min(one for one in lengths(32) if one >= longest))
            seen.update(row_of(batch, row) for row in range(4))
        self.assertEqual(seen, collections.Counter({row: 4 * count for row, count in known.items()}))
        self.assertTrue(all(tight))
        self.assertGreater(len(used), 1)
        self.assertEqual(opened.shapes, opened.buckets[-1])
        self.assertEqual(opened.shapes, whole.shapes)

    @parameterized.parameters(*FORMS)
    def test_evaluation_has_every_row_once_and_says_which(self, kind):
        opened, whole = self.opened(kind), self.opened(kind, packing='none')
        there = lambda batch: np.flatnonzero(batch['example_weights'])
        rows = [row_of(batch, row) for batch in whole.evaluation('train', 4) for row in there(batch)]
        found, padding = {}, 0
        for batch in opened.evaluation('train', 4):
            self.assertEqual(len(batch['inputs']), 4)
            for row in there(batch):
                found[int(batch['row'][row])] = row_of(batch, row)
            padding += (batch['segments'] == 0)[batch['example_weights'] > 0].sum()
        self.assertEqual([found[row] for row in range(len(rows))], rows)
        wasted = sum((batch['segments'] == 0)[batch['example_weights'] > 0].sum() for batch in whole.evaluation('train', 4))
        self.assertLess(padding, 0.75 * wasted)

    @parameterized.parameters(*FORMS)
    def test_resumes_exactly(self, kind):
        opened = self.opened(kind)
        iterator, batches, states = opened.train(3), [], []
        for _ in range(40):
            states.append(json.loads(json.dumps(iterator.get_state())))
            batches.append(next(iterator))
        for place in (1, 11, 26):
            again = opened.train(3)
            again.set_state(states[place])
            for batch in batches[place:place + 5]:
                np.testing.assert_equal(next(again), batch)
        self.assertNotEqual([row_of(batch, 0) for batch in batches],
                            [row_of(next(other), 0) for other in [opened.train(4)] for _ in batches])

    def test_another_packing_is_refused(self):
        with self.assertRaisesRegex(ValueError, "data.packing='first_fit' is not known; it takes 'none', 'buckets'"):
            self.opened(Labelled, packing='first_fit')


class BucketsTest(parameterized.TestCase):
    def test_lengths(self):
        self.assertEqual(lengths(128), (16, 32, 64, 128))
        self.assertEqual(lengths(3), (1, 2, 3))

    @parameterized.parameters((45, 4), (8, 4), (3, 4), (5, 5), (7, 20))
    def test_epochs_are_those_of_the_order(self, count, rows):
        """So many batches in every epoch as its rows fill with what is left of the last, each row as often as epochs say."""
        buckets, seen = Buckets(np.arange(count) % 8 + 1, (2, 4, 8), rows), []
        for batch in range(6 * count):
            numbers, length = buckets.training(batch, 1)
            self.assertLen(numbers, rows)
            self.assertEqual(length, min(one for one in (2, 4, 8) if one >= (numbers % 8 + 1).max()))
            seen.append(numbers)
            epochs = (batch + 1) * rows / count
            if epochs == int(epochs):
                self.assertEqual(np.bincount(np.concatenate(seen)).tolist(), [epochs] * count)

    def test_batches_of_an_epoch_are_shuffled(self):
        """Those of a length are spread over each epoch, and elsewhere in the next, or with another seed."""
        buckets, orders = Buckets(np.repeat([2, 4, 8], 80), (2, 4, 8), 4), set()
        for epoch, seed in itertools.product(range(3), range(2)):
            order = [buckets.training(60 * epoch + batch, seed)[1] for batch in range(60)]
            self.assertEqual(sorted(order), [2] * 20 + [4] * 20 + [8] * 20)
            for length in (2, 4, 8):  # 20 of 60 places, without replacement
                deviation = np.sqrt((60 ** 2 - 1) / 12 / 20 * 40 / 59)
                self.assertLess(abs(np.flatnonzero(np.equal(order, length)).mean() - 29.5), 4 * deviation)
            orders.add(tuple(order))
        self.assertLen(orders, 6)

    def test_few_batches_have_rows_of_two_buckets(self):
        buckets = Buckets(DRAW.integers(1, 9, size=4000), (2, 4, 8), 8)
        mixed = sum(len({*buckets.bucket[buckets.training(batch, 0)[0]]}) > 1 for batch in range(500))
        self.assertLessEqual(mixed, 2)


if __name__ == '__main__':
    absltest.main()
