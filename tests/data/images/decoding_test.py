"""Every kind of file, against pixels that are known."""

import io
import pathlib
import re
import shutil
import struct
import tempfile
import warnings
import zlib
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image, features

from data.images import decoding
from data.images.decoding import Format, Wanted
from data.images.fit import CentreCrop, Stretch

GRAY = np.add.outer(np.arange(4) * 40, np.arange(6) * 10).astype(np.uint8)
COLOUR = np.stack([GRAY, GRAY // 2, 255 - GRAY], -1)
DEEP = (GRAY.astype(int) * 257 - 3 * (GRAY > 0)).astype(np.uint16)
LOSSLESS = {'webp': {'lossless': True}, 'avif': {'quality': 100, 'subsampling': '4:4:4'}, 'jpg': {'quality': 100},
            'mpo': {'quality': 100}}
TURNS = {1: lambda x: x, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud, 5: lambda x: np.rot90(np.fliplr(x)),
         6: lambda x: np.rot90(x, -1), 7: lambda x: np.rot90(np.fliplr(x), -1), 8: np.rot90}  # of EXIF
KINDS = (('png', '1 L LA P RGB RGBA'), ('jpg', '1 L RGB RGBX CMYK YCbCr'), ('mpo', '1 L RGB CMYK'),
         ('jp2', 'L LA RGB RGBA YCbCr'), ('bmp', '1 L P RGB RGBA'), ('gif', '1 L LA P RGB RGBA'), ('webp', '1 L LA P RGB RGBA'),
         ('avif', 'L LA RGB RGBA'), ('ppm', '1 L RGB RGBA'), ('tif', '1 L LA P PA RGB RGBA RGBX CMYK YCbCr LAB'))


class DecodingTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def read(self, path, channels=3, height=4, width=6, **form):
        return decoding.read(str(path), Format(height, width, channels, resized=False, **form))

    @parameterized.parameters('bicubic', 'lanczos')
    def test_resized_pixels_stay_between_black_and_white(self, filter):
        form = Format(24, 24, 1, resized=True, fit=Stretch(filter))
        for dtype in (np.uint8, np.uint16):
            pixels = np.zeros((12, 12), dtype)
            pixels[3:9, 3:9] = np.iinfo(dtype).max
            Image.fromarray(pixels).save(self.folder / 'square.png')
            image = decoding.read(str(self.folder / 'square.png'), form)
            self.assertEqual((image.min(), image.max(), image.dtype), (0, 1, np.float32))

    def saved(self, image, name, **options):
        path = self.folder / name
        image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
        image.save(path, **LOSSLESS.get(path.suffix[1:], {}), **options)
        return path

    def written(self, name, contents):
        path = self.folder / name
        path.write_bytes(contents)
        return path

    def assert_near(self, found, want, lossy):
        """Where a codec loses something, it does at the edges between colours."""
        self.assertLess(np.abs(found - want).mean() if lossy else np.abs(found - want).max(), 0.03 if lossy else 1e-6)

    def refused(self, path, message):
        for function in (lambda: self.read(path), lambda: decoding.header(str(path))):
            with self.assertRaisesRegex(ValueError, rf'\A{path} {message}[^\n]*\.\Z'):
                function()

    @parameterized.parameters(*KINDS)
    def test_modes(self, kind, modes):
        """All modes that Pillow writes in a kind of file."""
        if not features.check({'avif': 'avif', 'jp2': 'jpg_2000'}.get(kind, 'webp')):
            self.skipTest('this Pillow has no such codec')
        colours = np.zeros((16, 16, 3), np.uint8)  # of the usual palette, in blocks of the codecs
        colours[:, :8], colours[:8, 8:], colours[8:, 8:] = (204, 102, 0), (0, 51, 255), (255, 255, 255)
        for mode in modes.split():
            with self.subTest(mode=mode):
                image = Image.fromarray(colours).convert('P' if mode == 'PA' else mode)
                image = image.convert('PA') if mode == 'PA' else image
                path = self.saved(image, f'image.{kind}')
                want = np.asarray(image.convert('L').convert('RGB') if mode in ('L', 'LA', '1') else colours) / 255
                lossy = kind in ('jpg', 'mpo', 'avif') or mode in ('LAB', 'YCbCr', 'CMYK')
                self.assert_near(self.read(path, height=16, width=16), want, lossy)
                self.assertEqual(decoding.header(str(path))[:2], (16, 16))
                found = decoding.read(str(path), Format(16, 16, 1, resized=True))
                self.assertLess(np.abs(found[..., 0] - want @ (0.299, 0.587, 0.114)).mean(), 0.03 if lossy else 0.003)

    @parameterized.product(kind=('png', 'jpg', 'tif', 'webp', 'avif', 'mpo'), orientation=tuple(range(1, 9)))
    def test_upright(self, kind, orientation):
        if kind == 'avif' and not features.check('avif'):
            self.skipTest('this Pillow has no such codec')
        exif = Image.Exif()
        exif[0x0112] = orientation
        colours = np.zeros((32, 48, 3), np.uint8)
        colours[:16, :16], colours[16:, 32:] = (255, 0, 0), (0, 255, 0)
        path = self.saved(colours, f'turned.{kind}', exif=exif)
        want = TURNS[orientation](colours)
        form = decoding.form_of(str(path), 'it', Wanted())
        with mock.patch.object(Image.Image, 'load', side_effect=AssertionError('decoded')):
            width, height, gray = decoding.header(str(path))
        self.assertEqual((height, width, gray), (*want.shape[:2], False))
        self.assertEqual((form.height, form.width), want.shape[:2])
        found, facts = decoding.seen(str(path), Format(height, width, 3, resized=False))
        self.assertEqual(facts, (width, height, 1))
        self.assert_near(found, want / 255, kind in ('jpg', 'avif', 'mpo'))

    def test_deep_and_turned(self):
        exif = Image.Exif()
        exif[0x0112] = 6
        for kind, values, white in (('png', DEEP, 65535), ('tif', DEEP, 65535), ('tif', GRAY, 255)):
            path = self.saved(values, f'deep.{kind}', exif=exif)
            for file in (str(path), io.BytesIO(path.read_bytes())):
                found = decoding.decode(file, 'it', Format(6, 4, 1, resized=False))
                np.testing.assert_allclose(found[..., 0], np.rot90(values, -1) / white, atol=1e-7)

    @parameterized.parameters(
        (1, 16, DEEP.astype('<u2').tobytes(), DEEP / 65535), (0, 16, DEEP.astype('<u2').tobytes(), 1 - DEEP / 65535),
        (1, 12, b'', DEEP // 16 / 4095), (0, 8, GRAY.tobytes(), 1 - GRAY / 255))
    def test_values_of_tiff(self, photometric, bits, data, want):
        if bits == 12:
            pairs = (DEEP.ravel() // 16).reshape(-1, 2).tolist()
            data = b''.join(bytes([a >> 4, (a & 15) << 4 | b >> 8, b & 255]) for a, b in pairs)
        path = self.written('x.tif', tiff(photometric, bits, data))
        np.testing.assert_allclose(self.read(path, channels=1)[..., 0], want, atol=1e-7)

    def test_signed_values_are_refused(self):
        path = self.written('x.tif', tiff(1, 16, DEEP.astype('<i2').tobytes(), sample=2))
        with self.assertRaisesRegex(ValueError, r'x.tif has 32 bits a pixel, or signed ones \(mode I\), so the value of white'):
            self.read(path)

    def test_sixteen_bits_of_png(self):
        clear = np.where(np.arange(6) < 3, 65535, 0)
        for color, values, extra, want in (
                (2, np.uint16(COLOUR) * 257, b'', COLOUR / 255), (4, np.stack([DEEP, clear + 0 * DEEP], -1), b'', None),
                (0, DEEP, chunk(b'tRNS', struct.pack('>H', 2567)), np.where(DEEP == 2567, 1, DEEP / 65535))):
            found = self.read(self.written('x.png', png(color, values, extra)))
            if want is None:
                want = np.where(clear, DEEP // 256 / 255, 1)
            np.testing.assert_allclose(found, want if want.ndim == 3 else want[..., None].repeat(3, -1), atol=1e-6)
            self.assertEqual(decoding.header(str(self.folder / 'x.png')), (6, 4, color != 2))

    @parameterized.parameters(1, 2, 4, 8, 16)
    def test_a_transparent_colour_of_png_is_white(self, bits):
        values = np.arange(24).reshape(4, 6) * (1 + 256 * (bits == 16)) % 2**bits
        clear, white = int(values[0, 1]), 2**bits - 1
        for channels in (1, 3):
            contents = png(0, packed(values, bits), chunk(b'tRNS', struct.pack('>H', clear)), (6, 4), bits)
            found = self.read(self.written('x.png', contents), channels=channels)
            np.testing.assert_allclose(found[..., 0], np.where(values == clear, 1, values / white), atol=1e-6)
        if bits >= 8:
            colours = np.stack([values, values // 2, values], -1).astype(np.uint8 if bits == 8 else np.uint16)
            clear, upper = colours[0, 1], colours >> bits - 8
            found = self.read(self.written('x.png', png(2, colours, chunk(b'tRNS', struct.pack('>3H', *clear.tolist())))))
            want = np.where((colours == clear).all(-1, keepdims=True), 1, upper / 255)
            np.testing.assert_allclose(found, want, atol=1e-6)

    @parameterized.parameters('gif', 'png', 'webp', 'tif')
    def test_the_first_of_several_pictures(self, kind):
        first, second = Image.fromarray(COLOUR), Image.fromarray(255 - COLOUR)
        path = self.saved(first, f'moving.{kind}', save_all=True, append_images=[second])
        np.testing.assert_allclose(self.read(path), COLOUR / 255, atol=1e-6)
        self.assertEqual(decoding.seen(str(path), Format(4, 6, 3, resized=False))[1], (6, 4, 2))

    @parameterized.parameters('gif', 'tif')
    def test_of_several_pictures_cut_short_the_first_is_shown_where_it_is_read(self, kind):
        pictures = [Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 6), np.uint8)) for seed in range(3)]
        path = self.saved(pictures[0], f'moving.{kind}', save_all=True, append_images=pictures[1:])
        whole, read = path.read_bytes(), 0
        for length in range(0, len(whole), 3):
            path.write_bytes(whole[:length])
            try:
                want = self.read(path)
            except ValueError as error:
                with self.assertRaisesRegex(ValueError, f'^{re.escape(str(error))}$'):
                    decoding.seen(str(path), Format(4, 6, 3, resized=False))
                continue
            found, (width, height, count) = decoding.seen(str(path), Format(4, 6, 3, resized=False))
            np.testing.assert_array_equal(found, want)
            self.assertEqual((width, height, 1 <= count <= 3), (6, 4, True))
            read += 1
        self.assertGreater(read, 20)

    def test_a_tiff_with_a_number_of_another_kind_is_refused(self):
        data = bytearray(tiff(1, 8, GRAY.tobytes()))
        data[72] = 11  # the place of the pixels as a float
        with self.assertRaisesRegex(ValueError, r'x.tif cannot be decoded as an image: it is damaged, cut short'):
            self.read(self.written('x.tif', data))

    def test_files_that_are_no_images_are_called_what_they_are(self):
        whole = self.saved(COLOUR, 'whole.png').read_bytes()
        for name, contents, message in (
                ('empty.png', b'', 'cannot be decoded as an image: it is empty; replace'),
                ('byte.png', b'\0', 'cannot be decoded as an image: its bytes are those of no known kind of image'),
                ('text.png', b'hello world', 'cannot be decoded as an image: its bytes are those of no known kind of image'),
                ('cut.png', whole[:20], 'cannot be decoded as an image: it is damaged, cut short'),
                ('a.svg', b'<?xml version="1.0"?><svg/>', 'cannot be decoded as an image: it is a file of SVG, which is'),
                ('a.heic', b'\0\0\0\x18ftypheic\0\0\0\0mif1', 'cannot be decoded as an image: it is a file of HEIC, which is')):
            self.refused(self.written(name, contents), message)
        for kind in ('ICO', 'EPS', 'PCX', 'QOI', 'DDS', 'PDF', 'ICNS'):  # which Pillow can write
            file = io.BytesIO()
            Image.new('RGB', (16, 16)).save(file, kind)
            self.refused(self.written(f'a.{kind}', file.getvalue()), f'cannot be .* a file of {kind}, which is not read')
        for kind in ('png', 'jpg', 'webp', 'tif', 'bmp', 'gif'):
            path = self.saved(np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8), f'cut.{kind}')
            path.write_bytes(path.read_bytes()[:-1000])
            with self.assertRaisesRegex(ValueError, f'cut.{kind} cannot be decoded as an image: it is damaged, cut short'):
                self.read(path, height=64, width=64)

    def test_a_damaged_avif_is_refused_in_one_sentence(self):
        if not features.check('avif'):
            self.skipTest('this Pillow has no such codec')
        still = self.saved(COLOUR, 'a.avif').read_bytes()
        moving = self.saved(COLOUR, 'a.avif', save_all=True, append_images=[Image.fromarray(255 - COLOUR)]).read_bytes()
        begun = moving.index(b'mdhd') + 4  # 255 there makes a timescale of 0
        refused = 0
        for whole, place in [*((still, place) for place in range(len(still))), (moving, begun)]:
            path = self.written('a.avif', whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1:])
            try:
                decoding.read(str(path), Format(4, 6, 3, resized=True))
            except ValueError as error:
                self.assertRegex(str(error), rf'\A{path} (cannot be decoded as an image: i|has more than )[^\n]*\.\Z')
                refused += 1
        self.assertBetween(refused, 10, len(still))

    def test_arrays(self):
        for channels in ((), (1,), (2,), (3,), (4,)):
            array = np.full((4, 6, *channels), 255, np.uint8)
            np.testing.assert_array_equal(decoding.decode(array, 'it', Format(4, 6, 3, resized=False)), np.ones((4, 6, 3)))
        found = decoding.decode(DEEP[..., None], 'it', Format(4, 6, 1, resized=False))
        np.testing.assert_allclose(found[..., 0], DEEP / 65535, atol=1e-7)
        for dtype, shape in ((np.uint16, [4, 6, 3]), (np.int64, [4, 6, 1]), (np.uint8, [4, 6, 5])):
            message = re.escape(f'it cannot be decoded as an image: it is an array of {np.dtype(dtype)} {shape}; give uint8 '
                                'with 1 to 4 channels, or uint16 with 1.')
            for function in decoding.decode, decoding.form_of:
                with self.assertRaisesRegex(ValueError, f'^{message}$'):
                    function(np.zeros(shape, dtype), 'it', Format(4, 6, 3, resized=False))

    def test_of_what_is_no_file_it_says_what_it_is(self):
        for path, kind, message in ((self.folder, ValueError, 'is a folder; expected an image file'),
                                    (self.folder / 'x.png', FileNotFoundError, 'does not exist; expected an image file')):
            for function in (self.read, decoding.header):
                with self.assertRaisesRegex(kind, f"^'{path}' {message}.$"):
                    function(str(path))

    def test_bombs_are_refused_before_they_are_decoded(self):
        path = self.written('bomb.png', png(0, np.zeros((1, 1), np.uint8), b'', size=(60_000, 60_000)))
        with mock.patch.object(Image.Image, 'load', side_effect=AssertionError('decoded')), warnings.catch_warnings():
            warnings.simplefilter('error')
            self.refused(path, r'has more than \d+ million pixels; make it smaller, or leave it out')

    def test_metadata_that_cannot_be_read_say_nothing(self):
        path = self.written('x.tif', tiff(1, 16, DEEP.astype('<u2').tobytes())[:-4] + b'')
        with warnings.catch_warnings(record=True) as raised, self.assertRaises(ValueError):
            self.read(path)
        self.assertEmpty(raised)

    def test_a_coloured_image_among_grey_ones(self):
        path = self.saved(COLOUR, 'x.png')
        with self.assertRaisesRegex(ValueError, 'x.png is coloured where other images are grey; set data.channels to 1 or 3'):
            self.read(path, channels=1)
        self.assertEqual(decoding.read(str(path), Format(4, 6, 1, resized=True)).shape, (4, 6, 1))

    def test_fit_is_that_of_the_form(self):
        path = self.saved(COLOUR, 'x.png')
        form = Format(4, 4, 3, resized=True, fit=CentreCrop(filter='nearest'))
        np.testing.assert_allclose(decoding.read(str(path), form), COLOUR[:, 1:5] / 255, atol=1e-6)


def tiff(photometric, bits, data, sample=1):
    """An uncompressed TIFF of grey, of 6 x 4 pixels."""
    entries = ((256, 6), (257, 4), (258, bits), (259, 1), (262, photometric), (273, 0), (277, 1), (278, 4), (279, len(data)),
               (339, sample))
    start = 8 + 2 + 12 * len(entries) + 4
    rows = b''.join(struct.pack('<HHII', tag, 4, 1, start if tag == 273 else value) for tag, value in entries)
    return struct.pack('<2sHIH', b'II', 42, 8, len(entries)) + rows + bytes(4) + data


def chunk(name, data):
    return struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name + data))


def packed(values, bits):
    """Rows of bytes with these numbers of so many bits."""
    return np.packbits((values[..., None] >> np.arange(bits)[::-1] & 1).astype(np.uint8).reshape(len(values), -1), axis=1)


def png(color, values, extra, size=None, bits=None):
    """A PNG of one kind of colour; size: (width, height) that its header claims; bits: those of a number, if `packed`."""
    height, width = values.shape[:2]
    rows = b''.join(b'\0' + row.astype('>u2' if values.dtype != np.uint8 else np.uint8).tobytes() for row in values)
    bits = bits or (8 if values.dtype == np.uint8 else 16)
    header = struct.pack('>IIBBBBB', *(size or (width, height)), bits, color, 0, 0, 0)
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + extra + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))


if __name__ == '__main__':
    absltest.main()
