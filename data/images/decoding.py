"""Image files: their form, from the header alone, and their pixels, upright and in 0..1.

Pixels of other kinds become grey or colour: a palette its colours, CMYK and YCbCr and CIELAB RGB without colour profiles; what
is transparent becomes white; 16 bits of grey keep their precision, of a colour, or of grey with alpha, the upper 8 are read, as
Pillow does. Of several pictures in a file the first is read.
"""

import contextlib
import dataclasses
import io
import os
import struct
import warnings
import zlib
from typing import BinaryIO

import numpy as np

from data.images.fit import Fit, Stretch
from data.sources.archives import Member

SUFFIXES = ('.png', '.apng', '.jpg', '.jpeg', '.jpe', '.jfif', '.mpo', '.jp2', '.j2k', '.bmp', '.gif', '.webp', '.avif', '.ppm',
            '.pgm', '.pbm', '.pnm', '.tif', '.tiff')
_FORMATS = ('PNG', 'JPEG', 'JPEG2000', 'BMP', 'GIF', 'WEBP', 'AVIF', 'PPM', 'TIFF')  # of Pillow; others are no photographs, or
# are read by other programs
_OTHERS = ((b'ftypheic', 'HEIC'), (b'ftypheix', 'HEIC'), (b'ftypmif1', 'HEIF'), (b'ftypmsf1', 'HEIF'), (b'<svg', 'SVG'),
           (b'\0\0\0\x0cJXL ', 'JPEG XL'), (b'\xff\x0a', 'JPEG XL'), (b'%PDF-', 'PDF'))  # that Pillow does not know
_ORIENTATION, _LYING = 0x0112, (5, 6, 7, 8)  # of EXIF
_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC = 256, 257, 258, 262  # tags of TIFF
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, MemoryError, LookupError, RuntimeError,
           TypeError, ZeroDivisionError)  # what Pillow raises for damaged files


@dataclasses.dataclass(frozen=True)
class Format:
    """The shape of every image, [height, width, channels]; with `resized`, images of other sizes are made to `fit` it, and with
    `decoloured`, or `resized`, coloured ones become grey where that is the shape."""

    height: int
    width: int
    channels: int
    resized: bool
    fit: Fit = Stretch()
    decoloured: bool = False


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What a config says of the form of images: 0 keeps that of the files."""

    height: int = 0
    width: int = 0
    channels: int = 0
    fit: Fit = Stretch()

    def of(self, height: int, width: int, channels: int) -> Format:
        """The form, for images of this one."""
        return Format(self.height or height, self.width or width, self.channels or channels, bool(self.height), self.fit,
                      decoloured=bool(self.channels))


def read(path: str | Member, form: Format, rng: np.random.Generator | None = None) -> np.ndarray:
    """Decodes an image file, upright, to float32 [height, width, channels] in 0..1. What is transparent is white.

    Args:
      rng: of training, for a part that is drawn.
    Raises: FileNotFoundError if the file does not exist, ValueError if it is a folder, damaged, of a kind that is not read, too
      large or, unless `form.resized`, of another form.
    """
    return decode(_file(path), str(path), form, rng)


def seen(path: str | Member, form: Format) -> tuple[np.ndarray, tuple[int, int, int]]:
    """(what `read` returns, the file's own width, height and number of pictures), decoded once; raises as `read` does."""
    facts = []
    return decode(_file(path), str(path), form, facts=facts), tuple(facts)


def decode(file: str | BinaryIO | np.ndarray, name: str, form: Format, rng: np.random.Generator | None = None,
           facts: list[int] | None = None) -> np.ndarray:
    """Like `read`, for an image file or an array of pixels; error messages call it `name`.

    Args:
      facts: is extended by the width and the height as the image is seen, and by the number of pictures in the file.
    """
    from PIL import Image, ImageOps

    with _explained(name, file), _opened(file) as opened:
        gray, deep, mode, scale, raw = _is_gray(opened), _is_deep(opened), opened.mode, 255, _raw(opened)
        image = ImageOps.exif_transpose(opened)
        if deep:
            image, scale = _deep(image, getattr(opened, 'tag_v2', {})), 1
        else:
            if 'transparency' in image.info:
                image.info['transparency'] = _of_8_bits(image.info['transparency'], raw)
            if image.mode in ('LA', 'PA', 'RGBA', 'La', 'RGBa') or 'transparency' in image.info:
                image = image.convert('RGBA')
                image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
            if image.mode == 'LAB':  # of which Pillow makes no grey
                image = image.convert('RGB')
            image = image.convert('L' if form.channels == 1 else 'RGB')
        if facts is not None:
            facts += [*image.size, _pictures(opened)]
    if mode in ('I', 'F') and not deep:
        raise ValueError(f'{name} has 32 bits a pixel, or signed ones (mode {mode}), so the value of white is unknown; save it '
                         'with 8 or 16.')
    if not form.resized:
        if image.size != (form.width, form.height):
            raise ValueError(
                f'{name} has {image.width}x{image.height} pixels where other images have {form.width}x{form.height}; '
                'set data.size to resize them all.'
            )
        if form.channels == 1 and not gray and not form.decoloured:
            raise ValueError(f'{name} is coloured where other images are grey; set data.channels to 1 or 3.')
    image = form.fit(image, form.width, form.height, rng)
    array = np.asarray(image, np.float32).reshape(form.height, form.width, -1) / scale
    array = np.clip(array, 0, 1)  # bicubic and lanczos overshoot, which Pillow clips in images of 8 bits alone
    return np.repeat(array, form.channels // array.shape[-1], axis=-1)


def _of_8_bits(clear, raw):
    """The transparent colour of an image whose pixels are stored like this: Pillow brings these to 8 bits, but not it."""
    if raw == 'RGB;16B':
        return tuple(one >> 8 for one in clear)
    return clear * 255 // (2 ** int(raw[2:]) - 1) if raw in ('L;2', 'L;4') else clear


def _deep(image, tags):
    """An image of 16 bits of grey as one of float32 in 0..1; what is transparent is white. tags: of TIFF."""
    from PIL import Image

    given = np.asarray(image.convert('F'))
    white = 2 ** tags.get(_BITS, (16,))[0] - 1  # 12 bits are stored as they are
    values = given / np.float32(white)
    if tags.get(_PHOTOMETRIC) == 0:
        values = 1 - values  # 0 is white
    if isinstance(clear := image.info.get('transparency'), int):
        values = np.where(given == clear, np.float32(1), values)
    return Image.fromarray(values)


def _pictures(opened) -> int:
    """The number of pictures in a file, of which the first is read; 1 if damage behind it keeps them from being counted."""
    try:
        return getattr(opened, 'n_frames', 1)
    except _DAMAGE:
        return 1


def form_of(file: str | BinaryIO | np.ndarray, name: str, wanted: Wanted) -> Format:
    """The form of all images: that of this one, except for what is wanted."""
    with _explained(name, file), _opened(file) as image:
        width, height = _size(image)
        return wanted.of(height, width, 1 if _is_gray(image) else 3)


def header(path: str | Member) -> tuple[int, int, bool]:
    """(width, height, whether it is grey) of an image file, upright, without decoding it; raises as `read` does."""
    file = _file(path)
    with _explained(str(path), file), _opened(file) as image:
        # Pillow decodes a PNG to look for EXIF behind the pixels.
        return *_size(image, image.format != 'PNG' or 'exif' in image.info), _is_gray(image)


def _size(image, turned: bool = True) -> tuple[int, int]:
    """(width, height) of an opened image as it is seen; with `turned` by its EXIF."""
    width, height = image.size
    if tags := getattr(image, 'tag_v2', None):  # some versions of Pillow have turned the size of a TIFF already
        width, height = tags[_WIDTH], tags[_HEIGHT]
    lying = turned and image.getexif().get(_ORIENTATION, 1) in _LYING
    return (height, width) if lying else (width, height)


def _file(path: str | Member) -> str | BinaryIO:
    if isinstance(path, Member):
        return io.BytesIO(path.read())
    if os.path.isdir(path):
        raise ValueError(f'{path!r} is a folder; expected an image file.')
    if not os.path.isfile(path):
        raise FileNotFoundError(f'{path!r} does not exist; expected an image file.')
    return path


@contextlib.contextmanager
def _explained(name: str, file: str | BinaryIO | np.ndarray):
    """Turns what Pillow raises into a ValueError of one sentence."""
    from PIL import Image

    try:
        yield
    except Image.DecompressionBombError as error:
        most = Image.MAX_IMAGE_PIXELS // 10**6
        raise ValueError(f'{name} has more than {most} million pixels; make it smaller, or leave it out.') from error
    except _DAMAGE as error:
        raise ValueError(f'{name} cannot be decoded as an image: {_why(file)}.') from error


def _why(file: str | BinaryIO | np.ndarray) -> str:
    """What is wrong with a file that cannot be decoded, and what to do."""
    if isinstance(file, np.ndarray):
        return f'it is an array of {file.dtype} {list(file.shape)}; give uint8 with 1 to 4 channels, or uint16 with 1'
    with open(file, 'rb') if isinstance(file, str) else contextlib.nullcontext(file) as opened:
        opened.seek(0)
        head = opened.read(512)
    if not head:
        return 'it is empty; replace or remove it'
    kind = kind_of(head)
    if kind in _FORMATS:
        return 'it is damaged, cut short or of a rare variant; replace it, or save it as PNG'
    if kind:
        return f'it is a file of {kind}, which is not read; save it as PNG or JPEG'
    return 'its bytes are those of no known kind of image; replace or remove it'


def kind_of(head: bytes) -> str:
    """The kind of image that a file is by its first bytes, as Pillow calls it, whether it is read or not; '' if it is none."""
    from PIL import Image

    if found := next((kind for mark, kind in _OTHERS if mark in head[:256] and (mark[:1] == b'<' or mark in head[:16])), ''):
        return found
    Image.init()  # all kinds that Pillow knows
    for kind, (_, accepts) in Image.OPEN.items():
        with contextlib.suppress(struct.error, IndexError):  # of fewer bytes than it looks at
            if accepts and kind not in ('SPIDER', 'TGA') and accepts(head[:16]):
                return kind
    return ''


def _quiet() -> None:
    """Pillow warns of large images, which are refused here, and of metadata that it cannot read."""
    from PIL import Image

    warnings.filterwarnings('ignore', category=Image.DecompressionBombWarning)
    warnings.filterwarnings('ignore', category=UserWarning, module=r'PIL\.')


@contextlib.contextmanager
def _opened(file: str | BinaryIO | np.ndarray):
    """The image of Pillow, whose header alone is read so far."""
    from PIL import Image

    if isinstance(file, np.ndarray):
        yield Image.fromarray(file[..., 0] if file.shape[2:] == (1,) else file)
        return
    _quiet()
    # Not by its name: Pillow 13 maps such a TIFF into memory, and garbles it if it lies on its side.
    with (open(file, 'rb') if isinstance(file, str) else contextlib.nullcontext(file) as opened,
          Image.open(opened, formats=_FORMATS) as image):
        if image.width * image.height > Image.MAX_IMAGE_PIXELS:
            raise Image.DecompressionBombError
        yield image


def _is_gray(image) -> bool:
    """Whether an opened image, of which no pixel is read yet, is grey."""
    return _raw(image) == 'LA;16B' or image.mode in ('1', 'L', 'LA', 'I', 'F') or image.mode.startswith('I;16')


def _raw(image) -> str:
    """How an opened PNG, of which no pixel is read yet, stores its pixels, such as 'L;4'; '' for other files."""
    return image.tile[0][3] if image.format == 'PNG' and image.tile else ''


def _is_deep(image) -> bool:
    """16 bits of grey, which Pillow opens with mode I or I;16; its own conversion to 8 bits would clip them."""
    return image.mode.startswith('I;16') or (image.mode == 'I' and image.format in ('PNG', 'PPM'))
