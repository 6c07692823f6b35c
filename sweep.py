"""Trains or resumes the points of a sweep, and tabulates and draws their results.

    python sweep.py [--config=configs/NAME.py] [--workdir=DIR] [--seeds=N] [--processes=N] [--config.part.field=value ...]

sweep(variant) in the config file, by default configs/stability.py, names the points and the fields that each changes. A point
is a run in DIR/POINT, which prints to DIR/POINT.log; a finished point is not trained again, a stopped one resumes. A --config
flag applies to all points, and is refused if one of them sets that field itself. --seeds=N trains each point with N seeds and
tabulates mean ± standard deviation; it makes a config without sweep(variant) the only point. --processes=N trains N points at a
time, each on its share of the cores: on a CPU two processes with a core each do more than one with two, and on a GPU small
models leave room for others, each on its share of the memory (docs/tpu.md). A point that fails then does not stop the others,
as it does where one is trained at a time. --only=POINT trains one point.

The table is printed and saved in DIR/NAME.json, the pictures, if the sweep has any, in DIR/plots/NAME.png; if a point has
failed, those of the points that are finished. Then, and after a signal, rows that were not measured anew stay in DIR/NAME.json
as they were.
"""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

from absl import flags

from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_string('workdir', None, 'folder of the runs, the table and the picture; default runs/<config>[-<variant>]')
    flags.DEFINE_integer('seeds', 1, 'runs of every point, with consecutive seeds', lower_bound=1)
    flags.DEFINE_integer('processes', 1, 'points that are trained at a time, each on its share of the cores', lower_bound=1)
    flags.DEFINE_string('only', None, 'train this point alone')
    cli.answer_help(config='configs/stability.py')  # at once, before jax is imported


import train
from data import remote
from display import progress
from training import storage
from training.config.resolve import did_you_mean
from training.host.signals import Stop
from training.report import sweeps

LOOK_EVERY = 0.2  # seconds between looks at the processes
_PARENT = 'HEED_SWEEP'  # the process that trains several points at a time, for those that it has started


def main(config, name):
    given = flags.FLAGS
    if given.workdir == '':
        raise ValueError(f'--workdir is empty; give it a folder, or leave it out for {cli.default_workdir(name)}.')
    sweep = sweep_of(name, given.seeds, config.seed)
    if given.only is not None and given.only not in sweep.points:
        raise ValueError(f'The sweep has no point {given.only!r}; {did_you_mean(given.only, sweep.points)}')
    typed = cli.typed(config)
    if given.seeds > 1:
        typed.pop('seed', None)  # the first of those that the points have
    return run(sweep, config, typed,
               storage.path(given.workdir or cli.default_workdir(name)), pathlib.Path(name.partition(':')[0]).stem,
               only=given.only, processes=given.processes)


def sweep_of(name, seeds, first):
    """The sweep of FILE[:VARIANT], with `seeds` seeds for each point: first, first + 1, .."""
    file, _, variant = name.partition(':')
    module = cli.load_module(file)
    if hasattr(module, 'sweep'):
        sweep = module.sweep(variant)
    elif seeds > 1:
        sweep = sweeps.Sweep({pathlib.Path(file).stem: {}})
    else:
        raise ValueError(f'{file} names no points: define sweep(variant) as configs/stability.py does, or train one point with '
                         'several seeds, --seeds=N.')
    return sweep.seeded(first, seeds) if seeds > 1 else sweep


def run(sweep, config, given, folder, name, *, only=None, processes=1):
    """Trains every point that is not finished, prints the table row by row, and draws; returns the exit code. If a point has
    failed, the others are tabulated and drawn before its error is raised.

    Args:
      given: {field: value} of the command line.
      only: the name of a point that is trained without the others.
      processes: how many points are trained at a time.
    """
    if not storage.remote(folder) and folder.exists() and not folder.is_dir():
        raise ValueError(f'The workdir {folder} is a file; give a folder.')
    if (folder / 'config.json').is_file():
        raise ValueError(f'The workdir {folder} holds a run of train.py; give the sweep a folder of its own.')
    train_point = lambda point: trained(lambda: sweep.config_of(point, config, given, folder), folder / point)
    if only:
        folder.mkdir(parents=True, exist_ok=True)
        if _PARENT in os.environ:
            threading.Thread(target=end_with, args=(int(os.environ[_PARENT]),), daemon=True).start()
        return train_point(only)
    sweep.check(config, given, folder)  # before the first is trained
    there(folder, name)
    folder.mkdir(parents=True, exist_ok=True)
    results = at_once(sweep, folder, processes) if processes > 1 else ((point, train_point(point)) for point in sweep.points)
    groups, table, done, measured = sweep.groups, {}, set(), set()
    several = any(len(members) > 1 for members in groups.values())
    failed = None
    try:
        for point, code in results:
            if code:  # stopped by a signal
                save(table, folder, name, keep=True)
                return code
            done.add(point)
            say_steps(folder / point, sweep.config_of(point, config, given, folder).train.steps)
            for group, points in groups.items():
                if point in points and done.issuperset(points) and not sweep.table:
                    try:
                        rows = sweeps.rows(group, [sweep.measure(folder / one) for one in points])
                    except Exception as error:
                        failed = failed or error  # once the others are trained
                        print(f'sweep.py: {group} is trained, but cannot be measured: {error!r}', file=sys.stderr, flush=True)
                        continue
                    columns = tuple(next(reversed(table.values()), ()))  # of the row above
                    print('\n'.join(sweeps.lines(rows, sweep.title, wide=17 if several else 8, columns=columns)), flush=True)
                    table |= rows
                    measured.add(group)
    except Exception as error:  # of a point
        failed = failed or error  # once what the others have measured is written
    folders = {group: [folder / point for point in points if point in done] for group, points in groups.items()}
    if sweep.table and done:
        table = sweep.table(folders)
        print('\n'.join(sweeps.lines(table, sweep.title, wide=17 if several else 8)), flush=True)
    save(table, folder, name, keep=failed)
    shown = {group: runs for group, runs in folders.items() if (runs if sweep.table else group in measured)}
    if sweep.draw and shown:
        try:
            draw(sweep, shown, table, folder / 'plots', name)
        except Exception as error:
            if not failed:
                raise
            print(f'sweep.py: no picture is drawn without what has failed: {error!r}', file=sys.stderr, flush=True)
    if failed:
        raise failed
    return 0


def say_steps(folder, asked):
    """Says on stderr if a point that was finished before has another number of steps."""
    saved = [int(one.name) for one in (folder / 'checkpoints').glob('[0-9]*') if one.name.isdecimal()]
    if saved and (steps := max(saved)) != asked:
        print(f'sweep.py: {folder.name} was trained for {steps:,} steps, and {asked:,} are asked for now; its row is of '
              f'{steps:,}.', file=sys.stderr, flush=True)


def there(folder, name):
    """The rows of NAME.json, as they stand in it. Raises ValueError if it is no such table."""
    path = folder / f'{name}.json'
    try:
        rows = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        rows = None
    if not isinstance(rows, dict):
        raise ValueError(f'{path} is no JSON object of a sweep; take it away.')
    return rows


def save(table, folder, name, keep):
    """Writes the rows that there are to NAME.json. keep: with the others that it has."""
    if table:
        storage.write(folder / f'{name}.json', sweeps.as_json(table, there(folder, name) if keep else {}))


def draw(sweep, folders, table, plots, name):
    """Writes the pictures of a sweep into the folder `plots`, and prints their paths."""
    drawn = sweep.draw(folders, table)
    for key, figure in (drawn if isinstance(drawn, dict) else {'': drawn}).items():
        path = plots / f'{name}{key and "_" + key}.png'
        path.parent.mkdir(exist_ok=True)
        with path.open('wb') as file:
            figure.savefig(file)
        print(path)


def trained(config, folder):
    """Trains a point, whose config `config()` makes, up to its end; returns the exit code."""
    with (storage.appending(folder.with_name(f'{folder.name}.log')) as log, contextlib.redirect_stdout(log),
          progress.waiting(f'training {folder.name}, see {folder}.log')):
        made = config()
        try:
            return train.train(made, folder)
        except (ValueError, OSError) as error:
            if not cli.expected(error):
                raise
            raise ValueError(f'Point {folder.name!r} of the sweep: {error}') from error


def at_once(sweep, folder, processes):
    """(point, exit code) of the points as they end, so many trained at a time, in processes with cores of their own.

    A point waits for those that it starts from. Raises ValueError at the end if points have failed.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else []  # not on macOS
    shares = [cores[i * len(cores) // processes:(i + 1) * len(cores) // processes] or cores for i in range(processes)]
    waiting, done, failed, running = dict(sweep.all_points), set(), {}, {}
    arguments = cli.take(sys.argv[1:], 'processes')[1]
    with logs_of(folder) as logs, Stop() as stop, progress.waiting('training', len(waiting), 'points') as advance:
        while waiting or running:
            for point in [one for one, its in waiting.items() if failed.keys() & {*its.after}]:
                failed[point] = f'it starts from {next(one for one in waiting.pop(point).after if one in failed)!r}'
            free = [number for number in range(processes) if number not in running]
            ready = [one for one, its in waiting.items() if done.issuperset(its.after)]
            for number, point in zip(free, ready if not stop.signal else ()):
                del waiting[point]
                with open(logs / f'{point}.log', 'a') as log:
                    process = subprocess.Popen([sys.executable, __file__, *arguments, f'--only={point}'],
                                               stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
                                               env={**os.environ, **of_gpu(processes), _PARENT: str(os.getpid())})
                if cores:
                    os.sched_setaffinity(process.pid, shares[number])  # before it starts any thread
                running[number] = point, process
            if stop.signal:
                for _, process in running.values():
                    process.send_signal(stop.signal)
                for _, process in running.values():
                    process.wait()  # some of them had not begun to listen, and were ended by it
                yield '', 128 + stop.signal
                return
            for number, (point, process) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[number]
                advance(1)
                if process.returncode < 0:
                    failed[point] = (f'Point {point!r} was ended by {signal.Signals(-process.returncode).name}; see '
                                     f'{point}.log, and if it ran out of memory, give fewer --processes.')
                elif process.returncode:
                    failed[point] = (logs / f'{point}.log').read_text().strip().rpartition('\n')[2]
                else:
                    done.add(point)
                    yield point, 0
            time.sleep(LOOK_EVERY)
    if failed:
        several = f'{len(failed)} points of the sweep failed, of which the first says: ' if len(failed) > 1 else ''
        raise ValueError(several + next(iter(failed.values())).removeprefix('sweep.py: '))


def of_gpu(processes):
    """The environment of a process that takes its share of a GPU's memory, unless that says how much; alone it takes three
    quarters of all at once."""
    names = 'XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION'  # the second is the older name
    return {} if any(name in os.environ for name in names) else {names[0]: f'{0.9 / processes:.4f}'}


@contextlib.contextmanager
def logs_of(folder):
    """A local folder for what the processes of points say besides their logs: that of the logs, else a temporary one."""
    if not storage.remote(folder):
        yield folder
        return
    with tempfile.TemporaryDirectory() as place:
        yield pathlib.Path(place)


def end_with(parent):
    """Saves and ends this process, one of several of a sweep, once the sweep itself has ended in whatever way."""
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == '__main__':
    cli.run(main, config='configs/stability.py', shown=remote.shown)
