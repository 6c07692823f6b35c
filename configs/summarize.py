"""Summarises functions of Python: from a function's code to the first sentence of its docstring, over the standard library.

    python train.py --config=configs/summarize.py:runs/t5_small --workdir=runs/summaries
    echo 'summarize: def add(a, b): return a + b' | python predict.py --workdir=runs/summaries

The variant is the workdir of a run of an encoder and a decoder, as for configs/text_to_text.py. The set is made of the running
Python: 9 of 10 functions with a docstring are for training, without those whose summary one of the others has. `summaries`
gives ROUGE, and that of the first line of the code as the baseline. --config.data.parts.code.inputs='summarize: {rest}' reads
the rest of the docstring instead, whose first sentence is then the baseline.

Begun with `t5` of configs/objectives.py, F1 in percent of 200 held-out functions, 5,841 to train on:

                          ROUGE-1   ROUGE-2   ROUGE-L
    first line of the code   17.0       2.7      16.0
    the model                21.9       7.5      20.9
    and free to repeat       21.2       6.7      20.1

The last row is without NoRepeat: some summaries then go round in a circle. They have the form of one, and its verb or object
is often wrong: of 12.8 epochs the loss on held-out functions falls in the first eight, to 3.79 nats a token, while it ends at
1.93 in training. About 85 minutes of one core of an EPYC (family 25 model 1, Python 3.11, jax 0.10.2, float32).
"""

from configs import base
from configs.text_to_text import data, started


def get_config(variant=''):
    c, other = started(variant, 'summarize')
    c.data = data(other, parts(), length=48)
    c.data.text = 'raw'  # lines are code's sentences
    c.train.steps = 3000
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    c.evals.summaries = base.evaluation('transformer.evaluators.texts:Summaries', split='valid', limit=200,
                                        strategy='Greedy(constraint=NoRepeat(ngram=3))')
    return c.lock()


def parts():
    """The one task."""
    return {'code': dict(source='docstrings', inputs='summarize: {code}', target='{summary}', apart='both', train='all[:90%]',
                         valid='all[90%:]')}
