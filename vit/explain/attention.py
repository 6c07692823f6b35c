"""The attention weights of a Transformer over image patches, as matplotlib figures and as a page of HTML."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from display import figures
from transformer.explain import page, pictures
from transformer.explain.attention import View, look
from transformer.explain.pictures import named, titles
from vit.contracts import Staged

_POSITIVE, _NEGATIVE = '#ff8c00', '#0072B2'  # which colour-blind readers can tell apart, on black and on white


def read_out(weights: np.ndarray, front: Sequence[str]) -> np.ndarray:
    """The weight of each patch in the output of a layer, [.., patches]: the class token's row of weights [.., T, T], or the
    mean of the rows of the patches for a model that averages them. `front` are the tokens before the patches."""
    first = len(front)
    return weights[..., 0, first:] if 'class' in front else weights[..., first:, first:].mean(-2)


@dataclasses.dataclass(frozen=True)
class ImageView(View):
    """A `View` over an image [height, width, channels] in 0..1, whose patches have sides of `patch` pixels and follow the
    tokens `front`. The figure has the patches as rows and columns if there are steps to show."""
    image: np.ndarray = dataclasses.field(kw_only=True)
    patch: int = dataclasses.field(kw_only=True)
    front: Sequence[str] = dataclasses.field(kw_only=True)

    def figure(self) -> Any:
        section, = self.sections
        return super().figure() if section.steps else attention(
            section.layers, section.rollout, self.image, section.found, patch=self.patch, front=self.front,
            title=self.title or self.counted())

    def page(self) -> str:
        from PIL import Image

        pixels, file = np.rint(255 * np.clip(self.image, 0, 1)).astype(np.uint8), io.BytesIO()
        Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, 'PNG')
        height, width = (side // self.patch for side in self.image.shape[:2])
        shown = page.Image(file.getvalue(), height, width, tuple(self.front))
        return page.page(self.sections, self.title or self.counted(), shown)


@dataclasses.dataclass(frozen=True)
class StagesView(View):
    """A `View` over an image [height, width, channels] in 0..1, with a section for each stage.

    Attributes:
      cells: as of `vit.contracts.Staged`.
      rollout: [patches of the last stage, patches of the first], or None.
    """
    image: np.ndarray = dataclasses.field(kw_only=True)
    cells: Mapping[str, tuple[int, int, int]] = dataclasses.field(kw_only=True)
    rollout: np.ndarray | None = dataclasses.field(kw_only=True)

    def figure(self) -> Any:
        if any(section.steps for section in self.sections):
            return super().figure()
        layers = {name: x for section in self.sections for name, x in section.layers.items()}
        found = [one for section in self.sections for one in section.found]
        return attention(layers, self.rollout, self.image, found, patch=self.cells['stage_0'][2],
                         cells={name: self.cells[name.partition('/')[0]] for name in layers}, finest=self.cells['stage_0'],
                         title=self.title or self.counted())

    def page(self) -> str:
        raise ValueError('A page shows the patches of a single grid, but the stages of this model have several; give '
                         '--attention=OUT.png.')


def of_stages(snapshot: Any, file: str, steps: bool = False) -> tuple:
    """As `of_image`, of a model with stages; rollout goes through their merging, which gives each of the merged patches an
    equal share."""
    image, note = snapshot.data.seen(file)
    cells, seen, sections, flow = snapshot.model.cells(image.shape[:2]), look(snapshot, steps, image=image[None]), [], None
    for number, (name, (rows, columns, _)) in enumerate(cells.items()):
        places = [f'{row},{column}' for row in range(rows) for column in range(columns)]
        own = lambda layer: layer.startswith(f'{name}/')  # noqa: B023
        section = seen.section(places, places, f'stage {number}', own, down='query: the patch that attends (row,column)',
                               across='key: the patch that is attended to')
        if section.rollout is None:
            flow = None
        elif not sections:
            flow = section.rollout
        elif flow is not None:
            flow = section.rollout @ merged(cells[f'stage_{number - 1}'], cells[name]) @ flow
        sections.append(section)
    view = StagesView(sections, image=snapshot.data.visible(image), cells=cells, rollout=flow)
    read = None if flow is None else flow.mean(0).reshape(cells['stage_0'][:2]).tolist()
    return view, seen.found, {'image': file, 'rollout': read} | ({'note': note} if note else {})


def merged(before: tuple, after: tuple) -> np.ndarray:
    """[patches of the stage `after`, patches of that `before`]: the share of each patch in the one into which it is merged."""
    times = after[2] // before[2]
    into = np.arange(after[0] * after[1])
    row, column = np.divmod(np.arange(before[0] * before[1]), before[1])
    shares = (into[:, None] == row // times * after[1] + column // times).astype(np.float64)
    return shares / shares.sum(-1, keepdims=True)


def of_image(snapshot: Any, file: str, steps: bool = False) -> tuple:
    """The attention weights of a run for an image, and their rollout, returned as by the functions of
    transformer/explain/attention.py. With `steps` each patch is a row and a column of the panels, named 'ROW,COLUMN'."""
    if isinstance(snapshot.model, Staged):
        return of_stages(snapshot, file, steps)
    (image, note), model = snapshot.data.seen(file), snapshot.model
    seen = look(snapshot, steps, image=image[None])
    rows = image.shape[0] // model.patch
    places = [f'{row},{column}' for row in range(rows) for column in range(image.shape[1] // model.patch)]
    names = [*model.front, *places]
    section = seen.section(names, names, down='query: the patch that attends (row,column)',
                           across='key: the patch that is attended to')
    view = ImageView([section], image=snapshot.data.visible(image), patch=model.patch, front=model.front)
    read = None if section.rollout is None else read_out(section.rollout, model.front).reshape(rows, -1).tolist()
    return view, seen.found, {'image': file, 'rollout': read} | ({'note': note} if note else {})


def attention(layers: Mapping, rollout: np.ndarray | None, image: np.ndarray, found: Sequence, *, patch: int,
              front: Sequence[str] = (), cells: Mapping | None = None, finest: tuple | None = None,
              title: str = '') -> Any:
    """A figure of the image, of attention rollout over it, and of the weights that each head (across) of each layer (down)
    gives the patches. Each panel is scaled to its own maximum; negative weights, which mechanisms other than softmax may have,
    are blue.

    Args:
      layers: {name: weights [N, T, T]}.
      rollout: [T, T], or None if the weights are no distributions.
      image: [height, width, channels], in 0..1.
      found: the result of `transformer.explain.maps.read` for the weights.
      patch: side of a patch in pixels.
      front: the names of the tokens before the patches.
      cells: {layer: (rows, columns, pixels along a side of a patch)}, and `finest` the same for rollout; None: the patches
        cover the image, and have this side in all layers.
      title: by default what `counted` says of the layers.
    """
    rows, columns = len(found), max(1, *(len(one['heads']) for one in found))
    side = max(1.2, min(24 / columns, 24 / rows, 2.2))
    wide = max(2.4, side)  # of the image
    width = columns * (side + 0.1) + wide + 2.0
    larger = figures.scale(width)
    figure, body = figures.new(width, max(rows * (side + 0.1 + 0.2 * larger), 2 * wide + 1.4 * larger) + 0.3)
    whole, heads = body.subfigures(1, 2, width_ratios=[wide + 0.2, width - wide - 0.2])
    below = max(figure.get_figheight() - 0.3 - 2 * (wide + 0.7 * larger), 0.01)
    first, second, rest = whole.subplots(3, 1, height_ratios=[wide + 0.7 * larger, wide + 0.7 * larger, below])
    rest.set_axis_off()
    _show(first, image)
    height, breadth = image.shape[:2]
    finest = finest or (height // patch, breadth // patch, patch)
    first.set_title('image', fontsize=9 * larger)
    first.set_xlabel(f'{breadth} x {height} pixels,\npatches of {patch} x {patch}', fontsize=8 * larger)
    if rollout is None:
        second.set_axis_off()
    else:
        read = read_out(rollout, front)
        _overlay(second, image, read - read.min(), finest)  # every patch has a positive weight in a rollout
        second.set_title('attention rollout,\nall layers', fontsize=9 * larger)
        second.set_xlabel('weight above\nthe lowest', fontsize=8 * larger)
    signed = any((weights < 0).any() for weights in layers.values())
    grid = heads.subplots(rows, columns, squeeze=False)
    for axes_of_layer, one in zip(grid, found):
        axes_of_layer[0].set_ylabel(named(one), fontsize=8.5 * larger)
        for axes in axes_of_layer:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes, weights, name in zip(axes_of_layer, layers[one['layer']], titles(one)):
            _overlay(axes, image, read_out(weights, front), (cells or {}).get(one['layer'], finest))
            axes.set_title(name, fontsize=7.5 * larger, pad=3)
    bar = heads.colorbar(_scale(signed), ax=grid, shrink=min(1.0, 2.4 * larger / (rows * side)), aspect=14, pad=0.02)
    bar.set_label('weight, as a share of the largest in its panel', fontsize=8 * larger)
    bar.ax.tick_params(labelsize=7.5 * larger)
    sure, apart = any(one['entropy'] for one in found), any(one['entropy'] is None for one in found)
    padded = any(one['entropy'] and (layers[one['layer']].sum(-1) < 1 - 1e-3).any() for one in found)
    reads = 'the class token attends to' if 'class' in front else 'all patches attend to on average'
    said = [f'Each panel is a head and shows in orange over the image which patches {reads}',
            'a weight of 0 leaves the image as it is',
            *(['blue patches have negative weights'] if signed else []),
            *(['the padding of windows has the rest of the weights'] if padded else []),
            *([pictures.ENTROPY] if sure else []),
            *(['panels without one are of layers whose weights are no shares of the patches, such as attention between '
               'channels'] if sure and apart else []), *pictures.even(found)]
    return figures.explain(figure, title or f'Attention weights of {pictures.counted(found)}', '; '.join(said) + '.')


def _scale(signed):
    """What the colour bar shows: from nothing to all of orange, or from blue to orange."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    colours = [_NEGATIVE, '#808080', _POSITIVE] if signed else ['#808080', _POSITIVE]
    return ScalarMappable(Normalize(-1 if signed else 0, 1), LinearSegmentedColormap.from_list('', colours))


def _show(axes, image, **style):
    axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap='gray', vmin=0, vmax=1, interpolation='nearest',
                **style)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _overlay(axes, image, heat, cells):
    """The image in grey, with the patches in orange by their `heat` [patches], in blue where that is negative. Those that go
    beyond the image are cut; cells: (rows, columns, pixels along a side of a patch)."""
    from matplotlib.colors import ListedColormap

    (height, width), (rows, columns, side) = image.shape[:2], cells
    heat = np.asarray(heat).reshape(rows, columns)
    _show(axes, image.mean(-1, keepdims=True))
    strength = np.abs(heat) / max(float(np.abs(heat).max()), 1e-12)
    axes.imshow(np.sign(heat), cmap=ListedColormap([_NEGATIVE, 'white', _POSITIVE]), vmin=-1, vmax=1, alpha=0.8 * strength,
                interpolation='nearest', extent=(-0.5, columns * side - 0.5, rows * side - 0.5, -0.5))
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
