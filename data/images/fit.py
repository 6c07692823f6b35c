"""How images of any size become the height and width of a batch: which part of them is resized to it.

`CentreCrop(share=0.875)` at 224 x 224 is what is known as 'resize the shorter side to 256, crop the centre of 224', as 224 is
0.875 · 256, and `Stretch(share=0.875)` 'resize to 256 x 256, crop the centre of 224', in one resampling. With the filters
'bilinear' and 'hamming' both are equal, to the rounding of 8 bits, to what transformers and timm do in two steps: the resized
image has whole pixels, and so has the part. 'bicubic' and 'lanczos' overshoot, and Pillow clips between the two directions:
they are as equal where it takes these in the same order for the part and for the whole image, as `CentreCrop(share=0.875)` at
224 does for 375 x 500 and 640 x 480. Where it does not, as from 375 x 500 to 384 with a share of 0.9, values of noise differ
by up to 22 of 255 with 'bicubic' and 45 with 'lanczos', those of a smooth image by 2. 'nearest' and 'box' take another pixel
where two are equally near, for up to a few percent of the values.
"""

import abc
import dataclasses
import math
from typing import ClassVar

import numpy as np

FILTERS = 'nearest', 'lanczos', 'bilinear', 'bicubic', 'box', 'hamming'  # by their numbers in Pillow

Sides = tuple[int, int]  # width, height, in pixels
Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


@dataclasses.dataclass(frozen=True)
class Fit(abc.ABC):
    """Base of the ways; frozen dataclasses.

    Attributes:
      filter: how pixels are interpolated, 'bilinear', 'bicubic', 'lanczos', 'box', 'hamming' or 'nearest'; all but the last
        average over the pixels that become one (Pillow's resize).
      share: of the sides of the resized image those of its part at the centre.
      proportional: whether proportions are kept.
    """

    proportional: ClassVar[bool]

    filter: str = 'bilinear'
    share: float = 1.0

    def __post_init__(self):
        if self.filter not in FILTERS:
            raise ValueError(f'{self} does not fit; filter is one of {", ".join(FILTERS)}.')
        if not 0 < self.share <= 1:
            raise ValueError(f'{self} is out of range; share must be above 0 and at most 1.')

    @property
    def drawn(self) -> bool:
        """Whether the part is drawn at random in training."""
        return False

    def enlarged(self, side: int) -> int:
        """A side of the resized image, of which that of the batch is the share: whole pixels, rounded down."""
        return math.floor(side / self.share)

    @abc.abstractmethod
    def resized(self, given: Sides, least: Sides) -> Sides:
        """The sides of a whole image, resized so that `least` fits in."""

    def box(self, given: Sides, wanted: Sides, rng: np.random.Generator | None) -> Box:
        """The part of an image that becomes the sides that are wanted.

        Args:
          given: the sides of the image.
          rng: of training; None in evaluation and prediction.
        """
        whole = self.resized(given, tuple(map(self.enlarged, wanted)))
        edges = []
        for side, resized, part in zip(given, whole, wanted):
            # Of an odd rest the smaller half comes first, as in transformers; in timm every other time the larger one.
            first = (resized - part) // 2
            edges.append((first * side / resized, (first + part) * side / resized))
        (left, right), (top, bottom) = edges
        return left, top, right, bottom

    def __call__(self, image, width: int, height: int, rng: np.random.Generator | None = None):
        """A PIL image with width x height pixels; itself where that changes nothing."""
        from PIL import Image

        box = self.box(image.size, (width, height), rng)
        if image.size == (width, height) and box == (0, 0, width, height):
            return image
        return image.resize((width, height), Image.Resampling[self.filter.upper()], box)


@dataclasses.dataclass(frozen=True)
class Stretch(Fit):
    """All of the image, or of its sides the `share`; its proportions change if they differ from those of the batch."""

    proportional = False

    def resized(self, given: Sides, least: Sides) -> Sides:
        return least


@dataclasses.dataclass(frozen=True)
class CentreCrop(Fit):
    """The largest centred part with the proportions of the batch, or of its sides the `share`; proportions are kept."""

    proportional = True

    def resized(self, given: Sides, least: Sides) -> Sides:
        (across, down), (width, height) = given, least
        if across * height <= down * width:
            return width, down * width // across
        return across * height // down, height


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

    def box(self, given: Sides, wanted: Sides, rng: np.random.Generator | None) -> Box:
        if rng is None:
            return super().box(given, wanted, rng)
        ratio = tuple(wanted[0] / wanted[1] * bound for bound in self.ratio)
        (top, bottom, left, right), = boxes(*given[::-1], 1, self.scale, ratio, rng)
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
