"""Readers that classify images or turn them into vectors."""

import abc
import dataclasses
import glob
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer.readers.base import Reader, classified, numbers, text_lines
from transformer.readers.rows import AT_ONCE, output_rows, size
from vit.contracts import Patched, SeenImages, Staged
from vit.explain import attention

# Those of data/images/decoding.py, which a test compares.
SUFFIXES = ('.png', '.apng', '.jpg', '.jpeg', '.jpe', '.jfif', '.mpo', '.jp2', '.j2k', '.bmp', '.gif', '.webp', '.avif', '.ppm',
            '.pgm', '.pbm', '.pnm', '.tif', '.tiff')
_NAMED = *SUFFIXES, '.heic', '.heif', '.jxl', '.svg'  # also images that are not read
_PACKED = b'\x1f\x8b', b'BZh', b'\xfd7zXZ\0', b'\x28\xb5\x2f\xfd'  # how gzip, bzip2, xz and Zstandard begin
LIKELIEST = 5  # classes that are shown of an image
_KEPT = 256 << 20  # bytes of images that are not decoded again after all were checked


@dataclasses.dataclass(frozen=True)
class ImageReader(Reader):
    """Base of the readers of images: the input has on each line the path of an image, of a folder of images, or a pattern such
    as photos/*.jpg, or is one of these itself."""
    contract, what = SeenImages, 'images'

    def lines(self, content: bytes | None, name: str) -> list[str]:
        """The paths of the images that the input lists, or of those in the folder or the pattern that it names, or its own path
        if it is an image; blank lines are skipped."""
        if content is None:
            return _files(name)
        if name.lower().endswith(_NAMED):
            return [os.path.expanduser(name)]  # whatever it is, `SeenImages.read` says it
        if content.startswith(_PACKED) or content[257:262] == b'ustar' or zipfile.is_zipfile(io.BytesIO(content)):
            raise ValueError(f'{"Stdin" if name == "-" else name} is an archive; unpack it, and give the folder of its images.')
        if not is_image(content):
            listed = text_lines(content, name, 'an image, or the path of one per line')
            return [path for line in listed if line.strip() for path in _files(line)]
        if name == '-':
            raise ValueError('Stdin is an image, but is read as paths of images; give the image itself with --input=FILE.')
        return [os.path.expanduser(name)]

    def read(self, data: SeenImages, lines: Sequence[str], name: str) -> Iterator[tuple[Sequence[str], np.ndarray, list[dict]]]:
        """Yields (some of the paths, their images [B, height, width, C], for each path its entries of the JSON on how it is
        read); the last image fills up the last batch, so that there is one program for all. All are read before the first
        batch, so that a corrupt one is refused before any output."""
        kept, used, notes, given = {}, 0, {}, os.path.expanduser(name)
        for number, path in enumerate(lines, 1):
            try:
                image, note = data.seen(path)
            except (ValueError, FileNotFoundError) as error:
                listed = len(lines) > 1 or (os.path.isfile(given) and path != given)
                raise ValueError(f'Image {number} of {name}: {error}' if listed else str(error)) from None
            notes[path] = {'note': note} if note else {}
            if used < _KEPT:
                kept[path], used = image, used + image.nbytes
        count = size(len(lines), AT_ONCE)
        for start in range(0, len(lines), count):
            part = lines[start:start + count]
            images = [kept[path] if path in kept else data.read(path) for path in part]
            yield part, np.stack(images + images[-1:] * (count - len(part))), [notes[path] for path in part]

    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        self.data_of(snapshot)
        return attention.of_image(snapshot, given, steps=steps)

    def grid(self, snapshot: Any) -> tuple[int, int] | None:
        """(rows, columns) of the patches of an image, in the first stage; None: the model has none."""
        (_, height, width, _), model = snapshot.data.shapes['image'][0], snapshot.model
        if isinstance(model, Staged):
            return model.cells((height, width))['stage_0'][:2]
        return (height // model.patch, width // model.patch) if isinstance(model, Patched) else None


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
        for paths, images, notes in self.read(data, lines, name):
            for path, found, note in zip(paths, output_rows(snapshot, {'image': images}, self.output), notes):
                text, details = self.answer(data, path, found)
                yield text, details | note


@dataclasses.dataclass(frozen=True)
class ImageClass(OfOutput):
    """Shows the `LIKELIEST` classes of an image, or all if there are fewer, each with its probability, and the path; in JSON
    also the probabilities of all."""
    output = 'logits'

    def answer(self, data: SeenImages, path: str, found: np.ndarray) -> tuple[str, dict]:
        found = classified(data.classes, found)
        first = sorted(found['probabilities'].items(), key=lambda one: -one[1])[:LIKELIEST]
        text = '\t'.join(f'{name}\t{probability:.4f}' for name, probability in first)
        best = [{'class': name, 'probability': probability} for name, probability in first]
        return f'{text}\t{path}', {'path': path, 'likeliest': best, **found}


@dataclasses.dataclass(frozen=True)
class ImageVector(OfOutput):
    """Reads the path of an image and shows its pooled vector."""
    output = 'pooled'

    def answer(self, data: SeenImages, path: str, found: np.ndarray) -> tuple[str, dict]:
        vector = numbers(found)
        return json.dumps(vector), {'path': path, 'vector': vector, 'of': 'pooled'}


def _files(given: str) -> list[str]:
    """The images in a folder and those below it, or the files that a pattern matches, by name; else what is given. Raises
    ValueError for a folder without images and for a pattern that matches only folders."""
    path = os.path.expanduser(given)
    if os.path.isdir(path):
        found = [name for name in _below(path) if name.lower().endswith(SUFFIXES)]
        if not found:
            raise ValueError(f'The folder {given!r} holds no images ({", ".join(SUFFIXES)}); give one that does, or a file.')
        return sorted(found)
    if os.path.exists(path):
        return [path]
    matched = sorted(glob.glob(path, recursive=True))
    files, folders = (list(filter(kind, matched)) for kind in (os.path.isfile, os.path.isdir))
    if folders and not files:
        raise ValueError(f'The pattern {given!r} matches only folders, such as {folders[0]!r}; give the path of a folder.')
    return files or [given]


def _below(path: str) -> Iterator[str]:
    """The files in a folder and those below it, without hidden ones and what macOS adds; as in training, links to folders are
    followed, each folder once."""
    seen = set()
    for folder, inner, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            inner.clear()
            continue
        seen.add(real)
        inner[:] = sorted(name for name in inner if not name.startswith('.') and name != '__MACOSX')
        yield from (os.path.join(folder, name) for name in names if not name.startswith('.'))


def is_image(content: bytes) -> bool:
    """Whether bytes begin like an image file, damaged or not. A text is none, unless it is a whole one such as of PBM: the path
    'BMW_1.jpg' begins like a BMP."""
    from PIL import Image

    try:
        Image.open(io.BytesIO(content)).close()
    except Image.UnidentifiedImageError:
        return False
    except (OSError, SyntaxError, ValueError, RuntimeError, Image.DecompressionBombError):
        return not _is_text(content)  # a damaged image, which `SeenImages.read` refuses by name
    return True


def _is_text(content: bytes) -> bool:
    """Whether bytes are UTF-8 without control characters, but for white space."""
    try:
        return not re.search(r'[\0-\x08\x0e-\x1f\x7f]', content.decode())
    except UnicodeDecodeError:
        return False
