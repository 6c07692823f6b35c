"""Two pretraining objectives for four times the computation of configs/objectives.py, against the same network from scratch.

    python sweep.py --config=configs/longer_objectives.py:DATA --workdir=runs/longer --processes=2

DATA, the corpus, the networks and the tasks are those of configs/objectives.py; each objective is trained for 3.6e14 floating
point operations, one to two hours of a core. Runs are in the order of their seeds, so that a sweep that was stopped has numbers
of every task. p is that of Welch's t-test of a task's numbers against those of `scratch`: over seeds of the fine-tuning of one
pretrained network, and of networks from scratch. `student` is distilled from `masked-sst2-0` and has two of its four layers
(configs/distill.py); its share is of that run's accuracy. Two runs over the same examples:

    python eval.py --workdir=runs/longer/spans-squad-0 --against=runs/longer/masked-squad-0 --evaluator=answers

F1 -1.17 (-2.92 to 0.53, p 0.18 by bootstrap).

Measured so far, SST-2 and MRPC over three seeds, WNUT-17 over two, SQuAD with one (in brackets p):

               SST-2 accuracy       MRPC accuracy   MRPC F1      WNUT-17 F1           SQuAD F1
    masked     83.4 ± 0.8 (0.021)   67.4 ± 1.7      77.3 ± 1.4   27.2 ± 2.4 (0.068)       12.5
    spans      83.6 ± 0.1 (0.011)   67.9 ± 0.7      77.1 ± 0.7   30.3 ± 0.4 (0.003)       11.3
    scratch    81.1 ± 0.5           67.8 ± 1.6      77.2 ± 1.4   14.7 ± 0.7               10.0

Four times the computation teaches more of names (in configs/objectives.py 23.5 masked, 22.4 within spans), and hardly more of
SST-2 (84.2 and 82.6, one seed), SQuAD (12.5 and 10.2) and MRPC. Held-out loss of pretraining: 3.71 nats a word masked (there
4.64), 5.45 within spans (5.92). Pretraining took 84 minutes of one core of a Xeon (family 6 model 167) beside other work
(Python 3.11, jax 0.10.2, float32), fine-tuning 6 to 27.
"""

from configs import objectives
from training.config import schema
from training.report import report
from training.report.sweeps import Estimate, Point, Sweep

OPERATIONS = 3.6e14
OBJECTIVES = 'masked', 'spans', 'scratch'
SEEDS = {'sst2': 5, 'mrpc': 3, 'wnut17': 3, 'squad': 1}


def get_config(variant=''):
    """`masked`, which train.py trains alone."""
    config = objectives.get_config()
    return schema.changed(config, objectives.pretraining('masked', variant, OPERATIONS).fields) if variant else config


def sweep(variant=''):
    if not variant:
        raise ValueError('configs/longer_objectives.py trains on a folder of public data sets; name it, '
                         '--config=configs/longer_objectives.py:DATA.')
    points = objectives.pretrained(OBJECTIVES, variant, OPERATIONS, seeds=max(SEEDS.values()))
    for seed in range(max(SEEDS.values())):
        points |= {f'{name}-{task}-{seed}': objectives.fine_tuning(name, task, variant, seed)
                   for task, seeds in SEEDS.items() if seed < seeds for name in OBJECTIVES}
    points['student'] = Point('configs/distill.py:{masked-sst2-0}', {'train.steps': 3200})
    return Sweep(points, table=tabulated, title='objective')


def tabulated(folders):
    """The scores of each objective, with p against `scratch`, and the student's accuracy."""
    from scipy import stats

    table = {name: objectives.scores(name, folders) for name in OBJECTIVES}
    for task, title, evaluator, metric in (('sst2', 'SST-2', 'scores', 'accuracy'), ('mrpc', 'MRPC', 'scores', 'accuracy'),
                                           ('wnut17', 'WNUT-17', 'entities', 'f1')):
        found = {name: [report.rows(folder, evaluator)[-1][metric] for folder in folders[f'{name}-{task}']]
                 for name in OBJECTIVES}
        for name in OBJECTIVES:
            both = found[name], found['scratch']
            some = name != 'scratch' and min(map(len, both)) > 1
            table[name][f'{title} p'] = Estimate.of([float(stats.ttest_ind(*both, equal_var=False).pvalue)]) if some else None
    for row in table.values():
        row['share'] = None
    table['student'] = dict.fromkeys(table['masked'])
    if folders['student']:
        student, teacher = (100 * report.rows(folder, 'scores')[-1]['accuracy'] for folder in (
            folders['student'][0], folders['student'][0].with_name('masked-sst2-0')))
        table['student'] |= {'SST-2 accuracy': Estimate.of([student]), 'share': Estimate.of([100 * student / teacher])}
    return table
