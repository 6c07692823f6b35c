"""The lease of a workdir in a bucket, for which no kernel keeps a lock: an object that its holder renews.

A write names the generation that it replaces, so of several processes one succeeds. A holder that could not renew the lease for
half of `LASTS` seconds ends; who sees no renewal for all of them takes it over. No clock is compared with another.
"""

import contextlib
import os
import secrets
import socket
import sys
import threading
import time

from display import progress

LASTS, RENEWED_EVERY = 60.0, 15.0  # seconds
_CLOCK = getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC)  # it goes on while a machine sleeps


class Lease:
    """The lease that an object of a bucket, 'gs://BUCKET/NAME', stands for; it is free while the object is empty."""

    def __init__(self, place):
        from google.cloud import storage

        self._place = str(place)
        bucket, _, self._name = self._place.removeprefix('gs://').partition('/')
        self._bucket = storage.Client(project=None).bucket(bucket)
        self._holder = f'{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}'
        self._generation, self._renewed, self._ended = 0, 0.0, threading.Event()

    def take(self):
        """Whether the lease is this process's now. Waits for the next renewal of another holder: without one it is dead."""
        seen, since = None, 0.0
        while True:
            asked = now()
            generation, size = self._look()  # which may take a minute
            if not size or (seen == generation and asked - since > LASTS):
                return self._write(self._holder, generation)
            if seen not in (None, generation):
                return False
            if seen is None:
                seen, since = generation, now()
            time.sleep(min(1.0, RENEWED_EVERY / 4))

    @contextlib.contextmanager
    def renewed(self):
        """Renews the lease that was taken, and frees it at the end."""
        threads = [threading.Thread(target=target, daemon=True) for target in (self._renew, self._guard)]
        for one in threads:
            one.start()
        try:
            yield
        finally:
            self._ended.set()
            threads[0].join(LASTS / 2)
            with contextlib.suppress(Exception):  # it ends by itself
                self._write('', self._generation)

    def _renew(self):
        while not self._ended.wait(RENEWED_EVERY):
            with contextlib.suppress(Exception):  # of a network, of many types; `_guard` knows since when
                if not self._write(self._holder, self._generation):
                    self._end()

    def _guard(self):
        """Ends the process in time, whatever a request waits for."""
        while not self._ended.wait(min(0.5, LASTS / 20)):
            if now() - self._renewed > LASTS / 2:
                self._end()

    def _end(self):
        if not self._ended.is_set():
            print(f'Another process may train in {os.path.dirname(self._place)}, as this one could not renew its lease; it '
                  'ends without saving.', file=sys.stderr, flush=True)
            os._exit(1)  # a signal would let the run save

    def _look(self):
        """(generation, size) of the object; 0, 0 if there is none."""
        found = self._bucket.get_blob(self._name)
        return (found.generation, found.size) if found else (0, 0)

    def _write(self, text, generation):
        """Replaces a generation of the object; returns whether it was still the newest one."""
        from google.api_core import exceptions
        from google.cloud.storage.retry import DEFAULT_RETRY

        written, begun = self._bucket.blob(self._name), now()
        soon = {'timeout': RENEWED_EVERY, 'retry': DEFAULT_RETRY.with_timeout(RENEWED_EVERY)}
        try:
            written.upload_from_string(text, if_generation_match=generation, **soon)
        except exceptions.PreconditionFailed:
            found = self._bucket.get_blob(self._name, **soon)
            if not text or not found or found.generation == generation or found.download_as_text(**soon) != text:
                return False
            return self._write(text, found.generation)  # it was this process, whose answer was lost
        self._generation, self._renewed = written.generation, begun
        return True


def now():
    """Seconds since some moment, those of sleep included."""
    return time.clock_gettime(_CLOCK)


@contextlib.contextmanager
def held(place, refusal):
    """Holds the lease of an object. Raises ValueError with the refusal if another process does, and if the bucket cannot be
    written to."""
    try:
        lease = Lease(place)
        with progress.waiting('waiting for the lease of the workdir'):
            taken = lease.take()
    except Exception as error:  # of a network, of many types
        raise ValueError(f'{place} cannot be written ({error}); make sure that there is a network, and permission to write '
                         'it.') from error
    if not taken:
        raise ValueError(refusal)
    with lease.renewed():
        yield
