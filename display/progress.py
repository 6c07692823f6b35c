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
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

PATIENCE, EVERY = 2.0, 0.5  # seconds without a line, and between its changes
T = TypeVar('T')
_open: list['_Line'] = []  # the blocks within each other, the innermost last


def shown(stream: TextIO) -> bool:
    """Whether a stream shows a bar: tqdm hides it on terminals of 0 rows, which some containers have."""
    try:
        return stream.isatty() and os.get_terminal_size(stream.fileno()).lines > 0
    except (OSError, ValueError):  # a terminal without a size, or a closed one
        return False


@contextlib.contextmanager
def waiting(what: str, total: float | None = None, unit: str = '') -> Iterator[Callable[[float], None]]:
    """Says during the block what is being done and for how long, and, if the block counts, how many units are done, of `total`
    if that is known. The block gets a function to call with the number of units that were done since its last call. Of blocks
    within each other the innermost one that takes long is shown."""
    if not shown(sys.stderr):
        yield lambda done: None
        return
    line = _Line(what, total, unit, sys.stderr)
    _open.append(line)
    line.thread.start()
    try:
        yield line.advance
    finally:
        _open.remove(line)
        line.ended.set()
        line.thread.join()


def over(things: Iterable[T], what: str, unit: str = '', total: int | None = None) -> Iterator[T]:
    """The things one after the other, while `waiting` says how many are done; `total` is their number if they have no len."""
    if total is None and hasattr(things, '__len__'):
        total = len(things)
    with waiting(what, total, unit) as advance:
        for thing in things:
            yield thing
            advance(1)


class _Line:
    """The line of one block, drawn by a thread, as the block itself is busy."""

    def __init__(self, what: str, total: float | None, unit: str, stream: TextIO):
        self.what, self.total, self.unit, self.stream = what, total, unit, stream
        self.done, self.began, self.ended, self.long = 0.0, time.monotonic(), threading.Event(), False
        self.thread = threading.Thread(target=self._show, daemon=True)

    def advance(self, count: float) -> None:
        self.done += count

    def text(self) -> str:
        """What the line says."""
        seconds = time.monotonic() - self.began
        counted = f'{self.done:,.0f}' if self.done or self.total else ''
        if not self.total:
            return f'{self.what} .. ' + (f'{counted} {self.unit}, ' if counted else '') + f'{seconds:.0f} s'
        share = min(1.0, self.done / self.total)
        left = f', {seconds * (1 - share) / share:.0f} s left' if share else ''
        return f'{self.what} |{"#" * round(12 * share):12}| {counted} of {self.total:,.0f} {self.unit}{left}'

    def within(self) -> list['_Line']:
        """The lines of the blocks inside this one."""
        lines = list(_open)
        return lines[lines.index(self) + 1:] if self in lines else []

    def _show(self) -> None:
        if self.ended.wait(PATIENCE):
            return
        self.long = True
        import tqdm  # which keeps several lines of one terminal apart, such as the bar of the training

        bar = None
        while True:
            if any(line.long for line in self.within()):
                if bar is not None:
                    bar.close()
                bar = None
            else:
                if bar is None:
                    bar = tqdm.tqdm(file=self.stream, leave=False, dynamic_ncols=True, bar_format='{desc}', desc=self.text())
                bar.set_description_str(self.text())
            if self.ended.wait(EVERY):
                break
        if bar is not None:
            bar.close()
