"""Labelled images: IDX files and scikit-learn's digits (folders are in image_folders.py, decoding in data/images/decoding.py).

An `ImageSource` has class names and parts ('train', 'test', ..) whose examples are read by number.
"""

import dataclasses
import functools
import gzip
import hashlib
import math
import os
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from data import cache, remote
from data.images import decoding
from data.images.decoding import Format, Wanted
from data.sources.archives import Member

_LARGEST_IDX = 1 << 30  # bytes of an IDX file
_IDX_IMAGES = re.compile(r'(?:.*[-_.])?(train|t10k|test)-images[-.]idx3-ubyte(\.gz)?')


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Examples in memory: images uint8 [n, h, w, c] whose largest value is `scale`, labels int32 [n]; and the images as they
    were `before` their form was changed, if it was, which name the examples."""

    images: np.ndarray
    labels: np.ndarray
    scale: int
    before: tuple[np.ndarray, ...] = ()

    @classmethod
    def of(cls, images: np.ndarray, labels: np.ndarray, scale: int, wanted: Wanted) -> 'Arrays':
        """The images in the wanted form."""
        converted = _convert(images, wanted)
        if converted is images:
            return cls(images, labels.astype(np.int32), scale)
        return cls(np.minimum(converted, scale), labels.astype(np.int32), scale, (images,))  # bicubic and lanczos overshoot

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def given(self) -> tuple[np.ndarray, ...]:
        return self.before or (self.images,)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the examples, whatever their form is now."""
        images = hashlib.sha256()
        for array in self.given:
            images.update(np.ascontiguousarray(array))
        return cache.key(images.hexdigest(), hashlib.sha256(np.ascontiguousarray(self.labels)).hexdigest(), self.scale)

    def take(self, numbers: np.ndarray, rng: np.random.Generator | None = None) -> tuple[np.ndarray, np.ndarray]:
        """float32 [len(numbers), h, w, c] in 0..1 and int32 labels; nothing is drawn of images in memory."""
        return self.images[numbers].astype(np.float32) / self.scale, self.labels[numbers]

    def joined(self, others: Sequence['Arrays']) -> 'Arrays':
        """These examples, then those of others."""
        parts = (self, *others)
        join = lambda of: np.concatenate([of(part) for part in parts])
        before = tuple(array for part in parts for array in part.given) if any(part.before for part in parts) else ()
        return Arrays(join(lambda part: part.images), join(lambda part: part.labels), self.scale, before)


@dataclasses.dataclass(frozen=True)
class Files:
    """Examples that are decoded on demand."""

    paths: Sequence[str | Member]
    labels: np.ndarray
    format: Format

    def __len__(self) -> int:
        return len(self.paths)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the contents of the files and of the labels."""
        packed = [path.key for path in self.paths if isinstance(path, Member)]
        plain = cache.digest_of_all([path for path in self.paths if not isinstance(path, Member)])
        return cache.key(plain, *packed, self.labels.tolist())

    def take(self, numbers: np.ndarray, rng: np.random.Generator | None = None) -> tuple[np.ndarray, np.ndarray]:
        """float32 [len(numbers), h, w, c] in 0..1 and int32 labels; ValueError names a file that cannot be used. With `rng`,
        of training, parts of images are drawn if their fit says so."""
        return np.stack([decoding.read(self.paths[number], self.format, rng) for number in numbers]), self.labels[numbers]

    def joined(self, others: Sequence['Files']) -> 'Files':
        """These examples, then those of others."""
        parts = (self, *others)
        return Files([path for p in parts for path in p.paths], np.concatenate([p.labels for p in parts]), self.format)


@dataclasses.dataclass(frozen=True)
class ImageSource:
    """Parts by name, the names of the classes, and the form of every image; where the classes come from, if that is to be said,
    and what else a person should know.

    A part has a length, `labels`, `digest`, `take(numbers, rng)` and `joined(others)`.
    """

    parts: dict[str, Any]
    classes: tuple[str, ...]
    format: Format
    about: str = ''
    notes: tuple[str, ...] = ()

    def sizes(self) -> dict[str, int]:
        sizes = {name: len(part) for name, part in self.parts.items()}
        return {**sizes, 'all': sum(sizes.values())}

    def part(self, name: str) -> Any:
        """One part; 'all' is every part, in order."""
        if name != 'all':
            return self.parts[name]
        first, *others = self.parts.values()
        return first.joined(others)


def digits(wanted: Wanted) -> ImageSource:
    """1,797 handwritten digits of 8x8 pixels with 17 levels of grey (scikit-learn, UCI test part).

    They are in a fixed random order, because the original order groups them by writer."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ValueError("data.source='digits' needs scikit-learn; install it with pip.") from error
    bunch = datasets.load_digits()
    order = sorted(range(len(bunch.target)), key=lambda i: hashlib.sha256(b'%d' % i).digest())
    part = Arrays.of(bunch.images.astype(np.uint8)[order][..., None], bunch.target[order], 16, wanted)
    return ImageSource({'train': part}, tuple(map(str, range(10))), _form(part.images))


def idx(path: str, wanted: Wanted) -> ImageSource:
    """IDX files (LeCun et al. 1998), plain or .gz, from a folder with the usual names or one images file.

    Parts are 'train' and 'test' (t10k), whichever exist; classes are the labels' numbers. Raises FileNotFoundError
    if there are none, ValueError for a damaged file, and for images of no pixels or of other than 1 or 3 channels.
    """
    path = remote.local(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f'{path!r} does not exist; data.path must be a folder of IDX files or an images file.')
    found = {}
    names = sorted(os.listdir(path)) if os.path.isdir(path) else [os.path.basename(path)]
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    for name in names:
        match = _IDX_IMAGES.fullmatch(name)
        if match or folder != path:
            part = 'test' if match and match[1] != 'train' else 'train'
            if part in found and found[part].removesuffix('.gz') != os.path.join(folder, name).removesuffix('.gz'):
                raise ValueError(f'{path} holds several IDX files for {part!r}; set data.path to one images file.')
            found.setdefault(part, os.path.join(folder, name))
    if not found:
        raise FileNotFoundError(f'{path!r} holds no IDX images; expected names such as train-images-idx3-ubyte.gz.')
    parts = {}
    for part, name in sorted(found.items(), reverse=True):  # train before test
        base = os.path.basename(name)
        images = _read_idx(name, (3, 4))
        labels = _read_idx(os.path.join(folder, base.replace('images', 'labels').replace('idx3', 'idx1')), (1,))
        if len(images) != len(labels) or not len(labels):
            raise ValueError(f'{name} has {len(images)} images for {len(labels)} labels; expected one label an image.')
        images = images if images.ndim == 4 else images[..., None]
        _, height, width, channels = images.shape
        if not height or not width or channels not in (1, 3):
            raise ValueError(f'{name} has images of {height} x {width} x {channels}; expected sides of 1 or more and 1 or 3 '
                             'channels; make such images of them.')
        parts[part] = Arrays.of(images, labels, 255, wanted)
    shapes = {part.images.shape[1:] for part in parts.values()}
    if len(shapes) > 1:
        sizes = ' and '.join(f'{part} of {"x".join(map(str, one.images.shape[1:]))}' for part, one in parts.items())
        field = 'channels to 1 or 3, which all are given' if len({shape[:2] for shape in shapes}) == 1 else (
            'size to the height and width that all are resized to')
        raise ValueError(f'{path} has images of different shapes, {sizes}; set data.{field}.')
    count = 1 + max(int(part.labels.max()) for part in parts.values())
    return ImageSource(parts, tuple(map(str, range(count))), _form(next(iter(parts.values())).images))


def is_idx(path: str) -> bool:
    """Whether a path is a file of IDX images, or a folder with such files under their usual names."""
    if os.path.isdir(path):
        return any(map(_IDX_IMAGES.fullmatch, os.listdir(path)))
    try:
        with (gzip.open if path.endswith('.gz') else open)(path, 'rb') as file:
            return file.read(4) in (b'\0\0\x08\x03', b'\0\0\x08\x04')
    except (OSError, EOFError, zlib.error):
        return False


def _form(images: np.ndarray) -> Format:
    return Format(*images.shape[1:], resized=True)


def _convert(images: np.ndarray, wanted: Wanted) -> np.ndarray:
    """The images as uint8 [n, h, w, c], in the wanted form, with the part that evaluation has."""
    if wanted.channels == 1 and images.shape[-1] == 3:
        images = np.rint(images @ np.array([0.299, 0.587, 0.114], np.float32)).astype(np.uint8)[..., None]  # BT.601
    given, sides = images.shape[2:0:-1], (wanted.width, wanted.height)
    if wanted.height and (given != sides or wanted.fit.box(given, sides, None) != (0, 0, *sides)):
        from PIL import Image

        resized = np.empty((len(images), wanted.height, wanted.width, images.shape[-1]), np.uint8)
        for number, image in enumerate(images):
            for channel in range(images.shape[-1]):
                plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
                resized[number, ..., channel] = wanted.fit(plane, wanted.width, wanted.height)
        images = resized
    return np.repeat(images, 3, axis=-1) if wanted.channels == 3 and images.shape[-1] == 1 else images


def _read_idx(path: str, dimensions: tuple[int, ...]) -> np.ndarray:
    """An unsigned-byte IDX file: two zeros, type 8, the number of dimensions, their sizes (big-endian), the data."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f'{path!r} does not exist; an IDX images file needs its labels file beside it.')
    try:
        with (gzip.open if path.endswith('.gz') else open)(path, 'rb') as file:
            begun = file.read(4)
            count = begun[3] if len(begun) > 3 else 0
            sizes = file.read(4 * count)
            magic, images = int.from_bytes(begun, 'big'), dimensions != (1,)
            expected = '2051 (2052 with channels)' if images else '2049'
            if begun[:3] != b'\0\0\x08' or count not in dimensions or len(sizes) < 4 * count:
                has = f'the magic number {magic}, and expected is {expected}' if len(sizes) == 4 * count > 0 else (
                    f'{len(begun + sizes)} bytes')
                raise ValueError(f'{path} is no IDX file of {"images" if images else "labels"}: it has {has}; download it '
                                 'again.')
            shape = np.frombuffer(sizes, '>u4').tolist()
            if (size := math.prod(max(1, one) for one in shape)) > _LARGEST_IDX:
                raise ValueError(
                    f'{path} has the magic number {magic}, where that of {"images" if images else "labels"} is {expected}, and '
                    f'the sizes {" x ".join(map(str, shape))}, which makes {size:,} bytes, and at most {_LARGEST_IDX >> 20} MB '
                    "are read; correct the header, make a folder of images of it, or prepare it for data.source='tfds'.")
            found, done = np.zeros(shape, np.uint8), 0
            flat = memoryview(found.reshape(-1))
            while read := file.readinto(flat[done:done + (1 << 20)]):
                done += read
            if done < found.size or file.read(1):
                raise ValueError(f'{path} is cut short or too long: its header, magic number '
                                 f'{magic} with the sizes {" x ".join(map(str, shape))}, promises '
                                 f'{found.size} bytes of data; images have the magic number 2051 or 2052, labels 2049.')
            return found
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f'{path} is damaged ({error}); expected a complete .gz file.') from error
