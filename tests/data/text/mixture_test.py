import json
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from data.sources import files as sources
from data.text import mixture
from data.tokenizers.specs import Char
from tests import experiments


def equal(one, other):
    return all(np.array_equal(one[key], other[key]) for key in one)


class MixtureTest(experiments.TestCase):
    """Two texts that share no character, so that a row says where it is from."""

    def setUp(self):
        super().setUp()
        for name, letters in (('low', 'abc'), ('high', 'xyz')):
            lines = [''.join(letters[(i * k) % 3] for k in range(20 + i % 5)) for i in range(120)]
            (self.folder / f'{name}.txt').write_text('\n'.join(lines) + '\n')

    def opened(self, low=3.0, high=1.0, folder=None, parts=None, **fields):
        given = dict(documents='line', tokenizer=Char(), length=16, batch_size=16) | fields
        parts = parts if parts is not None else {
            name: mixture.Part(weight=weight, path=str(self.folder / f'{name}.txt'))
            for name, weight in (('low', low), ('high', high))}
        return mixture.Mixture(parts=parts, **given).open(folder)

    def share(self, opened, batches=60):
        """The share of the rows that come from 'high', and that of its tokens."""
        stream, texts = opened.train(seed=0), []
        for _ in range(batches):
            texts += [opened.decode(row[weight > 0]) for batch in [next(stream)]
                      for row, weight in zip(batch['targets'], batch['weights'])]
        for text in texts:
            self.assertIn(bool(set(text) & set('abc')) + bool(set(text) & set('xyz')), (0, 1))  # no row is of both
        return np.mean([bool(set(text) & set('xyz')) for text in texts])

    @parameterized.parameters((3.0, 1.0, 0.25), (1.0, 1.0, 0.5), (0.1, 0.9, 0.9))
    def test_rows_come_by_weight(self, low, high, expected):
        self.assertAlmostEqual(self.share(self.opened(low, high)), expected, delta=0.05)  # three deviations

    def test_every_row_of_a_part_is_used_once_in_an_epoch_of_it(self):
        opened = self.opened(1.0, 1.0, packing='none')
        rows = lambda batch: [tuple(row) for row, weight in zip(batch['inputs'], batch['weights']) if weight.any()]
        expected = [row for batch in opened.evaluation('low.train', 4) for row in rows(batch)]
        letters, stream, found = set(opened.encode('abc')), opened.train(seed=0), []
        while len(found) < len(expected):
            found += [row for row in rows(next(stream)) if letters & set(row)]
        self.assertEqual(sorted(found[:len(expected)]), sorted(expected))

    def test_parts_have_orders_of_their_own(self):
        low = (self.folder / 'low.txt').read_text()
        (self.folder / 'high.txt').write_text(low.translate(str.maketrans('abc', 'xyz')))
        opened = self.opened(1.0, 1.0, packing='none')
        stream, rows = opened.train(seed=0), {'abc': [], 'xyz': []}
        for _ in range(8):
            for row in next(stream)['targets']:
                text = opened.decode(row)
                rows['abc' if set(text) & set('abc') else 'xyz'].append(text.translate(str.maketrans('xyz', 'abc')))
        first, second = (found[:40] for found in rows.values())
        self.assertLen(second, 40)
        self.assertLess(np.mean([a == b for a, b in zip(first, second)]), 0.5)

    def test_resumes_exactly_at_any_row(self):
        opened = self.opened()
        whole = opened.train(seed=1)
        batches = [next(whole) for _ in range(7)]
        for cut in range(7):
            first = opened.train(seed=1)
            for _ in range(cut):
                next(first)
            state = json.loads(json.dumps(first.get_state()))
            second = opened.train(seed=1)
            next(second)
            second.set_state(state)
            self.assertTrue(all(equal(next(second), batch) for batch in batches[cut:]))
        self.assertFalse(equal(next(opened.train(seed=2)), batches[0]))

    def test_evaluates_all_parts_or_one(self):
        opened = self.opened()
        facts = {split: opened.evaluation(split, 4).facts for split in ('valid', 'low.valid', 'high.valid', 'high.train[:5]')}
        self.assertEqual(facts['valid']['tokens'], facts['low.valid']['tokens'] + facts['high.valid']['tokens'])
        self.assertEqual(facts['high.train[:5]']['documents'], 5)
        text = opened.evaluation('high.valid', 4).text().decode()
        self.assertEqual(set(text), set('xyz\n'))
        low = opened.evaluation('low.valid', 4).text().decode()
        self.assertEqual(opened.evaluation('valid', 4).text().decode(), low + text)

    def test_one_tokenizer_from_all_and_digests_of_all(self):
        opened = self.opened()
        self.assertEqual(set(opened.tokenizer.characters), set('abcxyz'))
        opened.save(self.folder / 'run')
        self.assertEqual(self.opened(folder=self.folder / 'run').tokenizer, opened.tokenizer)
        before = opened.digest('train'), opened.digest('low.train')
        (self.folder / 'high.txt').write_text('zyx\n' * 200)
        after = self.opened().digest('train'), self.opened().digest('low.train')
        self.assertNotEqual(before[0], after[0])
        self.assertEqual(before[1], after[1])

    def test_the_text_is_looked_up_once(self):
        opened = self.opened()
        with mock.patch.object(sources, 'files', wraps=sources.files) as looked_up:
            for _ in range(3):
                self.assertGreater(opened.batches_per_epoch, 0)
                opened.digest('valid')
        self.assertLessEqual(looked_up.call_count, 2)

    def test_describe(self):
        self.assertRegex(self.opened().describe(), r'low 75.0%, files .*low.txt, 108 documents, .* to train on; high 25.0%, '
                         r'files .*high.txt, .* to train on; Char vocabulary of 8')

    @parameterized.parameters(
        ({'low': 0.0}, 'data.parts.low.weight is 0.0; expected a number above 0'),
        ({'high': float('nan')}, 'data.parts.high.weight is nan'),
        ({'parts': {}}, 'The mixture has no parts'),
        ({'documents': 'word'}, "In part 'low' of the mixture: data.documents='word'"))
    def test_errors(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            self.opened(**fields)

    def test_a_slice_of_a_split_that_one_part_has(self):
        parts = {name: mixture.Part(path=str(self.folder / f'{name}.txt'), train='all[:80%]', valid=valid)
                 for name, valid in (('low', 'all[80%:]'), ('high', ''))}
        rows = lambda split: sum(batch['weights'].sum() for batch in self.opened(parts=parts).evaluation(split, 4))
        self.assertBetween(rows('valid[:50%]'), 1, rows('valid') - 1)

    def test_a_split_that_no_part_has(self):
        with self.assertRaisesRegex(ValueError, "No part of the mixture has a split ''"):
            self.opened().digest('')


if __name__ == '__main__':
    absltest.main()
