import gzip
import json
from unittest import mock

import pyarrow
from absl.testing import absltest, parameterized
from pyarrow import parquet

from data.sources import tables
from data.sources.files import File
from data.sources.tables import Table, data_files

RATED = [('a "good" film, twice', 'pos'), ('bad\nfilm', 'neg')]
MANY = ''.join(f'text {i},{"ab"[i % 2]}\n' for i in range(20))


class TablesCase(parameterized.TestCase):
    def table(self, name, contents, **fields):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        return Table(File(str(path), name), **fields)

    def cells(self, *given, **fields):
        return [cells for _, cells in self.table(*given, **fields).rows()]


class FormatsTest(TablesCase):
    def test_one_table_in_every_format(self):
        quoted = '"a ""good"" film, twice",pos\r\n"bad\nfilm",neg\r\n'
        objects = [json.dumps({'text': text, 'label': label}) for text, label in RATED]
        columns = {'text': [text for text, _ in RATED], 'label': [label for _, label in RATED]}
        parquet.write_table(pyarrow.table(columns), self.folder / 'p')
        for name, contents in (
                ('a.csv', 'text,label\n' + quoted),
                ('b.csv', ('text,label\n' + quoted).replace(',', ';').replace('m; t', 'm, t')),
                ('c.csv.gz', gzip.compress(b'\xef\xbb\xbftext,label\n' + quoted.encode())),
                ('d.tsv', 'text\tlabel\n' + quoted.replace(',', '\t').replace('m\t t', 'm, t').replace('pos', '"pos"')
                 .replace('neg', '"neg"')),
                ('e.jsonl', '\n\n'.join(objects)), ('f.json', f'[{",".join(objects)}]'),
                ('g.jsonl.zst', pyarrow.compress('\n'.join(objects).encode(), 'zstd', asbytes=True)),
                ('h.parquet', (self.folder / 'p').read_bytes())):
            with self.subTest(name):
                table = self.table(name, contents, quotes='true' if name == 'd.tsv' else 'auto')
                self.assertEqual([cells for _, cells in table.rows()], RATED)
                self.assertEqual(table.names, ('text', 'label'))
                self.assertEqual((table.column('label', 'x'), table.column('2', 'x'), table.width), (1, 1, 2))

    def test_places_are_lines(self):
        places = lambda *given: [place.partition(self.folder.name)[2] for place, _ in self.table(*given).rows()]
        self.assertEqual(places('a.csv', 'text,label\n"a\nb",1\n\nc,2\n'), ['/a.csv:2', '/a.csv:5'])
        self.assertEqual(places('a.tsv', 'a\t1\n\nc\t2'), ['/a.tsv:1', '/a.tsv:3'])
        self.assertEqual(places('a.jsonl', '{"a": 1}\n\n{"b": 2}'), ['/a.jsonl:1', '/a.jsonl:3'])
        self.assertEqual(places('a.json', '[{"a": 1}, {"b": 2}]'), ['/a.json, item 1', '/a.json, item 2'])

    @parameterized.parameters(';', ',', '\t')
    def test_a_first_line_for_excel_that_states_the_separator(self, mark):
        rows = f'text{mark}label\n"a{mark}b"{mark}x\nc{mark}y\n'
        for quotes in ('auto', 'true'):
            table = self.table('a.csv', f'sep={mark}\n{rows}', quotes=quotes)
            self.assertEqual((table.names, next(cells for _, cells in table.rows())), (('text', 'label'), (f'a{mark}b', 'x')))
            self.assertEqual([place.rpartition(':')[2] for place, _ in table.rows()], ['3', '4'])
            self.assertStartsWith(table.describe(), "header: 'text', 'label' (line 2)")
        self.assertEqual(self.cells('a.csv', f'sep={mark}\na{mark}1\n', quotes='false'), [('a', '1')])
        self.assertEqual(self.cells('a.tsv', 'sep=;\t1\n'), [('sep=;', '1')])

    def test_a_page_of_html_is_no_table(self):
        for page in ('<!DOCTYPE html><html><body>404, not found</body></html>\n' * 9, '\n<html lang="en">\n<p>a, b\n'.lstrip()):
            with self.assertRaisesRegex(ValueError, r'a.csv is a page of HTML, not a table; download the file itself'):
                self.cells('a.csv', page)
            self.assertNotEmpty(self.cells('a.csv', page, header='false'))
        self.assertEqual(self.cells('a.csv', '<html>a</html>,1\n'), [('<html>a</html>', '1')])  # texts of HTML

    def test_line_ends_of_old_macintoshes(self):
        table = self.table('a.csv', 'text,label\rno,0\r"yes,\ror so",1\r')
        self.assertEqual(table.names, ('text', 'label'))
        self.assertEqual([cells for _, cells in table.rows()], [('no', '0'), ('yes,\nor so', '1')])
        self.assertEqual(self.cells('b.csv', 'no\rnever,0\nyes,1\n'), [('no never', '0'), ('yes', '1')])

    @parameterized.parameters(
        ('good film, really 0;p\nbad film, really 1;n\n', ('good film, really 0', 'p'), ';'),
        ('good, 0\nbad, 1\n', ('good', ' 0'), ','),
        ('good; really,0\nbad; really,1\n', ('good; really', '0'), ','),
        ('one, two\t0\none, two\t1\n', ('one, two', '0'), '\t'),
        ('film 0;0,5\nfilm 1;1,5\n', ('film 0', '0,5'), ';'),
    )
    def test_what_separates_the_fields(self, lines, first, separator):
        self.assertEqual(self.cells('a.csv', lines)[0], first)
        apart = {',': '', ';': '; separated by semicolons', '\t': '; separated by tabs'}[separator]
        table = self.table('a.csv', f'text{separator}label\n{lines}')
        self.assertEqual(table.describe(), f"header: 'text', 'label' (line 1){apart}")

    def test_a_small_file_with_too_much_in_it(self):
        parquet.write_table(pyarrow.table({'text': ['no ' * 99] * 99_999, 'label': ['a'] * 99_999}), self.folder / 'p')
        for module, changes, message in (
                (tables, {'_ROWS': 1000}, 'a.parquet has 99,999 rows, more than 1 for each of its bytes; write it again'),
                (tables.contents, {'most': lambda path: 1 << 20}, 'a.parquet has, unpacked, more than 1 times its own size')):
            with (mock.patch.multiple(module, **changes), mock.patch.object(tables.contents, 'RATIO', 1),
                  self.assertRaisesRegex(ValueError, message)):
                self.cells('a.parquet', (self.folder / 'p').read_bytes())
        self.assertLen(self.cells('a.parquet', (self.folder / 'p').read_bytes()), 99_999)

    def test_keys_that_a_row_lacks(self):
        self.assertEqual(self.cells('a.jsonl', '{"a": 1}\n{"b": [2], "a": null}'), [(1, None), (None, [2])])

    @parameterized.parameters(
        ('a.csv', 'text,label\n"open,1\nb,2', r'a.csv:2 cannot be read as quoted fields \(.*\); close the quote'),
        ('a.csv', '"a"b,1\n', 'a.csv:1 cannot be read as quoted fields'),
        ('a.jsonl', '{"a": 1}\n{"a": ', r'a.jsonl:2 is no JSON \(.*\); correct the line'),
        ('a.jsonl', '[' * 100_000, 'is no JSON'),
        ('a.jsonl', '{"a": 1}\n3', 'a.jsonl:2 is .3.; expected an object with a name for each column'),
        ('a.jsonl', '{"a": "\\ud83d\\ude00"}\n{"a": ["\\uD83D"]}',
         r"a.jsonl:2 has '\\ud83d', half of a character; correct the line"),
        ('a.jsonl', '{"\\ude00": 1}', r"a.jsonl:1 has '\\ude00', half of a character"),
        ('a.json', '[{"a": "\\ud83d"}]', r"a.json has '\\ud83d', half of a character"),
        ('a.json', '[1]', 'a.json, item 1 is .1.; expected an object'),
        ('a.parquet', 'PAR1', 'a.parquet is no file of Parquet'),
        ('a.csv', b'a,b\n\xff,1', 'a.csv:2 is not UTF-8'),
    )
    def test_damage(self, name, contents, message):
        with self.assertRaisesRegex(ValueError, message) as caught:
            list(self.table(name, contents).rows())
        self.assertNotIn('\n', str(caught.exception))

    def test_the_digest_names_contents_and_how_they_are_read(self):
        tables = [self.table('a.csv', 'a,b'), self.table('a.tsv', 'a,b'), self.table('b.csv', 'a,c'),
                  self.table('a.csv', 'a,b', header='true'), self.table('a.csv', 'a,b', quotes='false')]
        self.assertLen({table.digest for table in tables}, 5)


class HeaderTest(TablesCase):
    @parameterized.named_parameters(
        ('known_names', 'sentence\tlabel\nno\t0\n', ('sentence', 'label')),
        ('numbers_below', 'v1\tv2\nno\t0\n', ('v1', 'v2')),
        ('few_values_below', 'v1,v2\n'.replace(',', '\t') + MANY.replace(',', '\t'), ('v1', 'v2')),
        ('glue', '\ufeffQuality\t#1 ID\t#1 String\n1\t702876\tHe said "no\n', ('Quality', '#1 ID', '#1 String')),
        ('index_of_pandas', '\ttext\tlabel\n0\tno\tbad\n', ('', 'text', 'label')),
        ('other_languages', 'текст\tклас\nno\t0\n', ('текст', 'клас')),
        ('sentences', 'Go.\tVa !\nHi.\tSalut !\n', ()),
        ('a_class_that_occurs_again', 'text\ta\n' + MANY.replace(',', '\t'), ()),
        ('all_numbers', '1\t2\n3\t4\n', ()),
        ('one_column', 'text\nno\nyes\n', ()),
        ('twice_the_same', 'text\ttext\na\t0\n', ()),
        ('twice_the_same_of_several', 'text\tlabel\ttext\na\t0\tb\n', ('text', 'label', 'text')),
        ('words_above_texts', 'question\tone\n' + 'a b\tc d\n' * 9, ('question', 'one')),
        ('written_like_names', 'text_a\ttext_b\n' + 'a b\tc d\n' * 9, ('text_a', 'text_b')),
        ('words_above_texts_that_are_texts', 'Hi\tSalut\n' + ''.join(f'a {i}\tc {i}\n' for i in range(9)), ()),
        ('one_row', 'no\tbad\n', ()),
    )
    def test_is_found(self, contents, names):
        table = self.table('a.tsv', contents)
        self.assertEqual(table.names, names)
        self.assertLen(list(table.rows()), sum(map(bool, contents.split('\n'))) - bool(names))
        self.assertEqual(table.describe(), f"header: {', '.join(map(repr, names))} (line 1)" if names else 'no header')

    def test_a_list_in_an_object(self):
        with self.assertRaisesRegex(ValueError, "a.json:1 is one object with the rows in 'data'; expected the list alone"):
            self.cells('a.json', '{"data": [{"text": "no", "label": 0}]}')
        self.assertEqual(self.cells('a.jsonl', '{"data": [{"a": 0}]}\n'), [([{'a': 0}],)])

    def test_other_separators(self):
        for name, line, said in (('a.tsv', 'a,b', '1 column separated by tabs (name the file .csv if commas or semicolons do)'),
                                 ('a.csv', 'a|b', '1 column separated by commas (write commas if other signs do)'),
                                 ('a.tsv', 'a\tb', '2 columns separated by tabs')):
            table = self.table(name, line)
            self.assertEqual(table.counted(table.split(line)), said)

    def test_the_first_line_of_none(self):
        self.assertEqual(self.table('a.csv', '\n \n\n', header='true').names, ())

    def test_empty_columns_at_the_end_are_none(self):
        table = self.table('a.csv', 'v1,v2,,\n' + MANY.replace('\n', ',,\n') * 60 + 'text,a,more,\n')
        self.assertEqual((table.names, table.width), (('v1', 'v2'), 2))
        rows = table.rows()
        self.assertEqual(next(rows)[1], ('text 0', 'a'))
        with self.assertRaisesRegex(ValueError, 'a.csv:1202 has 4 columns, and the header has 2, separated by commas; quote'):
            list(rows)
        self.assertEqual(self.cells('a.tsv', 'text\tlabels\nno\t\n'), [('no', '')])

    def test_is_stated(self):
        self.assertEqual(self.cells('a.tsv', 'sentence\tlabel\n', header='false'), [('sentence', 'label')])
        self.assertEqual(self.cells('a.tsv', 'Go.\tVa\nHi.\tSalut\n', header='true'), [('Hi.', 'Salut')])

    def test_a_column_that_is_not_there(self):
        with self.assertRaisesRegex(ValueError, "data.label names the column 'lable', which .*a.tsv does not have; its columns "
                                                "are 'text', 'label'"):
            self.table('a.tsv', 'text\tlabel\nno\t0\n').column('lable', 'data.label')
        with self.assertRaisesRegex(ValueError, 'it has no header, so columns are numbers'):
            self.table('a.tsv', 'Go.\tVa !\n').column('label', 'data.label')

    def test_a_name_of_two_columns_is_refused_where_it_is_asked_for(self):
        table = self.table('a.tsv', 'a\ta\ten\ten\tx\n1\t2\t3\t4\t5\n', header='true')
        self.assertEqual([table.column(wanted, 'data.columns') for wanted in ('x', '4')], [4, 3])
        message = "a.tsv has the name 'en' for the columns 3 and 4; name columns by numbers from 1 in data.columns, or rename"
        with self.assertRaisesRegex(ValueError, message):
            table.column('en', 'data.columns')

    @parameterized.parameters(0, '0', '00', -1)
    def test_numbers_of_columns_begin_at_1(self, wanted):
        with self.assertRaisesRegex(ValueError, f'data.label names the column {wanted}, which is none; write .* from 1'):
            self.table('a.tsv', 'Go.\tVa !\n').column(wanted, 'data.label')


class QuotesTest(TablesCase):
    def test_in_tsv_are_text_unless_a_column_has_them_everywhere(self):
        self.assertEqual(self.cells('a.tsv', '"no" he said\t1\n"no"\t2\n'), [('"no" he said', '1'), ('"no"', '2')])
        self.assertEqual(self.cells('a.tsv', '"a"\t"x"\n"b ""c"""\t"y"\n"d"\t"x"\n'), [('a', 'x'), ('b "c"', 'y'), ('d', 'x')])
        self.assertEqual(self.cells('a.tsv', '"a"\t"x"\n"b"\t"y"\n', quotes='false'), [('"a"', '"x"'), ('"b"', '"y"')])
        self.assertEqual(self.cells('a.csv', '"a",x\n', quotes='false'), [('"a"', 'x')])


class NamesOfClassesTest(TablesCase):
    def test_in_the_card_of_a_data_set(self):
        (self.folder / 'README.md').write_text('''---
dataset_info:
  features:
  - name: text
    dtype: string
  - name: label
    dtype:
      class_label:
        names: {'1': positive, '0': negative}
---
# Reviews
''')
        self.assertEqual(self.table('data/a.csv', 'text,label\nno,0\n').classes, {'label': ['negative', 'positive']})
        for name in ('SOURCE', 'Source.txt', 'source.md', 'source_a.tsv', 'sources.csv'):
            (self.folder / name).write_text('a\n')
        self.assertEqual([file.name for file in data_files(str(self.folder))], ['data/a.csv', 'source_a.tsv', 'sources.csv'])

    def test_in_the_card_of_several_configurations(self):
        (self.folder / 'README.md').write_text('''---
dataset_info:
- config_name: a
  features:
  - {name: tokens, sequence: string}
  - {name: label, dtype: {class_label: {names: {'0': negative, '1': positive}}}}
- config_name: b
  features:
  - {name: tags, sequence: {class_label: {names: {'0': O, '1': B-PER}}}}
  - {name: marks, list: {class_label: {names: {'0': 'no', '1': 'yes'}}}}
  - {name: label, dtype: {class_label: {names: {'0': entailment, '1': contradiction}}}}
---
''')
        self.assertEqual(self.table('a/a.csv', 'text,label\nno,0\n').classes, {'label': ['negative', 'positive']})
        self.assertEqual(self.table('b/a.csv', 'text,label\nno,0\n').classes, {
            'tags': ['O', 'B-PER'], 'marks': ['no', 'yes'], 'label': ['entailment', 'contradiction']})
        self.assertEqual(self.table('data/a.csv', 'text,label\nno,0\n').classes, {})  # they differ

    @parameterized.parameters('no card', '---\n: [\n---\n', '---\ndataset_info: 3\n---\n',
                              '---\n' + '[' * 50_000 + '\n---\n', '---\n' + '- ' * 50_000 + '\n---\n')
    def test_a_card_without_them(self, card):
        (self.folder / 'README.md').write_text(card)
        self.assertEqual(self.table('a.csv', 'text,label\nno,0\n').classes, {})

    @parameterized.parameters('names', '<<')
    def test_a_card_that_grows_when_read_is_none(self, key):
        lists = ''.join(f'l{i}: &l{i} [{", ".join([f"*l{i - 1}"] * 9)}]\n' for i in range(1, 12))
        maps = ''.join(f'm{i}: &m{i} {{<<: [{", ".join([f"*m{i - 1}"] * 9)}]}}\n' for i in range(1, 12))
        (self.folder / 'README.md').write_text(
            f'---\nl0: &l0 [x]\nm0: &m0 {{a: 0}}\n{lists if key == "names" else maps}'
            "dataset_info: {features: [{name: label, dtype: {class_label: {names: {'0': "
            + ('*l11' if key == 'names' else '*m11') + "}}}}]}\n---\n")
        self.assertEqual(self.table('a.csv', 'text,label\nno,0\n').classes, {})

    def test_in_the_metadata_of_parquet(self):
        features = {'info': {'features': {
            'label': {'names': ['no', 'yes']}, 'text': {'dtype': 'string'}, 'both': [{'dtype': 'string'}],
            'tags': {'feature': {'names': ['O', 'B-PER'], '_type': 'ClassLabel'}, '_type': 'Sequence'}}}}
        table = pyarrow.table({'text': ['a'], 'label': [1]}).replace_schema_metadata({'huggingface': json.dumps(features)})
        parquet.write_table(table, self.folder / 'p')
        found = self.table('a.parquet', (self.folder / 'p').read_bytes())
        self.assertEqual((found.classes, next(found.rows())[1]),
                         ({'label': ['no', 'yes'], 'tags': ['O', 'B-PER']}, ('a', 1)))


if __name__ == '__main__':
    absltest.main()
