import gzip
import shutil
import tempfile
from pathlib import Path

import pyarrow
import tensorflow_datasets as tfds
from absl.testing import absltest, parameterized

from data import prepare
from data.seq2seq.parallel import Parallel
from data.sources import pairs as pair_sources
from data.sources.pairs import Form
from data.tokenizers.specs import Byte

SENTENCES = [('Guten Tag', 'Good day'), ('', 'nothing'), ('Äpfel\nund Birnen', 'apples'), ('eins', 'one'), ('zwei', 'two')]


class HeedPairs(tfds.core.GeneratorBasedBuilder):
    """As wmt14_translate/de-en: a feature for each language, and an example with a blank side."""

    VERSION = tfds.core.Version('1.0.0')

    def _info(self):
        features = tfds.features.Translation(languages=['de', 'en'])
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {'train': self._generate_examples(SENTENCES[:4]), 'test': self._generate_examples(SENTENCES[4:])}

    def _generate_examples(self, sentences):
        return ((number, {'de': de, 'en': en}) for number, (de, en) in enumerate(sentences))


class TablePairsTest(parameterized.TestCase):
    def write(self, contents, name='pairs.tsv'):
        path = self.folder / name
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return str(path)

    @parameterized.parameters(
        ('Go.\tVa !\nHi.\tSalut !\n', [('Go.', 'Va !'), ('Hi.', 'Salut !')]),
        ('Go.\tVa !\tCC-BY 2.0\r\n\n \t \r\nHi.\tSalut !', [('Go.', 'Va !'), ('Hi.', 'Salut !')]),  # more columns, blank lines
        ('\ufeffGo.\tVa\u202f!\n', [('Go.', 'Va\u202f!')]),  # with a byte order mark, and no line end inside a side
        ('a\u2028b\tc\x0bd\n', [('a\u2028b', 'c\x0bd')]),
    )
    def test_pairs(self, contents, expected):
        self.assertEqual(list(pair_sources.tables(self.write(contents), Form(('1', '2')))('train')), expected)

    def test_columns(self):
        path = self.write('1\tGo.\tVa !\n2\tHi.\tSalut !\n')
        self.assertEqual(list(pair_sources.tables(path, Form(('3', '2')))('all')), [('Va !', 'Go.'), ('Salut !', 'Hi.')])

    @parameterized.parameters(
        ('Go.\tVa !\nHi.\tSalut !\n', 'no header; source from 1, target from 2'),
        ('1\tGo.\tVa !\n2\tHi.\tSalut !\n', 'no header; source from 2, target from 3'),
        ('fr\ten\nVa !\tGo.\n', "header: 'fr', 'en' (line 1); source from 'en', target from 'fr'"),
        ('target\tsource\nVa !\tGo.\n', "header: 'target', 'source' (line 1); source from 'source', target from 'target'"),
        ('{"translation": {"en": "Go.", "fr": "Va !"}}', "columns: 'translation'; en to fr from 'translation'", 'a.jsonl'))
    def test_what_is_read_is_said(self, contents, said, name='pairs.tsv'):
        path = self.write(contents, name)
        self.assertEqual(pair_sources.tables(path, Form((), ('en', 'fr')))('train').described(), said)

    def test_languages_that_are_given_are_names_of_columns(self):
        path, form = self.write('Go.\tVa !\nHi.\tSalut !\n'), Form((), ('fr', 'en'), given=True)
        with self.assertRaisesRegex(ValueError, r"data.languages='fr,en' name no columns of .*pairs.tsv \(no header\); set "
                                                'data.columns to those of the source and the target'):
            list(pair_sources.tables(path, form)('train'))
        path = self.write('en\tfr\nGo.\tVa !\n')
        self.assertEqual(list(pair_sources.tables(path, form)('train')), [('Va !', 'Go.')])

    @parameterized.parameters(
        ('1\tGo.\tVa !\n2\tHi.\tSalut !\n', ('Go.', 'Va !')),
        ('7\tGo.\t9\tVa !\n7\tHi.\t10\tSalut !\n', ('Go.', 'Va !')),  # as Tatoeba exports them
        ('12\ttwelve\n13\tthirteen\n', ('12', 'twelve')),
    )
    def test_ids_are_no_texts(self, contents, first):
        self.assertEqual(next(iter(pair_sources.tables(self.write(contents), Form())('all'))), first)

    def test_a_language_that_two_columns_have_is_refused(self):
        part = pair_sources.tables(self.write('en\tfr\ten\nGo.\tVa !\tGo on.\n'), Form((), ('en', 'fr'), 'true'))('all')
        with self.assertRaisesRegex(ValueError, "pairs.tsv has the name 'en' for the columns 1 and 3; name columns by numbers"):
            list(part)

    def test_files_of_a_folder(self):
        self.write('a\tb\n', 'one.tsv')
        self.write(gzip.compress(b'c\td\n'), 'two.tsv.gz')
        part = pair_sources.tables(str(self.folder), Form(('1', '2')))
        self.assertEqual(list(part('all')), [('a', 'b'), ('c', 'd')])
        self.assertEqual(list(part('two.tsv.gz').placed()), [(str(self.folder / 'two.tsv.gz:1'), ('c', 'd'))])
        self.assertEqual(list(part('*.tsv')), [('a', 'b')])
        with self.assertRaisesRegex(ValueError, "'three' names no file .*; known are train, all, one.tsv, two.tsv.gz"):
            part('three')

    def test_a_line_longer_than_a_block(self):
        long = 'ab' * 900_000
        pairs = list(pair_sources.tables(self.write(f'{long}\tx\ny\t{long}\n'), Form(('1', '2')))('all'))
        self.assertEqual([tuple(map(len, pair)) for pair in pairs], [(1_800_000, 1), (1, 1_800_000)])

    @parameterized.parameters(
        ('a\tb\n\nc d\n', 'pairs.tsv:3 has 1 column separated by tabs, and data.columns asks for 2'),
        ('a\tb\n \td\n', 'pairs.tsv:2 has nothing in column 1'),
        ('a\t\u202f\n', 'pairs.tsv:1 has nothing in column 2'),
        (b'a\tb\nc\td\xff\n', 'pairs.tsv:2 is not UTF-8'),
        ('', 'pairs.tsv.* holds no text'),
        (gzip.compress(b'a\tb\n' * 99)[:-9], 'is damaged'),
    )
    def test_bad_files(self, contents, message):
        path = self.write(contents, 'pairs.tsv' + '.gz' * (message == 'is damaged'))
        with self.assertRaisesRegex(ValueError, message):
            list(pair_sources.tables(path, Form(('1', '2')))('all'))

    def test_objects_without_a_name(self):
        part = pair_sources.tables(self.write('{}\n{}\n', 'a.jsonl'), Form())('all')
        with self.assertRaisesRegex(ValueError, 'a.jsonl:1 has 0 columns .*, and data.columns asks for 2; correct the line'):
            list(part)

    @parameterized.parameters(
        ('{"en": "Go."}', "has no text 'fr' in its translation {'en': 'Go.'}; fill it in, or take the line out"),
        ('{"en": "Go.", "fr": null}', "has no text 'fr' in its .*; fill it in, or take the line out"),
        ('{"en": " ", "fr": ""}', "has no texts 'en' and 'fr' in its .*; fill it in, or take the line out"),
        ('{"de": "Geh", "es": "Ve"}', "has no texts 'en' and 'fr' in its .*; set data.languages to two of its names"),
        ('{"en": "Go.", "es": "Ve"}', "has no text 'fr' in its .*; fill it in, or take the line out, or set data.languages to"),
        ('"Go."', "has no texts 'en' and 'fr' in its translation 'Go.'; fill it in"))
    def test_a_translation_in_json_that_lacks_a_language(self, translation, message):
        whole = '{"translation": {"en": "Hi.", "fr": "Salut"}}\n'
        part = pair_sources.tables(self.write(f'{whole}{{"translation": {translation}}}\n', 'a.jsonl'), Form((), ('en', 'fr')))
        with self.assertRaisesRegex(ValueError, f'a.jsonl:2 {message}'):
            list(part('all'))

    def test_the_digest_names_contents_and_columns(self):
        digest = lambda columns: pair_sources.tables(str(self.folder), Form(columns))('all').digest
        self.write('a\tb\n')
        before = digest(('1', '2'))
        self.assertEqual(before, digest(('1', '2')))
        self.assertNotEqual(before, digest(('2', '1')))
        self.write('a\tc\n')
        self.assertNotEqual(before, digest(('1', '2')))


class AlignedTest(parameterized.TestCase):
    def part(self, source, target, name='train', languages=('en', 'fr')):
        for language, contents in zip(('en', 'fr'), (source, target), strict=True):
            (self.folder / f'train.{language}').write_bytes(contents.encode())
        return pair_sources.aligned(str(self.folder), languages)(name)

    def test_pairs(self):
        self.assertEqual(list(self.part('one\n\ntwo\r\n', 'un\n \ndeux')), [('one', 'un'), ('two', 'deux')])
        swapped = pair_sources.aligned(str(self.folder), ('fr', 'en'))('train')
        self.assertEqual(list(swapped), [('un', 'one'), ('deux', 'two')])
        places = [f'{self.folder}/train.fr:{line} and {self.folder}/train.en:{line}' for line in (1, 3)]
        self.assertEqual([place for place, _ in swapped.placed()], places)

    @parameterized.parameters(('gz', gzip.compress), ('zst', lambda text: pyarrow.compress(text, 'zstd', asbytes=True)))
    def test_compressed(self, ending, compress):
        before = self.part('one\n', 'un\n').digest
        (self.folder / 'train.fr').unlink()
        (self.folder / f'train.fr.{ending}').write_bytes(compress(b'deux\n'))
        self.assertEqual(list(pair_sources.aligned(str(self.folder), ('en', 'fr'))('train')), [('one', 'deux')])
        self.assertNotEqual(before, pair_sources.aligned(str(self.folder), ('en', 'fr'))('train').digest)

    @parameterized.parameters(
        ('a\nb\nc\n', 'd\ne\n', r'train.en has 3 line\(s\) and \S*train.fr has 2 line\(s\), but line i of one'),
        ('a\n', 'b\nc\n\n', r'train.en has 1 line\(s\) and \S*train.fr has 3 line\(s\)'),
        ('a\n\n', 'b\nc\n', r'train.en:2 is blank and line 2 of \S*train.fr is not'),
        ('a\nb\n', 'c\n\t\n', r'train.fr:2 is blank and line 2 of \S*train.en is not'),
        ('a\n', '', 'train.fr.* holds no text'),
    )
    def test_bad_files(self, source, target, message):
        with self.assertRaisesRegex(ValueError, message):
            list(self.part(source, target))

    def test_missing_files(self):
        with self.assertRaisesRegex(FileNotFoundError, 'has no trian.en, trian.en.gz or trian.en.zst; did you mean train.en?'):
            self.part('a', 'b', name='trian')
        with self.assertRaisesRegex(FileNotFoundError, 'has no train.de, train.de.gz or train.de.zst; did you mean train.en'):
            self.part('a', 'b', languages=('de', 'fr'))
        with self.assertRaisesRegex(FileNotFoundError, "none' is no folder; .* such as train.en and train.fr"):
            pair_sources.aligned(str(self.folder / 'none'), ('en', 'fr'))

    def test_two_files(self):
        self.part('one\n', 'un\n')
        paths = [str(self.folder / f'train.{language}') for language in ('fr', 'en')]
        self.assertEqual(list(pair_sources.two_files(paths)), [('un', 'one')])
        with self.assertRaisesRegex(ValueError, r"--path names 1 file\(s\), but with data.source='files' it takes two"):
            pair_sources.two_files(paths[:1])


class CldrTest(absltest.TestCase):
    def test_parts(self):
        part = pair_sources.cldr(('en', 'fr'))
        self.assertLen(list(part('valid')), 1000)
        self.assertEqual(next(part('valid').placed()), ('phrase 1', next(iter(part('valid')))))
        self.assertLen({part(name).digest for name in ('train', 'valid', 'test')}, 3)
        self.assertNotEqual(part('train').digest, pair_sources.cldr(('en', 'de'))('train').digest)
        with self.assertRaisesRegex(ValueError, "'dev' names no part of the phrases of CLDR; known are train, valid, test"):
            part('dev')
        with self.assertRaisesRegex(ValueError, "no locale 'frx'; did you mean"):
            pair_sources.cldr(('en', 'frx'))


class TfdsTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.home = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.home)
        prepare.prepare('heed_pairs', cls.home)

    def test_pairs(self):
        part = pair_sources.tfds('heed_pairs', self.home, ('en', 'de'))
        swapped = [(en, de) for de, en in SENTENCES if de]  # an example with a blank side is left out
        self.assertEqual(list(part('train')), swapped[:3])
        places = [f'example {number}' for number in range(len(SENTENCES) - 2, len(SENTENCES))]
        self.assertEqual(list(part('all[-2:]').placed()), list(zip(places, swapped[-2:])))
        self.assertNotEqual(part('train').digest, pair_sources.tfds('heed_pairs', self.home, ('de', 'en'))('train').digest)
        with self.assertRaisesRegex(ValueError, "'valid' names no part of this data; known are all, test, train"):
            part('valid')

    def test_as_parallel_text(self):
        for order, expected in (('file', [('Good day', 'Guten Tag')]), ('hash', None)):
            opened = Parallel(
                'tfds', self.home, 'heed_pairs', 'en,de', order=order, train='train[:2]', valid='', test='', tokenizer=Byte()
            ).open(None)
            found = opened.evaluation('train', 4).pairs()
            self.assertEqual(found, expected or found)
            self.assertLen(found, 1 if order == 'file' else 2)  # examples, one of them with a blank side; or pairs

    def test_training_shares_no_split_with_validation(self):
        config = Parallel('tfds', self.home, 'heed_pairs', 'en,de', train='all', valid='test', test='', tokenizer=Byte())
        with self.assertRaisesRegex(ValueError, "data.train='all' names test, and so does data.valid='test'; give each"):
            config.open(None)

    def test_missing_languages(self):
        with self.assertRaisesRegex(ValueError, "heed_pairs has no feature 'fr'; set data.languages to two of de, en."):
            pair_sources.tfds('heed_pairs', self.home, ('en', 'fr'))
        with self.assertRaisesRegex(ValueError, 'heed_pair/x is not prepared|TFDS knows no data set'):
            pair_sources.tfds('heed_pair', str(Path(self.home) / 'none'), ('en', 'fr'))


if __name__ == '__main__':
    absltest.main()
