"""Steps of image augmentation: batch of arrays -> batch of arrays, with a numpy Generator for the chance in them."""

import dataclasses
from collections.abc import Callable

import numpy as np

from data import fields

Step = Callable[[dict[str, np.ndarray], np.random.Generator], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Shift:
    """Moves every image by up to `pixels` in each direction, uniformly; what moves in is 0."""

    pixels: int = 1

    def __post_init__(self):
        if self.pixels < 0:
            raise ValueError(f'Shift(pixels={self.pixels}) is out of range; pixels must be 0 or more.')

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        image, most = batch['image'], self.pixels
        count, height, width, _ = image.shape
        padded = np.pad(image, [(0, 0), (most, most), (most, most), (0, 0)])
        down, right = rng.integers(0, 2 * most + 1, (2, count, 1))
        rows, columns = down + np.arange(height), right + np.arange(width)
        return {**batch, 'image': padded[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]}


@dataclasses.dataclass(frozen=True)
class Flip:
    """Mirrors every image left to right with probability one half."""

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        image = batch['image']
        mirrored = rng.random(len(image)) < 0.5
        return {**batch, 'image': np.where(mirrored[:, None, None, None], image[:, :, ::-1], image)}


_STEPS = {'Shift': Shift, 'Flip': Flip}


def parse(expression: str) -> tuple[Step, ...]:
    """Reads 'Shift(pixels=2) | Flip()' ('' is no step); ValueError for an unknown step or keyword."""
    if not expression.strip():
        return ()
    calls = (fields.call(part, _STEPS, 'data.steps') for part in expression.split('|'))
    return tuple(_STEPS[name](**keywords) for name, keywords in calls)
