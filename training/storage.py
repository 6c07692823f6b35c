"""Where runs live: local folders as paths of pathlib, folders of a bucket of Google Cloud Storage, gs://, as paths of epath.

Both have the same methods; what a bucket does otherwise is here. It has no folders, nothing can be appended to an object, and
an object appears as a whole or not at all. gcsfs is imported for gs:// alone.
"""

import atexit
import contextlib
import io
import logging
import math
import os
import pathlib
import re
import shutil
import tempfile
import time

SCHEME = 'gs://'
_BETWEEN = 30  # seconds between the writings of a log to a bucket


def local(given):
    """The path of a file or folder that is read and written here alone. Raises ValueError for a remote one."""
    if re.match(r'\w+:/', str(given)):
        raise ValueError(f'{given} is a remote path, and this is read and written locally; give a local path, and copy it.')
    return path(given)


def path(given):
    """The path of a folder or a file. Raises ValueError for a remote one elsewhere than in a bucket, without gcsfs, and if the
    bucket cannot be reached."""
    text = re.sub(r'^gs:/+', SCHEME, str(given))  # pathlib joins slashes
    if not re.match(r'\w+:/', text):
        try:
            return pathlib.Path(given).expanduser()
        except RuntimeError:
            raise ValueError(f'{given} is in the home folder of a user who is not known here; give the whole path.') from None
    if not re.match(r'gs://[^/]', text):
        raise ValueError(f'{given} is a remote path, of which only gs://BUCKET/FOLDER is known; give that or a local folder.')
    try:
        import gcsfs  # noqa: F401
    except ImportError:
        raise ValueError(f'{text} is in Google Cloud Storage, which needs gcsfs; install it with '
                         '"pip install -r requirements-gs.txt".') from None
    import fsspec
    from etils import epath

    # What Orbax writes without gcsfs must be seen.
    fsspec.config.conf.setdefault('gs', {})['use_listings_cache'] = False
    logging.getLogger('gcsfs').setLevel(logging.CRITICAL)  # it logs the traceback of what it raises
    place = epath.Path(text)
    try:
        place.exists()
    except Exception as error:  # of a network, of many types
        raise ValueError(f'{text} cannot be reached ({error}); make sure that there is a network, and permission to read it, '
                         'as of "gcloud auth application-default login".') from None
    return place


def remote(place):
    """Whether a path is in a bucket."""
    return str(place).startswith(SCHEME)


def unreachable(error):
    """Whether an error is of the network or of the service behind it, not of what is stored there."""
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.partition('.')[0] in (
        'gcsfs', 'google', 'aiohttp', 'requests')


@contextlib.contextmanager
def _writing(place):
    """Turns what a disk or a network does not let through into one sentence."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and not unreachable(error):
            raise
        raise ValueError(f'{place} cannot be written ({getattr(error, "strerror", None) or error}): make sure that there is '
                         f'{"a network" if remote(place) else "space"} and permission, then give the same command '
                         'again.') from error


def write(place, text):
    """Writes a file: all of it or nothing. Raises ValueError if it cannot be written."""
    with _writing(place):
        if remote(place):
            place.write_text(text)
            return
        temporary = place.with_name(f'.{place.name}.{os.getpid()}')
        try:
            with open(temporary, 'w', encoding='utf-8') as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(place)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def appending(place):
    """A text file open for lines at its end, for `flush`."""
    if not remote(place):
        return open(place, 'a', encoding='utf-8', buffering=1 << 16)
    with _writing(place):
        return _Object(place, place.read_text() if place.exists() else '')


def flush(file):
    """Writes what was appended to the disk, or to the bucket."""
    if isinstance(file, _Object):
        file.upload()
        return
    file.flush()
    os.fsync(file.fileno())


class _Object(io.StringIO):
    """A text in a bucket, written anew by `upload` and at its end; by `flush`, which every printed line calls, if the last time
    is long enough ago. What `flush` cannot write while the bucket is away is written the next time; the others then raise
    ValueError."""

    def __init__(self, place, text):
        super().__init__(text)
        self._place, self._written, self._last = place, self.seek(0, io.SEEK_END), -math.inf

    def flush(self):
        if time.monotonic() - self._last > _BETWEEN:
            try:
                self.upload()
            except ValueError as error:
                if not unreachable(error.__cause__):
                    raise
                self._last = time.monotonic()  # not at the next line, as it tries for minutes

    def upload(self):
        if self.tell() > self._written:
            with _writing(self._place):
                self._place.write_text(self.getvalue())
            self._written, self._last = self.tell(), time.monotonic()

    def close(self):
        try:
            if not self.closed:
                self.upload()
        finally:
            super().close()


def move(folder, target):
    """Renames a folder, into one that may not be there yet. In a bucket, every object is copied and then deleted."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if remote(folder):
        import fsspec

        fsspec.filesystem('gs').mv(str(folder), str(target), recursive=True)
    else:
        folder.rename(target)


def copied(folder, skip):
    """A local copy of a folder without the entries whose names `skip` takes, for the life of this process; a local folder
    itself."""
    if not remote(folder):
        return folder
    target = pathlib.Path(tempfile.mkdtemp(prefix='heed.'))
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    _download(folder, target, skip)
    return target


def _download(folder, target, skip=lambda name: False):
    for one in [] if not folder.exists() else folder.iterdir():
        if skip(one.name):
            continue
        if one.is_dir():
            (target / one.name).mkdir()
            _download(one, target / one.name)
        else:
            (target / one.name).write_bytes(one.read_bytes())


@contextlib.contextmanager
def filled(folder, after_errors=False):
    """A local folder to write files into, which at the end are in `folder`: itself, if it is local. After an error a bucket is
    given none of them, or with `after_errors` those that were written."""
    if not remote(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix='heed.') as place:
        whole = False
        try:
            yield pathlib.Path(place)
            whole = True
        finally:
            if whole or after_errors:
                for file in sorted(filter(pathlib.Path.is_file, pathlib.Path(place).rglob('*'))):
                    (folder / file.relative_to(place)).write_bytes(file.read_bytes())
