"""Sets of TFDS as tables of labelled texts."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from absl.testing import absltest

from data import prepare
from data.sources.tfds_tables import files, table
from data.text.labelled import Labelled
from data.text.targets import Labels, Number
from tests.data import tfds_builders, tiny_tokenizers


class TfdsTablesTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.home = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.home)
        prepare.prepare('heed_sentences', cls.home)

    def data(self, **more):
        tokenizer = tiny_tokenizers.word_piece(Path(self.folder), 'the cat a dog 1 2 3')
        return Labelled(**dict(name='heed_sentences', path=self.home, train='train[:8]', valid='train[8:]', test='', length=16,
                               batch_size=4, tokenizer=tokenizer) | more)

    def test_pairs_with_the_names_of_their_classes(self):
        self.assertEqual(tfds_builders.HeedSentences.TRAIN, 12)
        opened = self.data().open(None)
        self.assertEqual(opened.classes, ('equivalent', 'not_equivalent'))
        found = opened.config.part('train').examples
        self.assertEqual([(one.texts, one.label) for one in found[:2]],
                         [(('the cat 0', 'a dog 0'), 'not_equivalent'), (('the cat 1', 'a dog 1'), 'equivalent')])
        self.assertIn("heed_sentences, columns: 'idx', 'label', 'sentence1', 'sentence2'; text from 'sentence1' and "
                      "'sentence2', label from 'label'; 8 pairs", opened.describe())
        batch, = opened.evaluation('valid', 4)
        np.testing.assert_array_equal(batch['label'], [1, 0, 1, 0])

    def test_lists_have_the_names_of_their_classes(self):
        prepare.prepare('heed_topics', self.home)
        opened = self.data(name='heed_topics', columns=('text',), label='labels', target=Labels()).open(None)
        self.assertEqual([one.label for one in opened.config.part('train').examples[:3]],
                         [('sport',), (), ('sport', 'energy')])
        _, cells = next(table(files('heed_topics', self.home)[0]).rows())
        self.assertEqual(cells, (['sport'], 'the cat 0', ['the', 'cat 0']))

    def test_parts(self):
        digests = {self.data().part(split).digest for split in ('train', 'valid', 'train[:1]')}
        self.assertLen(digests, 3)
        self.assertEqual(self.data(target=Number(), label='idx').part('valid').examples[0].label, 8.0)
        with self.assertRaisesRegex(ValueError, "example 0 has nothing in column 'label'; fill it in"):
            self.data(valid='test').open(None).evaluation('valid', 4)
        with self.assertRaisesRegex(ValueError, "The split 'dev' names no file of this data"):
            self.data(train='dev').open(None)

    def test_a_set_that_is_not_prepared(self):
        with self.assertRaisesRegex(ValueError, 'glue/mrpc is not prepared in .*; run python -m data.prepare glue/mrpc'):
            self.data(name='glue/mrpc').open(None)


if __name__ == '__main__':
    absltest.main()
