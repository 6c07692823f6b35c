"""Pictures of position encodings: the heat map of the sinusoids, and the similarity of learnt positions."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def sinusoids(length: int = 128, width: int = 128) -> Any:
    """A matplotlib figure of P [length, width] of `positions.sinusoid`: a row for each position, a column for each feature."""
    from transformer.attention.positions.absolute import sinusoid

    figure, axes = _figure(7.0, 5.0)
    image = axes.imshow(np.asarray(sinusoid(np.arange(length), width)), cmap='RdBu_r', vmin=-1, vmax=1, aspect='auto',
                        interpolation='nearest')
    axes.set(xlabel='feature', ylabel='position', title='sin (even features) and cos (odd) of t / 10000^(2i/D)')
    figure.colorbar(image, ax=axes)
    return figure


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
        figure, axes = _figure(5.4, 4.6)
        image = axes.imshow(similarities(table), cmap='RdBu_r', vmin=-1, vmax=1, interpolation='nearest')
        axes.set(xlabel='position', ylabel='position', title='cosine similarity of learnt positions')
        figure.colorbar(image, ax=axes)
        return figure
    from matplotlib.figure import Figure

    (rows, columns), patches = grid, grid[0] * grid[1]
    if patches > len(table):
        raise ValueError(f'A table of {len(table)} positions has no grid of {rows}x{columns} patches; give the grid of the '
                         'images that the run was trained on.')
    alike = similarities(np.asarray(table)[len(table) - patches:]).reshape(rows, columns, rows, columns)
    figure = Figure(figsize=(1.0 + 0.7 * columns, 0.8 + 0.7 * rows), layout='constrained')
    panels = figure.subplots(rows, columns, squeeze=False)
    for i, j in np.ndindex(rows, columns):
        image = panels[i, j].imshow(alike[i, j], cmap='RdBu_r', vmin=-1, vmax=1, interpolation='nearest')
        panels[i, j].set_xticks([])
        panels[i, j].set_yticks([])
    figure.suptitle('cosine similarity of learnt positions', fontsize=10)
    figure.supxlabel('column of the patch', fontsize=9)
    figure.supylabel('row of the patch', fontsize=9)
    figure.colorbar(image, ax=panels, shrink=0.8)
    return figure


def of_run(params: Mapping, grid: tuple | None = None) -> Any:
    """`similarity` of the learnt positions in the parameters of a run."""
    table = params.get('positions', {}).get('embedding')
    if table is None:
        raise ValueError('This run has learnt no table of positions (positions/embedding), so there is none to draw; train one '
                         "with model.positions='Learned()'.")
    return similarity(table, grid)


def _figure(width, height):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout='constrained')
    return figure, figure.subplots()
