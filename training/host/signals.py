"""A polite end: SIGTERM and SIGINT let the step in flight finish, so that it can be saved."""

import contextlib
import signal


class Interrupted(BaseException):
    """Raised by a signal inside `interruptible`, where nothing would be lost."""


class Stop:
    """While open, the first SIGTERM or SIGINT is only noted in `signal`; a second one ends the process as usual.

    Args:
      alone: False for one of several processes, which does nothing that the others do not: nothing is broken off.
    """

    def __init__(self, alone=True):
        self.signal = None
        self._alone = alone
        self._interruptible = False
        self._old = {}

    def __enter__(self):
        self._old = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_):
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number, frame):
        self.signal = signal.Signals(number)
        signal.signal(number, self._old[number])
        if self._interruptible:
            raise Interrupted

    @contextlib.contextmanager
    def interruptible(self):
        """Work that may be broken off, because it changes nothing and can be done again."""
        self._interruptible = self._alone
        try:
            if self.signal and self._alone:
                raise Interrupted
            yield
        finally:
            self._interruptible = False
