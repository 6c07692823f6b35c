"""How images of any size become the height and width of a batch: which part of them is stretched to it.

`CentreCrop(share=0.875)` at 224 x 224 is what is known as 'resize the shorter side to 256, crop the centre of 224', as 224 is
0.875 · 256, in one resampling.
"""

import abc
import dataclasses
import math

import numpy as np

FILTERS = 'nearest', 'bilinear', 'bicubic', 'lanczos'

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


@dataclasses.dataclass(frozen=True)
class Fit(abc.ABC):
    """Base of the ways; frozen dataclasses.

    Attributes:
      filter: how pixels are interpolated, 'nearest', 'bilinear', 'bicubic' or 'lanczos'; all but the first average over the
        pixels that become one (Pillow's resize).
    """

    filter: str = 'bilinear'

    def __post_init__(self):
        if self.filter not in FILTERS:
            raise ValueError(f'{self} does not fit; filter is one of {", ".join(FILTERS)}.')

    @property
    def drawn(self) -> bool:
        """Whether the part is drawn at random in training."""
        return False

    @abc.abstractmethod
    def box(self, width: int, height: int, shape: float, rng: np.random.Generator | None) -> Box:
        """The part of an image of width x height pixels.

        Args:
          shape: width / height of what it becomes.
          rng: of training; None in evaluation and prediction.
        """

    def __call__(self, image, width: int, height: int, rng: np.random.Generator | None = None):
        """A PIL image with width x height pixels; itself where that changes nothing."""
        from PIL import Image

        box = self.box(*image.size, width / height, rng)
        if image.size == (width, height) and box == (0, 0, width, height):
            return image
        return image.resize((width, height), Image.Resampling[self.filter.upper()], box)


@dataclasses.dataclass(frozen=True)
class Stretch(Fit):
    """All of the image; its proportions change if they differ from those of the batch."""

    def box(self, width: int, height: int, shape: float, rng: np.random.Generator | None) -> Box:
        return 0, 0, width, height


@dataclasses.dataclass(frozen=True)
class CentreCrop(Fit):
    """The largest centred part with the proportions of the batch, or of its sides the `share`; proportions are kept."""

    share: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise ValueError(f'{self} is out of range; share must be above 0 and at most 1.')

    def box(self, width: int, height: int, shape: float, rng: np.random.Generator | None) -> Box:
        across, down = self.share * min(width, height * shape), self.share * min(height, width / shape)
        left, top = (width - across) / 2, (height - down) / 2
        return left, top, left + across, top + down


@dataclasses.dataclass(frozen=True)
class RandomCrop(CentreCrop):
    """In training a random part of the whole image, with all of its pixels: the Inception crop (Szegedy et al. 2015, section
    6); in evaluation and prediction that of `CentreCrop(share)`. The step ResizedCrop does the same to images that have been
    made smaller before.

    Attributes:
      scale: least and largest share of the image's area, drawn uniformly.
      ratio: least and largest width / height of the part, over that of the batch, drawn uniformly in its logarithm from those
        that fit.
    """

    share: float = 0.875
    scale: tuple = (0.08, 1.0)
    ratio: tuple = (3 / 4, 4 / 3)

    def __post_init__(self):
        super().__post_init__()
        require_ranges(self)

    @property
    def drawn(self) -> bool:
        return True

    def box(self, width: int, height: int, shape: float, rng: np.random.Generator | None) -> Box:
        if rng is None:
            return super().box(width, height, shape, rng)
        ratio = tuple(shape * bound for bound in self.ratio)
        (top, bottom, left, right), = boxes(height, width, 1, self.scale, ratio, rng)
        return int(left), int(top), int(right), int(bottom)


def boxes(height: int, width: int, count: int, scale: tuple, ratio: tuple, rng: np.random.Generator) -> np.ndarray:
    """[count, 4]: top, bottom, left, right of boxes in images of height x width, placed uniformly, whose share of the area is
    uniform in `scale`, and width / height uniform in its logarithm in `ratio`, of those that fit."""
    share, chance, down, along = rng.random((4, count))
    share = scale[0] + share * (scale[1] - scale[0])
    # Both sides fit if share·W/H <= ratio <= W/(share·H).
    fitting = np.log(share * width / height), np.log(width / (share * height))
    low, high = (np.clip(np.log(bound), *fitting) for bound in ratio)
    drawn = np.exp(low + chance * (high - low))
    area = share * height * width
    rows = np.clip(np.rint(np.sqrt(area / drawn)), 1, height)
    columns = np.clip(np.rint(np.sqrt(area * drawn)), 1, width)
    top, left = np.floor(down * (height - rows + 1)), np.floor(along * (width - columns + 1))
    return np.stack([top, top + rows, left, left + columns], axis=1).astype(int)


def numbers(values: tuple) -> bool:
    """Whether all of one value or more are finite numbers."""
    return bool(values) and all(type(value) in (int, float) and math.isfinite(value) for value in values)


def require_ranges(step) -> None:
    """Raises ValueError unless scale and ratio of a step or a fit are ranges of shares and of width / height."""
    for name, most in (('scale', 1), ('ratio', math.inf)):
        given = getattr(step, name)
        if not (numbers(given) and len(given) == 2 and 0 < given[0] <= given[1] <= most):
            limit = ' and at most 1' if most == 1 else ''
            raise ValueError(f'{type(step).__name__}({name}={given}) is no range; expected (least, largest), above 0{limit}.')
