"""Several processes that train one run together, as on a TPU pod or a cluster: how they meet, agree and end.

Every process runs the same program on the same batches and holds its part of every array; the first one writes.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import zlib
from signal import Signals

import jax
import numpy as np
from jax.experimental import multihost_utils

_LOST = 30  # seconds after which jax aborts the others if a process no longer answers
_PATIENCE = 10  # seconds to connect
_known_as = ''  # the host of the first process as the command line gives it: its own name for itself may not be known


def join(coordinator, processes, process):
    """Makes this process one of several; before anything else is asked of jax. Without a coordinator it stays alone.

    Args:
      coordinator: HOST:PORT of the first process, or 'auto' where jax finds everything by itself (TPU VMs, Slurm, Open
        MPI, Kubernetes).
      processes: how many there are.
      process: the number of this one, from 0.
    """
    if coordinator in (None, ''):
        if processes is not None or process is not None:
            raise ValueError('--processes and --process need --coordinator=HOST:PORT, the address of process 0.')
        return
    limits = dict(heartbeat_timeout_seconds=_LOST, shutdown_timeout_seconds=_LOST)
    if coordinator == 'auto':
        if processes is not None or process is not None:
            raise ValueError('--coordinator=auto finds the number of processes by itself; leave --processes and --process out.')
        try:
            jax.distributed.initialize(**limits)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f'--coordinator=auto found no cluster here ({error}); give --coordinator=HOST:PORT, '
                             '--processes=N and --process=I.') from error
        return
    host, _, port = coordinator.rpartition(':')
    if not host or not port.isdecimal():
        raise ValueError(f'--coordinator is {coordinator!r}; expected HOST:PORT of process 0, or auto.')
    if processes is None or process is None or not 0 <= process < processes:
        raise ValueError(f'--processes={processes} and --process={process} do not fit; with --coordinator give the number of '
                         'processes and which of them this is, from 0.')
    global _known_as
    _known_as = host
    print(f'process {process} of {processes}: waiting for the others at {coordinator}', flush=True)
    jax.distributed.initialize(coordinator, processes, process, initialization_timeout=300, **limits)


def first():
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def several():
    return jax.process_count() > 1


def from_first(value):
    """The first process's value of a small array or number, at all of them, once all have come here."""
    return multihost_utils.broadcast_one_to_all(np.asarray(value)) if several() else value


def require_same(**facts):
    """Raises ValueError unless all processes have the same JSON-able facts, naming what differs."""
    if not several():
        return
    sums = [zlib.crc32(json.dumps(value, sort_keys=True).encode()) for value in facts.values()]
    gathered = multihost_utils.process_allgather(np.array(sums, np.uint32))
    for name, column in zip(facts, gathered.T, strict=True):
        if len(set(column.tolist())) > 1:
            raise ValueError(f'The processes of this run differ in {name}; start all of them with the same command, on the '
                             'same files.')


def agreed(signal, asked):
    """The signal after which all processes stop, or None: one's own if it is alone. Several stop after the same step, so
    they ask each other, but only where `asked` says so, at rows of the log, as that takes time."""
    if not several():
        return signal
    number = int(multihost_utils.process_allgather(np.int32(signal or 0)).max()) if asked else 0
    return Signals(number) if number else None


@contextlib.contextmanager
def together():
    """While open, the loss of one of several processes ends the others at once, in one sentence and exit code 1.

    Each keeps a connection to the first, which the kernel closes with whoever held it. Left alone, a process would hang in
    the next thing done by all, or be aborted by jax half a minute later. Where the connection cannot be made (a firewall),
    it is left at that.
    """
    if not several():
        yield
        return
    links = _links()
    watchers = [threading.Thread(target=_watch, args=(link,), daemon=True) for link in links]
    for watcher in watchers:
        watcher.start()
    try:
        yield
    except Exception:
        time.sleep(1)  # if another process is gone, that is the reason to give, and a watcher gives it
        raise
    for link in links:
        with contextlib.suppress(OSError):
            link.sendall(b'.')  # a process that has nothing left to do is not lost


def _links():
    """Connections: of the first process to every other, of any other to the first."""
    if first():
        with socket.create_server(('', 0)) as server:
            from_first(_address(socket.gethostname(), server.getsockname()[1]))
            server.settimeout(_PATIENCE)
            links = []
            with contextlib.suppress(OSError):
                for _ in range(jax.process_count() - 1):
                    links.append(server.accept()[0])
    else:
        host, _, port = bytes(from_first(_address('', 0))).rstrip(b'\0').decode().rpartition(':')
        links = []
        with contextlib.suppress(OSError):
            links.append(socket.create_connection((_known_as or host, int(port)), _PATIENCE))
    for link in links:
        link.settimeout(None)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            link.setsockopt(socket.IPPROTO_TCP, option, seconds)  # or a machine that loses its power is never missed
    return links


def _address(host, port):
    return np.frombuffer(f'{host}:{port}'.encode().ljust(300, b'\0'), np.uint8)


def _watch(link):
    with contextlib.suppress(OSError):
        if link.recv(1):
            return
    print(f'{os.path.basename(sys.argv[0])}: process {jax.process_index()} of {jax.process_count()} ends because another one '
          'is gone; start all of them again with the same command, which resumes from the last checkpoint.',
          file=sys.stderr, flush=True)
    os._exit(1)  # everything done in peace would wait for the one that is gone
