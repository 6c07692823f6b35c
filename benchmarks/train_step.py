"""Benchmark of the training step of any config: one JSON line.

    python -m benchmarks.train_step --config=configs/gpt_char.py:cpu [--steps=60] [--config.part.field=value ...]

Two measurements take turns, twice each, so that a machine that slows down or speeds up in between favours neither: the bare
compiled step on one batch (the first, if batches differ in length), and train.py's own loop in a temporary workdir, without
evaluations and with a checkpoint in the middle. Both run the same program and wait for the step before the one that they have
just handed to the device.

The bare step gives step_ms (median), step_ms_min and _max, tokens_per_s or images_per_s, and achieved_gflops; the loop gives
data_wait_share, the share of its time spent waiting for data, and save_s, the time that a save blocks it. loop_overhead_share
is the share of a step of the loop beyond the bare step (noise can make it negative). compile_s is the time to compile the
step, less if it is in the compilation cache. --steps is rounded up to whole dispatches (train.dispatch).
"""

import contextlib
import json
import os
import resource
import statistics
import tempfile
import time

from absl import flags

from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_integer('steps', 60, 'steps of each of the four measurements', lower_bound=5)
    cli.answer_help(config='configs/quickstart.py')

import jax

import train
from training import mesh as meshes
from training import run as runs
from training import workdir as workdirs
from training.config import schema
from training.host import machine
from training.report import report

ROUNDS, LAPS, WARMUP = 2, 10, 2  # the first WARMUP laps of each round, of a step each if there are few, are a warm-up


def main(config, name):
    print(json.dumps(measure(config, name, flags.FLAGS.steps)))


def measure(config, name, steps):
    """{name: number} for a config, with `steps` (at least 5) steps of the bare step and of the loop in each round."""
    several = max(1, config.train.dispatch)
    dispatches = lambda count: -(-count // several) * several
    lap = dispatches(max(1, steps // LAPS))
    steps = max(dispatches(steps), (WARMUP + 1) * lap)
    with config.unlocked():  # for both, as these are part of the compiled step
        config.train.steps = steps
        config.log.every_steps = lap
        config.checkpoint.every_steps, config.checkpoint.best = dispatches(-(-steps // 2)), ''
        config.evals = {}
    schema.check(config)
    machine.prepare(config)
    mesh = meshes.make(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    source = workdirs.existing(config.init_from, '--config.init_from') if config.init_from else None
    run = runs.build(config, mesh, source=source)
    rows, units = run.batches(run.data.train(config.seed))
    start = time.perf_counter()
    step = run.compile()
    compile_s = time.perf_counter() - start

    bare, loop = [], []
    for _ in range(ROUNDS):
        bare += time_step(run, step, rows, steps)[lap * WARMUP:]
        loop += time_loop(config)[WARMUP:]
    seconds = statistics.median(bare)
    bare_lap_ms = statistics.median(1e3 * statistics.fmean(bare[i:i + lap]) for i in range(0, len(bare), lap))
    middle = lambda key: statistics.median(row[key] for row in loop)
    return {
        'config': name, 'device': f'{mesh.size} x {mesh.devices.flat[0].device_kind}',
        'processor': machine.processor(), 'cores': machine.cores(),
        'jax': jax.__version__, 'dtype': config.dtype, 'parameters': run.parameters(), 'compile_s': round(compile_s, 2),
        'step_ms': round(1e3 * seconds, 2), 'step_ms_min': round(1e3 * min(bare), 2),
        'step_ms_max': round(1e3 * max(bare), 2), f'{run.data.unit}_per_s': round(units / config.train.dispatch / seconds, 1),
        'achieved_gflops': round(step.flops_with(rows) / seconds / 1e9, 3),
        'data_wait_share': round(middle('data_wait_share'), 4),
        'loop_overhead_share': round(1 - bare_lap_ms / middle('step_ms'), 4),
        'save_s': round(max(row['save_s'] for row in loop), 4),
        'peak_rss_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def time_step(run, step, batch, steps):
    """Seconds of each step, from one result to the next; the state is discarded."""
    state, behind, seconds, several = run.init(), None, [], run.config.train.dispatch
    batch = jax.device_put(batch, meshes.batch_sharding(run.mesh, stacked=several > 1))
    jax.block_until_ready((state, batch))
    mark = time.perf_counter()
    for _ in range(steps // several):
        state, numbers = step(state, batch)
        jax.block_until_ready(behind)
        behind, before, mark = numbers, mark, time.perf_counter()
        seconds += [(mark - before) / several] * several
    jax.block_until_ready(state)
    return seconds


def time_loop(config):
    """The laps of train.py's own loop, as rows of timing.jsonl."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere):
        train.train(config, os.path.join(folder, 'run'))
        with open(os.path.join(folder, 'run', report.TIMING)) as file:
            return [json.loads(line) for line in file]


if __name__ == '__main__':
    cli.run(main, config='configs/quickstart.py')
