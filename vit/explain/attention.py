"""Pictures of the attention weights of a Transformer over image patches, as matplotlib figures."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.explain import pictures
from transformer.explain.attention import look
from transformer.explain.pictures import head, named, titles


def read_out(weights: np.ndarray, class_token: bool) -> np.ndarray:
    """The weight of each patch in the output of a layer, [.., patches]: the class token's row of weights [.., T, T], or the
    mean of the rows for a model that averages the patches."""
    return weights[..., 0, 1:] if class_token else weights.mean(-2)


def of_image(snapshot: Any, file: str, steps: bool = False) -> tuple:
    """The attention weights of a run for an image, and their rollout, returned as by the functions of
    transformer/explain/attention.py. With `steps` each patch is a row and a column of the panels, named 'ROW,COLUMN'."""
    image, model = snapshot.data.read(file), snapshot.model
    seen, classed = look(snapshot, steps, image=image[None]), model.pool == 'cls'
    flow, rows = seen.rollout(), image.shape[0] // model.patch
    if steps:
        places = [f'{row},{column}' for row in range(rows) for column in range(image.shape[1] // model.patch)]
        names = [*(['class'] if classed else []), *places]
        figure = pictures.attention(seen.section(names, names))
    else:
        figure = attention(seen.layers, flow, snapshot.data.visible(image), seen.found, patch=model.patch, class_token=classed)
    read = None if flow is None else read_out(flow, classed).reshape(rows, -1).tolist()
    return figure, seen.found, {'image': file, 'rollout': read}


def attention(layers: Mapping, rollout: np.ndarray | None, image: np.ndarray, found: Sequence, *, patch: int,
              class_token: bool) -> Any:
    """A figure of the image, of attention rollout over it, and of the weights that each head (across) of each layer (down)
    gives the patches. Each panel is scaled to its own maximum; negative weights, which mechanisms other than softmax may have,
    are blue.

    Args:
      layers: {name: weights [N, T, T]}.
      rollout: [T, T], or None if the weights are no distributions.
      image: [height, width, channels], in 0..1.
      found: the result of `transformer.explain.maps.read` for the weights.
      patch: side of a patch in pixels.
    """
    from matplotlib.figure import Figure  # matplotlib is slow to import

    rows, columns = len(found), max(1, *(len(one['heads']) for one in found))
    side = max(1.2, min(24 / columns, 24 / rows, 2.2))
    wide = max(2.4, side)  # of the image
    figure = Figure(figsize=(columns * (side + 0.1) + wide + 0.9, max(rows * (side + 0.35), 2 * wide + 0.6) + 0.5), dpi=100,
                    layout='constrained')
    whole, heads = figure.subfigures(1, 2, width_ratios=[wide + 0.2, columns * (side + 0.1) + 0.6])
    below = max(figure.get_figheight() - 0.6 - 2 * (wide + 0.3), 0.01)
    first, second, rest = whole.subplots(3, 1, height_ratios=[wide + 0.3, wide + 0.3, below])
    rest.set_axis_off()
    _show(first, image)
    first.set_title('image', fontsize=9)
    if rollout is None:
        second.set_axis_off()
    else:
        read = read_out(rollout, class_token)
        _overlay(second, image, read - read.min(), patch)  # every patch has a positive weight in a rollout
        second.set_title('attention rollout,\nabove its least', fontsize=9)
    for axes_of_layer, one in zip(heads.subplots(rows, columns, squeeze=False), found):
        axes_of_layer[0].set_ylabel(named(one), fontsize=9)
        for axes in axes_of_layer:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes, weights, title in zip(axes_of_layer, layers[one['layer']], titles(one)):
            _overlay(axes, image, read_out(weights, class_token), patch)
            axes.set_title(title, fontsize=8, pad=3)
    reads = 'what the class token looks at' if class_token else 'what all patches together look at'
    head(figure, [f'red: {reads}', 'full red is the most in each panel',
                  *(['above each head its entropy in nats'] if found[0]['entropy'] else [])])
    return figure


def _show(axes, image, **style):
    axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap='gray', vmin=0, vmax=1, interpolation='nearest',
                **style)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _overlay(axes, image, heat, patch):
    """The image in grey, with the patches in red by their `heat` [patches], in blue where that is negative."""
    height, width = image.shape[:2]
    heat = np.asarray(heat).reshape(height // patch, width // patch)
    _show(axes, image.mean(-1, keepdims=True))
    strength = np.abs(heat) / max(float(np.abs(heat).max()), 1e-12)
    axes.imshow(np.sign(heat), cmap='bwr', vmin=-1, vmax=1, alpha=0.8 * strength, interpolation='nearest',
                extent=(-0.5, width - 0.5, height - 0.5, -0.5))
