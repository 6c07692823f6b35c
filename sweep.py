"""Trains or resumes the points of a sweep, and tabulates and draws their results.

    python sweep.py --config=configs/NAME.py [--workdir=DIR] [--seeds=N] [--config.part.field=value ...]

sweep(variant) in the config file names the points and the fields that each changes. A point is a run in DIR/POINT, which
prints to DIR/POINT.log; a finished point is not trained again, a stopped one resumes. A --config flag applies to all points.
--seeds=N trains each point with N seeds and tabulates mean ± standard deviation; it makes a config without sweep(variant) the
only point. The table is printed and saved in DIR/NAME.json, the picture, if the sweep has one, in DIR/plots/NAME.png.
"""

import contextlib
import pathlib

from absl import flags

from training.config import cli

if __name__ == '__main__':
    flags.DEFINE_string('workdir', None, 'folder of the runs, the table and the picture; default runs/<config>[-<variant>]')
    flags.DEFINE_integer('seeds', 1, 'runs of every point, with consecutive seeds', lower_bound=1)
    cli.answer_help(config='configs/stability.py')  # at once, before jax is imported


import train
from display import progress
from training import workdir as workdirs
from training.report import sweeps


def main(config, name):
    workdir = flags.FLAGS.workdir
    if workdir == '':
        raise ValueError(f'--workdir is empty; give it a folder, or leave it out for {cli.default_workdir(name)}.')
    sweep = sweep_of(name, flags.FLAGS.seeds, config.seed)
    return run(sweep, config, workdirs.local(workdir or cli.default_workdir(name)), pathlib.Path(name.partition(':')[0]).stem)


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


def run(sweep, config, folder, name):
    """Trains every point that is not finished, prints the table row by row, and draws; returns the exit code."""
    if (folder / 'config.json').is_file():
        raise ValueError(f'The workdir {folder} holds a run of train.py; give the sweep a folder of its own.')
    configs = sweep.configs(config)  # reports any invalid point before the first is trained
    folder.mkdir(parents=True, exist_ok=True)
    groups, table = sweep.groups, {}
    for group, points in groups.items():
        for point in points:
            if code := trained(configs[point], folder / point):
                return code  # stopped by a signal
        rows = sweeps.rows(group, [sweep.measure(folder / point) for point in points])
        several = any(len(members) > 1 for members in groups.values())
        print('\n'.join(sweeps.lines(rows, sweep.title, wide=17 if several else 8)[bool(table):]), flush=True)
        table |= rows
    workdirs.write_atomically(folder / f'{name}.json', sweeps.as_json(table))
    if sweep.draw:
        path = folder / 'plots' / f'{name}.png'
        path.parent.mkdir(exist_ok=True)
        sweep.draw({group: [folder / point for point in points] for group, points in groups.items()}, table).savefig(path)
        print(path)
    return 0


def trained(config, folder):
    """Trains a point up to its end; returns the exit code."""
    with (open(folder.with_name(f'{folder.name}.log'), 'a') as log, contextlib.redirect_stdout(log),
          progress.waiting(f'training {folder.name}, see {log.name}')):
        try:
            return train.train(config, folder)
        except (ValueError, OSError) as error:
            if not cli.expected(error):
                raise
            raise ValueError(f'Point {folder.name!r} of the sweep: {error}') from error


if __name__ == '__main__':
    cli.run(main, config='configs/stability.py')
