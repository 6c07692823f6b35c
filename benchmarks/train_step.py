"""The training step of any config, measured: one JSON line.

    python -m benchmarks.train_step --config=configs/gpt_char.py:cpu [--steps=60] [--config.part.field=value ...]

First the compiled step alone, on one batch, waiting for each result: compile_s, step_ms (median), step_ms_min and _max,
tokens_per_s or images_per_s, achieved_gflops. Then train.py's own loop in a temporary workdir, with a checkpoint in the
middle: data_wait_share of its time, loop_overhead_share (how much longer its steps take than the bare one; noise can
make it negative), and save_s, for which the save held it up.
"""

import contextlib
import json
import os
import resource
import statistics
import tempfile
import time

from absl import flags

from training import cli

flags.DEFINE_integer('steps', 60, 'steps of each of the two measurements', lower_bound=20)
if __name__ == '__main__':
    cli.answer_help(config='configs/quickstart.py')

import jax

import train
from training import flops, machine, report
from training import mesh as meshes
from training import run as runs


def main(config, name):
    print(json.dumps(measure(config, name, flags.FLAGS.steps)))


def measure(config, name, steps):
    machine.prepare(config)
    mesh = meshes.make(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    run = runs.build(config, mesh)
    rows = next(run.data.train(config.seed))
    seconds, compile_s = time_step(run, meshes.put(rows, mesh), steps)
    median = statistics.median(seconds)
    work = flops.count(run.step_function, run.shapes, run.batch_shapes())
    return {
        'config': name, 'device': f'{mesh.size} x {mesh.devices.flat[0].device_kind}', 'cores': len(os.sched_getaffinity(0)),
        'jax': jax.__version__, 'dtype': config.dtype, 'parameters': run.parameters(), 'compile_s': round(compile_s, 2),
        'step_ms': round(1e3 * median, 2), 'step_ms_min': round(1e3 * min(seconds), 2),
        'step_ms_max': round(1e3 * max(seconds), 2), f'{run.data.unit}_per_s': round(run.data.count(rows) / median, 1),
        'achieved_gflops': round(work / median / 1e9, 1), **time_loop(config, steps, 1e3 * median),
        'peak_rss_mb': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def time_step(run, batch, steps, warmup=3):
    """(seconds of each step, seconds of compilation); the state is dropped afterwards."""
    start = time.perf_counter()
    step = run.compile()
    compiled = time.perf_counter() - start
    state, seconds = run.init(), []
    for _ in range(warmup + steps):
        start = time.perf_counter()
        state, numbers = step(state, batch)
        jax.block_until_ready((state, numbers))
        seconds.append(time.perf_counter() - start)
    return seconds[warmup:], compiled


def time_loop(config, steps, step_ms):
    """What train.py's loop spends besides the step of `step_ms`: shares of its time without evaluation and saving."""
    with config.unlocked():
        config.train.steps = steps
        config.log.every_steps = max(1, steps // 10)
        config.checkpoint.every_steps = steps // 2
        config.evals = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        train.train(config, os.path.join(folder, 'run'))
        with open(os.path.join(folder, 'run', report.TIMING)) as file:
            laps = [json.loads(line) for line in file][2:]  # the first ones warm up
    middle = lambda name: statistics.median(lap[name] for lap in laps)
    return {'data_wait_share': round(middle('data_wait_share'), 4),
            'loop_overhead_share': round(1 - step_ms / middle('step_ms'), 4),
            'save_s': round(max(lap['save_s'] for lap in laps), 4)}


if __name__ == '__main__':
    cli.run(main, config='configs/quickstart.py')
