"""Texts of several places as one corpus."""

import dataclasses
import json
import shlex

from absl.testing import absltest, parameterized

from data.sources import corpora
from data.sources.corpora import Column, Contexts, Documents, Words
from data.text import tokens
from data.text.documents import Text
from data.tokenizers.specs import Byte
from training.config import resolve

ALL = dict(train='all', valid='', test='')


class CorporaTest(parameterized.TestCase):
    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def documents(self, *corpus, split='train'):
        return [text for text, end in corpora.joined(corpus, split).chunks() if end]

    def test_a_column_has_each_text_once(self):
        path = self.write('pairs.tsv', 'label\tsentence1\tsentence2\n' + '1\ta b\tc\n0\tc\t"d\n1\ta b\te\n' * 5)
        self.assertEqual(self.documents(Column(path, **ALL, column='sentence1, sentence2')), ['a b', 'c', '"d', 'e'])
        self.assertEqual(self.documents(Column(path, **ALL, column='3')), ['c', '"d', 'e'])
        of_rows = Column(path, train='all[:1]', valid='', test='', column='sentence1,sentence2')
        self.assertEqual(self.documents(of_rows), ['a b', 'c'])

    def test_a_column_leaves_out_what_is_missing(self):
        path = self.write('reviews.jsonl', '{"text": NaN}\n{"text": "a b"}\n{"text": null}\n{"text": 3.5}\n')
        self.assertEqual(self.documents(Column(path, **ALL)), ['a b', '3.5'])

    def test_contexts_are_those_of_squad(self):
        paragraphs = [{'context': ' One. ', 'qas': []}, {'context': 'Two.', 'qas': []}]
        path = self.write('squad.json', json.dumps({'data': [{'paragraphs': paragraphs}, {'paragraphs': paragraphs[:1]}]}))
        self.assertEqual(self.documents(Contexts(path, **ALL)), ['One.', 'Two.', 'One.'])

    def test_words_are_sentences(self):
        path = self.write('a.conll', '-DOCSTART- O\n\nThe\tO\nNile\tB-location\n\n\nIt O\nflows O\n')
        self.assertEqual(self.documents(Words(path, **ALL)), ['The Nile', 'It flows'])

    def test_sources_follow_each_other_each_with_its_own_splits(self):
        lines = self.write('lines.txt', ''.join(f'line {i}\n' for i in range(10)))
        table = self.write('table.tsv', 'text\tlabel\n' + ''.join(f'row {i}\t{i % 2}\n' for i in range(10)))
        corpus = Documents(lines, valid='', documents='line'), Column(table, train='train[:4]', valid='train[4:8]', test='')
        self.assertEqual(self.documents(*corpus), [f'line {i}' for i in range(9)] + [f'row {i}' for i in range(4)])
        self.assertEqual(self.documents(*corpus, split='valid[50%:]'), ['row 6', 'row 7'])
        self.assertEqual(self.documents(*corpus, split='test'), ['line 9'])

    def test_the_digest_is_that_of_contents_columns_and_slices(self):
        path = self.write('table.tsv', 'text\tmore\tlabel\n' + ''.join(f'row {i}\tx{i}\t{i % 2}\n' for i in range(9)))
        digest = lambda **fields: corpora.joined([Column(path, **{**ALL, **fields})], 'train').digest
        self.assertLen({digest(), digest(column='more'), digest(train='all[:5]')}, 3)
        before = digest()
        self.assertEqual(before, digest(valid='all'))
        self.write('table.tsv', 'text\tmore\tlabel\nother\tx\t1\nrow\ty\t0\n')
        self.assertNotEqual(before, digest())

    def test_the_digest_of_a_column_is_that_of_the_form_of_its_table(self):
        rows = ''.join(f'a film, number {i},{i % 2}\n' for i in range(40))
        parts = [corpora.joined([Column(self.write(name, rows), **ALL, column='1')], 'train') for name in ('a.txt', 'a.csv')]
        found = [next(text for text, _ in part.chunks()) for part in parts]
        self.assertEqual(found, ['a film, number 0,0', 'a film'])
        self.assertNotEqual(*(part.digest for part in parts))

    def test_lines_count_their_ends_and_other_documents_none(self):
        lines = Documents(self.write('lines.txt', 'a é\n\nb\r\nc'), **ALL, documents='line')
        table = Column(self.write('table.tsv', 'text\tlabel\nrow\t1\n'), **ALL)
        for corpus in (lines,), (lines, table), (table, lines):
            part = corpora.joined(corpus, 'train')
            self.assertEqual(tokens.load(part, Byte().learn()).meta['bytes'], len(b''.join(part.raw())))

    def test_tokens_are_kept_by_how_documents_are_cut(self):
        part = corpora.joined((Documents(self.write('lines.txt', 'a\nb\n'), **ALL),), 'train')
        folders = {tokens.load(one, Byte().learn()).folder for one in (part, dataclasses.replace(part, documents='line'))}
        self.assertLen(folders, 2)

    @parameterized.parameters(
        ('vaild', "A corpus has no split 'vaild'; did you mean 'valid'"),
        ('all', "A corpus has no split 'all'; known are train, valid, test, and slices of them"),
        ('test', "No source of data.corpus has a split 'test'; give one of them test="))
    def test_unknown_splits(self, split, message):
        path = self.write('lines.txt', 'a\nb\n')
        with self.assertRaisesRegex(ValueError, message):
            self.documents(Documents(path, **ALL, documents='line'), split=split)

    def test_mistakes_name_the_source(self):
        lines = self.write('lines.txt', 'a\nb\n')
        table = self.write('table.tsv', 'text\tlabel\na\t1\nb\t0\n')
        lists = self.write('lists.jsonl', '{"text": "a"}\n{"text": ["a", "b"]}\n')
        half = self.write('half.json', json.dumps({'data': [{'paragraphs': [{'context': 'half \ud83d'}]}]}))
        for source, message in (
            (Contexts(half, **ALL), r"half.json has '\\ud83d', half of a character; correct the line"),
            (Column(table, **ALL, column='txt'), "column of Column in data.corpus names the column 'txt'.* 'text', 'label'"),
            (Column(table, train='all[5:]'), "table.tsv' in data.corpus is empty: there are 2 to slice"),
            (Column(lists, **ALL), r"lists.jsonl:2 has a list, \['a', 'b'\], where .* another column with column of Column"),
            (Column(table, train='none'), "The split 'none' names no file of .*table.tsv' in data.corpus; known are train"),
            (Documents(lines, **ALL, documents='lines'), "data.corpus: documents='lines' is not known"),
            (Contexts(lines, **ALL), 'lines.txt is not in the format of SQuAD .*; Contexts expects'),
            (Words('nowhere', **ALL), "'nowhere' does not exist; path of Words in data.corpus must be")):
            with self.assertRaisesRegex((ValueError, FileNotFoundError), message):
                self.documents(source)

    def test_a_text_has_a_corpus(self):
        lines = self.write('lines.txt', ''.join(f'line {i}\n' for i in range(40)))
        table = self.write('table.tsv', 'text\tlabel\n' + ''.join(f'row {i}\t{i % 2}\n' for i in range(40)))
        said = f"(Documents(path={lines!r}, documents='line'), Column(path={table!r}, train='all', valid=''))"
        fields = {'corpus': said, 'tokenizer': 'Byte()', 'length': 16, 'batch_size': 4}
        text = resolve.construct(resolve.describe('data.text.documents:Text', 'pipeline', **fields), 'pipeline')
        opened = text.open(None)
        self.assertIn('corpus of 2 sources, 76 documents', opened.describe())
        batches = opened.evaluation('valid', 4)
        self.assertEqual(batches.facts['documents'], 2)
        with self.assertRaisesRegex(ValueError, r"train of Column in data.corpus='all' and test of .* overlap in .*table.tsv"):
            opened.evaluation('test', 4)
        self.assertEqual({name: array.shape for name, array in next(opened.train(0)).items()},
                         {name: shape for name, (shape, _) in opened.shapes.items()})

    def test_what_a_config_sets_beside_a_corpus_is_named_at_once_with_the_flags_that_unset_it(self):
        text = Text(corpus=(Words('a'),), tokenizer=Byte(), path='input.txt', documents='stream', train='all')
        with self.assertRaisesRegex(ValueError, "data.path='input.txt' and data.documents='stream' and data.train='all' are not"
                                    ) as caught:
            text.check()
        flags = shlex.split(str(caught.exception).partition(' add ')[2].removesuffix('.'))
        self.assertEqual(flags, ['--config.data.path=', '--config.data.documents=file', '--config.data.train=train[:90%]'])
        fields = dict(flag.removeprefix('--config.data.').split('=') for flag in flags)
        dataclasses.replace(text, **fields).check()

    @parameterized.parameters({'path': 'x'}, {'documents': 'line'}, {'train': 'all'}, {'name': 'set'})
    def test_a_corpus_has_places_of_its_own(self, **fields):
        with self.assertRaisesRegex(ValueError, rf'data.{next(iter(fields))}=.* is not used with data.corpus'):
            Text(corpus=(Words('a'),), tokenizer=Byte(), **fields).check()


if __name__ == '__main__':
    absltest.main()
