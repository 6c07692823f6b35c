"""Trains an experiment or resumes it: the same command continues where the last one stopped.

    python train.py [--config=configs/NAME.py[:VARIANT]] [--workdir=DIR] [--config.part.field=value ...]
                    [--coordinator=HOST:PORT --processes=N --process=I]
"""

import contextlib
import math
import time

from absl import flags

from training.config import cli

if __name__ == '__main__':  # a script that imports `train` defines flags of its own
    flags.DEFINE_string('workdir', None, 'folder of the run; default runs/<config>[-<variant>]')
    flags.DEFINE_string('coordinator', None, 'HOST:PORT of process 0 if several train one run; auto on a TPU VM or a cluster')
    flags.DEFINE_integer('processes', None, 'how many processes train the run')
    flags.DEFINE_integer('process', None, 'the number of this process, from 0')
    cli.answer_help(config='configs/quickstart.py')  # at once, before jax is imported

from data import remote
from display import progress
from training import mesh as meshes
from training import run as runs
from training import storage
from training import workdir as workdirs
from training.checkpoint import Checkpoints, checksums, rank
from training.config import schema
from training.host import machine, processes
from training.host.devices import peak_flops
from training.host.signals import Interrupted, Stop
from training.optimizer import schedule
from training.report import energy, report, summary
from training.snapshot import Snapshot
from training.state import State


def main(config, name):
    default = cli.default_workdir(name)
    if flags.FLAGS.workdir == '':
        raise ValueError(f'--workdir is empty; give it a folder, or leave it out for {default}.')
    processes.join(flags.FLAGS.coordinator, flags.FLAGS.processes, flags.FLAGS.process)
    return train(config, flags.FLAGS.workdir or default)


def train(config, workdir):
    """Trains `config` in `workdir` up to train.steps; returns the exit code of the process."""
    born = time.perf_counter()
    schema.check(config)
    with contextlib.ExitStack() as open_things:
        # ---- Workdir: is there a run to resume? ----------------------------------------------------------------------
        machine.prepare(config)
        open_things.enter_context(processes.together())
        processes.require_same(config=workdirs.as_json(config))
        first = processes.first()  # the others compute, and write only their shards of checkpoints
        folder = storage.path(workdir)
        exists = bool(processes.from_first(workdirs.is_run(folder)))
        if exists:
            open_things.enter_context(workdirs.locked(folder, first))
            differing, planned = workdirs.check_unchanged(folder, config)
        elif first:
            workdirs.require_writable(folder)

        # ---- Machine, data, model, optimizer -------------------------------------------------------------------------
        mesh = meshes.make(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
        processes.require_devices(mesh)
        begun = exists and bool(processes.from_first(workdirs.has_facts(folder)))  # a run killed earlier starts afresh
        source = workdirs.existing(config.init_from, '--config.init_from') if config.init_from and not begun else None
        with progress.waiting('opening the data and the model'):
            run = runs.build(config, mesh, folder if begun else None, source)

        def note(stage, text):
            if first:
                print(f'[{time.perf_counter() - born:5.1f}s] {stage}: {text}', flush=True)

        note('model', f'{config.model.name} with {run.parameters():,} parameters, {config.dtype}, on '
             f'{mesh.size} x {mesh.devices.flat[0].device_kind}')
        if exists:
            report.check(folder)
            checkpoints = Checkpoints(folder, keep=config.checkpoint.keep, best=config.checkpoint.best)
            open_things.callback(checkpoints.close)
            if done := finished(run, checkpoints):
                note('state', f'finished at step {done.step}; for more, raise --config.train.steps')
                if kept := [name for name in differing if not name.startswith(('mesh.', 'energy.'))]:
                    note('config', f'{", ".join(kept)}: as in the run, which is finished')
                if first:
                    report.cut(folder, done.step)  # rows of a continuation that was killed before its first checkpoint
                    summary.show(folder, run.evaluators)
                    print(energy.line(config.energy, done.meta['energy']))
                return 0
        with progress.waiting('reading the data'):
            described, digests, companions = run.data.describe(), run.data_digests(), run.companions.digests()
        note('data', described)
        processes.require_same(data=digests, companions=companions)
        if begun:
            workdirs.check_same_data(folder, digests)
            workdirs.check_same_companions(folder, companions)
        with progress.waiting('checking the evaluators'):
            for name in run.evaluators:
                run.check_evaluation(name)

        # ---- State. In this order: the workdir > init_from > fresh ---------------------------------------------------
        iterator = run.data.train(config.seed)
        state, start, best, pending = None, 0, math.inf, []
        profile = machine.Profile(config.profile.steps, config.train.steps,
                                  open_things.enter_context(storage.filled(folder / 'profile', after_errors=True)))
        with progress.waiting(f'reading the last checkpoint of {folder}'):
            restored = checkpoints.restore(run.shapes.tree(), iterator=iterator) if exists else None
        before, watts = restored.meta['energy'] if restored else energy.NOTHING, energy.full_load_watts(mesh)
        if restored:
            state, start = State(**restored.state), restored.step
            pending = unevaluated(config, restored)
            best = restored.meta['best'].get(config.checkpoint.best, math.inf)
            made = start - int(state.skipped)
            rate, now = (float(schedule(config.optimizer, steps)(made)) for steps in (planned, config.train.steps))
            note('state', f'resumed from step {start}' + ('' if math.isclose(rate, now, rel_tol=1e-3) else (
                f'; the learning rate is {now:.3g} there instead of {rate:.3g}, as its schedule depends on train.steps, which '
                f'were {planned}')))
        if state is None:
            source = workdirs.existing(config.init_from, '--config.init_from') if config.init_from else None
            with progress.waiting(f'reading {source}' if source else 'drawing the first parameters'):
                state, made = run.init_from(source) if source else (run.init(), ())
            note('state', (f'parameters from {source}' + (f', fresh ones in {", ".join(made)}' if made else '')) if source
                 else f'fresh, seed {config.seed}')

        # ---- Compilation and first batch: nothing is written before all that can fail has been tried -----------------
        step_function = run.compile()
        machine.require_memory(step_function, mesh)
        with progress.waiting('making the first batch'):
            batch, units = run.batches(iterator)
            checksums(state.tree())  # compiles them, so that the first save does not hold up the loop
        note('step', f'compiled; {step_function.flops / 1e9:,.3g} GFLOP, {config.data.batch_size} rows a step, '
             f'{config.train.steps / run.data.batches_per_epoch:,.3g} epochs in {config.train.steps} steps'
             + (f'; the learning rate warms up for {warm} and does not reach its peak'
                if (warm := config.optimizer.schedule.warmup_steps) > config.train.steps else ''))
        if not exists:
            open_things.enter_context(workdirs.create(folder, config, first))
            processes.from_first(0)  # waits until process 0 has made it
            workdirs.require_run(folder)
            checkpoints = Checkpoints(folder, keep=config.checkpoint.keep, best=config.checkpoint.best)
            open_things.callback(checkpoints.close)
        if first:
            if not begun:
                with storage.filled(folder) as place:
                    run.data.save(place)
            workdirs.save_config(folder, config)
            workdirs.save_environment(folder, digests, companions)  # last: see has_facts
        peak = peak_flops(mesh.devices.flat[0], config.dtype)
        out = report.Report(folder, step=start, steps=config.train.steps, unit=run.data.unit,
                            peak=peak and peak * mesh.size, again=pending) if first else report.Nothing()
        open_things.callback(out.close)

        # ---- Loop. The order of a step: compute, log, evaluate, flush, save, and only then the next batch ------------
        stop = open_things.enter_context(Stop(alone=not processes.several()))
        open_things.enter_context(profile)
        clock, step, logged, flops, behind, remark = report.Clock(), start, start, 0, None, ''
        # A bucket has no file before its first row.
        rows = report.rows(folder, 'train') if start and first and (folder / report.METRICS).exists() else []
        if start and processes.from_first(int(bool(rows) and rows[-1]['step'] == start)):  # the sums so far have their row
            state = state.logged()
        if pending:  # a signal interrupted the evaluation of the restored step
            try:
                with clock('eval'), stop.interruptible():
                    metrics = evaluate(run, state, step, pending, out)
            except Interrupted:
                return stopped(out, stop.signal, step, folder)
            best = min(best, rank(config.checkpoint.best, metrics))
            with clock('save'):
                out.flush()
                spent = energy.add(before, watts, time.perf_counter() - born)
                checkpoints.amend(step, metrics, meta(config, best, [], {*restored.meta['evaluated'], *pending}, spent))
            pending = []
        while step < config.train.steps:
            profile.before(step + 1, step + config.train.dispatch)
            state, now = step_function(state, batch)
            step += config.train.dispatch
            flops += config.train.dispatch * step_function.flops_with(batch)
            last = step == config.train.steps
            profile.after(step, now)
            with clock('device'):  # one step behind, so that the device never waits for the host
                require_finite(config, behind)
                behind = now

            if last or step % config.log.every_steps == 0:
                with clock('device'):
                    require_finite(config, now)
                numbers = run.training_row(now, step)
                out.scalars(step, 'train', numbers)
                speed = report.speeds(clock.lap(), step - logged, units, run.data.unit, flops)
                out.timing(step, speed)
                out.progress(step, loss=numbers['loss'], units_per_s=speed[f'{run.data.unit}_per_s'],
                             flops_per_s=speed['flops_per_s'], data_wait=speed['data_wait_share'],
                             seconds_left=(config.train.steps - step) * speed['step_ms'] / 1e3)
                logged, units, flops = step, 0, 0
                rows.append(numbers | {'step': step})
                if not remark and (remark := run.task.remark(rows, run.data, config.train.steps)):
                    out.note(remark)

            due = [n for n, e in config.evals.items() if last or (e.every_steps and step % e.every_steps == 0)]
            metrics = {}
            if due:
                require_finite(config, now)
                try:
                    with clock('eval'), stop.interruptible():
                        metrics = evaluate(run, state, step, due, out)
                except Interrupted:
                    pending = due
            better = rank(config.checkpoint.best, metrics) < best
            best = min(best, rank(config.checkpoint.best, metrics))

            # Read once: a signal that arrives after this line waits for the next step.
            signal = processes.agreed(stop.signal, last or step % config.log.every_steps == 0)
            if last or better or signal or step % config.checkpoint.every_steps == 0:
                require_finite(config, now)
                with clock('save'):
                    out.flush()
                    done = [name for name in due if name not in pending]
                    spent = energy.add(before, watts, time.perf_counter() - born)
                    checkpoints.save(step, state.tree(), iterator, metrics, meta(config, best, pending, done, spent))
            if signal and not (last and not pending):
                checkpoints.wait()
                return stopped(out, signal, step, folder)
            if not last:
                with clock('data'):
                    batch, new = run.batches(iterator)
                units += new

    if first:
        summary.show(folder, run.evaluators)
        print(energy.line(config.energy, spent))
    return 0


def finished(run, checkpoints):
    """The last checkpoint if the run is complete, else None. Does not open the data, which may have been deleted."""
    if max(checkpoints.steps(), default=0) < run.config.train.steps:
        return None
    newest = checkpoints.restore(run.shapes.tree())  # reads all of it, which verifies its checksums
    return newest if newest.step >= run.config.train.steps and not unevaluated(run.config, newest) else None


def unevaluated(config, restored):
    """The evaluators that have not yet measured a saved step: those that a signal interrupted, and at the last step any."""
    last = restored.step >= config.train.steps
    return [name for name in config.evals
            if name in restored.meta['pending'] or (last and name not in restored.meta['evaluated'])]


def evaluate(run, state, step, names, out):
    """Runs the named evaluators and writes their rows together, so that an interruption leaves none of them."""
    snapshot = Snapshot(run, step=step, report=out, **state.evaluated)
    results = {name: snapshot.evaluate(name) for name in names}
    for name, numbers in results.items():
        if numbers:
            out.scalars(step, name, numbers)
            out.note(f'  {name}: {summary.line(numbers, run.evaluators[name].percent)}')
    return {f'{name}/{metric}': value for name, numbers in results.items() for metric, value in numbers.items()}


def meta(config, best, pending, evaluated, spent):
    """The metadata of a checkpoint: the best rank of checkpoint.best so far, the evaluators that have yet to measure its
    step and those that have, and the time and energy that the run has taken."""
    return {'best': {config.checkpoint.best: best} if best < math.inf else {}, 'pending': pending,
            'evaluated': sorted(evaluated), 'energy': spent}


def stopped(out, signal, step, folder):
    """Reports that a signal ended the run; returns the exit code."""
    out.note(f'stopped by {signal.name} after step {step}, which is saved in {folder}; the same command resumes from there')
    return 128 + signal


def require_finite(config, numbers):
    """Ends the run at a loss or gradient that is not finite, unless such updates are skipped."""
    if numbers is None or config.train.nonfinite == 'skip' or bool(numbers['finite']):
        return
    groups = [name for name, norm in numbers['grad_norms'].items() if not math.isfinite(norm)]
    raise ValueError(
        f'The loss is {float(numbers["loss"]):.6g} at step {int(numbers["step"])} and these gradients are not finite: '
        f'{", ".join(groups) or "none"}; start in another --workdir with a lower optimizer.learning_rate or with '
        'train.nonfinite=skip (from a checkpoint here, if there is one, with --config.init_from).')


if __name__ == '__main__':
    cli.run(main, config='configs/quickstart.py', shown=remote.shown)
