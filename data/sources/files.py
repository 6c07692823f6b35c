"""Where text comes from: files, folders, globs, and the standard library of the running Python.

A `Split` is what a split expression names. It is read as a stream of chunks, never as a whole, so that text may be
larger than memory.
"""

import codecs
import dataclasses
import difflib
import fnmatch
import functools
import glob
import gzip
import hashlib
import io
import itertools
import os
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data import cache, fields, remote, splits
from data.sources import contents

DOCUMENTS = ('file', 'line', 'blank', 'article', 'stream')
_SLICED = {'line': 'lines', 'blank': 'documents', 'article': 'articles'}  # what slices count, in a message
_TITLE = re.compile(r'\s*= [^=]+ =\s*')  # of an article of WikiText; its sections have more signs
_WORDS = {'train': ('train', 'training'), 'valid': ('valid', 'validation', 'val', 'dev'), 'test': ('test',)}
_FEW = 5  # files that a message lists
_MANY = 20  # files of which percentages are counted in files: 5 % of fewer is none
_BLOCK = 1 << 20  # bytes read at once; chunks end at a line end where possible


@dataclasses.dataclass(frozen=True)
class File:
    """A text file: its path, its name relative to data.path, and its encoding where no byte order mark says it."""

    path: str
    name: str
    encoding: str = 'utf-8'

    @functools.cached_property
    def digest(self) -> str:
        packed = {'.gz': 'gz:', '.zst': 'zst:'}.get(os.path.splitext(self.path)[1], '')
        return packed + (f'{self._coded}:' if self._coded else '') + cache.digest(self.path)

    @functools.cached_property
    def size(self) -> int:
        """Bytes of text, decompressed and in UTF-8."""
        if self._coded or uncompressed(self.path) != self.path:
            return sum(map(len, self.read()))
        return os.path.getsize(self.path)

    @functools.cached_property
    def _head(self) -> bytes:
        try:
            return next(self._blocks(0, contents.HEAD), b'')
        except ValueError:  # damaged, which reading says
            return b''

    def head(self, size: int) -> Iterator[bytes]:
        """The first `size` bytes as they are in the file, decompressed."""
        return self._blocks(0, size)

    @functools.cached_property
    def _coded(self) -> str:
        """The encoding, if it is not UTF-8 without a byte order mark."""
        name = codecs.lookup(self.encoding).name
        return contents.marked(self._head) or ('' if name == 'utf-8' else name)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes [start, stop) of the text in UTF-8, in blocks. Raises ValueError if it is damaged, undecodable, or no
        text."""
        contents.refuse_other_kinds(self.path, self._head, self._coded)
        if not self._coded:
            yield from self._blocks(start, stop)
            return
        place = 0
        for block in contents.transcoded(self._blocks(0, None), self._coded, self.path):
            if stop is not None and place >= stop:
                return
            if wanted := block[max(0, start - place): None if stop is None else stop - place]:
                yield wanted
            place += len(block)

    def _blocks(self, start: int, stop: int | None) -> Iterator[bytes]:
        """The bytes [start, stop), decompressed; ValueError if they are damaged."""
        try:
            with _opened(self.path) as file:
                _skip(file, start)
                place, most = start, contents.most(self.path) if uncompressed(self.path) != self.path else 1 << 62
                while block := file.read(_BLOCK if stop is None else min(_BLOCK, stop - place)):
                    yield block
                    place += len(block)
                    if place > most:
                        raise ValueError(f'{self.path} has, unpacked, more than {contents.RATIO} times its own size; unpack '
                                         'it, and set data.path to what is in it.')
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f'{self.path} is damaged ({error}); expected a complete .gz file.') from error
        except OSError as error:
            if not self.path.endswith('.zst') or error.errno:
                raise
            raise ValueError(f'{self.path} is damaged ({error}); expected a complete .zst file.') from error

    def texts(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """The same range decoded, in chunks that end at a line end; a very long line is cut before a space, or else between
        characters."""
        held, offset = b'', start
        for block in self.read(start, stop):
            held += block
            cut = held.rfind(b'\n') + 1
            if not cut and len(held) >= 4 * _BLOCK:
                cut = max(0, held.rfind(b' '))
            if not cut and len(held) >= 4 * _BLOCK:
                cut = len(held) - 4  # at least one character begins in the four bytes before the end
                while held[cut] & 0xC0 == 0x80 and cut < len(held) - 1:
                    cut += 1
            if cut:
                yield self._decode(held[:cut], offset)
                held, offset = held[cut:], offset + cut
        if held:
            yield self._decode(held, offset)

    def lines(self) -> Iterator[str]:
        """The lines that hold more than white space, without their line ends; one of more than 4 MB comes as several."""
        for text in self.texts():
            for line in text.split('\n'):
                if line and not line.isspace():
                    yield line.removesuffix('\r')

    def _decode(self, held: bytes, offset: int) -> str:
        try:
            return held.decode()
        except UnicodeDecodeError as error:
            place = offset + error.start
        raise contents.undecodable(self.path, 'utf-8', place)


@dataclasses.dataclass(frozen=True)
class Given(File):
    """A file whose content is at hand, such as the lines of stdin; the path only names it."""

    content: bytes = b''

    @classmethod
    def of(cls, path: str, lines: Sequence[str]) -> 'Given':
        """A file of these lines."""
        return cls(path, os.path.basename(path), content='\n'.join(lines).encode())

    def _blocks(self, start: int, stop: int | None) -> Iterator[bytes]:
        yield self.content[start:stop]


def uncompressed(path: str) -> str:
    """A path without its .gz or .zst."""
    return path.removesuffix('.gz').removesuffix('.zst')


def _opened(path: str):
    if path.endswith('.zst'):
        import pyarrow

        return pyarrow.input_stream(path, compression='zstd')
    return (gzip.open if path.endswith('.gz') else open)(path, 'rb')


def _skip(file, size: int) -> None:
    if file.seekable():
        file.seek(size)
    while not file.seekable() and size > 0 and (block := file.read(min(_BLOCK, size))):
        size -= len(block)


def files(path: str, field: str = 'data.path', encoding: str = 'utf-8') -> list[File]:
    """The files that a path, a folder (recursive, without hidden files) or a glob names, sorted by name.

    Raises ValueError if the encoding is unknown, or the path is empty or names no text, FileNotFoundError if it does not
    exist; the messages call it `field`.
    """
    contents.require_encoding(encoding)
    if not path:
        raise ValueError("data.path is empty and data.source is 'files'; set it to a text file, a folder or a glob.")
    path = remote.local(path)
    if os.path.isdir(path):
        found = [(os.path.join(folder, name), path) for folder, names in _walk(path) for name in names]
        found = [(name, base) for name, base in found if os.path.isfile(name)]  # and no link to what is gone
    elif os.path.exists(path):
        found = [(path, os.path.dirname(path))]
    elif glob.has_magic(path):
        base = path[: path.rfind('/', 0, min(path.find(c) for c in '*?[' if c in path)) + 1]
        found = [(name, base) for name in glob.glob(path, recursive=True) if os.path.isfile(name)]
        if not found:
            raise FileNotFoundError(f'No file matches {path!r}; {field} must name at least one file.')
    else:
        raise FileNotFoundError(f'{path!r} does not exist; {field} must be a file, a folder or a glob.')
    kept = [File(name, os.path.relpath(name, base or '.').replace(os.sep, '/'), encoding) for name, base in found]
    kept = sorted((file for file in kept if os.path.getsize(file.path)), key=lambda file: file.name)
    if not kept:
        raise ValueError(f'{path!r} holds no text; {field} must name at least one file that is not empty.')
    return kept


def misread(found: Sequence[File]) -> str:
    """A warning of the first of some files whose first block is UTF-8 with letters beyond ASCII, and that is read by another
    encoding, which makes other letters of them; '' for none."""
    for file in found:
        name = codecs.lookup(file.encoding).name
        head = b'' if name.startswith('utf') else b''.join(file.head(_BLOCK))
        letter = '' if contents.marked(head) else contents.utf8_letter([head])
        if letter:
            wrong = letter.encode().decode(name, 'replace')
            return (f' (CAUTION: {file.path} looks like UTF-8, of which data.encoding={file.encoding} makes {wrong!r} of '
                    f'{letter!r}; leave the encoding out, or set it to utf-8)')
    return ''


def named(found: Sequence[File], name: str) -> list[File]:
    """The files that the name of a split means: of a file or a glob, 'all', or 'train', 'valid' or 'test'.

    The last three mean the files whose names have that word (valid: also validation, val and dev), such as
    data/train-00000-of-00001.parquet; without such files 'train' means every file. A word between two others, as in 'on the
    training of dogs.txt', does not count.
    """
    if name == 'all':
        return list(found)
    if chosen := [file for file in found if _matches(file.name, name)]:
        return chosen
    words = '|'.join(_WORDS.get(name, ['$^']))
    word = re.compile(rf'(?<![a-z])(?<!\w )({words})(?![a-z])|(?<![a-z])({words})(?![a-z]| \w)')
    chosen = [file for file in found if word.search(file.name.lower())]
    return chosen or (list(found) if name == 'train' else [])


def _known(found: Sequence[File], name: str) -> str:
    """The names of splits, for a message: the nearest one, else some of them."""
    names = ['train', 'all', *(word for word in ('valid', 'test') if named(found, word)), *(file.name for file in found)]
    close = difflib.get_close_matches(name, names, 1) or difflib.get_close_matches(name, _WORDS, 1, cutoff=0.75)
    if close and close != [name]:
        return f'did you mean {close[0]!r}?'
    few = len(found) <= _FEW
    return f'known are {", ".join(names if few else names[:-len(found)])}{"" if few else f" and its {len(found)} files"}.'


def stdlib() -> list[File]:
    """The *.py files of the running Python's standard library, without tests, in an order that mixes packages."""
    base = sysconfig.get_path('stdlib')
    skipped = {'test', 'tests', 'idle_test', 'site-packages', 'dist-packages', '__pycache__'}
    found = []
    for folder, names in _walk(base, skipped):
        for name in names:
            path = os.path.join(folder, name)
            if not name.endswith('.py'):
                continue
            with open(path, 'rb') as opened:
                code = opened.read()
            try:
                code.decode()
            except UnicodeDecodeError:
                continue
            if code:
                file = File(path, os.path.relpath(path, base).replace(os.sep, '/'))
                file.__dict__['digest'] = hashlib.sha256(code).hexdigest()  # read once, checked and hashed
                found.append(file)
    if not found:
        raise ValueError(f"No source files in {base}; set data.source='files' and data.path to some text.")
    return sorted(found, key=lambda file: hashlib.sha256(file.name.encode()).digest())


@dataclasses.dataclass(frozen=True)
class Split:
    """The documents that one split expression names.

    `documents` says what a document is: a 'file', a 'line', the lines between two 'blank' ones, an 'article' of WikiText, which
    begins with a line ' = Title = ', or everything as one 'stream'. The slice counts documents, or
    bytes of the stream; in a stream each bound is moved forward to the next character.

    Percentages of fewer than 20 files are shares of their bytes, one file after the other: a file in which a bound lies is cut
    there, at the next line if that is near, so that one file has a training and a validation part. A slice of such a share
    has percentages alone.
    """

    files: Sequence[File]
    documents: str
    cut: splits.Slice
    expression: str

    @classmethod
    def of(cls, expression: str, found: Sequence[File], documents: str) -> 'Split':
        """Resolves an expression; ValueError if its name matches no file, no document is left, or it takes a number of
        files from a share of the text."""
        name, cut = splits.read(expression)
        chosen = named(found, name)
        if not chosen:
            raise ValueError(f'The split {expression!r} names no file of this data; {_known(found, name)}')
        if documents == 'file' and len(chosen) < _MANY and cut.mixed:
            raise ValueError(f'The split {expression!r} takes a number of files from a share of the text of '
                             f'{fields.counted(len(chosen), "file")}; write percentages alone, such as valid[:10%].')
        if documents == 'file' and not (len(chosen) < _MANY and cut.relative):
            start, stop = cut.bounds(len(chosen))
            if start == stop:
                raise ValueError(
                    f'The split {expression!r} is empty: it slices {len(chosen)} file(s), each one document; write '
                    "percentages, which are shares of the text, set data.documents to 'line' or 'stream', or name a file for "
                    'each split.'
                )
            chosen, cut = chosen[start:stop], splits.Slice()
        return cls(tuple(chosen), documents, cut, expression)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the documents, from the contents of their files."""
        return cache.key(self.documents, self.cut, *(file.digest for file in self.files))

    @functools.cached_property
    def bounds(self) -> tuple[int, int]:
        """The range of lines, or of bytes in a stream, that the slice takes."""
        if not str(self.cut):
            return 0, 1 << 62
        if self.documents in _SLICED:
            size = sum(end for file in self.files for _, end in self._documents(file))
            start, stop = self.cut.bounds(size)
        else:
            size = sum(file.size for file in self.files)
            near = size // 100 if self.documents == 'file' else 0
            start, stop = (self._line(place, near) for place in self.cut.bounds(size))
        if start == stop:
            raise ValueError(
                f'The split {self.expression!r} is empty: there are {size} '
                f'{_SLICED.get(self.documents, "bytes")} to slice; widen the slice, or give it more text.'
            )
        return start, stop

    def shared(self, other: 'Split') -> str:
        """A file in which this part and another one of the same data overlap; '' if there is none."""
        sliced = self.documents in _SLICED
        return shared(self, other, lambda file: sum(end for _, end in self._documents(file)) if sliced else file.size)

    def chunks(self) -> Iterator[tuple[str, bool]]:
        """The text in order, as (chunk, whether a document ends with it)."""
        if self.documents in _SLICED:
            start, stop = self.bounds
            number = 0
            for file in self.files:
                for text, end in self._documents(file):
                    if number >= stop:
                        return
                    if number >= start:
                        yield text, end
                    number += end
        else:
            for file, start, stop in self._ranges(*self.bounds):
                for chunk in file.texts(start, stop):
                    yield chunk, False
                if self.documents == 'file':
                    yield '', True

    def raw(self) -> Iterator[bytes]:
        """The bytes of the documents in order; each line with one line end."""
        for chunk, _ in self.chunks():
            yield chunk.encode() + (b'\n' if self.documents == 'line' else b'')

    def _documents(self, file: File) -> Iterator[tuple[str, bool]]:
        """The lines of a file, or its documents of several lines in pieces of about a block, as (text, whether a document ends
        with it)."""
        if self.documents == 'line':
            yield from ((line, True) for line in file.lines())
            return
        held, size, ended = [], 0, True
        for line in (line for text in file.texts() for line in io.StringIO(text)):
            blank = line.isspace()
            if blank if self.documents == 'blank' else _TITLE.fullmatch(line):
                if held or not ended:
                    yield ''.join(held), True
                held, size, ended = [], 0, True
            if not blank:
                held.append(line)
                size += len(line)
            if size > _BLOCK:
                yield ''.join(held), False
                held, size, ended = [], 0, False
        if held or not ended:
            yield ''.join(held), True

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[File, int, int | None]]:
        """The files and byte ranges that make up [start, stop) of all files one after the other."""
        if (start, stop) == (0, 1 << 62):
            yield from ((file, 0, None) for file in self.files)
            return
        for file in self.files:
            if start < file.size and stop > 0:
                yield file, max(start, 0), min(stop, file.size)
            start, stop = start - file.size, stop - file.size

    def _line(self, place: int, near: int) -> int:
        """The first place at or after this one where a line begins, if that is at most `near` bytes further, else where a
        character does."""
        if place > 0 and near:
            ranges, read = self._ranges(place - 1, place + near), place - 1
            for block in (block for file, start, stop in ranges for block in file.read(start, stop)):
                if b'\n' in block:
                    return read + block.index(b'\n') + 1
                read += len(block)
        return self._character(place)

    def _character(self, place: int) -> int:
        """The first place at or after this one where a character begins."""
        for file, start, stop in self._ranges(place, place + 4):
            for block in file.read(start, stop):
                for byte in block:
                    if byte & 0xC0 != 0x80:
                        return place
                    place += 1
        return place


def shared(one: Any, other: Any, size: Callable[[File], int]) -> str:
    """A file in which two parts of the same data overlap; '' if there is none.

    Parts have `files`, `cut` and `bounds`, a range of what `size` counts in a file.
    """
    if not {*one.files} & {*other.files} or (one.files == other.files and one.cut.apart(other.cut)):
        return ''
    ranges = []
    for part in (one, other):
        (start, stop), found = part.bounds, {}
        for file in part.files:
            count = size(file) if str(part.cut) else 1 << 62
            found[file.path] = start, min(count, stop)
            if str(part.cut):
                start, stop = max(0, start - count), stop - count
        ranges.append(found)
    return splits.common(*ranges)


@dataclasses.dataclass(frozen=True)
class Joined:
    """Several parts in sequence: one stream, or documents that each part cuts in its own way."""

    parts: Sequence[Split]
    documents: str
    expression: str

    @functools.cached_property
    def digest(self) -> str:
        return cache.key(*(part.digest for part in self.parts))

    def chunks(self) -> Iterator[tuple[str, bool]]:
        return itertools.chain.from_iterable(part.chunks() for part in self.parts)

    def raw(self) -> Iterator[bytes]:
        return itertools.chain.from_iterable(part.raw() for part in self.parts)


def _walk(base: str, skipped: frozenset[str] | set[str] = frozenset()) -> Iterator[tuple[str, list[str]]]:
    for folder, inner, names in os.walk(base):
        inner[:] = [name for name in inner if name not in skipped and not name.startswith('.')]
        yield folder, [name for name in names if not name.startswith('.')]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(os.path.basename(name), pattern)
