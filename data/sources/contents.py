"""What the bytes of a file are: the character encoding of a text, or another kind of file.

A byte order mark says the encoding by itself; without one it is what `data.encoding` says. Whatever the encoding, text is read
as UTF-8 without the mark, so that lines, slices and the vocabulary do not depend on it.
"""

import codecs
import os
import zipfile
from collections.abc import Iterable, Iterator

HEAD = 512  # bytes that tell what a file is
ANOTHER = ('set data.encoding to what it is (its writer knows, or the command `file -i` guesses it), such as shift_jis, '
           'gb18030 or cp1252, or convert the file to UTF-8; latin-1 decodes any bytes, also into wrong letters')
RATIO = 100  # texts are packed to a fifth, tables with few different rows to a fiftieth
_MARKS = ((codecs.BOM_UTF32_LE, 'utf-32'), (codecs.BOM_UTF32_BE, 'utf-32'), (codecs.BOM_UTF8, 'utf-8-sig'),
          (codecs.BOM_UTF16_LE, 'utf-16'), (codecs.BOM_UTF16_BE, 'utf-16'))
_IMAGE = 'set data.path to files of text (configs/vit_digits.py trains on images)'
_SIGNATURES = (  # (first bytes, what it is, what to do)
    (b'%PDF-', 'a PDF', 'extract its text first, e.g. with pdftotext'),
    (b'PK\x03\x04', 'a zip archive', 'unpack it first, e.g. with unzip'),
    (b'PK\x05\x06', 'an empty zip archive', 'give a file of text'),
    (b'\x1f\x8b', 'compressed with gzip', 'rename it to end in .gz, or unpack it with gunzip'),
    (b'\x28\xb5\x2f\xfd', 'compressed with Zstandard', 'rename it to end in .zst, or unpack it with unzstd'),
    (b'BZh', 'compressed with bzip2', 'unpack it first, e.g. with bunzip2'),
    (b'\xfd7zXZ\0', 'compressed with xz', 'unpack it first, e.g. with unxz'),
    (b'7z\xbc\xaf\x27\x1c', 'a 7z archive', 'unpack it first, e.g. with 7z x'),
    (b'Rar!\x1a\x07', 'a RAR archive', 'unpack it first, e.g. with unrar'),
    (b'\x89PNG\r\n', 'a PNG image', _IMAGE),
    (b'\xff\xd8\xff', 'a JPEG image', _IMAGE),
    (b'GIF8', 'a GIF image', _IMAGE),
    (b'II*\0', 'a TIFF image', _IMAGE),
    (b'MM\0*', 'a TIFF image', _IMAGE),
    (b'SQLite format 3\0', 'an SQLite database', 'export the column first, e.g. with sqlite3 -csv FILE "SELECT .."'),
    (b'PAR1', 'a Parquet table', 'export the column of text first, e.g. with pandas'),
    (b'\x89HDF\r\n', 'an HDF5 file', 'export its text first'),
    (b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1', 'a document of Microsoft Office', 'save it as plain text first'),
    (b'{\\rtf', 'an RTF document', 'save it as plain text first, e.g. with pandoc'),
    (b'\x7fELF', 'a program', 'give a file of text'),
)
_INSIDE = {'word/document.xml': '.docx', 'xl/workbook.xml': '.xlsx', 'ppt/presentation.xml': '.pptx'}
_ZIPPED = {'.docx': 'a Word document', '.odt': 'an OpenDocument text', '.epub': 'an EPUB', '.pptx': 'a presentation',
           '.xlsx': 'a spreadsheet', '.ods': 'a spreadsheet', '.npz': 'an archive of NumPy arrays'}


def refuse_other_kinds(path: str, head: bytes, encoding: str = '') -> None:
    """Raises ValueError if the first bytes of a file show that it is no text in this encoding ('': UTF-8): what it is, and what
    to do."""
    if kind := _kind(path, head):
        raise ValueError(f'{path} is {kind[0]}, not text; {kind[1]}.')
    if encoding.startswith(('utf-16', 'utf-32')):
        return
    if looks := unmarked(head):
        raise ValueError(f'{path} looks like {looks.upper()} without a byte order mark; set data.encoding={looks}.')
    if head.count(0) > len(head) / 10:
        raise ValueError(f'{path} is no text: {head.count(0)} of its first {len(head)} bytes are NUL; give a file of text.')


def marked(head: bytes) -> str:
    """The encoding that a byte order mark says; '' without one."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), '')


def unmarked(head: bytes) -> str:
    """The UTF-16 or UTF-32 that text without a byte order mark looks like, as Latin letters in it have many zero bytes."""
    def zeros(first: int, step: int) -> bool:
        part = head[first: len(head) // step * step: step]
        return len(part) > 3 and part.count(0) > 0.7 * len(part)

    for width, first, little in ((4, (1, 2), True), (4, (1, 0), False), (2, (1,), True), (2, (0,), False)):
        if all(zeros(place, width) for place in first) and not zeros(0 if little else width - 1, width):
            return f'utf-{8 * width}-{"le" if little else "be"}'
    return ''


def utf8_letter(blocks: Iterable[bytes]) -> str:
    """The first letter beyond ASCII in bytes that are UTF-8 (the last letter may be cut); '' if they have none or are not."""
    decoder, found = codecs.getincrementaldecoder('utf-8')(), ''
    try:
        for block in blocks:
            text = decoder.decode(block)
            found = found or next((letter for letter in text if not letter.isascii()), '')
    except UnicodeDecodeError:
        return ''
    return found


def require_encoding(name: str) -> None:
    """Raises ValueError unless Python knows a text encoding of this name."""
    try:
        b'a'.decode(name)
        codecs.getincrementaldecoder(name)
    except UnicodeDecodeError:
        return  # known, and 'a' is not a whole character of it
    except (LookupError, ValueError, UnicodeError) as error:
        raise ValueError(f'data.encoding={name!r} is no text encoding that Python knows; it takes names such as utf-8, utf-16, '
                         'latin-1, cp1252, gb18030 or shift_jis.') from error


def transcoded(blocks: Iterable[bytes], encoding: str, path: str) -> Iterator[bytes]:
    """The same text in UTF-8, without a byte order mark. Raises ValueError, with the byte, for what cannot be decoded."""
    decoder, taken, begun = codecs.getincrementaldecoder(encoding)(), 0, False
    for block in _ended(blocks):
        taken += len(block or b'')
        try:
            text = decoder.decode(block or b'', block is None)
            contents = text.encode()
        except UnicodeDecodeError as error:
            raise undecodable(path, encoding, taken - len(error.object) + error.start) from None
        except UnicodeError as error:  # half of a pair of surrogates, or a byte order mark that is missing
            raise ValueError(f'{path} is not {encoding} ({error}); set data.encoding to what it is.') from None
        if text and not begun:
            begun, contents = True, contents.removeprefix(codecs.BOM_UTF8)
        if contents:
            yield contents


def most(path: str) -> int:
    """The largest number of bytes that a packed file may hold: RATIO times its own size, or 1 GB if that is more."""
    return max(RATIO * os.path.getsize(path), 1 << 30)


def undecodable(path: str, encoding: str, place: int) -> ValueError:
    """The error for a byte that is no text in an encoding."""
    named = 'UTF-8' if encoding in ('utf-8', 'utf-8-sig') else encoding
    return ValueError(f'{path} is not {named}: byte {place} cannot be decoded; {ANOTHER}.')


def _ended(blocks: Iterable[bytes]) -> Iterator[bytes | None]:
    yield from blocks
    yield None


def _packed(path: str) -> str:
    """The usual ending of an office document that a file is, however it is named; '' if it is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return next((ending for name, ending in _INSIDE.items() if name in archive.NameToInfo), '')
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):  # damaged, or packed with gzip
        return ''


def _kind(path: str, head: bytes) -> tuple[str, str] | None:
    ending = os.path.splitext(path)[1].lower()
    if head.startswith(b'PK\x03\x04') and (ending := _packed(path) or ending) in _ZIPPED:
        kind = 'CSV' if ending in ('.xlsx', '.ods') else 'plain text'
        return _ZIPPED[ending], f'save it as {kind} first' + ', e.g. with pandoc' * (ending in ('.docx', '.odt', '.epub'))
    for signature, what, advice in _SIGNATURES:
        if head.startswith(signature) and (signature != b'BZh' or head[4:10] == b'1AY&SY'):
            return what, advice
    if head[257:262] == b'ustar':
        return 'a tar archive', 'unpack it first, e.g. with tar -xf'
    if head[:4] == b'RIFF' and head[8:12] == b'WEBP':
        return 'a WebP image', _IMAGE
    if head[:2] == b'BM' and head[6:10] == b'\0\0\0\0':
        return 'a BMP image', _IMAGE
    return None
