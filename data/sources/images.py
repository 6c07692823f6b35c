"""Labelled images: IDX files and scikit-learn's digits; decoding of all others (folders are in image_folders.py).

An `ImageSource` has class names and parts ('train', 'test', ..) whose examples are read by number.
"""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import math
import os
import re
import struct
import warnings
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from data import cache
from data.sources.archives import Member

_FORMATS = ('PNG', 'JPEG', 'BMP', 'GIF', 'WEBP', 'PPM', 'TIFF')  # of Pillow; others run programs, or are no photographs
_ORIENTATION = 0x0112  # of EXIF
_LARGEST_IDX = 1 << 30  # bytes of an IDX file
_IDX_IMAGES = re.compile(r'(?:.*[-_.])?(train|t10k|test)-images[-.]idx3-ubyte(\.gz)?')


@dataclasses.dataclass(frozen=True)
class Format:
    """The shape of every image, [height, width, channels]; with `resized`, images of other shapes are converted to it."""

    height: int
    width: int
    channels: int
    resized: bool


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Examples in memory: images uint8 [n, h, w, c] whose largest value is `scale`, labels int32 [n]."""

    images: np.ndarray
    labels: np.ndarray
    scale: int

    def __len__(self) -> int:
        return len(self.labels)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the examples."""
        return cache.key(*(hashlib.sha256(np.ascontiguousarray(x)).hexdigest() for x in (self.images, self.labels)), self.scale)

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float32 [len(numbers), h, w, c] in 0..1 and int32 labels."""
        return self.images[numbers].astype(np.float32) / self.scale, self.labels[numbers]

    def joined(self, others: Sequence['Arrays']) -> 'Arrays':
        """These examples, then those of others."""
        parts = (self, *others)
        return Arrays(*(np.concatenate([getattr(p, name) for p in parts]) for name in ('images', 'labels')), self.scale)


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

    def take(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float32 [len(numbers), h, w, c] in 0..1 and int32 labels; ValueError names a file that cannot be used."""
        return np.stack([read(self.paths[number], self.format) for number in numbers]), self.labels[numbers]

    def joined(self, others: Sequence['Files']) -> 'Files':
        """These examples, then those of others."""
        parts = (self, *others)
        return Files([path for p in parts for path in p.paths], np.concatenate([p.labels for p in parts]), self.format)


@dataclasses.dataclass(frozen=True)
class ImageSource:
    """Parts by name, the names of the classes, and the form of every image; where the classes come from, if that is to be said,
    and what else a person should know.

    A part has a length, `digest`, `take(numbers)` and `joined(others)`.
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


def read(path: str | Member, form: Format) -> np.ndarray:
    """Decodes an image file, upright, to float32 [height, width, channels] in 0..1. What is transparent is white.

    Raises FileNotFoundError if the file does not exist, ValueError if it is damaged, too large or, unless `form.resized`, of
    another form.
    """
    return decode(_file(path), str(path), form)


def decode(file: str | BinaryIO | np.ndarray, name: str, form: Format) -> np.ndarray:
    """Like `read`, for an image file or an array of pixels; error messages call it `name`."""
    from PIL import Image, ImageOps

    with _explained(name), _opened(file) as opened:
        gray, deep, mode = _is_gray(opened), _is_deep(opened), opened.mode
        image = ImageOps.exif_transpose(opened)
        if not deep and (image.mode in ('LA', 'PA', 'RGBA', 'La', 'RGBa') or 'transparency' in image.info):
            image = image.convert('RGBA')
            image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
        image = image.convert('F' if deep else 'L' if form.channels == 1 else 'RGB')
    if mode in ('I', 'F') and not deep:
        raise ValueError(f'{name} has 32 bits a pixel (mode {mode}), so the value of white is unknown; save it with 8 or 16.')
    if not form.resized:
        if image.size != (form.width, form.height):
            raise ValueError(
                f'{name} has {image.width}x{image.height} pixels where other images have {form.width}x{form.height}; '
                'set data.size to resize them all.'
            )
        if form.channels == 1 and not gray:
            raise ValueError(f'{name} is coloured where other images are grey; set data.channels to 1 or 3.')
    elif image.size != (form.width, form.height):
        image = image.resize((form.width, form.height), Image.Resampling.BILINEAR)
    array = np.asarray(image, np.float32).reshape(form.height, form.width, -1) / (65535 if deep else 255)
    return np.repeat(array, form.channels // array.shape[-1], axis=-1)


def form_of(file: str | BinaryIO | np.ndarray, name: str, size: int, channels: int) -> Format:
    """The form of all images: that of this one, except for `size` and `channels` where they are not 0."""
    from PIL import ImageOps

    with _explained(name), _opened(file) as image:
        width, height, found = *ImageOps.exif_transpose(image).size, 1 if _is_gray(image) else 3
    return Format(size or height, size or width, channels or found, resized=bool(size))


def header(path: str | Member) -> tuple[int, int, bool]:
    """(width, height, whether it is grey) of an image file, upright, without decoding it; raises as `read` does."""
    file = _file(path)
    with _explained(str(path)), _opened(file) as image:
        turned = False
        if image.format != 'PNG' or 'exif' in image.info:  # Pillow decodes a PNG to look for it at the end
            turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
        width, height = reversed(image.size) if turned else image.size
        return width, height, _is_gray(image)


def _file(path: str | Member) -> str | BinaryIO:
    if isinstance(path, Member):
        return io.BytesIO(path.read())
    if not os.path.isfile(path):
        raise FileNotFoundError(f'{path!r} does not exist; expected an image file.')
    return path


@contextlib.contextmanager
def _explained(name: str):
    """Turns what Pillow raises into a ValueError of one sentence."""
    from PIL import Image

    try:
        yield
    except Image.DecompressionBombError as error:
        most = Image.MAX_IMAGE_PIXELS // 10**6
        raise ValueError(f'{name} has more than {most} million pixels; make it smaller, or leave it out.') from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, MemoryError) as error:
        raise ValueError(f'{name} cannot be decoded as an image; replace or remove it.') from error


def _opened(file: str | BinaryIO | np.ndarray):
    from PIL import Image

    if isinstance(file, np.ndarray):
        return Image.fromarray(file[..., 0] if file.shape[2:] == (1,) else file)
    warnings.filterwarnings('ignore', category=Image.DecompressionBombWarning)  # not warned of, refused
    image = Image.open(file, formats=_FORMATS)
    if image.width * image.height > Image.MAX_IMAGE_PIXELS:
        raise Image.DecompressionBombError
    return image


def digits(size: int, channels: int) -> ImageSource:
    """1,797 handwritten digits of 8x8 pixels with 17 levels of grey (scikit-learn, UCI test part).

    They are in a fixed random order, because the original order groups them by writer."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ValueError("data.source='digits' needs scikit-learn; install it with pip.") from error
    bunch = datasets.load_digits()
    order = sorted(range(len(bunch.target)), key=lambda i: hashlib.sha256(b'%d' % i).digest())
    images = bunch.images.astype(np.uint8)[order][..., None]
    part = Arrays(_convert(images, size, channels), bunch.target.astype(np.int32)[order], scale=16)
    return ImageSource({'train': part}, tuple(map(str, range(10))), _form(part.images))


def idx(path: str, size: int, channels: int) -> ImageSource:
    """IDX files (LeCun et al. 1998), plain or .gz, from a folder with the usual names or one images file.

    Parts are 'train' and 'test' (t10k), whichever exist; classes are the labels' numbers. Raises FileNotFoundError
    if there are none, ValueError for a damaged file.
    """
    path = os.path.expanduser(path)
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
        parts[part] = Arrays(_convert(images, size, channels), labels.astype(np.int32), scale=255)
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


def _is_gray(image) -> bool:
    return image.mode in ('1', 'L', 'LA', 'I', 'F') or image.mode.startswith('I;16')


def _is_deep(image) -> bool:
    """16 bits of grey, which Pillow opens with mode I or I;16; its own conversion to 8 bits would clip them."""
    return image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM'))


def _form(images: np.ndarray) -> Format:
    return Format(*images.shape[1:], resized=True)


def _convert(images: np.ndarray, size: int, channels: int) -> np.ndarray:
    """The images as uint8 [n, h, w, c] with the given size and channels; 0 keeps theirs."""
    if channels == 1 and images.shape[-1] == 3:
        images = np.rint(images @ np.array([0.299, 0.587, 0.114], np.float32)).astype(np.uint8)[..., None]  # BT.601
    if size and images.shape[1:3] != (size, size):
        from PIL import Image

        resized = np.empty((len(images), size, size, images.shape[-1]), np.uint8)
        for number, image in enumerate(images):
            for channel in range(images.shape[-1]):
                plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
                resized[number, ..., channel] = plane.resize((size, size), Image.Resampling.BILINEAR)
        images = resized
    return np.repeat(images, 3, axis=-1) if channels == 3 and images.shape[-1] == 1 else images


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
