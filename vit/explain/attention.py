"""The attention weights of a Transformer over image patches, as matplotlib figures and as a page of HTML."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from display import figures
from transformer.explain import maps, page, pictures
from transformer.explain.attention import MOST_TOKENS, Seen, View, look
from transformer.explain.pictures import named, titles
from vit.contracts import Staged

_POSITIVE, _NEGATIVE = '#ff8c00', '#0072B2'  # which colour-blind readers can tell apart, on black and on white
CLASS_TOKEN, ALL_PATCHES = 'the class token attends to', 'all patches attend to on average'
DOWN, ACROSS = 'query: the patch that attends (row,column)', 'key: the patch that is attended to'


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
        if section.steps:
            return super().figure()
        cells = (*(side // self.patch for side in self.image.shape[:2]), self.patch)
        return attention({name: read_out(x, self.front) for name, x in section.layers.items()},
                         None if section.rollout is None else read_out(section.rollout, self.front), self.image, section.found,
                         cells=dict.fromkeys(section.layers, cells), title=self.title or self.counted(),
                         reads=CLASS_TOKEN if 'class' in self.front else ALL_PATCHES)

    def page(self) -> str:
        from PIL import Image

        pixels, file = np.rint(255 * np.clip(self.image, 0, 1)).astype(np.uint8), io.BytesIO()
        Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(file, 'PNG')
        height, width = (side // self.patch for side in self.image.shape[:2])
        shown = page.Image(file.getvalue(), height, width, tuple(self.front))
        return page.page(self.sections, self.title or self.counted(), shown)


@dataclasses.dataclass(frozen=True)
class StagesView(View):
    """A `View` over an image [height, width, channels] in 0..1 of a model with stages; it has sections, one for each stage,
    if there are steps to show.

    Attributes:
      heats: {layer: [N, patches]}, the weight of each patch of its stage, averaged over those that attend to it.
      rollout: the same of all layers, [patches of the first stage], or None.
      found: the entries of `transformer.explain.maps.read`.
      cells: {layer: cells of its stage}, as of `vit.contracts.Staged`.
      padded: whether the padding of windows has some of the weights.
    """
    image: np.ndarray = dataclasses.field(kw_only=True)
    heats: Mapping[str, np.ndarray] = dataclasses.field(kw_only=True)
    rollout: np.ndarray | None = dataclasses.field(kw_only=True)
    found: Sequence = dataclasses.field(kw_only=True)
    cells: Mapping[str, tuple[int, int, int]] = dataclasses.field(kw_only=True)
    padded: bool = dataclasses.field(kw_only=True)

    def figure(self) -> Any:
        return super().figure() if self.sections else attention(
            self.heats, self.rollout, self.image, self.found, cells=self.cells, reads=ALL_PATCHES,
            title=self.title or self.counted(), padded=self.padded)

    def page(self) -> str:
        raise ValueError('A page shows the patches of a single grid, but the stages of this model have several; give '
                         '--attention=OUT.png.')

    def counted(self) -> str:
        return f'Attention weights of {pictures.counted(self.found)}'


def of_stages(snapshot: Any, file: str, steps: bool = False) -> tuple:
    """As `of_image`, of a model with stages; rollout goes through their merging, which gives each of the merged patches an
    equal share. Windows have weights between their own patches alone, as many as the model itself computes."""
    image, note = snapshot.data.seen(file)
    stages = snapshot.model.cells(image.shape[:2])
    keys = maps.keys_of(snapshot.model, lambda attention: stages[attention.partition('/')[0]][:2])
    if steps:
        require_few(stages['stage_0'])
    seen = look(snapshot, steps, image=image[None])
    cells = {layer: stages[layer.partition('/')[0]] for layer in seen.layers}
    heats = {layer: maps.received(x, keys.get(layer)) for layer, x in seen.layers.items()}
    flow = through(stages, seen, keys)
    view = StagesView(
        _squares(seen.spread(keys), stages) if steps else (), image=snapshot.data.visible(image), heats=heats, rollout=flow,
        found=seen.found, cells=cells, padded=any((keys[one['layer']] < 0).any() for one in seen.found
                                                 if one['entropy'] and one['layer'] in keys))
    read = None if flow is None else flow.reshape(stages['stage_0'][:2]).tolist()
    return view, seen.found, {'image': file, 'rollout': read} | ({'note': note} if note else {})


def _squares(seen, stages):
    """For each stage its weights from patch to patch."""
    sections = []
    for number, (name, cells) in enumerate(stages.items()):
        places = _places(*cells[:2])
        sections.append(seen.section(
            places, places, f'stage {number}', lambda layer: layer.startswith(f'{name}/'), within=False,  # noqa: B023
            down=DOWN, across=ACROSS))
    return sections


def through(stages: Mapping, seen: Seen, keys: Mapping) -> np.ndarray | None:
    """[patches of the first stage], rollout through all stages to the mean of the patches of the last; None if there is none.

    Args:
      stages: {stage: (rows, columns, pixels along a side of a patch)}, in their order.
      keys: as of `transformer.explain.maps.keys_of`.
    """
    if not seen.sure:
        return None
    share, after = None, None
    for name, cells in reversed(stages.items()):
        count = cells[0] * cells[1]
        share = np.full(count, 1 / count) if share is None else unmerged(share, cells, after)
        layers = [layer for layer in seen.layers if layer.startswith(f'{name}/')]
        share = maps.rollout([seen.layers[layer] for layer in layers], share, [keys.get(layer) for layer in layers])
        after = cells
    return share


def unmerged(share: np.ndarray, before: tuple, after: tuple) -> np.ndarray:
    """[patches of the stage `before`]: of the share of each patch of the stage `after` an equal part for those merged into
    it."""
    times = after[2] // before[2]
    row, column = np.divmod(np.arange(before[0] * before[1]), before[1])
    into = row // times * after[1] + column // times
    return (share / np.maximum(np.bincount(into, minlength=len(share)), 1))[into]


def require_few(cells: tuple) -> None:
    """Raises ValueError if there are too many patches for panels with a row and a column for each."""
    rows, columns, _ = cells
    if rows * columns > MOST_TOKENS:
        raise ValueError(f'--steps draws a row and a column for each of {rows}x{columns} patches, but a picture shows '
                         f'{MOST_TOKENS} at most; leave it out.')


def _places(rows, columns):
    return [f'{row},{column}' for row in range(rows) for column in range(columns)]


def of_image(snapshot: Any, file: str, steps: bool = False) -> tuple:
    """The attention weights of a run for an image, and their rollout, returned as by the functions of
    transformer/explain/attention.py. With `steps` each patch is a row and a column of the panels, named 'ROW,COLUMN'."""
    if isinstance(snapshot.model, Staged):
        return of_stages(snapshot, file, steps)
    (image, note), model = snapshot.data.seen(file), snapshot.model
    seen = look(snapshot, steps, image=image[None])
    grid = tuple(side // model.patch for side in image.shape[:2])
    if steps:
        require_few((*grid, model.patch))
    seen = seen.spread(maps.keys_of(model, lambda _: grid))
    names = [*model.front, *_places(*grid)]
    section = seen.section(names, names, down=DOWN, across=ACROSS)
    view = ImageView([section], image=snapshot.data.visible(image), patch=model.patch, front=model.front)
    read = None if section.rollout is None else read_out(section.rollout, model.front).reshape(grid).tolist()
    return view, seen.found, {'image': file, 'rollout': read} | ({'note': note} if note else {})


def attention(heats: Mapping, rollout: np.ndarray | None, image: np.ndarray, found: Sequence, *, cells: Mapping, reads: str,
              title: str = '', padded: bool = False) -> Any:
    """A figure of the image, of attention rollout over it, and of the weights that each head (across) of each layer (down)
    gives the patches. Each panel is scaled to its own maximum; negative weights, which mechanisms other than softmax may have,
    are blue.

    Args:
      heats: {layer: [N, patches]}, the weight of each patch.
      rollout: [patches of the first layer], or None if the weights are no distributions.
      image: [height, width, channels], in 0..1.
      found: the result of `transformer.explain.maps.read` for the weights.
      cells: {layer: (rows, columns, pixels along a side of a patch)}.
      reads: whose weights they are, with its verb.
      title: by default what `counted` says of the layers.
      padded: whether the padding of windows has some of the weights.
    """
    rows, columns = len(found), max(1, *(len(one['heads']) for one in found))
    side = max(1.2, min(24 / columns, 24 / rows, 2.2))
    wide = max(2.4, side)  # of the image
    width = columns * (side + 0.1) + wide + 2.0
    larger = figures.scale(width)
    above = (0.07 + pictures.LINE * pictures.lines_of_titles(found, side / larger)) * larger
    figure, body = figures.new(width, max(rows * (side + 0.1 + above), 2 * wide + 1.4 * larger) + 0.3)
    whole, heads = body.subfigures(1, 2, width_ratios=[wide + 0.2, width - wide - 0.2])
    below = max(figure.get_figheight() - 0.3 - 2 * (wide + 0.7 * larger), 0.01)
    first, second, rest = whole.subplots(3, 1, height_ratios=[wide + 0.7 * larger, wide + 0.7 * larger, below])
    rest.set_axis_off()
    _show(first, image)
    height, breadth = image.shape[:2]
    finest = cells[found[0]['layer']]
    patch = finest[2]
    first.set_title('image', fontsize=9 * larger)
    first.set_xlabel(f'{breadth} x {height} pixels,\npatches of {patch} x {patch}', fontsize=8 * larger)
    if rollout is None:
        second.set_axis_off()
    else:
        _overlay(second, image, rollout - rollout.min(), finest)  # every patch has a positive weight in a rollout
        second.set_title('attention rollout,\nall layers', fontsize=9 * larger)
        second.set_xlabel('weight above\nthe lowest', fontsize=8 * larger)
    signed = any((heat < 0).any() for heat in heats.values())
    grid = heads.subplots(rows, columns, squeeze=False)
    for axes_of_layer, one in zip(grid, found):
        axes_of_layer[0].set_ylabel(named(one), fontsize=8.5 * larger)
        for axes in axes_of_layer:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for axes, heat, name in zip(axes_of_layer, heats[one['layer']], titles(one, side / larger)):
            _overlay(axes, image, heat, cells[one['layer']])
            axes.set_title(name, fontsize=pictures.TITLE * larger, pad=3)
    bar = heads.colorbar(_scale(signed), ax=grid, shrink=min(1.0, 2.4 * larger / (rows * side)), aspect=14, pad=0.02)
    bar.set_label('weight, as a share of the largest in its panel', fontsize=8 * larger)
    bar.ax.tick_params(labelsize=7.5 * larger)
    sure, apart = any(one['entropy'] for one in found), any(one['entropy'] is None for one in found)
    said = [f'Each panel is {pictures.each(found)} and shows in orange over the image which patches {reads}',
            'a weight of 0 leaves the image as it is',
            *(['blue patches have negative weights'] if signed else []),
            *(['the padding of windows has the rest of the weights'] if padded else []),
            *([pictures.ENTROPY] if sure else []),
            *pictures.even(found),
            *([f'{"panels without one are of layers whose" if sure else "the"} weights are no shares of the patches, as of '
               'attention between channels, so there is no rollout'] if apart else [])]
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
