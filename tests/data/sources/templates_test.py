import ast
import json
from unittest import mock

from absl.testing import absltest, parameterized

from data.sources import files as sources
from data.sources import templates
from data.sources.templates import Template


class TemplateTest(parameterized.TestCase):
    def pairs(self, text, template, name='t.tsv', **fields):
        (self.folder / name).write_text(text)
        given = dict(header='auto', quotes='auto', field='data.path')
        return list(templates.tables(str(self.folder / name), template, **given | fields)('all'))

    def test_columns_by_name_and_by_number(self):
        text = 'label\tsentence\n0\ta dull film\n1\ta {joy}\n'
        words = ('negative', 'positive')
        wanted = [('sst2: a dull film', 'negative'), ('sst2: a {joy}', 'positive')]
        self.assertEqual(self.pairs(text, Template('sst2: {sentence}', '{label}', words)), wanted)
        self.assertEqual(self.pairs(text, Template('sst2: {2}', '{1}', words)), wanted)
        rows = ''.join(json.dumps({'sentence': s[6:], 'label': w}) + '\n' for s, w in wanted)  # words stay
        self.assertEqual(self.pairs(rows, Template('sst2: {sentence}', '{label}', words), 't.jsonl'), wanted)

    def test_several_columns_with_strange_names(self):
        template = Template('a: {#1 String} b: {#2 String}', '{Quality}')
        found = self.pairs('Quality\t#1 String\t#2 String\n1\tone\ttwo\n', template, header='true')
        self.assertEqual(found, [('a: one b: two', '1')])

    @parameterized.parameters(('3.8', '3.8'), ('2.57', '2.6'), ('0', '0.0'), ('5.000', '5.0'), ('4.7', '4.8'), ('4.9', '4.8'),
                              ('-0.05', '0.0'), ('-0', '0.0'), ('-0.3', '-0.4'))
    def test_numbers_are_rounded(self, given, wanted):
        """T5's code: '%.1f' of round(5 x) / 5, of halves to the even side."""
        self.assertEqual(Template('{a}', '{b}', step=0.2).pair('', {'a': 'x', 'b': given}), ('x', wanted))

    def test_refuses(self):
        for make, message in (
                (lambda: Template('a', '{b}'), "'a' names no column; write one in braces"),
                (lambda: Template('{a', '{b}'), "'{a' cannot be read"),
                (lambda: Template('{a}', '{b}', ('x',), 0.2), 'and not both'),
                (lambda: self.pairs('a\tb\nx\t7\n', Template('{a}', '{b}', ('u', 'v')), header='true'),
                 "t.tsv:2 has '7', for which there is no word: 0 to 1 are u, v"),
                (lambda: self.pairs('a\tb\nx\ty\n', Template('{a}', '{b}', step=0.2), header='true'),
                 "t.tsv:2 has 'y' where a number is rounded to 0.2"),
                *((lambda cell=cell: self.pairs(f'a\tb\nx\t{cell}\n', Template('{a}', '{b}', step=0.2), header='true'),
                   f"t.tsv:2 has '{cell}' where a number is rounded to 0.2") for cell in ('nan', '-inf')),
                (lambda: self.pairs('a\tb\nx\ty\n', Template('{c}', '{b}'), header='true'),
                 "names the column 'c', which .* does not have; its columns are 'a', 'b'"),
                (lambda: self.pairs('a\ta\tb\nx\ty\tz\n', Template('{a}', '{b}'), header='true'),
                 "the name 'a' for the columns 1 and 2; name columns by numbers from 1 in a template, or rename one"),
                (lambda: self.pairs('{"a": "x", "b": {"text": "y"}}', Template('{a}', '{b}'), 't.jsonl'),
                 "t.jsonl:1 has an object, {'text': 'y'}, where a text is .*, or name another column with the template"),
                (lambda: templates.docstrings(Template('{code}', '{name}'))('valid'), "names no part of the standard library"),
                (lambda: next(iter(templates.docstrings(Template('{code}', '{nothing}'))('all'))), "have no 'nothing'")):
            with self.assertRaisesRegex(ValueError, message):
                make()


class DocstringsTest(absltest.TestCase):
    def test_functions_of_the_standard_library(self):
        found = templates.docstrings(Template('{name}: {code}', '{summary}'))('all')
        (code, said), = [pair for pair in found if pair[0].startswith('commonprefix: ')]
        self.assertEqual(said, 'Given a list of pathnames, returns the longest common leading component')
        self.assertStartsWith(code, 'commonprefix: def commonprefix(m):\n    if not m:')  # its docstring is gone
        self.assertGreater(found.size, 1000)
        shorter = templates.docstrings(Template('{rest}', '{summary}'))('train')  # many have one sentence
        self.assertBetween(shorter.size, 300, found.size - 300)

    def test_no_docstring_is_left_in_the_code(self):
        for code, _ in templates.docstrings(Template('{code}', '{summary}'))('all'):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    self.assertIsNone(ast.get_docstring(node), code)

    def test_functions_in_functions(self):
        path = self.create_tempfile('m.py', '''
def outer():
    """Return the inner function."""
    def inner():
        """Return the number one."""
        return 1
    class Empty:
        """A class without methods."""
    return inner
''').full_path
        with mock.patch.object(sources, 'stdlib', lambda: sources.files(path)):
            found = list(templates.docstrings(Template('{code}', '{summary}'))('all'))
        self.assertEqual(found, [
            ('def outer():\n\n    def inner():\n        return 1\n\n    class Empty:\n        pass\n    return inner',
             'Return the inner function.'),
            ('def inner():\n    return 1', 'Return the number one.')])

    def test_first_sentences(self):
        for text, wanted in (('One. Two.', ('One.', 'Two.')), ('One\n  line. Two\n\nMore', ('One line.', 'Two More')),
                             ('No end\n\nNext', ('No end', 'Next')),
                             ('Version 1.5 is here! Yes', ('Version 1.5 is here!', 'Yes')),
                             ('Return e.g. the x. More.', ('Return e.g. the x.', 'More.')),
                             ('A list (i.e. Python\'s), etc. of x? No', ("A list (i.e. Python's), etc. of x?", 'No')),
                             ('Lists, sets, etc.\n\nMore', ('Lists, sets, etc.', 'More')),
                             ('Compute the total. More', ('Compute the total.', 'More'))):
            self.assertEqual(templates.first_sentence(text), wanted)


if __name__ == '__main__':
    absltest.main()
