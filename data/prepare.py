"""Downloads and prepares data sets of TensorFlow Datasets (TFDS), without TensorFlow, for data.source='tfds'.

    python -m data.prepare NAME[/CONFIG][:VERSION] ... [--data_dir=DIR] [--imports=MODULE ...]

Names are those of tensorflow.org/datasets/catalog. A data set that is already prepared is left as it is.
"""

import contextlib
import importlib
import logging
import os
import re
import resource
import urllib.error
import urllib.parse
from collections.abc import Iterator, Sequence

from data import commands
from data.sources import tfds as tfds_sources
from data.sources import without_tensorflow

_LISTED = 10
_TRIES = 5  # attempts of a download, within 6 s; TFDS's own ten take over three minutes to notice a missing network


def prepare(name: str, path: str = '') -> str:
    """Prepares a data set as ArrayRecord unless it is already prepared; returns its folder under `path`, by default
    TFDS's own.

    TFDS writes into a folder `incomplete.*` and renames it at the end, so a half-prepared set never has its final name.
    Raises ValueError, in one sentence, if the name is unknown or the set cannot be prepared.
    """
    try:
        return tfds_sources.find(name, path)
    except tfds_sources.NotPrepared:
        pass
    without_tensorflow.install()
    tfds = tfds_sources.library()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a set of over 1 GB is shuffled through a thousand files
    tfds_sources.names()  # imports the builders
    try:
        builder = tfds.builder(name, data_dir=tfds_sources.home(path), file_format='array_record')
    except tfds.core.DatasetNotFoundError:
        raise ValueError(tfds_sources.unknown(name)) from None
    except (ValueError, AssertionError) as error:
        reason = _flat(error).rpartition('}": ')[2].partition(' Here are')[0]
        if configs := [*tfds.builder_cls(re.split('[/:]', name)[0]).builder_configs]:
            reason += f' Known configurations: {", ".join(configs[:_LISTED])}{", ..." if len(configs) > _LISTED else ""}.'
        raise ValueError(f'{name} cannot be prepared: {reason}') from error
    if os.path.exists(builder.data_dir):  # TFDS would leave it as it is
        raise ValueError(f'{builder.data_dir} exists but is not a complete data set; move it away and run this again.')
    with _explained(name, builder):
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(try_download_gcs=False))
    return tfds_sources.find(name, path)


@contextlib.contextmanager
def _explained(name: str, builder) -> Iterator[None]:
    """Turns a failed preparation into a ValueError of one sentence."""
    import requests
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import download_manager, downloader

    copy = f'copy its folder {os.path.relpath(builder.data_dir, builder.data_dir_root)} to {builder.data_dir}'
    downloader.MAX_RETRIES = _TRIES
    logging.getLogger('urllib3').setLevel(logging.ERROR)  # otherwise it logs every attempt
    try:
        yield
    except (requests.RequestException, urllib.error.URLError) as error:
        request = getattr(error, 'request', None)
        host = request and urllib.parse.urlparse(request.url).hostname
        raise ValueError(
            f'{name} has to be downloaded, and {host or "its server"} cannot be reached; run this with a network, or run it on '
            f'another machine and {copy}.'
        ) from error
    except (tfds.download.DownloadError, download_manager.NonMatchingChecksumError) as error:
        raise ValueError(f'{name} cannot be downloaded: {_flat(error)}') from error
    except ImportError as error:
        if error.name == 'tensorflow':
            raise ValueError(
                f'The builder of {name} calls {error}, and this prepares without TensorFlow; where that is installed run '
                f'tfds build {name} --file_format=array_record, and {copy}.'
            ) from error
        raise ValueError(f'The builder of {name} needs another package ({_flat(error)}); install it with pip.') from error
    except AssertionError as error:
        if not str(error).startswith('Manual directory'):
            raise
        raise ValueError(f'{name} has to be downloaded by hand: {_flat(error)}') from error


def _flat(error: Exception) -> str:
    return ' '.join(str(error).split())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = commands.Parser('data.prepare', __doc__)
    parser.add_argument('names', nargs='+', metavar='NAME')
    parser.add_argument('--data_dir', default='', help='target folder (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)')
    parser.add_argument('--imports', default=[], action='append', metavar='MODULE', help='a module with builders of your own')
    options = parser.parse_args(arguments)
    for module in options.imports:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ValueError(f'--imports={module} cannot be imported: there is no module {error.name!r}.') from error
    for name in options.names:
        print(f'{name} is prepared in {prepare(name, options.data_dir)}')


if __name__ == '__main__':
    commands.run(main)
