"""Trains an experiment, or continues it: the same command goes on where the last one stopped.

    python train.py [--config=configs/NAME.py[:VARIANT]] [--workdir=DIR] [--config.part.field=value ...]
"""

import contextlib
import math
import pathlib
import time

from absl import flags

from training import cli

flags.DEFINE_string('workdir', '', 'folder of the run; default runs/<config>[-<variant>]')
if __name__ == '__main__':
    cli.answer_help(config='configs/quickstart.py')  # at once, before jax is imported


from training import machine, report, summary
from training import mesh as meshes
from training import run as runs
from training import workdir as workdirs
from training.checkpoint import Checkpoints
from training.devices import peak_flops
from training.flops import count
from training.signals import Interrupted, Stop


def main(config, name):
    file, _, variant = name.partition(':')
    default = pathlib.Path('runs') / (pathlib.Path(file).stem + (f'-{variant}' if variant else ''))
    return train(config, flags.FLAGS.workdir or default)


def train(config, workdir):
    """Trains `config` in `workdir` up to train.steps; returns the exit code of the process."""
    born = time.perf_counter()
    with contextlib.ExitStack() as open_things:
        # ---- Workdir: is there something to continue? ----------------------------------------------------------------
        folder = workdirs.local(workdir)
        exists = workdirs.is_run(folder)
        if exists:
            open_things.enter_context(workdirs.locked(folder))
            workdirs.check_unchanged(folder, config)

        # ---- Machine, data, model, optimizer -------------------------------------------------------------------------
        machine.prepare(config)
        mesh = meshes.make(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
        run = runs.build(config, mesh, folder if exists else config.init_from or None)
        note = lambda stage, text: print(f'[{time.perf_counter() - born:5.1f}s] {stage}: {text}', flush=True)
        note('data', run.data.describe())
        note('model', f'{config.model.name} with {run.parameters():,} parameters, {config.dtype}, on '
             f'{mesh.size} x {mesh.devices.flat[0].device_kind}')

        # ---- State. In this order: the workdir > init_from > fresh ---------------------------------------------------
        iterator = run.data.train(config.seed)
        state, start, best, pending = None, 0, math.inf, []
        if exists:
            checkpoints = Checkpoints(folder, keep=config.checkpoint.keep, best=config.checkpoint.best)
            open_things.callback(checkpoints.close)
            restored = checkpoints.restore(run.shapes.tree(), iterator=iterator)
            if restored:
                state, start = run.state(restored.state), restored.step
                pending = restored.meta['pending']
                best = best if restored.meta['best'] is None else restored.meta['best']
                if start >= config.train.steps and not pending:
                    note('state', f'finished at step {start}; for more, raise --config.train.steps')
                    summary.show(folder)
                    return 0
                note('state', f'resumed from step {start}')
        if state is None:
            state = run.init_from(config.init_from) if config.init_from else run.init()
            note('state', f'parameters from {config.init_from}' if config.init_from else f'fresh, seed {config.seed}')

        # ---- First batch and compilation: what can fail has failed before anything is written ------------------------
        rows = next(iterator)
        batch = meshes.put(rows, mesh)
        step_function = run.compile()
        flops = count(run.step_function, run.shapes, run.batch_shapes())
        note('step', f'compiled; {flops / 1e9:,.3g} GFLOP, {config.data.batch_size} rows a step, '
             f'{config.train.steps * 1.0 / run.data.batches_per_epoch:,.3g} epochs in {config.train.steps} steps')
        if not exists:
            open_things.enter_context(workdirs.create(folder, config))
            run.data.save(folder)
            checkpoints = Checkpoints(folder, keep=config.checkpoint.keep, best=config.checkpoint.best)
            open_things.callback(checkpoints.close)
        workdirs.save_config(folder, config)
        workdirs.save_environment(folder)
        peak = peak_flops(mesh.devices.flat[0], config.dtype)
        out = report.Report(folder, step=start, steps=config.train.steps, unit=run.data.unit,
                            peak=peak and peak * mesh.size)
        open_things.callback(out.close)

        # ---- Loop. The order of a step: compute, log, evaluate, flush, save, and only then the next batch ------------
        stop = open_things.enter_context(Stop())
        profile = open_things.enter_context(machine.Profile(config.profile.steps, folder / 'profile'))
        clock, step, logged, units, behind = report.Clock(), start, start, run.data.count(rows), None
        if pending:  # a signal broke off the evaluation of the step that was then saved
            evaluate(run, state, step, pending, out)
            pending = []
        while step < config.train.steps:
            profile.before(step + 1)
            state, now = step_function(state, batch)
            step += 1
            last = step == config.train.steps
            profile.after(step, now)
            with clock('device'):  # one step behind, so that the device never waits for the host
                require_finite(config, behind, step - 1)
                behind = now

            if last or step % config.log.every_steps == 0:
                with clock('device'):
                    require_finite(config, now, step)
                numbers = run.training_row(now, step)
                out.scalars(step, 'train', numbers)
                speed = report.speeds(clock.lap(), step - logged, units, run.data.unit, flops)
                out.timing(step, speed)
                out.progress(step, loss=numbers['loss'], units_per_s=speed[f'{run.data.unit}_per_s'],
                             flops_per_s=speed['flops_per_s'], data_wait=speed['data_wait_share'],
                             seconds_left=(config.train.steps - step) * speed['step_ms'] / 1e3)
                logged, units = step, 0

            metrics = {}
            due = [n for n, e in config.evals.items() if last or (e.every_steps and step % e.every_steps == 0)]
            try:
                with clock('eval'), stop.interruptible():
                    metrics = evaluate(run, state, step, due, out)
            except Interrupted:
                pending = due
            better = metrics.get(config.checkpoint.best, math.inf) < best
            best = metrics[config.checkpoint.best] if better else best

            if last or better or stop.signal or step % config.checkpoint.every_steps == 0:
                require_finite(config, now, step)
                with clock('save'):
                    out.flush()
                    meta = {'best': best if best < math.inf else None, 'pending': pending}
                    checkpoints.save(step, state.tree(), iterator, metrics, meta)
            if stop.signal:
                checkpoints.wait()
                out.note(f'stopped by {stop.signal.name} after step {step}, which is saved in {folder}; '
                         'the same command resumes from there')
                return 128 + stop.signal
            if not last:
                with clock('data'):
                    rows = next(iterator)
                    batch = meshes.put(rows, mesh)
                units += run.data.count(rows)

    summary.show(folder)
    return 0


def evaluate(run, state, step, names, out):
    """Runs the named evaluators; their rows are written together, so that breaking off in between leaves none."""
    snapshot = runs.Snapshot(run, state.params, step, out)
    results = {name: snapshot.evaluate(name) for name in names}
    for name, numbers in results.items():
        if numbers:
            out.scalars(step, name, numbers)
            out.note(f'  {name}: {summary.line(numbers)}')
    return {f'{name}/{metric}': value for name, numbers in results.items() for metric, value in numbers.items()}


def require_finite(config, numbers, step):
    """Ends the run at a loss or gradient that is not finite, unless such updates are skipped."""
    if numbers is None or config.train.nonfinite == 'skip' or bool(numbers['finite']):
        return
    groups = [name for name, norm in numbers['grad_norms'].items() if not math.isfinite(norm)]
    raise ValueError(
        f'The loss is {float(numbers["loss"]):.6g} at step {step} and these gradients are not finite: '
        f'{", ".join(groups) or "none"}; lower optimizer.learning_rate, or set train.nonfinite=skip. '
        'The last checkpoint is from before.')


if __name__ == '__main__':
    cli.run(main, config='configs/quickstart.py')
