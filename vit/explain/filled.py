"""Images whose masked patches a masked autoencoder has filled, as a figure (He et al. 2022, figure 2)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from display import figures
from vit.contracts import Reconstructing
from vit.layers.patches import joined
from vit.tasks.reconstruction import seeds

_HIDDEN = (0.56, 0.68, 0.86)  # the colour of masked patches, which no grey image has
_PER_ROW = 8


class Filled(NamedTuple):
    """An image in 0..1 [height, width, C], without its normalisation.

    Attributes:
      original: the image.
      masked: bool [height, width], the pixels that the model did not see.
      filled: the image with the predictions for these.
      loss: the mean of (pixel - target)² over the masked patches, as of the task.
    """
    original: np.ndarray
    masked: np.ndarray
    filled: np.ndarray
    loss: float


def require(model: Any, what: str) -> None:
    """Raises ValueError, about the part `what`, for a model that reconstructs nothing."""
    if not isinstance(model, Reconstructing) or not model.decodes:
        raise ValueError(f'{what} needs a model that reconstructs masked patches, and {type(model).__name__} does not; choose '
                         'vit.models.mae:Mae with decodes=True, or leave it out.')


def fill(snapshot: Any, image: np.ndarray, seed: int = 0) -> list[Filled]:
    """Images [B, height, width, C] as the batches of a run have them, each with the mask of its evaluation; other seeds give
    other masks. The images in 0..1 are clipped."""
    model = snapshot.model
    outputs = snapshot.apply(image=image, seed=np.asarray(seeds(image)) + np.uint32(seed))
    squares = ((outputs['pixels'] - outputs['targets']) ** 2).mean(-1)
    losses = (outputs['mask'] * squares).sum(1) / outputs['mask'].sum(1)
    pixels = jnp.broadcast_to(outputs['mask'][..., None] > 0, outputs['pixels'].shape)
    masked = joined(pixels, model.patch, *image.shape[1:3])[..., 0]
    filled = jnp.where(masked[..., None], model.images(outputs['pixels'], jnp.asarray(image)), image)
    masked, filled, losses = jax.device_get((masked, filled.astype(jnp.float32), losses))
    seen = lambda x: np.clip(snapshot.data.visible(np.asarray(x, np.float32)), 0, 1)
    return [Filled(*row) for row in zip(seen(image), masked, seen(filled), map(float, losses))]


def figure(rows: Sequence[Filled], title: str) -> Any:
    """A matplotlib figure with a column for each image: the original, what the model saw, and the image with the predictions
    for the masked patches."""
    across = min(len(rows), _PER_ROW)
    groups = [rows[start:start + across] for start in range(0, len(rows), across)]
    drawn, body = figures.new(max(4.0, 1.1 * across + 0.9), 3.4 * len(groups) + 0.2)
    grid = body.subplots(3 * len(groups), across, squeeze=False)
    for number, group in enumerate(groups):
        for row, name in enumerate(('original', 'seen', 'filled')):
            for axes in grid[3 * number + row]:
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            grid[3 * number + row][0].set_ylabel(name, fontsize=9)
            for axes, one in zip(grid[3 * number + row], group):
                axes.imshow(_shown(one, name), vmin=0, vmax=1, interpolation='nearest')
    share = float(np.mean([one.masked.mean() for one in rows]))
    return figures.explain(drawn, title, f'Above the original, in the middle what the model saw of it, with {share:.0%} of the '
                           'pixels masked (blue), and below the image with the pixels that it predicts for them.')


def _shown(one, name):
    """[height, width, 3] in 0..1."""
    image = one.filled if name == 'filled' else one.original
    image = np.broadcast_to(image, (*image.shape[:2], 3))
    return np.where(one.masked[..., None], _HIDDEN, image) if name == 'seen' else image
