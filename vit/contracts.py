"""Data and models of runs on images as evaluators, readers and pictures use them, as Protocols (see transformer/contracts.py).
What a model can be asked, `isinstance` of one of these says."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


class Resizing(Protocol):
    """How images of any size become that of a batch: resized, of which the centre is cut out (data/images/fit.py).

    Attributes:
      filter: how pixels are interpolated, as Pillow calls it in small letters.
      share: of the sides of the resized image those of its part.
      proportional: whether proportions are kept; else the resized image has those of the batch.
    """
    filter: str
    share: float
    proportional: bool

    def enlarged(self, side: int) -> int:
        """A side of the resized image, of which that of the batch is the share."""


@runtime_checkable
class SeenImages(Protocol):
    """Images with classes.

    Attributes:
      shapes: {name: (shape, dtype)} of a training batch; 'image' is [B, height, width, channels].
      classes: the names of the classes.
      normalization: (means, standard deviations) of the channels, by which images in 0..1 are normalised.
      fit: how images are resized, but for augmentation.
    """
    shapes: Mapping[str, tuple[tuple[int, ...], type]]
    classes: Sequence[str]
    normalization: tuple[list[float], list[float]]
    fit: Resizing

    def read(self, path: str) -> np.ndarray:
        """float32 [height, width, channels]: an image file, prepared as in training, without augmentation. Raises
        FileNotFoundError, or ValueError that names a file which cannot be decoded."""

    def seen(self, path: str) -> tuple[np.ndarray, str]:
        """(the same, what a person should know of how the file is read, '' for nothing), decoded once."""

    def visible(self, image: np.ndarray) -> np.ndarray:
        """Images of a batch in 0..1, without the normalisation, [.., height, width, channels]."""


@runtime_checkable
class Staged(Protocol):
    """A model whose layers are in stages, each over a grid of patches of its own: 'stage_0/block_0', ..."""

    def cells(self, sides: tuple[int, int]) -> Mapping[str, tuple[int, int, int]]:
        """{stage: (rows, columns, pixels along a side of a patch)} for images of (height, width)."""


@runtime_checkable
class Patched(Protocol):
    """A model whose layers all have one grid of patches, row by row after other tokens.

    Attributes:
      patch: the side of a patch in pixels.
      front: the names of the tokens before the patches.
    """
    patch: int
    front: Sequence[str]


@runtime_checkable
class Filtering(Protocol):
    """A model whose first layer has filters on the pixels.

    Attributes:
      filters: the name of their parameter, such as 'patches/kernel': [height, width, C, D], or of squares row by row
        [size·size·C, D].
    """
    filters: str


@runtime_checkable
class Reconstructing(Protocol):
    """A model that predicts the masked patches of images.

    Attributes:
      patch: the side of a patch in pixels.
      decodes: whether it has the decoder that does.
    """
    patch: int
    decodes: bool

    def images(self, pixels: Any, image: Any) -> Any:
        """Predictions [B, T, P] for images [B, height, width, C], in their form."""
