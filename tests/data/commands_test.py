"""Mistakes on the command lines of `python -m data.NAME`."""

import os
import sys
from unittest import mock

from absl.testing import absltest, parameterized

from data import cache, commands


class ParserTest(parameterized.TestCase):
    @parameterized.parameters(
        (['--count=many'], "argument --count: invalid int value: 'many'; see --help."),
        (['--cou=3'], 'unrecognized arguments: --cou=3; see --help.'),
        (['--other=3'], 'unrecognized arguments: --other=3; see --help.'))
    def test_a_mistake_is_a_sentence(self, arguments, message):
        parser = commands.Parser('data.some', 'Counts.')
        parser.add_argument('--count', type=int, default=0)
        self.assertEqual(parser.parse_args(['--count=3']).count, 3)
        with self.assertRaises(ValueError) as caught:
            parser.parse_args(arguments)
        self.assertEqual(str(caught.exception), message)

    def test_help_has_the_documentation_as_it_is(self):
        self.assertIn('python -m data.some', commands.Parser('data.some', 'One.\n\n    two').format_help())
        self.assertIn('One.\n\n    two', commands.Parser('data.some', 'One.\n\n    two').format_help())


class RunTest(parameterized.TestCase):
    def ended(self, error, shown=str):
        """The code with which a command ends that raises an error."""
        def main():
            raise error

        with mock.patch.object(sys, 'argv', ['/folder/some.py']), self.assertRaises(SystemExit) as end:
            commands.run(main, shown)
        return end.exception.code

    @parameterized.parameters(ValueError, OSError)
    def test_errors_of_a_user_are_one_sentence(self, kind):
        self.assertEqual(self.ended(kind('data.path is empty.')), 'some.py: data.path is empty.')
        self.assertEqual(self.ended(kind('data.path is empty.'), lambda text: text.replace('data.path', '--path')),
                         'some.py: --path is empty.')

    def test_copies_of_objects_have_their_names(self):
        copy = cache.root() / 'remote' / ('0' * 32) / 'bucket' / 'a.txt'
        self.assertEqual(self.ended(ValueError(f'{copy} is empty.')), 'some.py: gs://bucket/a.txt is empty.')

    def test_an_interrupt_has_the_code_of_its_signal(self):
        self.assertEqual(self.ended(KeyboardInterrupt()), 130)

    def test_other_errors_and_those_that_are_asked_for_keep_their_traceback(self):
        def main():
            raise ValueError('wrong')

        with self.assertRaises(KeyError):
            commands.run(lambda: {}['key'])
        with mock.patch.dict(os.environ, HEED_TRACEBACK='1'), self.assertRaisesRegex(ValueError, 'wrong'):
            commands.run(main)


if __name__ == '__main__':
    absltest.main()
