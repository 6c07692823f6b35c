"""Several processes that train one run together, as on a TPU pod or a cluster: how they meet, agree and end.

Every process runs the same program on the same batches and holds its part of every array; process 0, the first, writes.
"""

import atexit
import contextlib
import json
import os
import selectors
import socket
import struct
import sys
import threading
import time
import zlib
from signal import Signals

import jax
import numpy as np
from jax.experimental import multihost_utils

from training.config.cli import expected

_LOST = 30  # seconds after which jax aborts the other processes if one no longer answers
_MEETING = 300  # seconds that the processes wait for each other at the start
_PATIENCE = 10  # seconds to connect
_GRACE = 5  # seconds for a process to report its own failure
_DONE, _FAILED = b'.', b'!'  # messages of a process to the others at its end
_HEED, _GO = b'heed', b'go'  # messages of the first process: to another that connects, and to all once all have
_HELLO = struct.Struct('!4sII')  # message of another process that connects: _HEED, --process, --processes
_known_as = ''  # the host of the first process as the command line names it; others may not know its own name for itself


def join(coordinator, processes, process):
    """Makes this process one of several; must be called before any other use of jax. Without a coordinator it stays alone.

    Args:
      coordinator: HOST:PORT of the first process, or 'auto' where jax finds it and the numbers by itself (TPU VMs, Slurm, Open
        MPI, Kubernetes).
      processes: the number of processes.
      process: the number of this one, from 0.
    """
    if coordinator in (None, ''):
        if processes is not None or process is not None:
            raise ValueError('--processes and --process need --coordinator=HOST:PORT, the address of process 0.')
        return
    jax.config.update('jax_enable_preemption_service', False)  # it would take SIGTERM from training.host.signals
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
    if process == 0:
        _call_roll(coordinator, int(port), processes)
    else:
        _answer_roll(host, int(port), processes, process)
    jax.distributed.initialize(coordinator, processes, process, **limits)


def _call_roll(coordinator, port, processes):
    """Returns when all others have connected. If one does not, raises ValueError here and at the others; jax itself would abort
    all of them.

    It listens on the port that jax will use, so that no other has to be open, and ignores foreign connections.
    """
    try:
        both = socket.has_dualstack_ipv6()  # as jax does
        server = socket.create_server(('', port), family=socket.AF_INET6 if both else socket.AF_INET, backlog=processes,
                                      dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        raise ValueError(f'Process 0 cannot listen on the port {port} of --coordinator ({error}); choose another '
                         'one.') from None
    end, came = time.monotonic() + _MEETING, {}  # {connection: number}
    with contextlib.ExitStack() as links, selectors.DefaultSelector() as events:
        links.enter_context(server).setblocking(False)
        events.register(server, selectors.EVENT_READ)
        while len(came) < processes - 1:
            left = end - time.monotonic()
            if left < 0:
                numbers = ', '.join(map(str, sorted({0, *came.values()})))
                reason = (f'Of the {processes} processes only {numbers} connected to --coordinator={coordinator} within '
                          f'{_MEETING} s; start all of them, each with --processes={processes} and a --process of its own.')
                _say(came, reason.encode())
                raise ValueError(reason)
            for key, _ in events.select(left):
                link = key.fileobj
                if link is server:
                    with contextlib.suppress(OSError):  # gone again
                        link = links.enter_context(server.accept()[0])
                        link.setblocking(False)
                        events.register(link, selectors.EVENT_READ)
                elif not _arrives(link, came, processes):
                    came.pop(link, None)
                    events.unregister(link)
                    link.close()
        server.close()  # before the others continue and connect to jax
        _say(came, _GO)


def _arrives(link, came, processes):
    """Records in `came` the process that has connected; returns False if the connection is to be closed."""
    with contextlib.suppress(OSError, struct.error):
        magic, process, its_processes = _HELLO.unpack(link.recv(_HELLO.size))  # empty if the other end has closed it
        if magic != _HEED:
            return False
        refusal = ''
        if its_processes != processes:
            refusal = (f'Process {process} was started with --processes={its_processes}, but process 0 with '
                       f'--processes={processes}; start all of them with the same number.')
        elif process in came.values():
            refusal = f'Two processes have --process={process}; give each its own, from 0 to {processes - 1}.'
        link.sendall(_HEED + refusal.encode())
        if not refusal:
            came[link] = process
            return True
    return False


def _answer_roll(host, port, processes, process):
    """Returns when the first process reports that all have connected; raises ValueError if they do not."""
    end, reason = time.monotonic() + _MEETING, ''
    while time.monotonic() < end:
        try:
            with socket.create_connection((host, port), _PATIENCE) as link:
                link.sendall(_HELLO.pack(_HEED, process, processes))
                if link.recv(len(_HEED), socket.MSG_WAITALL) != _HEED:
                    raise OSError('the program that answers there does not wait for others')
                link.settimeout(_MEETING + _PATIENCE)  # the first may have started later than this one
                said = b''.join(iter(lambda: link.recv(4096), b''))
        except (OSError, OverflowError) as error:
            said, reason = b'', error
        if said == _GO:
            return
        if said:
            raise ValueError(said.decode())
        time.sleep(0.3)  # also if the first process has ended, as it may be started again
    raise ValueError(f'Process {process} found no process 0 at --coordinator={host}:{port} within {_MEETING} s ({reason}); '
                     'start it there, with the same command.')


def first():
    """Whether this process is the first, the one that writes."""
    return jax.process_index() == 0


def several():
    return jax.process_count() > 1


def require_devices(mesh):
    """Raises ValueError if a process has none of the devices of a mesh."""
    idle = {*range(jax.process_count())} - {device.process_index for device in mesh.devices.flat}
    if idle:
        raise ValueError(f'The mesh of {mesh.size} of {jax.device_count()} devices has none of process {min(idle)}; use them '
                         'all, such as mesh.data=-1, or start fewer processes.')


def from_first(value):
    """Broadcasts the first process's value, a small array or number, once all processes have reached this call."""
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
    """The signal after which all processes stop, or None; for a single process its own. Several must stop after the same step,
    so they exchange their signals, but only if `asked`, at rows of the log, as that takes time."""
    if not several():
        return signal
    number = int(multihost_utils.process_allgather(np.int32(signal or 0)).max()) if asked else 0
    return Signals(number) if number else None


@contextlib.contextmanager
def together():
    """While open, the loss of one of several processes ends the others at once, with one sentence and exit code 1. At its end
    each waits for all, as the first has more to do than the others, and jax aborts who waits for longer than `_LOST` to exit.

    Each process keeps a connection to the first, which the kernel closes when either end dies. Without it, the remaining
    processes would hang in the next collective, or be aborted by jax half a minute later. If the connection cannot be made (a
    firewall), they do without.
    """
    if not several():
        yield
        return
    links, failed = _links(), threading.Event()
    watchers = [threading.Thread(target=_watch, args=(link, failed), daemon=True) for link in links]
    for watcher in watchers:
        watcher.start()
    try:
        yield
        from_first(0)
    except (Exception, KeyboardInterrupt) as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if not interrupted:
            # An unexpected error is probably the loss of another process, which the watcher reports.
            time.sleep(1 if expected(error) else 2 * _GRACE)
        failed.set()
        _say(links, _FAILED)
        atexit.register(_leave, 130 if interrupted else 1)  # after the reason is printed; jax would wait for the others
        raise
    _say(links, _DONE)


def _links():
    """The connections of the first process to all others, or of another process to the first."""
    links = []
    if first():
        with socket.create_server(('', 0)) as server:
            secret = os.urandom(16)  # tells our processes from foreign connections
            from_first(_packed(secret, socket.gethostname(), server.getsockname()[1]))
            server.settimeout(_PATIENCE)
            with contextlib.suppress(OSError):  # no more come
                while len(links) < jax.process_count() - 1:
                    link = server.accept()[0]
                    if _knows(link, secret):
                        links.append(link)
                    else:
                        link.close()
    else:
        secret, host, port = _unpacked(bytes(from_first(_packed(b'', '', 0))))
        with contextlib.suppress(OSError):
            link = socket.create_connection((_known_as or host, port), _PATIENCE)
            link.sendall(secret)
            links.append(link)
    for link in links:
        link.settimeout(None)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4)):
            link.setsockopt(socket.IPPROTO_TCP, option, seconds)  # else the loss of a machine's power goes unnoticed
    return links


def _knows(link, secret):
    """Whether a connection sends the secret; a foreign one may send nothing."""
    link.settimeout(_PATIENCE)
    with contextlib.suppress(OSError):
        return link.recv(16, socket.MSG_WAITALL) == secret
    return False


def _packed(secret, host, port):
    return np.frombuffer((secret.ljust(16) + f'{host}:{port}'.encode()).ljust(300, b'\0'), np.uint8)


def _unpacked(packed):
    host, _, port = packed[16:].rstrip(b'\0').decode().rpartition(':')
    return packed[:16], host, int(port)


def _say(links, what):
    for link in links:
        with contextlib.suppress(OSError):
            link.sendall(what)


def _watch(link, failed):
    with contextlib.suppress(OSError):
        said = link.recv(1)
        if said == _DONE:
            return
        if said == _FAILED:
            time.sleep(_GRACE)  # this process may have failed in the same way, and be reporting it
    if failed.is_set():
        time.sleep(2 * _GRACE)  # it says why, and leaves
    else:
        print(f'{os.path.basename(sys.argv[0])}: process {jax.process_index()} of {jax.process_count()} ends because another '
              'one is gone; start all of them again with the same command, which resumes from the last checkpoint.',
              file=sys.stderr, flush=True)
    os._exit(1)  # a regular exit would wait for the lost process


def _leave(code):
    sys.stdout.flush()
    sys.stderr.flush()
    if first():
        time.sleep(_GRACE + 1)  # jax aborts the others if the first is gone before they have left
    os._exit(code)
