"""The command lines of `python -m data.NAME`: a mistake is one sentence and exit code 1, as of the scripts at the root."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from data import remote


class Parser(argparse.ArgumentParser):
    """A parser that raises ValueError for a mistake, takes no abbreviations, and shows a docstring as it is."""

    def __init__(self, module: str, documentation: str | None):
        super().__init__(f'python -m {module}', description=documentation, allow_abbrev=False,
                         formatter_class=argparse.RawTextHelpFormatter)

    def error(self, message: str) -> None:
        raise ValueError(f'{message}; see --help.')


def run(main: Callable[[], object], shown: Callable[[str], str] = str) -> None:
    """Calls `main` and exits. `shown` rewrites the sentence of an error, in which copies of objects of a bucket have the names
    of these. HEED_TRACEBACK=1 keeps its traceback."""
    try:
        main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # of a reader such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        if os.environ.get('HEED_TRACEBACK'):
            raise
        sys.exit(f'{Path(sys.argv[0]).name}: {remote.shown(shown(str(error)))}')
