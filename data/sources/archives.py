"""Images and tables in zip and tar archives: .zip, .tar, .tar.gz (.tgz), .tar.bz2 and .tar.zst.

An archive is copied once into the cache, all images into one file, so that nothing is written under a name that the archive
chooses. Archives with absolute names, '..' in names, or links are refused, and so are those beyond the limits below.
"""

import bz2
import dataclasses
import functools
import gzip
import json
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from data import cache
from data.sources import contents

ENDINGS = ('.zip', '.tar', '.tar.gz', '.tgz', '.tar.bz2', '.tar.zst')
_FORMAT = 2  # part of the key of entries
_MEMBERS = 1_000_000  # files in an archive
_LARGEST = 256 << 20  # bytes of one file
_TOTAL = 64 << 30  # bytes of all files
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2}
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError, NotImplementedError,
           UnicodeError, OverflowError)


@dataclasses.dataclass(frozen=True)
class Member:
    """A file of an archive: its name for messages, and the bytes [start, start + size) of the file `store`."""

    store: str
    start: int
    size: int
    name: str

    def __str__(self) -> str:
        return self.name

    def read(self) -> bytes:
        with open(self.store, 'rb') as file:
            file.seek(self.start)
            return file.read(self.size)

    @property
    def key(self) -> str:
        """Names the contents: the folder of the store is named by the archive's digest."""
        return f'{Path(self.store).parent.name} {self.start} {self.size}'


@dataclasses.dataclass(frozen=True)
class Unpacked:
    """What an archive holds, by name: images, tables as files in the cache, folders, and the names of other files."""

    images: dict[str, Member]
    tables: dict[str, str]
    folders: set[str]
    others: list[str]


def is_archive(path: str) -> bool:
    return path.lower().endswith(ENDINGS) and os.path.isfile(path)


def unpacked(path: str, images: tuple[str, ...], tables: tuple[str, ...]) -> Unpacked:
    """The files of an archive whose names end in `images` or `tables`, from the cache or copied into it.

    Raises ValueError, in one sentence, for an archive that is damaged, encrypted, too large, or holds a name or a link that
    points outside of it.
    """
    ending = next(one for one in ENDINGS if path.lower().endswith(one))
    name = cache.key(_FORMAT, ending, images, tables, cache.digest(path))
    entry = cache.entry('archives', name, functools.partial(_unpack, path, images, tables), _intact)
    index = json.loads((entry / 'index.json').read_text())
    store = os.fspath(entry / 'images.bin')
    return Unpacked(
        {name: Member(store, start, size, f'{path}/{name}') for name, start, size in index['images']},
        {name: os.fspath(entry / file) for name, file in index['tables']}, {*index['folders']}, index['others'])


def _unpack(path: str, images: tuple[str, ...], tables: tuple[str, ...], folder: Path) -> None:
    index = {'images': [], 'tables': [], 'folders': [], 'others': []}
    limit = min(_TOTAL, contents.most(path))
    seen, total = set(), 0
    try:
        with open(folder / 'images.bin', 'wb') as store:
            for number, (given, opened) in enumerate(_members(path, limit)):
                name = _safe(given, path)
                if number == _MEMBERS:
                    raise ValueError(f'{path} holds more than {_MEMBERS:,} files; unpack it, and set data.path to the folder.')
                if not name or name.startswith('__MACOSX/') or any(part.startswith('.') for part in name.split('/')):
                    continue
                if opened is None:
                    index['folders'].append(name)
                    continue
                if name in seen:
                    raise ValueError(f'{path} holds {name!r} twice; pack it again.')
                seen.add(name)
                if name.lower().endswith(images):
                    start = store.tell()
                    with opened() as file:
                        total += _copy(file, store, f'{path}/{name}', limit - total)
                    index['images'].append((name, start, store.tell() - start))
                elif name.lower().endswith(tables):
                    ending = next(one for one in tables if name.lower().endswith(one))
                    index['tables'].append((name, f'table{len(index["tables"])}{ending}'))
                    with opened() as file, open(folder / index['tables'][-1][1], 'wb') as table:
                        total += _copy(file, table, f'{path}/{name}', limit - total)
                else:
                    index['others'].append(name)
    except _DAMAGE as error:
        why = (str(error) or type(error).__name__).splitlines()[0].rstrip('.:')
        raise ValueError(f'{path} cannot be unpacked ({why}); give a complete archive without a password.') from error
    except OSError as error:
        if error.errno:
            raise
        raise ValueError(f'{path} cannot be unpacked ({error}); give a complete archive.') from error
    (folder / 'index.json').write_text(json.dumps(index))


def _intact(folder: Path) -> bool:
    try:
        index = json.loads((folder / 'index.json').read_text())
        size = sum(size for _, _, size in index['images'])
        return size == (folder / 'images.bin').stat().st_size and all((folder / file).is_file() for _, file in index['tables'])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _name(info: zipfile.ZipInfo) -> str:
    """The name of a file in a zip archive. Programs such as Info-ZIP write UTF-8 without the flag that says so, and Python then
    reads CP437."""
    if info.flag_bits & 0x800:
        return info.filename
    try:
        return info.filename.encode('cp437').decode()
    except UnicodeError:
        return info.filename


def _members(path: str, limit: int) -> Iterator[tuple[str, Callable[[], BinaryIO] | None]]:
    """(name, function that opens it) of each file, (name, None) of each folder; ValueError for links and devices."""
    if path.lower().endswith('.zip'):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise _link(path, info.filename)
                if info.compress_type not in _METHODS:
                    raise NotImplementedError(f'compression method {info.compress_type}')
                yield _name(info), None if info.filename.endswith('/') else functools.partial(archive.open, info)
        return
    with _decompressed(path) as plain, tarfile.open(fileobj=(file := _Bounded(plain, path, limit)), mode='r:') as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # it would remember all
            if not (member.isfile() or member.isdir()):
                raise _link(path, member.name)
            yield member.name, None if member.isdir() else functools.partial(archive.extractfile, member)
        if 0 < file.last < tarfile.BLOCKSIZE:  # tarfile takes half a header for the end
            raise EOFError('it ends within a header')


def _decompressed(path: str) -> BinaryIO:
    lower = path.lower()
    if lower.endswith('.zst'):
        import pyarrow

        return pyarrow.input_stream(path, compression='zstd')
    return (gzip.open if lower.endswith('gz') else bz2.open if lower.endswith('.bz2') else open)(path, 'rb')


class _Bounded:
    """A file that refuses to read much at once, as tarfile reads long names whole, however long they say they are, and more
    than `limit` bytes in all, as what is left out of an archive is decompressed too.

    Attributes:
      last: the number of bytes that were read last.
    """

    def __init__(self, file: BinaryIO, path: str, limit: int):
        self._file, self._path, self._limit, self._place, self.last = file, path, limit, 0, 0

    def read(self, size: int) -> bytes:
        if size > _LARGEST:
            raise ValueError(f'{self._path} is no archive that can be read: a header asks for {size:,} bytes; pack it again.')
        read = self._file.read(size)
        self.last = len(read)
        self._place += self.last
        if self._place > self._limit:
            raise ValueError(_too_large(self._path))
        return read

    def tell(self) -> int:
        return self._place

    def seek(self, place: int) -> None:  # forward only
        while self._place < place and self.read(min(1 << 20, place - self._place)):
            pass


def _copy(file: BinaryIO, target: BinaryIO, name: str, left: int) -> int:
    """Copies a file and returns its size. Raises ValueError if it is larger than `left` or the limit of a file."""
    size = 0
    while block := file.read(1 << 20):
        size += len(block)
        if size > _LARGEST:
            raise ValueError(f'{name} has more than {_LARGEST >> 20} MB; leave it out.')
        if size > left:
            raise ValueError(_too_large(name))
        target.write(block)
    return size


def _too_large(name: str) -> str:
    return (f'{name} has, unpacked, more than {_TOTAL >> 30} GB, or more than {contents.RATIO} times the size of its archive; '
            'unpack it, and set data.path to the folder.')


def _safe(given: str, path: str) -> str:
    """A member's name with '/' between its parts; '' for the archive's own folder."""
    name = given.replace('\\', '/').encode('utf-8', 'backslashreplace').decode()
    parts = [part for part in name.split('/') if part not in ('', '.')]
    if name.startswith('/') or '..' in parts or '\0' in name or name[1:2] == ':' or len(name) > 4096:
        raise ValueError(f'{path} holds {name[:80]!r}, a name outside of the archive; pack it again with names inside of it.')
    return '/'.join(parts)


def _link(path: str, name: str) -> ValueError:
    return ValueError(f'{path} holds {name[:80]!r}, which is a link or a device; pack the files themselves.')
