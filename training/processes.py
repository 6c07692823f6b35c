"""Several processes that train one run together, as on a TPU pod or a cluster: how they meet, agree and end.

Every process runs the same program on the same batches and holds its part of every array; the first one writes.
"""

import contextlib
import json
import os
import sys
import zlib
from signal import Signals

import jax
import numpy as np
from jax.experimental import multihost_utils

LOST = 30  # seconds after which a process that no longer answers counts as lost


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
    limits = dict(heartbeat_timeout_seconds=LOST, shutdown_timeout_seconds=LOST)
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
def ending_together():
    """Ends this process at once if another one is lost: everything that would be done in peace waits for the others."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not several():
            raise
        print(f'{os.path.basename(sys.argv[0])}: process {jax.process_index()} of {jax.process_count()} cannot go on, '
              f'another one is gone ({str(error).splitlines()[0][:200]}); start all of them again with the same command, '
              'which resumes from the last checkpoint.', file=sys.stderr, flush=True)
        os._exit(1)
