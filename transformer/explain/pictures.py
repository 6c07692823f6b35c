"""Matplotlib figures of attention weights and of the importance of heads."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

FINEST = 0.11  # inches of a token whose label is shown
_SIGNS = {' ': '␣', '\n': '↵', '\t': '⇥'}


@dataclasses.dataclass(frozen=True)
class Maps:
    """The attention weights of one kind of attention.

    Attributes:
      layers: {name: weights [N, T, S]}.
      found: the entries of `explain.maps.read` for them.
      queries, keys: the tokens at the positions, as text.
      title: the kind of attention.
      longest: the maximal number of characters of a label.
      steps: {name: (scores, mask), each [N, T, S]} of the layers that are drawn in three rows: scores, mask, weights.
    """
    layers: dict
    found: list
    queries: list
    keys: list
    title: str = ''
    longest: int = 14
    steps: dict = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows of panels."""
        return len(self.layers) + 2 * len(self.steps)


def attention(*sections: Maps) -> Any:
    """A figure of `Maps`, one below the other, with a row of panels for each layer (three if it has steps) and a panel for each
    head: queries down, keys across, darker for larger weights."""
    from matplotlib.figure import Figure  # matplotlib is slow to import

    sizes = [_size(maps) for maps in sections]
    figure = Figure(figsize=(max(width for width, _ in sizes), sum(height for _, height in sizes)), dpi=100,
                    layout='constrained')
    if len(sections) == 1:
        _panels(figure, sections[0])
        return figure
    parts = figure.subfigures(len(sections), 1, height_ratios=[height for _, height in sizes], squeeze=False)[:, 0]
    for part, maps, (width, _) in zip(parts, sections, sizes):
        one = part.subfigures(1, 2, width_ratios=[width, figure.get_figwidth() - width])[0] if width < (
            figure.get_figwidth() - 0.1) else part
        _panels(one, maps)
    return figure


def _sides(maps):
    """(height, width) of a panel, in inches."""
    columns, rows = _columns(maps), maps.rows
    most = max(1.6, min(24 / columns, 24 / rows, 9))
    longest = max(len(maps.queries), len(maps.keys))
    side = min(max(1.4, 0.14 * longest), most)
    return tuple(max(0.4, side * count / longest) for count in (len(maps.queries), len(maps.keys)))


def _columns(maps):
    return max(1, *(len(one['heads']) for one in maps.found))


def _labels(tokens, side, longest):
    """(labels of the tokens, the indices of those shown, the distance between these)."""
    every = math.ceil(FINEST * len(tokens) / side)
    return printable(tokens, longest), np.arange(0, len(tokens), every), every


def _size(maps):
    """(width, height) of a section, in inches."""
    (height, width), inches = _sides(maps), []
    for tokens, side in ((maps.queries, height), (maps.keys, width)):
        labels, shown, _ = _labels(tokens, side, maps.longest)
        inches.append(0.075 * max(len(labels[i]) for i in shown))
    return (max(_columns(maps) * (width + 0.12) + inches[0] + 1.5, 4.2),
            maps.rows * (height + 0.35) + inches[1] + 1.1)


def _panels(figure, maps):
    from matplotlib.colors import CenteredNorm, PowerNorm

    layers, columns, (height, width) = maps.layers, _columns(maps), _sides(maps)
    down, across = _labels(maps.queries, height, maps.longest), _labels(maps.keys, width, maps.longest)
    signed = any((weights < 0).any() for weights in layers.values())
    largest = max((float(np.abs(weights).max()) for weights in layers.values() if weights.size), default=1.0)
    grid = figure.subplots(maps.rows, columns, squeeze=False)
    norm = CenteredNorm(halfrange=largest) if signed else PowerNorm(0.5, vmin=0, vmax=largest)
    image, rows = None, []
    for one in maps.found:
        if one['layer'] in maps.steps:
            rows += _steps(one, *maps.steps[one['layer']])
        label = named(one) if one['layer'] not in maps.steps else f'softmax\n{named(one)}'
        rows.append(PanelRow(label, layers[one['layer']], titles(one), dict(cmap='RdBu_r' if signed else 'Blues', norm=norm)))
    for line, row in zip(grid, rows):
        line[0].set_ylabel(row.label, fontsize=9)
        for axes in line:
            axes.set(xticks=[], yticks=[])
        for axes, panel, title in zip(line, row.panels, row.titles):
            image = axes.imshow(panel, interpolation='nearest', **row.style)
            axes.set_title(title, fontsize=8, pad=3)
        for axes in line[len(row.titles):]:
            axes.spines[:].set_visible(False)
    for axes in grid[:, 0]:
        _ticks(axes.set_yticks, down, rotation=0)
    for column in range(columns):  # below the lowest panel of the column
        for axes in [line[column] for line, row in zip(grid, rows) if column < len(row.titles)][-1:]:
            _ticks(axes.set_xticks, across, rotation=90)
    if image is not None:  # the last one shows weights
        bar = figure.colorbar(image, ax=grid, shrink=min(1.0, 2.2 / (maps.rows * height)), aspect=14, pad=0.02)
        bar.ax.tick_params(labelsize=8)
    sure, every = all(one['entropy'] is not None for one in maps.found), max(down[2], across[2])
    what = 'weight of each key (across) for each query (down)' if sure else 'what each query (down) takes of each key (across)'
    head(figure, [*([maps.title] if maps.title else []), what, *(['above each head its entropy in nats'] if sure else []),
                  *(['scores: red above 0, blue below; mask: white is seen'] if maps.steps else []),
                  *([f'1 token in {every} is named'] if every > 1 else [])], _size(maps)[0])


@dataclasses.dataclass(frozen=True)
class PanelRow:
    """Panels [N, T, S] side by side, with a label on their left, a title for each, and keywords of imshow."""
    label: str
    panels: np.ndarray
    titles: list
    style: dict


def _steps(one, scores, mask):
    """The rows of a layer above its weights: the scores, with their range above each head, and the mask."""
    from matplotlib.colors import CenteredNorm

    largest = max(float(np.abs(scores[mask]).max(initial=0)), 1e-6)
    ranges = [f'{x.min():.2f} to {x.max():.2f}' for x in scores]
    layer = named(one).partition('\n')[0]
    return [PanelRow(f'{layer}\nscores', scores, ranges, dict(cmap='RdBu_r', norm=CenteredNorm(halfrange=largest))),
            PanelRow('mask', mask, [''] * len(mask), dict(cmap='gray', vmin=0, vmax=1))]


def head(figure: Any, sentences: Sequence[str], width: float | None = None) -> None:
    """A title over all panels, scaled to the figure (or to `width` inches), with a line for each sentence if that is narrow."""
    width = width or figure.get_figwidth()
    size = min(18, max(9, 0.6 * width))
    figure.suptitle(('; ' if width > 0.008 * size * len('; '.join(sentences)) else '\n').join(sentences), fontsize=size)


def named(one: Mapping) -> str:
    """The label of a layer."""
    most = '' if one['entropy'] is None else f'\nat most {one["highest_entropy"]:.2f} nats'
    return re.sub('.*block_(\\d+).*', r'layer \1', one['layer']) + most


def titles(one: Mapping) -> list[str]:
    """The titles of the panels of a layer."""
    entropies = one['entropy'] or [None] * len(one['heads'])
    names = [f'head {head}' if isinstance(head, int) else head for head in one['heads']]
    return [name + ('' if value is None else f'  {value:.2f}') for name, value in zip(names, entropies)]


def _ticks(place, names, rotation):
    labels, shown, _ = names
    for text in place(shown, [labels[i] for i in shown], fontsize=7, rotation=rotation, family='monospace'):
        for label in (text.label1, text.label2):
            label.set_parse_math(False)


def printable(tokens: Sequence[str], longest: int = 14) -> list[str]:
    """Tokens as labels: white space becomes a sign, and characters that the font lacks their code."""
    from matplotlib import font_manager

    known = font_manager.get_font(font_manager.findfont('DejaVu Sans Mono')).get_charmap()

    def one(character):
        if character in _SIGNS:
            return _SIGNS[character]
        if character.isprintable() and ord(character) in known:
            return character
        return f'\\x{ord(character):02x}' if ord(character) < 256 else f'\\u{ord(character):04x}'

    texts = [''.join(map(one, token)) for token in tokens]
    return [text if len(text) <= longest else f'{text[:longest - 1]}…' for text in texts]


def importance(scores: np.ndarray, heads: int, curve: Sequence, *, layers: Sequence[str], metric: str,
               best: int | None = None) -> Any:
    """A figure of the importance of each head, and of a metric against the number of heads left.

    Args:
      scores: [layers, N], nan for absent heads.
      heads: the number of heads.
      curve: [(heads left, metric)], from all to none.
      layers: the names of the layers.
      metric: its name.
      best: the number of heads that a pruned run keeps, marked if not None.
    """
    from matplotlib.figure import Figure

    count, width = scores.shape
    side = 0.5
    figure = Figure(figsize=(5.2 + max(2.6, side * width + 1.4), max(3.4, side * count + 1.3)), dpi=100, layout='constrained')
    left, right = figure.subplots(1, 2, width_ratios=[max(2.2, side * width + 1.0), 4.8])
    image = left.imshow(scores, cmap='Blues', vmin=0, interpolation='nearest')
    left.set(xlabel='head', ylabel='layer', xticks=range(width), yticks=range(count))
    left.set_yticklabels([name.removeprefix('block_') for name in layers])
    left.set_title('importance, scaled to length 1 in each layer', fontsize=9)
    top = np.nanmax(scores)
    for (layer, head), score in np.ndenumerate(scores):
        if np.isnan(score):
            left.text(head, layer, '–', ha='center', va='center', color='gray', fontsize=8)
        else:
            left.text(head, layer, f'{score:.2f}', ha='center', va='center', fontsize=7,
                      color='white' if score > 0.6 * top else 'black')
    figure.colorbar(image, ax=left, shrink=0.8).ax.tick_params(labelsize=8)
    left.tick_params(labelsize=8)
    right.plot(*zip(*curve), marker='o', markersize=4, linewidth=1.6)
    if best is not None:
        right.axvline(best, color='tab:orange', linestyle='--', linewidth=1.2, label=f'the pruned run keeps {best}')
        right.legend(frameon=False, fontsize=9)
    right.set(xlabel='heads left, least important pruned first', ylabel=metric, xlim=(heads * 1.02, -heads * 0.02))
    right.grid(alpha=0.3)
    right.spines[['top', 'right']].set_visible(False)
    return figure
