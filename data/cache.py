"""The folder of derived data, `$HEED_CACHE` (default ~/.cache/heed): whatever it holds can be made again."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from data import json_files
from display import progress

T = TypeVar('T')
_REMEMBERED = 64 << 20  # bytes; hashing a smaller file costs less than a second look at the cache
_DOING = {'tokens': 'tokenizing the text', 'tokenizers': 'learning the vocabulary', 'pairs': 'preparing the pairs',
          'remote': 'copying files from the bucket'}
_ABANDONED = 24 * 3600  # seconds after which the writer of a half-written entry is taken to be dead


def root() -> Path:
    return Path(os.environ.get('HEED_CACHE') or '~/.cache/heed').expanduser()


def key(*parts: object) -> str:
    """A name that depends on everything that an entry is derived from."""
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:32]


def entry(kind: str, name: str, build: Callable[[Path], None], intact: Callable[[Path], bool]) -> Path:
    """The folder `kind/name`, built by `build(empty folder)` unless an intact one is there.

    The folder is filled under a temporary name and renamed at the end, so the leftovers of a killed writer are never
    used. If two processes write the same contents at once, either may win. Raises ValueError if the cache cannot be
    written.
    """
    final = root() / kind / name
    if final.is_dir():
        if intact(final):
            return final
        shutil.rmtree(final, ignore_errors=True)
    _clear(final.parent, f'.{name}.*')
    temporary = final.with_name(f'.{name}.{os.getpid()}.{secrets.token_hex(4)}')
    _make(temporary)
    try:
        with progress.waiting(_DOING.get(kind, f'making {kind}')):
            build(temporary)
        for file in filter(Path.is_file, temporary.rglob('*')):
            with open(file, 'rb') as written:
                os.fsync(written.fileno())  # a power cut must not leave the name without the contents
        try:
            temporary.rename(final)
        except OSError:
            if not (final.is_dir() and intact(final)):
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def scratch(build: Callable[[Path], None], use: Callable[[Path], T]) -> T:
    """`use(folder)` of a folder filled by `build(empty folder)`, which is then removed; a file that is mapped lasts as long as
    its mapping. Raises ValueError if the cache cannot be written."""
    _clear(root(), '.scratch.*')
    folder = root() / f'.scratch.{os.getpid()}.{secrets.token_hex(4)}'
    _make(folder)
    try:
        build(folder)
        return use(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _clear(folder: Path, pattern: str) -> None:
    """Removes leftovers of killed writers."""
    for left in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # of a writer that has just ended
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left, ignore_errors=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ValueError(
            f'The cache folder {root()} cannot be written ({error.strerror}); set HEED_CACHE to one that can.'
        ) from error


def write(path: str | os.PathLike, contents: bytes) -> None:
    """Writes a file atomically: all of it or nothing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}.{secrets.token_hex(4)}')
    try:
        with open(temporary, 'wb') as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def digest(path: str | os.PathLike) -> str:
    """SHA-256 of a file. The digest of a large file is cached under its real path, size and modification time."""
    stat = os.stat(path)
    if stat.st_size <= _REMEMBERED:
        return _sha256(path)
    memory = root() / 'digests.json'
    known = json_files.read(memory) or {}
    name, mark = os.path.realpath(path), [stat.st_size, stat.st_mtime_ns]
    if known.get(name, [None])[:2] != mark:
        known[name] = [*mark, _sha256(path)]
        write(memory, json.dumps(known).encode())
    return known[name][2]


def digest_of_all(paths: Sequence[str]) -> str:
    """One digest of the contents of many files, cached under their real paths, sizes and modification times."""
    stats = [(os.path.realpath(path), os.stat(path)) for path in paths]
    memory = root() / 'digests' / key(*((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))
    try:
        return memory.read_text()
    except OSError:
        found = key(*progress.over(map(_sha256, paths), 'reading the files', 'files', len(paths)))
        write(memory, found.encode())
        return found


def _sha256(path: str | os.PathLike) -> str:
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
