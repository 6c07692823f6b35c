"""What the first layer of a model of images looks for: the principal components of its filters (Dosovitskiy et al. 2021,
figure 7, left)."""

from typing import Any

import numpy as np

from display import figures
from vit.contracts import Filtering

MOST = 28  # components that are drawn, as in the paper


def of_run(snapshot: Any) -> np.ndarray:
    """The filters on the pixels of a run, [height, width, channels, D]. Raises ValueError if its model has none."""
    model, kernel = snapshot.model, snapshot.params
    if not isinstance(model, Filtering):
        raise ValueError(f'{type(model).__name__} has no filters on pixels, so there are none to draw; give the --workdir of '
                         'another model of images.')
    for name in model.filters.split('/'):
        kernel = kernel[name]
    kernel, channels = np.asarray(kernel, np.float64), snapshot.data.shapes['image'][0][-1]
    side = round((kernel.shape[0] / channels) ** 0.5)
    return kernel.reshape(side, side, channels, -1) if kernel.ndim == 2 else kernel


def components(filters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The principal components of D filters [height, width, channels, D], which are vectors of height·width·channels pixels:
    [K, height, width, channels], each of length 1 and with its largest value positive, and the share [K] of the variance of the
    filters that lies along each, from the largest on."""
    vectors = filters.reshape(-1, filters.shape[-1]).T  # [D, pixels]
    _, values, found = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    found *= np.sign(np.take_along_axis(found, np.abs(found).argmax(-1)[:, None], -1))
    shares = values ** 2 / max((values ** 2).sum(), 1e-300)
    return found.reshape(-1, *filters.shape[:-1]), shares


def figure(filters: np.ndarray) -> Any:
    """A matplotlib figure of the first `MOST` principal components of filters [height, width, channels, D]."""
    found, shares = components(filters)
    most = min(MOST, max(1, filters.shape[-1] - 1))  # D vectors around their mean lie in D - 1 dimensions
    found, shown = found[:most], shares[:most]
    columns = min(7, len(found))
    rows = -(-len(found) // columns)
    drawn, body = figures.new(max(4.6, 1.1 * columns + 0.4), 1.25 * rows + 0.2)
    panels = body.subplots(rows, columns, squeeze=False)
    coloured = found.shape[-1] == 3
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, component, share in zip(panels.flat, found, shown):
        scaled = component / max(np.abs(component).max(), 1e-300)
        if coloured:
            axes.imshow(0.5 + 0.5 * scaled, interpolation='nearest')
        else:
            axes.imshow(scaled.mean(-1), cmap=figures.DIVERGING, vmin=-1, vmax=1, interpolation='nearest')
        axes.set_title(f'{100 * share:.1f} %', fontsize=8, pad=3)
    height, width, channels, count = filters.shape
    means = ('grey is 0, and a colour a filter that answers to it' if coloured
             else 'red pixels add to the answer of a filter, blue ones take from it')
    return figures.explain(
        drawn, f'Principal components of {count} filters', f'The filters of the first layer, each on {height} x {width} pixels '
        f'of {channels} channel{"s" * (channels != 1)}: the directions in which they differ most, with the share of their '
        f'variance; {means}. Each is scaled to its own largest value.')
