"""Matplotlib figures of attention weights and of the importance of heads."""

import dataclasses
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from display import figures, fonts
from transformer.explain.maps import ALL_HEADS

FINEST = 0.11  # inches of a token whose label is shown, in a figure as wide as a README
LIGHT = 8  # colours go to this many times the weight of a key if all have the same, so that uniform weights look light
UNIFORM = 0.99  # the share of the highest entropy from which weights are called uniform
ENTROPY = 'the number above a panel is its mean entropy in nats'
EVEN = "'uniform' marks one within 1 % of the highest entropy possible, whose queries attend to all keys alike"
TITLE, LINE = 7.5, 0.13  # points of the title of a panel, inches of one of its lines, both times `figures.scale`
SIGNS = {' ': '␣', '\n': '↵', '\t': '⇥'}
_SEEN = '#4a90c4', '#ededed'  # colours of what a mask shows and hides


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
      down, across: the names of the axes.
      produced: whether the queries are tokens that the model has produced, not inputs; they are named in another colour.
      rollout: attention rollout [T, T] through the layers, which a page shows; None: there is none.
    """
    layers: dict
    found: list
    queries: list
    keys: list
    title: str = ''
    longest: int = 14
    steps: dict = dataclasses.field(default_factory=dict)
    down: str = 'query: the token that attends'
    across: str = 'key: the token that is attended to'
    produced: bool = False
    rollout: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """The number of rows of panels."""
        return len(self.layers) + 2 * len(self.steps)

    @property
    def columns(self) -> int:
        """The number of panels in a row."""
        return max(1, *(len(one['heads']) for one in self.found))


def attention(*sections: Maps, title: str = '') -> Any:
    """A figure of `Maps`, one below the other, with a row of panels for each layer (three if it has steps) and a panel for each
    head: queries down, keys across, darker for larger weights. `title` is by default what `counted` says of them."""
    width = max(4.8, *(_size(maps, 1.0)[0] for maps in sections))
    larger = figures.scale(width)
    sizes = [_size(maps, larger) for maps in sections]
    width = max(width, *(width for width, _ in sizes))
    figure, body = figures.new(width, sum(height for _, height in sizes))
    parts = body.subfigures(len(sections), 1, height_ratios=[height for _, height in sizes], squeeze=False)[:, 0]
    every = [1]
    for part, maps, (wide, _) in zip(parts, sections, sizes):
        one = part.subfigures(1, 2, width_ratios=[wide, width - wide])[0] if wide < width - 0.1 else part
        every.append(_panels(one, maps, larger))
    found = [one for maps in sections for one in maps.found]
    return figures.explain(figure, title or f'Attention weights of {counted(found)}', _caption(sections, found, max(every)))


def counted(found: Sequence[Mapping]) -> str:
    """'2 layers of 4 heads' for the entries of layers, 'attention layers' where a block has several. Layers of which all heads
    are shown together do not tell how many these are."""
    heads = sorted({len(one['heads']) for one in found if one['heads'] != [ALL_HEADS]})
    kind = 'attention layer' if any('/' in one['layer'] for one in found) else 'layer'
    layers = f'{len(found)} {kind}{"s" * (len(found) != 1)}'
    if not heads:
        return layers
    most = f'{heads[0]}' if len(heads) == 1 else f'{heads[0]} to {heads[-1]}'
    return f'{layers} of {most} head{"s" * (heads[-1] != 1)}'


def _caption(sections, found, every):
    sure, signed = all(one['entropy'] is not None for one in found), any(map(_signed, sections))
    share = 'the weight of a key' if sure else 'what a query takes of a key'
    said = [f'Each panel is {each(found)}, each row in it a query, and each colour {share} (see the bar; '
            f'{"linear" if signed else "square-root"} scale)']
    if sure:
        said.append(ENTROPY)
    said += even(found)
    if len(sections) > 1:
        said.append('each group of panels has a scale of its own')
    if any(maps.produced for maps in sections):
        said.append('orange rows are tokens that the model has produced, black rows are tokens that it was given')
    if any(maps.steps for maps in sections):
        said.append('scores have their range above them, and one scale for each layer')
    if every > 1:
        said.append(f'1 token in {every} is named')
    return '; '.join(said) + '.'


def each(found: Sequence[Mapping]) -> str:
    """What a panel shows, for a caption."""
    return 'a head, or all heads of a layer together' if any(ALL_HEADS in one['heads'] for one in found) else 'a head'


def even(found: Sequence[Mapping]) -> list[str]:
    """The clause of a caption on weights that are called uniform; [] if none are."""
    return [EVEN] * any(title.endswith('uniform') for one in found for title in titles(one))


def _sides(maps):
    """(height, width) of a panel, in inches."""
    columns, rows = maps.columns, maps.rows
    most = max(1.6, min(24 / columns, 24 / rows, 9))
    longest = max(len(maps.queries), len(maps.keys))
    side = min(max(1.4, 0.14 * longest), most)
    return tuple(max(0.4, side * count / longest) for count in (len(maps.queries), len(maps.keys)))


def _labels(tokens, side, longest, larger):
    """(labels of the tokens, the indices of those shown, the distance between these)."""
    every = math.ceil(FINEST * larger * len(tokens) / side)
    return printable(tokens, longest), np.arange(0, len(tokens), every), every


def _size(maps, larger):
    """(width, height) of a section, in inches."""
    (height, width), inches = _sides(maps), []
    for tokens, side in ((maps.queries, height), (maps.keys, width)):
        labels, shown, _ = _labels(tokens, side, maps.longest, larger)
        inches.append(0.065 * larger * max(len(labels[i]) for i in shown))
    return (maps.columns * (width + 0.12) + inches[0] + 0.9 + 1.1 * larger,
            maps.rows * (height + 0.1 + (0.03 + LINE * lines_of_titles(maps.found, width / larger)) * larger) + inches[1]
            + 0.65 * larger)


def _signed(maps):
    return any((weights < 0).any() for weights in maps.layers.values())


def _panels(figure, maps, larger):
    """Draws a section; returns the largest distance between the tokens that are named."""
    from matplotlib.colors import CenteredNorm, PowerNorm

    layers, columns, (height, width) = maps.layers, maps.columns, _sides(maps)
    down = _labels(maps.queries, height, maps.longest, larger)
    across = _labels(maps.keys, width, maps.longest, larger)
    signed, sure = _signed(maps), all(one['entropy'] is not None for one in maps.found)
    largest = max((float(np.abs(weights).max()) for weights in layers.values() if weights.size), default=1.0)
    most = max(largest, min(1.0, LIGHT / max(1, len(maps.keys))))
    norm = CenteredNorm(halfrange=largest) if signed else PowerNorm(0.5, vmin=0, vmax=most)
    what, between = 'weight' if sure else 'effective weight', '\n' if maps.steps else ' '  # a bar is as high as its panels
    style = dict(cmap=figures.DIVERGING if signed else figures.SEQUENTIAL, norm=norm)
    rows = []
    for one in maps.found:
        if one['layer'] in maps.steps:
            rows += _steps(one, *maps.steps[one['layer']])
        label = named(one) if one['layer'] not in maps.steps else f'softmax\n{named(one)}'
        rows.append(PanelRow(label, layers[one['layer']], titles(one, width / larger), style,
                             f'{what}{between}({"linear" if signed else "square-root"} scale)'))
    if maps.title:
        figure.suptitle(maps.title, fontsize=10 * larger)
    grid, shown = figure.subplots(maps.rows, columns, squeeze=False), []
    for line, row in zip(grid, rows):
        line[0].set_ylabel(row.label, fontsize=8.5 * larger)
        for axes in line:
            axes.set(xticks=[], yticks=[])
        images = [axes.imshow(panel, interpolation='nearest', **row.style) for axes, panel in zip(line, row.panels)]
        for axes, title in zip(line, row.titles):
            axes.set_title(title, fontsize=TITLE * larger, pad=3)
        for axes in line[len(row.titles):]:
            axes.spines[:].set_visible(False)
        if maps.steps and images:
            _bar(figure, images[0], list(line), row, larger, 0.9)
        shown += images
    colour = figures.COLOURS[1] if maps.produced else 'black'
    for axes in grid[:, 0]:
        _ticks(axes.yaxis, down, larger, rotation=0, color=colour)
    for column in range(columns):  # below the lowest panel of the column
        for axes in [line[column] for line, row in zip(grid, rows) if column < len(row.titles)][-1:]:
            _ticks(axes.xaxis, across, larger, rotation=90)
    if shown and not maps.steps:  # all of one scale
        _bar(figure, shown[-1], grid, rows[-1], larger, min(1.0, 2.4 * larger / (maps.rows * height)))
    figure.supylabel(maps.down, fontsize=9 * larger, color=colour)
    figure.supxlabel(maps.across, fontsize=9 * larger)
    return max(down[2], across[2])


@dataclasses.dataclass(frozen=True)
class PanelRow:
    """Panels [N, T, S] side by side, with a label on their left, a title for each, keywords of imshow, and the label of their
    colour bar; `kinds` names the two colours of a mask."""
    label: str
    panels: np.ndarray
    titles: list
    style: dict
    bar: str
    kinds: tuple = ()


def _steps(one, scores, mask):
    """The rows of a layer above its weights: the scores, with their range above each head, and the mask."""
    from matplotlib.colors import CenteredNorm

    largest = max(float(np.abs(scores[mask]).max(initial=0)), 1e-6)
    ranges = [f'{x.min():.2f} to {x.max():.2f}' for x in scores]
    layer = named(one).partition('\n')[0]
    return [PanelRow(f'{layer}\nscores', scores, ranges, dict(cmap=figures.DIVERGING, norm=CenteredNorm(halfrange=largest)),
                     'score (linear scale)'),
            PanelRow('mask', mask, [''] * len(mask), dict(cmap=_two_colours(), vmin=0, vmax=1), 'mask', ('hidden', 'visible'))]


def _two_colours():
    from matplotlib.colors import ListedColormap

    return ListedColormap(_SEEN[::-1])


def _bar(figure, image, axes, row, larger, shrink):
    bar = figure.colorbar(image, ax=axes, shrink=shrink, aspect=14, pad=0.02, ticks=[0.25, 0.75] if row.kinds else None)
    bar.set_label(row.bar, fontsize=8 * larger)
    bar.ax.tick_params(labelsize=7.5 * larger)
    if row.kinds:
        bar.ax.set_yticklabels(row.kinds)


def named(one: Mapping) -> str:
    """The label of a layer."""
    return layer(one['layer']) + (f'\nat most {one["highest_entropy"]:.2f} nats' if one['entropy'] else '')


def layer(path: str) -> str:
    """'layer 3' for the path of an attention in block_3, 'stage 1, layer 3' in stage_1/block_3."""
    stage = re.match('stage_(\\d+)/', path)
    return (f'stage {stage[1]}, ' if stage else '') + re.sub('.*block_(\\d+).*', r'layer \1', path)


def titles(one: Mapping, width: float = math.inf) -> list[str]:
    """The titles of the panels of a layer: the head, its entropy, and whether its weights are uniform; in lines of `width`, in
    inches of a figure that is not enlarged."""
    entropies = one['entropy'] or [None] * len(one['heads'])
    names = [f'head {head}' if isinstance(head, int) else head for head in one['heads']]
    even = lambda value: ', uniform' if value >= UNIFORM * one['highest_entropy'] > 0 else ''
    most = int(min(1000, max(8, width / (0.6 * TITLE / 72))))  # characters
    return [textwrap.fill(name + ('' if value is None else f'  {value:.2f}{even(value)}'), most)
            for name, value in zip(names, entropies)]


def lines_of_titles(found: Sequence[Mapping], width: float) -> int:
    """How many lines the titles need at most; arguments as of `titles`."""
    return max((title.count('\n') + 1 for one in found for title in titles(one, width)), default=1)


def _ticks(axis, names, larger, **style):
    labels, shown, _ = names
    figures.name_ticks(axis, shown, [labels[i] for i in shown], fonts.MONO, fontsize=7 * larger, **style)


def printable(tokens: Sequence[str], longest: int = 14) -> list[str]:
    """Tokens as labels: white space becomes a sign, and characters that no font has their code point."""
    texts = [fonts.readable(''.join(SIGNS.get(one, one) for one in token), fonts.MONO) for token in tokens]
    return [text if len(text) <= longest else f'{text[:longest - 1]}…' for text in texts]


def importance(scores: np.ndarray, heads: int, curve: Sequence, *, layers: Sequence[str], metric: str,
               best: int | None = None, of: str = '') -> Any:
    """A figure of the importance of each head, and of a metric against the number of heads left.

    Args:
      scores: [layers, N], nan for absent heads.
      heads: the number of heads.
      curve: [(heads left, metric)], from all to none.
      layers: the names of the layers.
      metric: its name.
      best: the number of heads that a pruned run keeps, marked if not None.
      of: what the title says of the run.
    """
    from matplotlib.ticker import MaxNLocator

    count, width = scores.shape
    side = 0.5
    figure, body = figures.new(5.2 + max(2.9, side * width + 1.7), max(3.4, side * count + 1.3))
    left, right = body.subplots(1, 2, width_ratios=[max(2.2, side * width + 1.0), 4.8])
    image = left.imshow(scores, cmap=figures.SEQUENTIAL, vmin=0, interpolation='nearest')
    left.set(xlabel='head', ylabel='layer', xticks=range(width))
    left.set_title('importance of each head', fontsize=10)
    top = np.nanmax(scores)
    for (layer, head), score in np.ndenumerate(scores):
        if np.isnan(score):
            left.text(head, layer, '–', ha='center', va='center', color='gray', fontsize=8)
        else:
            left.text(head, layer, f'{score:.2f}', ha='center', va='center', fontsize=7,
                      color='white' if score > 0.6 * top else 'black')
    figures.bar(body, image, left, 'importance', shrink=0.8)
    left.tick_params(labelsize=8)
    figures.name_ticks(left.yaxis, range(count), [name.removeprefix('block_') for name in layers], fontsize=8)
    right.plot(*zip(*curve), marker='o', markersize=4, linewidth=1.6, color=figures.COLOURS[0], label=metric)
    if best is not None:
        right.axvline(best, color=figures.COLOURS[1], linestyle='--', linewidth=1.2, label=f'the pruned run keeps {best}')
    right.legend(frameon=False, fontsize=9)
    right.set(xlabel='heads left, least important pruned first', ylabel=metric, xlim=(heads * 1.02, -heads * 0.02))
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_title(f'{metric} with fewer heads', fontsize=10)
    right.grid(alpha=0.3)
    right.spines[['top', 'right']].set_visible(False)
    return figures.explain(
        figure, f'Which of the {heads} heads matter{of and ": "}{of}',
        'Left, how much the loss changes with the output of each head, scaled to '
        f'a vector of length 1 in each layer (–: pruned before); right, the {metric} of the same parameters with the least '
        'important heads switched off.')
