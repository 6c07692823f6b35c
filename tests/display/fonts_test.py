"""display/fonts.py: a font for every character, or its code point."""

import io
import warnings
from unittest import mock

from absl.testing import absltest
from matplotlib import font_manager

from display import figures, fonts

PRIVATE = '\ue0ff'  # which no font has


def characters(name):
    return fonts._characters(font_manager.findfont(name))


class FontsTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        lacks = characters('STIXGeneral') - characters(fonts.SANS)  # both come with matplotlib
        self.other = next(one for one in map(chr, sorted(lacks)) if one.isprintable() and not '\ue000' <= one <= '\uf8ff')

    def test_a_font_that_has_the_character_is_found(self):
        self.assertEqual(fonts.font_of('a'), fonts.SANS)
        self.assertIn(ord(self.other), characters(fonts.font_of(self.other)))
        self.assertEqual(fonts.families(['a', 'b']), [fonts.SANS])
        self.assertEqual(fonts.families(['a', self.other]), [fonts.SANS, fonts.font_of(self.other)])
        self.assertEqual(fonts.readable(f'a{self.other}'), f'a{self.other}')

    def test_what_no_font_has_becomes_its_code_point(self):
        self.assertEqual(fonts.readable(f'a{PRIVATE}{PRIVATE}b\n\x07'), 'aU+E0FF U+E0FFb\nU+0007')
        with mock.patch.object(fonts, '_installed', lambda: []):
            fonts.font_of.cache_clear()
            self.addCleanup(fonts.font_of.cache_clear)
            self.assertEqual(fonts.readable('\u4e2d\u6587'), 'U+4E2D U+6587')

    def test_no_empty_box_and_no_warning_is_drawn(self):
        figure, body = figures.new(4, 3)
        axes = body.subplots()
        axes.plot([1, 2], label=f'\u4e2d{self.other} $x$')
        axes.set_title(PRIVATE)
        axes.legend()
        figures.name_ticks(axes.xaxis, [0, 1], ['\u6587', f'{PRIVATE}$'], fontsize=8)
        figures.explain(figure, f'title {self.other}', f'caption {PRIVATE}')
        with warnings.catch_warnings():
            warnings.simplefilter('error')
            figure.savefig(io.BytesIO(), format='png')
        self.assertEqual(axes.get_title(), 'U+E0FF')
        self.assertEqual([label.get_text() for label in axes.get_xticklabels()][1], 'U+E0FF$')


if __name__ == '__main__':
    absltest.main()
