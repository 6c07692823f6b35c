"""Evaluates a run. The last line of stdout is one JSON object: split, step, loss, weight and the rest.

    python eval.py --workdir=DIR [--split=NAME | --path=FILE ...] [--step=last|best|N]
"""

import json
import sys

from absl import flags

from training import cli

flags.DEFINE_string('workdir', None, 'folder of the run')
flags.DEFINE_string('split', 'valid', "valid, test, train, or an expression over the run's data such as 'train[:1%]'")
flags.DEFINE_multi_string('path', [], 'score this file in place of a split; repeat the flag for several')
flags.DEFINE_string('step', 'last', 'the checkpoint: last, best, or a number')
if __name__ == '__main__':
    cli.answer_help()  # at once, before jax is imported

from training import machine, summary, workdir
from training import run as runs
from transformer.evaluators import Averages


def main():
    folder = workdir.given(flags.FLAGS.workdir)
    machine.prepare(workdir.load_config(folder))
    if flags.FLAGS.path and flags.FLAGS['split'].present:
        raise ValueError('--split and --path were both given; give --split for data of the run, or --path for files.')
    if not all(flags.FLAGS.path):
        raise ValueError('--path is empty; give it the path of a file to score, or leave it out.')
    if not flags.FLAGS.split:
        raise ValueError("--split is empty; give valid, test, train or an expression such as 'train[:1%]'.")
    snapshot = runs.load(folder, step=flags.FLAGS.step)
    row = evaluate(snapshot, flags.FLAGS.split, flags.FLAGS.path)
    if not flags.FLAGS.path:
        part = part_of(snapshot, flags.FLAGS.split)
        if workdir.changed_data(folder, {part: snapshot.data.digest(part)}):
            print(f'eval.py: the data of {part} is not what it was when the run began; this measures what is there now.',
                  file=sys.stderr)
    print(f'{row["split"]} at step {row["step"]}: {summary.line(row)}')
    print(json.dumps(row))


def part_of(snapshot, split):
    """The part of the data behind --split: that of the evaluator of this name, else the split itself."""
    evals = snapshot.run.config.evals
    return evals[split].split if split in evals else split


def evaluate(snapshot, split='valid', paths=()):
    """The row of one split, or of files: measured by the evaluator of that name, else by the one named valid."""
    evaluators = snapshot.run.evaluators
    name = split if split in evaluators and not paths else 'valid'
    losses = [n for n, evaluator in evaluators.items() if isinstance(evaluator, Averages)]
    if name not in losses:
        lacks = f'The evaluator {name!r} measures no loss' if name in evaluators else f'This run has no evaluator {name!r}'
        raise ValueError(f'{lacks}; those of this run that measure one: {", ".join(losses) or "none"}.')
    if paths:
        batches = snapshot.data.score(paths, snapshot.run.eval_rows, **evaluators[name].view)
    else:
        batches = snapshot.run.evaluation(name, part_of(snapshot, split))
    return {'split': ' '.join(paths) or split, 'step': snapshot.step} | snapshot.evaluate(name, batches)


if __name__ == '__main__':
    cli.run(main)
