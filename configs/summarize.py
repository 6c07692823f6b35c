"""Summarises functions of Python: from a function's code to the first sentence of its docstring, over the standard library.

    python train.py --config=configs/summarize.py:runs/t5_small --workdir=runs/summaries
    echo 'summarize: def add(a, b): return a + b' | python predict.py --workdir=runs/summaries

The variant is the workdir of a run of an encoder and a decoder, as for configs/text_to_text.py. The set is made of the running
Python: 9 of 10 functions with a docstring are for training, without those whose summary one of the others has. `summaries`
gives ROUGE, and that of the first line of the code as the baseline. --config.data.parts.code.inputs='summarize: {rest}' reads
the rest of the docstring instead, whose first sentence is then the baseline.
"""

from configs import base
from configs.text_to_text import data, started


def get_config(variant=''):
    c, other = started(variant, 'summarize')
    c.data = data(other, parts(), length=48)
    c.data.text = 'raw'  # lines are code's sentences
    c.train.steps = 3000
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    c.evals.summaries = base.evaluation('transformer.evaluators.texts:Summaries', split='valid', limit=200)
    return c.lock()


def parts():
    """The one task."""
    return {'code': dict(source='docstrings', inputs='summarize: {code}', target='{summary}', apart='both', train='all[:90%]',
                         valid='all[90%:]')}
