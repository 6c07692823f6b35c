"""SIGTERM and SIGINT end training after the current step, so that it can be saved."""

import contextlib
import signal


class Interrupted(BaseException):
    """Raised by a signal inside `interruptible`, where nothing is lost."""


class Stop:
    """While open, the first SIGTERM or SIGINT is only recorded in `signal`; a second one ends the process as usual.

    Args:
      alone: False for one of several processes: all must do the same work, so none is interrupted.
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
        for one, handler in self._old.items():
            signal.signal(one, handler)
        if self._interruptible:
            raise Interrupted

    @contextlib.contextmanager
    def interruptible(self):
        """Encloses work that may be interrupted, because it changes nothing and can be repeated."""
        self._interruptible = self._alone
        try:
            if self.signal and self._alone:
                raise Interrupted
            yield
        finally:
            self._interruptible = False
