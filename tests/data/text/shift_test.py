import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest

from data.text.shift import Shift
from data.tokenizers.specs import Word

WORDS = [f'w{i}' for i in range(60)]


class ShiftTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        (folder / 'text.txt').write_text(' '.join(WORDS))
        self.fields = dict(path=str(folder), train='all', length=8, batch_size=2)

    def assertShifted(self, opened, batch, row, length=8):
        """A row asks for the words from the second one on, all but the last of which it holds one place further on."""
        there = batch['segments'][row] > 0
        self.assertEqual(there.sum(), length)
        inputs, targets, told = (batch[name][row][there] for name in ('inputs', 'targets', 'decoder_inputs'))
        first = WORDS.index(opened.tokenizer.piece(inputs[0]))
        self.assertEqual(opened.pieces(inputs), WORDS[first:first + length])
        self.assertEqual(opened.pieces(targets), WORDS[first + 1:first + length + 1])
        np.testing.assert_array_equal(targets[:-1], inputs[1:])
        np.testing.assert_array_equal(told, [opened.end, *targets[:-1]] if opened.end >= 0 else [1, *targets[:-1]])
        np.testing.assert_array_equal(batch['weights'][row], [*[1] * (length - 1), *[0] * (9 - length)])
        for name in ('segments', 'positions'):
            np.testing.assert_array_equal(batch[f'decoder_{name}'], batch[name])

    def test_training_rows(self):
        opened = Shift(**self.fields).open(None)
        batch = next(iter(opened.train(0)))
        self.assertEqual({name: (x.shape, x.dtype) for name, x in batch.items()}, opened.shapes)
        for row in range(2):
            self.assertShifted(opened, batch, row)
        self.assertEqual(opened.count(batch), 14)
        self.assertEqual(opened.facts, {'vocab': 62, 'source_vocab': 0})

    def test_training_resumes(self):
        opened = Shift(**self.fields).open(None)
        first, again = opened.train(0), opened.train(0)
        batches = [next(first) for _ in range(4)]
        again.set_state({'next': 3})
        np.testing.assert_array_equal(next(again)['decoder_inputs'], batches[3]['decoder_inputs'])

    def test_evaluation_asks_for_every_word_but_those_that_cannot_be_known(self):
        opened = Shift(**self.fields).open(None)
        evaluation = opened.evaluation('all', 3)
        self.assertNotIn('bytes', evaluation.facts)  # those of the words that are asked for are unknown
        batches = list(evaluation)
        rows = [(batch, row) for batch in batches for row in range(3) if batch['example_weights'][row]]
        for batch, row in rows[:-1]:
            self.assertShifted(opened, batch, row)
        self.assertShifted(opened, *rows[-1], length=3)  # of 59 targets, 7 rows have 8
        self.assertEqual(sum(int(batch['weights'].sum()) for batch in batches), 59 - 8)

    def test_unknown_words_and_ends_of_lines_are_learnt_but_not_scored(self):
        folder = pathlib.Path(self.fields['path'])
        (folder / 'text.txt').write_text('a b c d\na b c e\n' * 4)
        opened = Shift(**self.fields | {'tokenizer': Word(least=8)}).open(None)  # all but d and e, which come four times
        seen, wanted = [], []
        for batch in opened.evaluation('all', 3):
            there = (batch['segments'] > 0) & (batch['example_weights'] > 0)[:, None]
            there[:, :-1] &= there[:, 1:]  # the last word of a row is not known
            there[:, -1] = False
            seen += opened.pieces(batch['targets'][batch['weights'] > 0])
            wanted += [piece for piece in opened.pieces(batch['targets'][there]) if piece in 'abc']
        self.assertEqual(seen, wanted)
        self.assertEqual(set(seen), {*'abc'})
        batch = next(iter(opened.train(0)))
        np.testing.assert_array_equal(batch['weights'], [[1] * 7 + [0]] * 2)

    def test_fields_without_a_meaning(self):
        for fields, message in ((dict(documents='line'), 'has rows of several lengths'), (dict(length=1), 'nothing to copy')):
            with self.assertRaisesRegex(ValueError, message):
                Shift(**self.fields | fields).open(None)


if __name__ == '__main__':
    absltest.main()
