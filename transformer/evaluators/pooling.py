"""The evaluator of pooling by similarity (see training/contracts.py for the contract)."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from display import figures
from transformer.attention.pooling import Boxcar, Constant, Epanechnikov, Gaussian, Kernel, Pooling, Triangular, pool
from transformer.evaluators.base import Evaluator

SHOWN = 5  # widths in a title


@dataclasses.dataclass(frozen=True)
class Kernels(Evaluator):
    """Compares fixed kernels with the run's own on a split: the task's loss of each, and two pictures of estimates and weights.

    `kernels` shows the fixed kernels of one width, `widths` Gaussians of several and, last, the run's kernel with its width.
    Estimates are drawn for targets of one number over one coordinate, for other data only the weights. Every query attends
    to all training points, to itself too if the split is 'train'.

    Attributes:
      width: of the four kernels.
      widths: of the Gaussians.
    """
    width: float = 1.0
    widths: tuple = (0.1, 0.2, 0.5, 1.0)

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        if not isinstance(run.model, Pooling):
            raise ValueError(f'Kernels compares kernels of pooling, but the model is {type(run.model).__name__}; leave that '
                             'evaluator out.')
        if not self.widths:
            raise ValueError('widths of Kernels is empty; give at least one, such as (0.5,).')
        return tuple(dict.fromkeys(map(name, (*self.kernels, *self.gaussians))))

    @property
    def kernels(self) -> tuple:
        return Gaussian(self.width), Boxcar(self.width), Constant(), Epanechnikov(self.width), Triangular(self.width)

    @property
    def gaussians(self) -> tuple:
        return tuple(map(Gaussian, self.widths))

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        points = collected(batches)
        fixed = [panel(snapshot, points, kernel) for kernel in (*self.kernels, *self.gaussians)]
        width = snapshot.apply(query=points['query']).get('width')
        own = panel(snapshot, points, snapshot.model.kernel, width, 'the run: ')
        count = len(self.kernels)
        snapshot.picture('kernels', picture(snapshot.model, points, fixed[:count], 'Five kernels of attention pooling'))
        snapshot.picture('widths', picture(snapshot.model, points, [*fixed[count:], own],
                                           'Kernels of several widths, and the kernel of the run'))
        return {name(one.kernel): one.loss for one in fixed}


@dataclasses.dataclass(frozen=True)
class Panel:
    """The result of a kernel for some points: estimates [T, C], weights [T, S] and the task's loss."""
    kernel: Kernel
    title: str
    estimate: np.ndarray
    weights: np.ndarray
    loss: float


def panel(snapshot: Any, points: Mapping, kernel: Kernel, width: jax.Array | float | None = None, whose: str = '') -> 'Panel':
    """The Panel of a kernel; `width` replaces its own, such as the learnt width of the run."""
    keys, values = (np.asarray(x, np.float32) for x in (snapshot.model.keys, snapshot.model.values))
    estimate, weights = pool(points['query'], keys, values, kernel, width=width)
    total, weight = snapshot.run.task.terms({'estimate': estimate}, points)['loss']
    loss, width = float(total / weight), kernel.width if width is None else width
    widths = [] if width is None else [f'{one:.2g}' for one in np.ravel(width)]
    if len(widths) > SHOWN:
        widths[SHOWN - 2:-1] = ['..']
    title = [whose + type(kernel).__name__, 'width ' + ', '.join(widths) if widths else 'no width', f'loss {loss:.3f}']
    return Panel(kernel, '\n'.join(title), np.asarray(estimate), np.asarray(weights), loss)


def name(kernel: Kernel) -> str:
    """'gaussian_0.5', 'constant'."""
    return type(kernel).__name__.lower() + ('' if kernel.width is None else f'_{kernel.width:g}')


def collected(batches: Iterable[Mapping]) -> dict:
    """The real rows of all batches as one, {name: array}."""
    found = [{key: array[batch['example_weights'] > 0] for key, array in batch.items()} for batch in batches]
    return {key: np.concatenate([rows[key] for rows in found]) for key in found[0]}


def order(points: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The indices that sort points by their coordinate if there is one, else by class."""
    return np.argsort(points[:, 0] if points.shape[1] == 1 else targets.argmax(-1), kind='stable')


def picture(model: Any, points: Mapping, panels: Sequence, title: str) -> Any:
    """A figure with a column for each panel: its estimate over the training points, and below its weights."""
    keys, values = np.asarray(model.keys), np.asarray(model.values)
    query, target = points['query'], points['target']
    by_key, by_query = order(keys, values), order(query, target)
    curve = keys.shape[1] == values.shape[1] == 1
    sorting = 'x' if keys.shape[1] == 1 else 'class'
    figure, body = figures.new(2.3 * len(panels), 6.0 if curve else 3.4)
    grid, larger = body.subplots(1 + curve, len(panels), squeeze=False), figures.scale(2.3 * len(panels))
    for axes, one in zip(grid[0], panels):
        axes.set_title(one.title, fontsize=9 * larger)
    for axes, one in zip(grid[0], panels if curve else ()):
        axes.plot(keys, values, 'o', color=figures.COLOURS[4], alpha=0.6, markersize=4, label='training points')
        axes.plot(query[by_query], target[by_query], '--', color='#555555', label='targets')
        axes.plot(query[by_query], one.estimate[by_query], color=figures.COLOURS[0], linewidth=1.8, label='estimate')
        axes.set_xlabel('x')
        axes.sharey(grid[0, 0])
        axes.spines[['top', 'right']].set_visible(False)
    for axes, one in zip(grid[-1], panels):
        image = axes.imshow(one.weights[by_query][:, by_key], cmap=figures.SEQUENTIAL, origin='lower', aspect='auto', vmin=0,
                            interpolation='nearest')
        axes.set_xlabel(f'training points by {sorting}')
        figures.bar(body, image, axes, 'weight (linear scale)', location='bottom', shrink=0.9)
    grid[-1, 0].set_ylabel(f'queries by {sorting}')
    if curve:
        grid[0, 0].set_ylabel('y')
        body.legend(*grid[0, 0].get_legend_handles_labels(), loc='outside upper center', ncols=3, frameon=False)
    weights = 'the weight of each training point (a column) for each query (a row), each with a scale of its own'
    return figures.explain(figure, title, f'Above, the estimate of each kernel over the training points; below, {weights}.'
                           if curve else f'Each panel shows a kernel and {weights}.')
