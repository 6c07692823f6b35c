"""Trains the model of another run further: one that convert.py has made of a model of Hugging Face, or one trained here.

    python convert.py --from_hf=FOLDER --workdir=runs/gpt2
    python train.py --config=configs/finetune.py:runs/gpt2 --config.data.path=TEXT_FOLDER --workdir=runs/mine
    python convert.py --workdir=runs/mine --to_hf=NEW_FOLDER

The variant is the workdir of that run. Its model, task, data and evaluators are kept, and training starts from its parameters.
The optimizer is new: AdamW, 5e-5 falling linearly to 0 over 1,000 steps, weight decay 0.01.
configs/classify.py, label.py, rate.py, prefer.py, tag.py and answer.py put another head on the model.
"""

import pathlib

from configs import base
from training import workdir

# Heads that are initialised afresh if the other run has none, or one of another shape.
HEAD = r'(pooler|classes|span|head)/.*'


def get_config(variant=''):
    c, other = begun(variant, 'finetune')
    if other.task.name.endswith(':Hidden'):
        raise ValueError(f'{variant} is a model without a head, which has nothing to learn; give it one with '
                         'configs/classify.py, configs/tag.py or configs/answer.py.')
    if other.data.pipeline == 'data.images.labelled:Images':
        raise ValueError(f'{variant} is a run on images, and your images have other classes; use '
                         f'--config=configs/classify.py:{variant}.')
    for part in ('model', 'task', 'data', 'evals', 'generation'):
        c[part] = other[part]
    return c.lock()


def begun(variant, name):
    """(a config that starts from the parameters of the run in the folder `variant`, the config of that run).

    Matrix products keep their type. Parameters are trained in float32 even if that run stores them in bfloat16, whose last bit
    is larger than updates of 5e-5.
    """
    if not variant:
        raise ValueError(f'configs/{name}.py trains the model of a run further; name its workdir, '
                         f'--config=configs/{name}.py:WORKDIR (a run of configs/bert_mini.py, or one that convert.py --from_hf '
                         'has made).')
    c, other = base.config(), workdir.load_config(pathlib.Path(variant))
    c.dtype, c.init_from = other.dtype, variant
    c.optimizer = base.optimizer(learning_rate=5e-5, weight_decay=0.01, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=100))
    c.train.steps = 1000
    return c, other


def with_head(variant, name, head, data, task, evals, **fields):
    """The locked config of a run on texts whose model has another head.

    Args:
      head: {import path of a model: its new head}.
      data, task: import paths; `fields` are those of the data.
      evals: {name: evaluator}, besides the averages of the task on data.valid.
    """
    c, other = begun(variant, name)
    model = other.model.name
    if model not in head:
        raise ValueError(f'{variant} is a run of {model}, for which configs/{name}.py has no head; it has one for '
                         f'{", ".join(head)}.')
    kept = {key: value for key, value in other.model.items() if key != 'name' and value is not None}  # None: the data's
    c.model = base.part(model, **kept | {'head': head[model]})
    framing = other.data.get('framing', 'plain')  # a text that is continued has no special tokens around it
    c.data = base.data(data, path=f'{name}.txt', packing='buckets', framing=framing, tokenizer=other.data.tokenizer,
                       length=min(c.model.length, fields.pop('length', 128)), **fields)
    start = other.data.get('start', -1) if 'start' in other.data else other.task.get('start', -1)
    c.task = base.part(task, types=other.model.get('types', 0) > 0, start=start)
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid')
    for evaluation, path in evals.items():
        c.evals[evaluation] = base.evaluation(path, split='valid')
    c.init_rules = (HEAD, 'offered'), (r'.*', 'keep')
    return c.lock()
