"""Learns a task of GLUE, starting from another run: the variant is TASK,WORKDIR.

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/glue.py:mrpc,runs/bert --config.data.path=glue_data/MRPC --workdir=runs/mrpc
    python sweep.py --config=configs/glue.py:mrpc,runs/bert --config.data.path=glue_data/MRPC --seeds=5 --workdir=runs/five
    python predict.py --workdir=runs/mrpc --input=glue_data/MRPC/test.tsv > MRPC.tsv

The tasks are cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte and wnli. data.path is a folder with train.tsv, dev.tsv and test.tsv
as GLUE publishes them (gluebenchmark.com), plain or .gz; other files there, such as CoLA's original ones, are not read. Where
dev.tsv is missing: --config.data.train=train.tsv[:90%] --config.data.valid=train.tsv[90%:]; files of other names are named in
the same way, such as msr_paraphrase_train.txt[:90%]. The task glue/mrpc reads the set of this name of TFDS, which
`python -m data.prepare glue/mrpc` prepares.

The metrics are those of the benchmark (Wang et al. 2019, table 1), from the evaluator `scores`: of cola Matthews' correlation,
of mrpc and qqp F1 and accuracy, of stsb Pearson's and Spearman's, of the others accuracy; of mnli on the matched part, and from
`mismatched` on the other. The diagnostic set ax has no training part; it scores a run of mnli by Matthews' correlation,
eval.py --path=diagnostic-full.tsv --evaluator=scores. Of a file without labels predict.py writes what is submitted.

Three epochs of batches of 32 are a usual choice (Devlin et al. 2019, section 4.1): --config.train.steps=345 for mrpc's 3,668.
"""

from configs import base
from configs.classify import of_texts
from training.config import resolve

SCORES = 'transformer.evaluators.reading:ClassScores'
READERS = {'classes': 'transformer.readers.classes:SubmittedClasses', 'number': 'transformer.readers.classes:SubmittedNumbers'}
# {task: (what is predicted, the class whose F1 counts in GLUE's files and in TFDS, fields of the data in GLUE's files)}
TASKS = {
    'cola': ('classes', ('', ''), {'header': 'false', 'columns': (4,), 'label': '2'}),
    'sst2': ('classes', ('', ''), {}),
    'mrpc': ('classes', ('1', 'equivalent'), {}),
    'stsb': ('number', None, {}),
    'qqp': ('classes', ('1', 'duplicate'), {'incomplete': 'skip'}),  # its training part has some broken lines
    'mnli': ('classes', ('', ''), {'valid': 'dev_matched.tsv*'}),
    'qnli': ('classes', ('', ''), {}),
    'rte': ('classes', ('', ''), {}),
    'wnli': ('classes', ('', ''), {})}
# {task: the names in TFDS of the classes 0 and 1, which GLUE takes as numbers; of the other tasks it takes names}
NUMBERED = {
    'cola': ('unacceptable', 'acceptable'),
    'sst2': ('negative', 'positive'),
    'mrpc': ('not_equivalent', 'equivalent'),
    'qqp': ('not_duplicate', 'duplicate'),
    'wnli': ('not_entailment', 'entailment')}


def get_config(variant=''):
    name, _, workdir = variant.partition(',')
    set_of, slash, task = name.rpartition('/')
    if task == 'ax':
        raise ValueError('ax is for tests alone; train mnli, and score that run on its file with eval.py '
                         '--path=diagnostic-full.tsv --evaluator=scores.')
    if task not in TASKS or set_of not in ('', 'glue') or not workdir:
        hint = 'the workdir is missing.' if task in TASKS else resolve.did_you_mean(task.lower(), TASKS)
        if task in TASKS and set_of not in ('', 'glue'):
            hint = 'glue/ before the task is for TFDS.'
        raise ValueError(f'There is no variant {variant!r} of this config; write TASK,WORKDIR, such as mrpc,runs/bert: {hint}')
    what, positive, fields = TASKS[task]
    c = of_texts(workdir, 'glue', what)
    mismatched = 'validation_mismatched' if slash else 'dev_mismatched.tsv*'
    if slash:
        parts = {'train': 'train', 'valid': 'validation_matched' if task == 'mnli' else 'valid'}
        fields = {'name': name, 'path': '', 'numbered': NUMBERED.get(task, ())}
    else:
        parts = {'train': 'train.tsv*', 'valid': 'dev.tsv*'}
    with c.unlocked():
        c.data.update(parts | {'test': '', 'reader': READERS[what]} | fields)
        if what == 'classes':
            c.evals.scores.positive = positive[bool(slash)]
        else:
            c.evals.scores = c.evals.correlation
            del c.evals.correlation
        if task == 'mnli':
            c.evals.mismatched = base.evaluation(SCORES, split=mismatched)
    return c.lock()
