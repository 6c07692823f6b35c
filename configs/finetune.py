"""Trains the model of another run further: one that convert.py has made of a model of Hugging Face, or one trained here.

    python convert.py --from_hf=FOLDER --workdir=runs/gpt2
    python train.py --config=configs/finetune.py:runs/gpt2 --config.data.path=TEXT_FOLDER --workdir=runs/mine
    python convert.py --workdir=runs/mine --to_hf=NEW_FOLDER

The variant is the workdir of that run: its model, task, data and evaluators are taken as they are, and its parameters to begin
with. What belongs to the training is new: AdamW, 5e-5 falling linearly to 0 over 1,000 steps, weight decay 0.01.
"""

import pathlib

from configs import base
from training import workdir


def get_config(variant=''):
    c = base.config()
    if not variant:
        raise ValueError('configs/finetune.py trains the model of a run further; name its workdir, '
                         '--config=configs/finetune.py:WORKDIR.')
    other = workdir.load_config(pathlib.Path(variant))
    for part in ('dtype', 'model', 'task', 'data', 'evals'):
        c[part] = other[part]
    c.init_from = variant
    c.optimizer = base.optimizer(learning_rate=5e-5, weight_decay=0.01, schedule=base.part(
        'training.schedules:Linear', warmup_steps=100))
    c.train.steps = 1000
    return c.lock()
