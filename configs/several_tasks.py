"""Several tasks as text in one model against a model for each: sentiment, paraphrases, entailment and translation.

    python sweep.py --config=configs/several_tasks.py:DATA,RUN --workdir=runs/several_tasks --processes=2

DATA is a folder with sst2, mrpc, rte and fra_eng as in configs/objectives.py, RUN the run of configs/t5_small.py:spans from
which all points start, such as `t5` of that sweep. `together` has all tasks, each drawn in proportion to the square root of its
examples; of MRPC and RTE the last 408 and 277 pairs of the file are held out, of the French and English sentences the last 2 %,
which are the longest, so that none of them is in the text that RUN has learnt from; 0.3 % of them share the French sentence
with another translation that is trained on.

In one model SST-2 is at 54.1 %, MRPC at 69.6 %, RTE at 53.8 % and French at a BLEU of 3.0; each alone at 66.2 %, 69.4 %, 50.2 %
and 3.2. So SST-2 loses 12 points beside the others, though it has a fifth more examples than alone: the loss is a mean over
tokens of targets, of which most are of translations. Of MRPC nothing is learnt by either, 69.6 % of its pairs are paraphrases,
and hardly anything of RTE. RUN is `t5` of that sweep; `together` took three hours of a core of an EPYC (family 25 model 1;
Python 3.11, jax 0.10.2, float32), SST-2 alone 71 minutes, French 61 and RTE 22, beside other work. One task alone:

    python train.py --config=configs/several_tasks.py:DATA,RUN,mrpc
"""

from configs import base, text_to_text
from training.report import report
from training.report.sweeps import Estimate, Point, Sweep

# Of all tasks together as many as of each alone.
STEPS = {'together': 4200, 'sst2': 1500, 'mrpc': 600, 'rte': 600, 'fra_eng': 1500}
# What differs from configs/text_to_text.py in the files of DATA.
PARTS = {'sst2': {'path': 'sst2', 'train': 'train', 'inputs': 'sst2 sentence: {2}', 'target': '{1}', 'valid': 'dev*',
                  'header': 'true'},
         'mrpc': {'path': 'mrpc', 'train': 'all[:-408]', 'valid': 'all[-408:]', 'order': 'file'},
         'rte': {'path': 'rte', 'train': 'all[:-277]', 'valid': 'all[-277:]', 'order': 'file'},
         'fra_eng': {'path': 'fra_eng/fra*', 'train': 'all[:98%]', 'valid': 'all[98%:]', 'order': 'file'}}


def get_config(variant=''):
    root, run, task = parsed(variant)
    c = text_to_text.get_config(run).unlock()
    c.data.parts = {name: text_to_text.parts()[name] | own | {'path': f'{root}/{own["path"]}'}
                    for name, own in PARTS.items() if task in (name, 'together')}
    c.data.temperature = 2.0
    c.train.steps = STEPS[task]
    c.optimizer.schedule.warmup_steps = STEPS[task] // 20
    for part in c.model.encoder, c.model.decoder:
        part.dropout = 0.1
    c.evals.answers.limit = 1000
    if 'fra_eng' in c.data.parts:
        c.evals.translations = base.evaluation('transformer.evaluators.translations:Translations', split='fra_eng.valid',
                                               limit=1000)
    return c.lock()


def parsed(variant):
    """(DATA, RUN, the task, 'together' by default)."""
    root, _, rest = variant.partition(',')
    run, _, task = rest.partition(',')
    if not run or task not in ('', *STEPS):
        raise ValueError('configs/several_tasks.py:DATA,RUN[,TASK] takes a folder of data, a run of t5_small.py and one '
                         f'of {", ".join(STEPS)}; {variant!r} was given.')
    return root, run, task or 'together'


def sweep(variant=''):
    root, run, _ = parsed(variant)
    points = {task: Point(f'configs/several_tasks.py:{root},{run},{task}') for task in STEPS}
    return Sweep(points, table=tabulated, title='task')


def tabulated(folders):
    """For each task its number, in percent, in the model of all and in its own."""
    def number(point, task):
        if not folders[point]:
            return None
        if task == 'fra_eng':
            return Estimate.of([report.rows(folders[point][0], 'translations')[-1]['bleu']])
        return Estimate.of([100 * report.rows(folders[point][0], 'answers')[-1][f'{task}_exact_match']])

    return {task: {'together': number('together', task), 'alone': number(task, task)} for task in PARTS}
