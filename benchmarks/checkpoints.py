"""Benchmark of checkpoints with many hosts, each a process of this machine: one JSON line.

    python -m benchmarks.checkpoints --gb=10 --processes=8 [--folder=FOLDER]

A state of `gb` (1e9 bytes), float32 matrices that are split over all processes as mesh.fsdp splits them, is saved as a training
run saves it, and restored onto another mesh, of half as many parts along the rows and two along the columns. With a bucket
for FOLDER, gs://..., it is written there; by default it is in a temporary folder, and deleted.

`blocked_s` is the time for which `save` keeps a training loop waiting, `written_s` that until the step is complete; then
`restored_s`, with the check of every bit. `save_peak` and `restore_peak` are the memory of a host at its peak meanwhile, as
Linux counts it, above what the process had before it held any state, in multiples of its own part of the state: 1 is the state
alone.
Of each the largest of all hosts is taken. On a CPU, nothing has to be copied from a device first.

On two cores of an EPYC (family 25 model 1; Python 3.11, jax 0.10.2) that the hosts share, on a virtual disk:

    gb   processes   blocked_s   written_s   save_peak   restored_s   restore_peak
    2            2         2.4         7.4        1.12          7.3           1.91
    10           8        11.4        31.9        1.11         54.2           1.82

Restoring onto another mesh reads every part of a file that a host has a share of, here twice its own; those of the last case
together are nearly all memory there was, 23 GB, with a swap file.
"""

import contextlib
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

from absl import flags

from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_float('gb', 1.0, 'the size of the state, in 1e9 bytes', lower_bound=1e-3)
    flags.DEFINE_integer('processes', 4, 'hosts, an even number', lower_bound=2)
    flags.DEFINE_integer('process', None, 'which of them this process is; without it, all are started')
    flags.DEFINE_string('coordinator', None, 'as in train.py, with --process')
    flags.DEFINE_string('folder', '', 'where the checkpoint is written and stays; a temporary folder by default')
    cli.answer_help()

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from training import mesh as meshes
from training.checkpoint import Checkpoints
from training.host import machine, processes

WIDTH = 2048  # columns of a matrix
LAYERS = 16


def main():
    given = flags.FLAGS
    if given.processes % 2:
        raise ValueError(f'--processes is {given.processes}; the other mesh has half as many parts, so give an even number.')
    if not pathlib.Path('/proc/self/clear_refs').exists():
        raise ValueError('The peak of the memory of a process is read from /proc, which Linux alone has.')
    if given.process is not None:
        machine.prepare({}, sparing=True)  # or what is freed would count
        processes.join(given.coordinator, given.processes, given.process)
        print(json.dumps(measure(given.folder, given.gb)))
        return
    with contextlib.ExitStack() as stack:
        folder = given.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix='checkpoints_'))
        rows = all_of(folder, given.gb, given.processes)
    print(json.dumps({'gb': given.gb, 'processes': given.processes} | {
        name: max(row[name] for row in rows) for name in rows[0]} | {
            'cores': machine.cores(), 'jax': jax.__version__}))


def all_of(folder, gb, count):
    """What each of `count` processes measures."""
    with socket.socket() as one:
        one.bind(('localhost', 0))
        coordinator = f'localhost:{one.getsockname()[1]}'
    command = [sys.executable, '-m', 'benchmarks.checkpoints', f'--gb={gb}', f'--processes={count}', f'--folder={folder}',
               f'--coordinator={coordinator}']
    started = [subprocess.Popen([*command, f'--process={number}'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
               for number in range(count)]
    rows = []
    for number, one in enumerate(started):
        out, errors = one.communicate()
        if one.returncode:
            for other in started:
                other.kill()
            raise ValueError(f'Process {number} of {count} ended with exit code {one.returncode}: {errors.strip()[-2000:]}')
        rows.append(json.loads(out.splitlines()[-1]))
    return rows


def measure(folder, gb):
    """What this process needs to save a state of so many gigabytes and to restore it."""
    parts, before = jax.device_count(), memory('VmRSS')
    saved = NamedSharding(meshes.make(1, parts), PartitionSpec('fsdp'))
    rows = round(gb * 1e9 / 4 / WIDTH / LAYERS / parts) * parts
    if not rows:
        raise ValueError(f'--gb={gb} is less than a row of each of {LAYERS} matrices for each of {parts} devices; give more.')
    state = {f'layer_{number}': made((rows, WIDTH), saved, number) for number in range(LAYERS)}
    jax.block_until_ready(state)
    own = sum(sum(shard.data.nbytes for shard in x.addressable_shards) for x in state.values())
    found, checkpoints = {}, Checkpoints(folder, keep=2)
    step = max(checkpoints.steps(), default=0) + 1
    reset_peak()
    start = meet()
    checkpoints.save(step, state, None)
    found['blocked_s'] = time.perf_counter() - start
    checkpoints.wait()
    found['written_s'] = time.perf_counter() - start
    found['save_peak'] = (memory('VmHWM') - before) / own
    sums = {name: int(jnp.sum(x.view(jnp.uint32))) for name, x in state.items()}
    state = None
    other = NamedSharding(meshes.make(1, parts // 2, 2), PartitionSpec('fsdp', 'tensor'))
    target = {name: jax.ShapeDtypeStruct((rows, WIDTH), np.float32, sharding=other) for name in sums}
    reset_peak()
    start = meet()
    restored = checkpoints.restore(target, step=step).state
    found['restored_s'] = time.perf_counter() - start
    found['restore_peak'] = (memory('VmHWM') - before) / own
    checkpoints.close()
    if sums != {name: int(jnp.sum(x.view(jnp.uint32))) for name, x in restored.items()}:
        raise ValueError('What was restored is not what was saved.')
    return {name: round(value, 2) for name, value in found.items()}


def made(shape, sharding, seed):
    """Random numbers, each part made where it is."""
    def part(index):
        first, stop, _ = index[0].indices(shape[0])
        return np.random.default_rng([seed, first]).random((stop - first, shape[1]), np.float32)

    return jax.make_array_from_callback(shape, sharding, part)


def meet():
    """The time at which all processes are here."""
    multihost_utils.sync_global_devices('checkpoints')
    return time.perf_counter()


def reset_peak():
    pathlib.Path('/proc/self/clear_refs').write_text('5')


def memory(name):
    """Bytes of this process, as Linux counts them: 'VmRSS' now, 'VmHWM' at their peak."""
    return 1024 * int(re.search(rf'^{name}:\s*(\d+) kB', pathlib.Path('/proc/self/status').read_text(), re.MULTILINE)[1])


if __name__ == '__main__':
    cli.run(main)
