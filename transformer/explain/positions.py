"""Pictures of position encodings: the heat map of the sinusoids, and the similarity of learnt positions."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from display import figures
from transformer.attention.positions.base import Positions

TITLE, SCALE = 'Similarity of learnt positions', 'cosine similarity (linear scale)'


def sinusoids(length: int = 128, width: int = 128) -> Any:
    """A matplotlib figure of P [length, width] of `positions.sinusoid`: a row for each position, a column for each feature."""
    from transformer.attention.positions.absolute import sinusoid

    figure, body = figures.new(7.0, 4.8)
    axes = body.subplots()
    image = axes.imshow(np.asarray(sinusoid(np.arange(length), width)), cmap=figures.DIVERGING, vmin=-1, vmax=1, aspect='auto',
                        interpolation='nearest')
    axes.set(xlabel='feature', ylabel='position t')
    figures.bar(body, image, axes, 'value (linear scale)')
    return figures.explain(figure, f'Sinusoidal positions of width {width}', 'Row t is the encoding of position t: feature 2i '
                           f'is sin(t / 10000^(2i/{width})), feature 2i + 1 the cosine of the same angle.')


def similarities(table: np.ndarray | jax.Array) -> np.ndarray:
    """cos(P_t, P_s) [T, T] for the rows of a table [T, D]; 0 for a row of zeros."""
    table = np.asarray(table, np.float64)
    norms = np.linalg.norm(table, axis=-1, keepdims=True)
    unit = table / np.where(norms > 0, norms, 1.0)
    return unit @ unit.T


def similarity(table: np.ndarray | jax.Array, grid: tuple | None = None) -> Any:
    """A matplotlib figure of the similarity of learnt positions, such as `params['positions']['embedding']` of a run.

    Args:
      table: [T, D].
      grid: (rows, columns) of the patches of an image, the last of the T positions: then a panel for each patch shows its
        similarity to all of them on the grid (Dosovitskiy et al. 2021, figure 7); None: one panel for all pairs.
    """
    if grid is None:
        figure, body = figures.new(5.8, 4.4)
        axes = body.subplots()
        image = axes.imshow(similarities(table), cmap=figures.DIVERGING, vmin=-1, vmax=1, interpolation='nearest')
        axes.set(xlabel='position', ylabel='position')
        figures.bar(body, image, axes, SCALE)
        return figures.explain(figure, TITLE, 'Each cell is the cosine of the angle between the learnt vectors of two '
                               'positions: red where they are alike, white where they are orthogonal, blue where opposed.')
    (rows, columns), patches = grid, grid[0] * grid[1]
    if patches > len(table):
        raise ValueError(f'A table of {len(table)} positions has no grid of {rows}x{columns} patches; give the grid of the '
                         'images that the run was trained on.')
    alike = similarities(np.asarray(table)[len(table) - patches:]).reshape(rows, columns, rows, columns)
    figure, body = figures.new(max(4.6, 1.5 + 0.75 * columns), 0.6 + 0.75 * rows)
    panels = body.subplots(rows, columns, squeeze=False)
    for i, j in np.ndindex(rows, columns):
        image = panels[i, j].imshow(alike[i, j], cmap=figures.DIVERGING, vmin=-1, vmax=1, interpolation='nearest')
        panels[i, j].set(xticks=[], yticks=[])
        if i == rows - 1:
            panels[i, j].set_xlabel(j, fontsize=8)
        if j == 0:
            panels[i, j].set_ylabel(i, fontsize=8)
    body.supxlabel('column of the patch', fontsize=9)
    body.supylabel('row of the patch', fontsize=9)
    figures.bar(body, image, panels, SCALE, shrink=0.9)
    return figures.explain(figure, TITLE, 'Each panel stands at the place of a patch in the image and shows, on the grid of '
                           'all patches, the cosine of the angle between its learnt vector and theirs: red is alike.')


def learnt(model: Any, params: Mapping) -> Any:
    """The vectors of learnt positions [T, D] in the parameters of a model, or of the first part of it that has some, such as an
    encoder or a stage. Raises ValueError if there are none."""
    stages, fields = getattr(model, 'in_order', {}), [field.name for field in dataclasses.fields(model)]
    known = [*fields, *stages]
    order = sorted(params, key=lambda name: known.index(name) if name in known else len(known))  # not that of a file
    parts = (model, params), (getattr(model, 'stack', None), params), *(
        (stages.get(name) or getattr(model, name, None), params[name]) for name in order)
    for part, given in parts:
        encoding = getattr(part, 'positions', None)
        table = encoding.learnt(given['positions']) if isinstance(encoding, Positions) and 'positions' in given else None
        if table is not None:
            return table
    raise ValueError(f'This {type(model).__name__} has learnt no table of positions (positions/embedding), so there is none to '
                     'draw; give the --workdir of a run that has.')
