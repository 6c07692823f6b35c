"""Two pretraining objectives for eleven times the computation of configs/objectives.py, against the same network from scratch.

    python sweep.py --config=configs/longer_objectives.py:DATA --workdir=runs/longer --processes=2

DATA, the corpus, the networks and the tasks are those of configs/objectives.py; each objective is trained for 1e15 floating
point operations, two hours of a quiet core. p is that of Welch's t-test of the accuracies against those of `scratch`. `student`
is distilled from `masked-sst2-0` and has two of its four layers (configs/distill.py).
"""

from configs import objectives
from training.report import report
from training.report.sweeps import Estimate, Point, Sweep

OPERATIONS = 1e15
OBJECTIVES = 'masked', 'spans', 'scratch'
SEEDS = {'sst2': 5, 'mrpc': 5, 'wnut17': 3, 'squad': 1}


def get_config(variant=''):
    return objectives.get_config()


def sweep(variant=''):
    if not variant:
        raise ValueError('configs/longer_objectives.py trains on a folder of public data sets; name it, '
                         '--config=configs/longer_objectives.py:DATA.')
    points = {name: objectives.pretraining(name, variant, OPERATIONS) for name in OBJECTIVES}
    for task, seeds in SEEDS.items():
        points |= {f'{name}-{task}-{seed}': objectives.fine_tuning(name, task, variant, seed)
                   for name in OBJECTIVES for seed in range(seeds)}
    points['student'] = Point('configs/distill.py:{masked-sst2-0}', {'train.steps': 3200})
    return Sweep(points, table=tabulated, title='objective')


def tabulated(folders):
    """The scores of each objective, with p against `scratch`, and the student's accuracy."""
    from scipy import stats

    table = {name: objectives.scores(name, folders) for name in OBJECTIVES}
    for task, title in ('sst2', 'SST-2'), ('mrpc', 'MRPC'):
        found = {name: [report.rows(folder, 'scores')[-1]['accuracy'] for folder in folders[f'{name}-{task}']]
                 for name in OBJECTIVES}
        for name in OBJECTIVES[:-1]:
            test = stats.ttest_ind(found[name], found['scratch'], equal_var=False)
            table[name][f'{title} p'] = Estimate.of([float(test.pvalue)])
        table['scratch'][f'{title} p'] = None
    accuracy = report.rows(folders['student'][0], 'scores')[-1]['accuracy']
    table['student'] = dict.fromkeys(table['masked']) | {'SST-2 accuracy': Estimate.of([100 * accuracy])}
    return table
