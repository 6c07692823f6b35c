"""Readers that classify images or turn them into vectors."""

import abc
import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer.readers.base import Reader, classified, numbers, text_lines
from transformer.readers.rows import output_rows
from vit.contracts import SeenImages
from vit.explain import attention

_SUFFIXES = '.png', '.jpg', '.jpeg', '.gif', '.bmp', '.webp', '.tif', '.tiff'


@dataclasses.dataclass(frozen=True)
class ImageReader(Reader):
    """Base of the readers of images: the input has the path of an image on each line, or is an image itself."""
    contract, what = SeenImages, 'images'

    def lines(self, content: bytes, name: str) -> list[str]:
        """The paths of the images that the input lists, or its own path if it is an image; blank lines are skipped."""
        if not is_image(content):
            if name.lower().endswith(_SUFFIXES):
                raise ValueError(f'{name} is no image, although it is named as one; give an image, or one path per line.')
            return [line for line in text_lines(content, name, 'an image, or the path of one per line') if line.strip()]
        if name == '-':
            raise ValueError('Stdin is an image, but is read as paths of images; give the image itself with --input=FILE.')
        return [name]

    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        data = self.data_of(snapshot)
        view, found, more = attention.of_image(snapshot, given, steps=steps)
        return view, found, more | resized(data, given)

    def grid(self, snapshot: Any) -> tuple[int, int]:
        """(rows, columns) of the patches of an image."""
        _, height, width, _ = snapshot.data.shapes['image'][0]
        return height // snapshot.model.patch, width // snapshot.model.patch


@dataclasses.dataclass(frozen=True)
class OfOutput(ImageReader):
    """Base of the readers that show one output of the model for each image."""

    @property
    @abc.abstractmethod
    def output(self) -> str:
        """The name of the model's output that the reader shows."""

    @abc.abstractmethod
    def answer(self, data: SeenImages, path: str, found: np.ndarray) -> tuple[str, dict]:
        """(text, details) of an image with this output."""

    def answers(self, snapshot: Any, lines: Sequence[str], name: str) -> Iterator[tuple[str, dict]]:
        data = self.data_of(snapshot)
        images = read(data, lines, name)
        for path, found in zip(lines, output_rows(snapshot, {'image': np.stack(images)}, self.output) if images else ()):
            text, details = self.answer(data, path, found)
            yield text, details | resized(data, path)


@dataclasses.dataclass(frozen=True)
class ImageClass(OfOutput):
    """Reads the path of an image and shows its class, the probability, and the path."""
    output = 'logits'

    def answer(self, data: SeenImages, path: str, found: np.ndarray) -> tuple[str, dict]:
        found = classified(data.classes, found)
        return f'{found["class"]}\t{found["probability"]:.4f}\t{path}', {'path': path, **found}


@dataclasses.dataclass(frozen=True)
class ImageVector(OfOutput):
    """Reads the path of an image and shows its pooled vector."""
    output = 'pooled'

    def answer(self, data: SeenImages, path: str, found: np.ndarray) -> tuple[str, dict]:
        vector = numbers(found)
        return json.dumps(vector), {'path': path, 'vector': vector, 'of': 'pooled'}


def read(data: SeenImages, paths: Sequence[str], name: str) -> list[np.ndarray]:
    """The images of an input: all of them, so that a corrupt one is refused before any output."""
    images = []
    for number, path in enumerate(paths, 1):
        try:
            images.append(data.read(path))
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f'Image {number} of {name}: {error}' if len(paths) > 1 else str(error)) from None
    return images


def resized(data: SeenImages, path: str) -> dict:
    """The entries of the JSON for an image that has another size than those of training."""
    if (size := data.resized_from(path)) is None:
        return {}
    _, height, width, _ = data.shapes['image'][0]
    return {'note': f'{path} is resized from {size[0]}x{size[1]} to {width}x{height}, the size of all images of training'}


def is_image(content: bytes) -> bool:
    """Whether bytes begin like an image file, damaged or not."""
    from PIL import Image

    try:
        Image.open(io.BytesIO(content)).close()
    except Image.UnidentifiedImageError:
        return False
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        pass  # a damaged image, which `SeenImages.read` refuses by name
    return True
