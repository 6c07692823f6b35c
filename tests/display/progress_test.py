"""display/progress.py: a line on a terminal, nothing elsewhere."""

import contextlib
import io
import sys
import time
from unittest import mock

from absl.testing import absltest, parameterized

from display import progress


class Terminal(io.StringIO):
    """A terminal, of which all that was ever written is kept."""

    def isatty(self):
        return True


class ProgressTest(parameterized.TestCase):
    def written(self, block, stream=None, patience=0.02):
        stream = Terminal() if stream is None else stream
        with (mock.patch.object(sys, 'stderr', stream), mock.patch.object(progress, 'PATIENCE', patience),
              mock.patch.object(progress, 'EVERY', 0.01), mock.patch.object(progress, 'shown', lambda stream: stream.isatty())):
            block()
        self.assertFalse(progress._open)
        return stream.getvalue()

    def until(self, shown):
        """Waits until the terminal has shown a text."""
        end = time.monotonic() + 20
        while shown not in sys.stderr.getvalue() and time.monotonic() < end:
            time.sleep(0.01)

    def test_a_long_wait_has_a_line_that_is_gone_at_the_end(self):
        def block():
            with progress.waiting('compiling'):
                self.until('compiling')

        found = self.written(block)
        self.assertRegex(found, r'compiling \.\. \d+ s')
        self.assertEqual(found.rpartition('\r')[0].rpartition('\r')[2].strip(), '')  # blanks over it, and back

    @parameterized.parameters((dict(patience=60.0),), (dict(stream=io.StringIO()),))
    def test_a_short_wait_and_a_log_have_none(self, options):
        def block():
            with progress.waiting('compiling'):
                time.sleep(0.1)

        self.assertEqual(self.written(block, **options), '')

    def test_things_are_counted(self):
        def block():
            found = []
            for number in progress.over(range(4), 'translating', 'sentences'):
                found.append(number)
                self.until(f'{number} of 4')
            self.assertEqual(found, [0, 1, 2, 3])

        self.assertRegex(self.written(block), r'translating \|#+ *\| 1 of 4 sentences, \d+ s left')

    def test_of_two_the_inner_one_is_shown_once_it_takes_long(self):
        def block():
            with progress.waiting('outer'):
                self.until('outer')
                with progress.waiting('inner', unit='lines') as advance:
                    advance(1200)
                    self.until('inner')

        self.assertRegex(self.written(block), r'(?s)outer \.\. \d+ s.*inner \.\. 1,200 lines, \d+ s')

    def test_an_error_ends_the_line(self):
        def block():
            with contextlib.suppress(KeyError), progress.waiting('failing'):
                self.until('failing')
                raise KeyError

        self.assertIn('failing', self.written(block))

    def test_where_lines_are_shown(self):
        self.assertFalse(progress.shown(io.StringIO()))
        self.assertFalse(progress.shown(Terminal()))  # which has no size


if __name__ == '__main__':
    absltest.main()
