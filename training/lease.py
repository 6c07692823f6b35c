"""The lease of a workdir in a bucket, for which no kernel keeps a lock: an object that its holder renews.

A write names the generation that it replaces, so of several processes one succeeds. A lease that is not renewed for `LASTS`
seconds has no living holder. A process that sleeps for longer than that, and has been replaced, ends as it wakes.
"""

import contextlib
import datetime
import os
import secrets
import socket
import sys
import threading
import time

from display import progress

LASTS, RENEWED_EVERY = 60.0, 15.0  # seconds


class Lease:
    """The lease that an object of a bucket, 'gs://BUCKET/NAME', stands for; it is free while the object is empty."""

    def __init__(self, place):
        from google.cloud import storage

        self._place = str(place)
        bucket, _, self._name = self._place.removeprefix('gs://').partition('/')
        self._bucket = storage.Client().bucket(bucket)
        self._holder = f'{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}'
        self._generation, self._ended = 0, threading.Event()

    def take(self):
        """Whether the lease is this process's now. Waits for the next renewal of another holder: without one it is dead."""
        seen = None
        while True:
            generation, size, age = self._look()
            if not size or age > LASTS:
                return self._write(self._holder, generation)
            if seen not in (None, generation):
                return False
            seen = generation
            time.sleep(min(1.0, RENEWED_EVERY / 4))

    @contextlib.contextmanager
    def renewed(self):
        """Renews the lease that was taken, and frees it at the end."""
        thread = threading.Thread(target=self._renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            with contextlib.suppress(Exception):  # it ends by itself
                self._write('', self._generation)

    def _renew(self):
        last = time.monotonic()
        while not self._ended.wait(RENEWED_EVERY):
            begun = time.monotonic()
            try:
                lost = not self._write(self._holder, self._generation)
                last = begun
            except Exception:  # of a network, of many types
                lost = time.monotonic() - last > LASTS
            if lost and not self._ended.is_set():
                print(f'Another process may train in {os.path.dirname(self._place)}, as this one could not renew its lease; it '
                      'ends without saving.', file=sys.stderr, flush=True)
                os._exit(1)  # a signal would let the run save

    def _look(self):
        """(generation, size, seconds since it was written) of the object; 0, 0, 0.0 if there is none."""
        found = self._bucket.get_blob(self._name)
        if found is None:
            return 0, 0, 0.0
        return found.generation, found.size, (datetime.datetime.now(datetime.UTC) - found.updated).total_seconds()

    def _write(self, text, generation):
        """Replaces a generation of the object; returns whether it was still the newest one."""
        from google.api_core import exceptions
        from google.cloud.storage.retry import DEFAULT_RETRY

        written, soon = self._bucket.blob(self._name), DEFAULT_RETRY.with_timeout(RENEWED_EVERY)
        try:
            written.upload_from_string(text, if_generation_match=generation, timeout=RENEWED_EVERY, retry=soon)
        except exceptions.PreconditionFailed:
            written = self._bucket.get_blob(self._name)
            if not written or written.download_as_text() != text:  # else an attempt whose answer was lost
                return False
        self._generation = written.generation
        return True


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
