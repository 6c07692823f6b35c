"""Characters in pictures: the installed fonts that have them, and the code point where none has.

Matplotlib draws a character that its font lacks as an empty box, with a warning. `families` names the fonts of a text in the
order in which they are tried; `readable` replaces what no font has: '中' becomes 'U+4E2D'.
"""

import functools
from collections.abc import Iterable

SANS, MONO = 'DejaVu Sans', 'DejaVu Sans Mono'  # matplotlib brings both along
# Parts of the names of fonts that are tried before all others, of which some machines have many.
_FIRST = ('noto sans', 'source han', 'wenquanyi', 'droid', 'pingfang', 'hiragino', 'heiti', 'yahei', 'simhei', 'gothic',
          'arial', 'dejavu', 'noto')
_EMPTY = 'last resort', 'lastresort', 'blank', 'color emoji'  # fonts without shapes that can be drawn


def readable(text: str, base: str = SANS) -> str:
    """A text with the code point, such as U+4E2D, for each character that neither `base` nor an installed font has. Line ends
    stay."""
    shown, coded = '', False
    for one in text:
        known = one == '\n' or font_of(one, base) is not None
        shown += one if known else f'{" " * coded}U+{ord(one):04X}'
        coded = not known
    return shown


def families(texts: Iterable[str], base: str = SANS) -> list[str]:
    """The names of the fonts for texts, for the `family` of matplotlib: `base`, and those for the characters that it lacks."""
    characters = dict.fromkeys(character for text in texts for character in text)
    return list(dict.fromkeys([base, *filter(None, (font_of(one, base) for one in characters if one != '\n'))]))


@functools.lru_cache(maxsize=1 << 16)
def font_of(character: str, base: str = SANS) -> str | None:
    """The name of a font that has a character, `base` if that is one; None if there is none or nothing to see."""
    if not character.isprintable():
        return None
    if ord(character) in _characters(_path(base)):
        return base
    return next((name for path, name in _installed() if ord(character) in _characters(path)), None)


def _path(name):
    from matplotlib import font_manager  # slow to import

    return font_manager.findfont(name)


@functools.cache
def _installed():
    """[(file, name)] of the upright fonts of this machine, likely ones first, each in its most regular weight."""
    from matplotlib import font_manager

    def place(font):
        name, weight = font.name.lower(), font_manager.weight_dict.get(font.weight, font.weight)
        return next((i for i, part in enumerate(_FIRST) if part in name), len(_FIRST)), name, abs(weight - 400)

    found = {}
    for font in sorted((font for font in font_manager.fontManager.ttflist if font.style == 'normal'), key=place):
        if not any(part in font.name.lower() for part in _EMPTY):
            found.setdefault(font.name, font.fname)
    return [(path, name) for name, path in found.items()]


@functools.lru_cache(maxsize=1 << 10)
def _characters(path):
    """The code points of a font file; none of one that cannot be read or only has pictures of one size."""
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError, ValueError):
        return frozenset()
