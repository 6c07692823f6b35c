"""Progress on the terminal: what a person waits for, and how far it is.

    with progress.waiting('compiling the training step'):
        ...
    for batch in progress.over(batches, 'evaluating', unit='batches'):
        ...

A line appears on stderr after two seconds and is gone at the end. Nothing is written where stderr is no terminal, so that logs
and pipes stay as they are.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO, TypeVar

PATIENCE, EVERY = 2.0, 0.5  # seconds without a line, and between its changes
T = TypeVar('T')


def shown(stream: TextIO) -> bool:
    """Whether a stream shows a bar: tqdm hides it on terminals of 0 rows, which some containers have."""
    try:
        return stream.isatty() and os.get_terminal_size(stream.fileno()).lines > 0
    except (OSError, ValueError):  # a terminal without a size, or a closed one
        return False


@contextlib.contextmanager
def waiting(what: str, total: int | None = None, unit: str = '') -> Iterator[Callable[[int], None]]:
    """Says during the block what is being done, for how long, and, with a `total` number of units, how many are done. The block
    gets a function to call with the number of units that were done since its last call."""
    if not shown(sys.stderr):
        yield lambda done: None
        return
    done, ended = [0], threading.Event()
    thread = threading.Thread(target=_show, args=(what, total, unit, done, ended, sys.stderr), daemon=True)
    thread.start()

    def advance(count: int) -> None:
        done[0] += count

    try:
        yield advance
    finally:
        ended.set()
        thread.join()


def over(things: Iterable[T], what: str, unit: str = '', total: int | None = None) -> Iterator[T]:
    """The things one after the other, while `waiting` says how many are done; `total` is their number if they have no len."""
    if total is None and hasattr(things, '__len__'):
        total = len(things)  # type: ignore[arg-type]
    with waiting(what, total, unit) as advance:
        for thing in things:
            yield thing
            advance(1)


def _show(what: str, total: int | None, unit: str, done: list[int], ended: threading.Event, stream: Any) -> None:
    if ended.wait(PATIENCE):
        return
    import tqdm

    counted = '{desc} |{bar:12}| {n_fmt}/{total_fmt} ' + unit + ', {elapsed}, {remaining} left'
    bar = tqdm.tqdm(total=total, desc=what, file=stream, leave=False, dynamic_ncols=True, delay=1e-9,  # not yet
                    bar_format=counted if total else '{desc} .. {elapsed}')
    bar.start_t -= PATIENCE  # it began before the line appears
    while True:
        bar.n = done[0]
        bar.refresh()
        if ended.wait(EVERY):
            break
    bar.close()
