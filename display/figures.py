"""Figures that explain themselves: a title, a caption of one sentence, and text in fonts that have its characters.

    figure, body = figures.new(7.0, 4.2)
    axes = body.subplots()
    axes.plot(..)
    figures.explain(figure, 'Loss over the steps', 'The loss of each split against the optimizer steps.')

The figures are matplotlib's, without pyplot, which would keep global state and look for a display. All panels and legends
lie in the body, so that they leave room for the title above it and the caption below.
"""

import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Any

from display import fonts

# Okabe and Ito's colours, which colour-blind readers can tell apart, without the yellow, which is too pale on white.
COLOURS = '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000'
SEQUENTIAL, DIVERGING = 'Blues', 'RdBu_r'  # maps that colour-blind readers can read
README = 9.0  # inches at 100 dots: a wider figure is shown smaller, so its text is made larger
_CAPTION = 9.5  # points
_WIDE, _BOLD, _LINE = 0.55, 0.68, 1.3  # of a character, a bold one and a line, in units of the size of the text


def new(width: float, height: float, dpi: int = 100) -> tuple[Any, Any]:
    """An empty figure, and its body of `width` x `height` inches, a matplotlib SubFigure, whose panels are laid out by
    themselves."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # matplotlib is slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout='constrained', facecolor='white')
    FigureCanvasAgg(figure)
    return figure, figure.subfigures()


def scale(width: float) -> float:
    """The factor by which the text of a figure of this width, in inches, is enlarged to be readable in a README."""
    return min(2.0, max(1.0, width / README))


def explain(figure: Any, title: str, caption: str) -> Any:
    """Writes a title above a figure and a caption below it, both wrapped, and returns the figure, which becomes taller by them.
    Every text gets fonts that have its characters, so this comes last."""
    width, height = figure.get_size_inches()
    small = _CAPTION * scale(width)
    large = 1.25 * small
    above, below = wrapped(title, width - 0.3, large * _BOLD), wrapped(caption, width - 0.3, small * _WIDE)
    figure.set_size_inches(width, height + (_LINE * (large * len(above) + small * len(below))) / 72 + 0.15)
    figure.suptitle('\n'.join(above), fontsize=large, fontweight='bold')
    figure.supxlabel('\n'.join(below), fontsize=small, multialignment='left')
    dress(figure)
    return figure


def caption_of(figure: Any) -> str:
    """The caption of a figure, without its line breaks; '' if it has none."""
    return figure.get_supxlabel().replace('\n', ' ')


def wrapped(text: str, width: float, wide: float) -> list[str]:
    """The lines of a text that fit into `width` inches if a character is `wide` points, or twice that for wide scripts."""
    text = fonts.readable(text)
    wide *= 2 if any(unicodedata.east_asian_width(character) in 'WF' for character in text) else 1
    return textwrap.wrap(text, max(20, int(72 * width / wide))) or ['']


def dress(figure: Any) -> None:
    """Gives every text of a figure fonts that have its characters; what no font has becomes its code point. No text is read as
    mathematics but the numbers at an axis, and the texts of `name_ticks` stay as they are."""
    from matplotlib.axis import Axis
    from matplotlib.text import Text

    ticks = {id(label) for axis in figure.findobj(Axis) for label in _labels(axis)}
    for text in figure.findobj(Text):
        if text.get_text() and id(text) not in ticks:
            base = fonts.MONO if text.get_fontfamily()[0] == fonts.MONO else fonts.SANS
            text.set_text(fonts.readable(text.get_text(), base))
            text.set_fontfamily(fonts.families([text.get_text()], base))
            text.set_parse_math(False)


def name_ticks(axis: Any, places: Sequence, names: Sequence[str], base: str = fonts.SANS, **style: Any) -> None:
    """Names places on an axis (`axes.xaxis`) by texts, in fonts that have their characters; `style` is matplotlib's."""
    names = [fonts.readable(name, base) for name in names]
    axis.set_ticks(places, names, family=fonts.families(names, base), **style)
    for label in _labels(axis):
        label.set_parse_math(False)


def logarithmic(axis: Any) -> None:
    """A logarithmic scale with numbers at 1, 2 and 5 of each decade, which do not touch."""
    from matplotlib.ticker import LogLocator

    axis.axes.set(**{f'{axis.axis_name}scale': 'log'})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter('{x:g}')
    axis.set_minor_formatter('')


def bar(body: Any, image: Any, axes: Any, label: str, **style: Any) -> Any:
    """A colour bar beside `axes` for what `image` shows, with its label."""
    made = body.colorbar(image, ax=axes, label=label, **style)
    made.ax.tick_params(labelsize=8)
    return made


def _labels(axis):
    return [label for tick in (*axis.majorTicks, *axis.minorTicks) for label in (tick.label1, tick.label2)]
