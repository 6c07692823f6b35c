"""Steps of image augmentation: batch of arrays -> batch of arrays, with a numpy Generator for the random choices.

Images are float32 [B, height, width, channels] in 0..1 until Normalize, which is the last step and the only one that
evaluation applies too. Every example has its own random draws.

The steps run on the host, ahead of the device and, with data.workers, in separate processes; mixup and CutMix are in
vit/tasks/augment.py. Measured on two cores for 128 images of 96x96x3, in ms, as a numpy step and inside a compiled program:
Crop 1.4 and 1.6, Flip 4.2 and 1.1, Normalize 1.7 and 0.8; the host does it while the device computes. Erase takes 2.1 here,
where a compiled program would draw noise for every pixel of every image. RandAugment takes 44 and ResizedCrop 24: Pillow
applies one operation to one image, where a compiled program would apply all 14 to all.
"""

import abc
import dataclasses
from collections.abc import Callable

import numpy as np

from data.images import fit


class Step(abc.ABC):
    """Base of the steps, frozen dataclasses. `a >> b` is a step: a, then b."""

    @abc.abstractmethod
    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The batch with its images [B, height, width, channels] changed."""

    def __rshift__(self, other: 'Step') -> 'Step':
        return _Chain((*_chained(self), *_chained(other))) if isinstance(other, Step) else NotImplemented

    @property
    def singles(self) -> tuple['Step', ...]:
        """The single steps that it consists of; for a single step, itself."""
        return (self,)


class _Several(Step):
    """A step that consists of other steps."""

    steps: tuple[Step, ...]

    @property
    def singles(self) -> tuple[Step, ...]:
        return tuple(single for step in self.steps for single in step.singles)


@dataclasses.dataclass(frozen=True, repr=False)
class _Chain(_Several):
    steps: tuple[Step, ...]

    def __post_init__(self):
        if any(isinstance(step, Normalize) for step in self.steps[:-1]):
            raise ValueError(f'{self} does not fit: other steps need images in 0..1; put one Normalize() at the end.')

    def __repr__(self):
        return ' >> '.join(map(repr, self.steps))

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        for step in self.steps:
            batch = step(batch, rng)
        return batch


def _chained(step: Step) -> tuple[Step, ...]:
    return step.steps if isinstance(step, _Chain) else (step,)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class OneOf(_Several):
    """Applies one of the steps to every example, chosen uniformly."""

    steps: tuple[Step, ...]

    def __init__(self, *steps: Step):
        object.__setattr__(self, 'steps', steps)
        if len(steps) < 2:
            raise ValueError(f'{self} is no choice; give two steps or more.')
        if any(isinstance(single, Normalize) for single in self.singles):
            raise ValueError(f'{self} would leave some images in 0..1; put Normalize() after it.')

    def __repr__(self):
        return f'OneOf({", ".join(map(repr, self.steps))})'

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        image = batch['image'].copy()
        chosen = rng.integers(0, len(self.steps), len(image))
        for number, step in enumerate(self.steps):
            rows = np.flatnonzero(chosen == number)
            image[rows] = step({'image': image[rows]}, rng)['image']
        return {**batch, 'image': image}


@dataclasses.dataclass(frozen=True)
class Crop(Step):
    """A window of the image's own size out of the image with `padding` rows and columns of 0 around it.

    The recipe of CIFAR (He et al. 2016, section 4.2): every image moves by up to `padding` in each direction, uniformly.
    """

    padding: int = 4

    def __post_init__(self):
        if self.padding < 0:
            raise ValueError(f'Crop(padding={self.padding}) is out of range; padding must be 0 or more.')

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        image, most = batch['image'], self.padding
        _, height, width, channels = image.shape
        padded = np.zeros((height + 2 * most, width + 2 * most, channels), image.dtype)
        cropped = np.empty_like(image)  # one after the other: ten times as fast as one gather
        for number, (top, left) in enumerate(rng.integers(0, 2 * most + 1, (len(image), 2))):
            padded[most : most + height, most : most + width] = image[number]
            cropped[number] = padded[top : top + height, left : left + width]
        return {**batch, 'image': cropped}


@dataclasses.dataclass(frozen=True)
class ResizedCrop(Step):
    """A part of the image, stretched to the image's size: the Inception crop (Szegedy et al. 2015, section 6).

    Attributes:
      scale: least and largest share of the image's area, drawn uniformly.
      ratio: least and largest width / height, drawn uniformly in its logarithm from those that fit.
    """

    scale: tuple = (0.08, 1.0)
    ratio: tuple = (3 / 4, 4 / 3)

    def __post_init__(self):
        fit.require_ranges(self)

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        from PIL import Image

        image = batch['image']
        stretched, size = np.empty_like(image), image.shape[2:0:-1]
        for number, (top, bottom, left, right) in enumerate(_boxes(image, len(image), self, rng)):
            part = image[number, top:bottom, left:right]
            for channel in range(image.shape[-1]):
                plane = Image.fromarray(np.ascontiguousarray(part[..., channel]))
                stretched[number, ..., channel] = plane.resize(size, Image.Resampling.BILINEAR)
        return {**batch, 'image': stretched}


@dataclasses.dataclass(frozen=True)
class Flip(Step):
    """Mirrors every image left to right with probability one half."""

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        image = batch['image'].copy()
        for number in np.flatnonzero(rng.random(len(image)) < 0.5):
            image[number] = image[number, :, ::-1]
        return {**batch, 'image': image}


@dataclasses.dataclass(frozen=True)
class Jitter(Step):
    """Changes the colours of every image (Krizhevsky et al. 2012, section 4.1, as colour jitter in torchvision without hue).

    In this order x' = f·x; x' = f·x + (1 - f)·mean of the grey image; x' = f·x + (1 - f)·grey image, each f drawn uniformly
    from 1 - strength to 1 + strength, and after each what leaves 0..1 is cut off. Grey is 0.299 R + 0.587 G + 0.114 B.

    Attributes:
      brightness, contrast, saturation: the strengths, from 0 (unchanged) to 1.
    """

    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4

    def __post_init__(self):
        if not all(0 <= strength <= 1 for strength in dataclasses.astuple(self)):
            raise ValueError(f'{self} is out of range; brightness, contrast and saturation must be from 0 to 1.')

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        image = batch['image']
        strengths = np.float32(dataclasses.astuple(self))[:, None, None, None, None]
        factors = 1 + strengths * rng.uniform(-1, 1, (3, len(image), 1, 1, 1)).astype(np.float32)
        weights = np.float32([0.299, 0.587, 0.114] if image.shape[-1] == 3 else [1.0])
        others = (lambda x: np.float32(0), lambda x: (x @ weights).mean((1, 2))[:, None, None, None],
                  lambda x: (x @ weights)[..., None])
        for factor, other in zip(factors, others, strict=True):
            image = np.clip(factor * image + (1 - factor) * other(image), 0, 1)
        return {**batch, 'image': image}


@dataclasses.dataclass(frozen=True)
class RandAugment(Step):
    """Applies `count` of 14 operations in sequence, all of one magnitude (Cubuk et al. 2019), to images of 8 bits.

    Each is drawn uniformly from: identity, autocontrast, equalize, rotate, solarize, color, posterize, contrast,
    brightness, sharpness, and shear and translate along x and y. Operations with two directions take either.

    Attributes:
      magnitude: on the paper's scale: 10 is the largest strength of AutoAugment (rotation by 30 degrees, shear by 0.3,
        translation by 150/331 of the side, factors 1 ± 0.9, 4 bits, everything inverted); up to 30 the strength grows
        linearly, where possible. (A magnitude of 30 in torchvision is 10 here.)
      fill: the grey of the pixels that rotate, shear and translate uncover.
    """

    count: int = 2
    magnitude: int = 9
    fill: float = 0.5

    def __post_init__(self):
        if self.count < 1 or not 0 <= self.magnitude <= 30 or not 0 <= self.fill <= 1:
            raise ValueError(
                f'{self} is out of range; count must be 1 or more, magnitude from 0 to 30 (10 is the largest of '
                'AutoAugment) and fill from 0 to 1.'
            )

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        from PIL import Image

        pixels = np.rint(batch['image'] * 255).astype(np.uint8)
        count, channels = len(pixels), pixels.shape[-1]
        if channels not in (1, 3):
            raise ValueError(f'RandAugment needs 1 or 3 channels, but the images have {channels}; set data.channels.')
        operations = self._operations(channels)
        chosen = rng.integers(0, len(operations), (count, self.count))
        signs = rng.choice((-1, 1), (count, self.count))
        for number in range(count):
            image = Image.fromarray(pixels[number].squeeze(-1) if channels == 1 else pixels[number])
            for operation, sign in zip(chosen[number], signs[number], strict=True):
                image = operations[operation](image, sign)
            pixels[number] = np.asarray(image).reshape(pixels[number].shape)
        return {**batch, 'image': pixels.astype(np.float32) / 255}

    def _operations(self, channels: int) -> tuple[Callable, ...]:
        """Functions (PIL image, sign) -> PIL image."""
        from PIL import Image, ImageEnhance, ImageOps

        strength, bilinear = self.magnitude / 10, Image.Resampling.BILINEAR
        fill = (round(255 * self.fill),) * channels
        shear, angle, moved = 0.3 * strength, 30 * strength, 150 / 331 * strength

        def affine(image, *matrix):
            return image.transform(image.size, Image.Transform.AFFINE, matrix, bilinear, fillcolor=fill)

        def enhance(kind):
            return lambda image, sign: kind(image).enhance(max(0.1, 1 + sign * 0.9 * strength))

        return (
            lambda image, sign: image,
            lambda image, sign: ImageOps.autocontrast(image),
            lambda image, sign: ImageOps.equalize(image),
            lambda image, sign: image.rotate(sign * angle, bilinear, fillcolor=fill),
            lambda image, sign: ImageOps.solarize(image, max(0, 256 * (1 - strength))),
            lambda image, sign: ImageOps.posterize(image, max(1, 8 - round(4 * strength))),
            *map(enhance, (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Brightness, ImageEnhance.Sharpness)),
            lambda image, sign: affine(image, 1, sign * shear, 0, 0, 1, 0),
            lambda image, sign: affine(image, 1, 0, 0, sign * shear, 1, 0),
            lambda image, sign: affine(image, 1, 0, sign * moved * image.width, 0, 1, 0),
            lambda image, sign: affine(image, 1, 0, 0, 0, 1, sign * moved * image.height),
        )


@dataclasses.dataclass(frozen=True)
class Erase(Step):
    """Fills a box of some images with noise, uniform in 0..1 at every pixel: random erasing (Zhong et al. 2017, RE-R).

    Attributes:
      probability: that a box of an image is erased.
      scale: least and largest share of the image's area, drawn uniformly.
      ratio: least and largest width / height, drawn uniformly in its logarithm from those that fit.
    """

    probability: float = 0.5
    scale: tuple = (0.02, 0.4)
    ratio: tuple = (0.3, 1 / 0.3)

    def __post_init__(self):
        if not 0 <= self.probability <= 1:
            raise ValueError(f'Erase(probability={self.probability}) is out of range; it must be from 0 to 1.')
        fit.require_ranges(self)

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        image = batch['image'].copy()
        erased = np.flatnonzero(rng.random(len(image)) < self.probability)
        for number, (top, bottom, left, right) in zip(erased, _boxes(image, len(erased), self, rng), strict=True):
            noise = rng.random((bottom - top, right - left, image.shape[-1]), np.float32)
            image[number, top:bottom, left:right] = noise
        return {**batch, 'image': image}


@dataclasses.dataclass(frozen=True)
class Normalize(Step):
    """(image - mean) / std; one number for all channels, or one for each."""

    mean: tuple = (0.5,)
    std: tuple = (0.5,)

    def __post_init__(self):
        if not (fit.numbers(self.mean) and fit.numbers(self.std) and len(self.mean) == len(self.std) and min(self.std) > 0):
            raise ValueError(f'{self} does not fit; mean and std need as many numbers as each other, those of std above 0.')

    def __call__(self, batch: dict[str, np.ndarray], rng: np.random.Generator | None = None) -> dict[str, np.ndarray]:
        image = batch['image']
        if len(self.mean) not in (1, image.shape[-1]):
            raise ValueError(
                f'{self} is for {len(self.mean)} channels, but the images have {image.shape[-1]}; give one number for all '
                'of them, or one for each.'
            )
        normal = image - np.float32(self.mean)
        normal /= np.float32(self.std)
        return {**batch, 'image': normal}

    def undone(self, image: np.ndarray) -> np.ndarray:
        """The image before this step."""
        return image * np.float32(self.std) + np.float32(self.mean)


def _boxes(image: np.ndarray, count: int, step: ResizedCrop | Erase, rng: np.random.Generator) -> np.ndarray:
    """[count, 4]: top, bottom, left, right of boxes with the area and shape of `step`, placed uniformly."""
    return fit.boxes(*image.shape[1:3], count, step.scale, step.ratio, rng)
