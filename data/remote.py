"""Text and images in a bucket of Google Cloud Storage, gs://: read from a copy in the cache, which is made once.

    path = local('gs://bucket/text/*.txt')  # ~/.cache/heed/remote/KEY/bucket/text/*.txt
"""

import glob
import os
import re
from pathlib import Path

from data import cache

SCHEME = 'gs://'


def local(path: str) -> str:
    """A path with ~ expanded. Of a file, a folder or a glob in a bucket: that of a copy with the names of the bucket, which
    is made anew if anything has changed there.

    Raises ValueError if gcsfs is not installed, the bucket cannot be read or changes meanwhile, FileNotFoundError if nothing
    is there.
    """
    if not path.startswith(SCHEME):
        return os.path.expanduser(path)
    try:
        import gcsfs
    except ImportError:
        raise ValueError(f'{path} is in Google Cloud Storage, which needs gcsfs; install it with "pip install -r '
                         'requirements-gs.txt".') from None
    unreadable = lambda error: ValueError(f'{path} cannot be read ({error}); make sure that there is a network, and permission '
                                          'to read it.')
    bucket = gcsfs.GCSFileSystem(use_listings_cache=False)

    def listed() -> dict[str, dict]:
        try:
            found = bucket.glob(path, detail=True) if glob.has_magic(path) else bucket.find(path, detail=True)
        except Exception as error:  # of a network, of many types
            raise unreadable(error) from None
        return {name: about for name, about in found.items() if about['type'] == 'file' and not name.endswith('/')}

    generations = lambda named: {name: about['generation'] for name, about in named.items()}
    named = listed()
    sizes = {name: about['size'] for name, about in named.items()}
    if not sizes:
        raise FileNotFoundError(f'{path!r} does not exist; expected a file, a folder or a glob in a bucket.')

    if outside := [name for name in sizes if '..' in Path(name).parts]:
        raise ValueError(f'{SCHEME}{outside[0]} has .. in its name, which leads out of the folder of its copy; rename it.')

    def build(folder: Path) -> None:
        failed = None
        for name in sizes:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            bucket.get(list(sizes), [str(folder / name) for name in sizes])
        except Exception as error:
            failed = error
        now = generations(listed())
        if any(now.get(name) != generation for name, generation in generations(named).items()):
            raise ValueError(f'{path} has changed while it was copied; start again when nothing is written there.')
        if failed:
            raise unreadable(failed)

    def intact(folder: Path) -> bool:
        return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())

    key = cache.key(path, *sorted(generations(named).items()))
    return f'{cache.entry("remote", key, build, intact)}/{path.removeprefix(SCHEME).rstrip("/")}'


def shown(text: str) -> str:
    """A text with the names of objects in place of the paths of their copies."""
    return re.sub(rf'{re.escape(str(cache.root()))}/remote/[0-9a-f]{{32}}/', SCHEME, text)
