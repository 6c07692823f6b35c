"""The summary of a finished run: its last numbers, samples and plot, read from the workdir, so that it can be repeated."""

import re

from training.report import report


def line(numbers, percent=()):
    """'loss 1.234  f1 81.5%' of a row of numbers; `percent`: the names of those in per cent, as of an evaluator."""
    unit = lambda name: '%' * (name.partition('/')[0] in percent)
    return '  '.join(f'{name} {value:,.6g}{unit(name)}' for name, value in numbers.items() if name not in ('step', 'split'))


def show(folder, evaluators):
    """Prints the rows of the last step, its samples, and the path of the plot; `evaluators`: those of the run, by name."""
    rows = report.rows(folder)
    last = max((row['step'] for row in rows), default=0)
    print(f'\n{folder}: trained for {last} steps')
    for row in rows:
        if row['step'] == last:
            evaluator = evaluators.get(row['split'])  # None: the row of training
            print(f'  {row["split"]}: {line(row, evaluator.percent if evaluator else ())}')
    for path in sorted((folder / 'samples').glob(f'*_{last}.txt')):
        print(f'\n{re.sub("_[0-9]+$", "", path.stem)} ({path}):\n{path.read_text()}')
    print(f'{report.plot_losses(folder)}: the losses over the steps')
