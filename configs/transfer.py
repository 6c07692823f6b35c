"""Transfers a model of images to other classes and another size; the variant is HOW,WORKDIR.

(Dosovitskiy et al. 2021, sections 3.2 and 4.1; Prince, Understanding Deep Learning, section 12.10.2.)

    python train.py --config=configs/transfer.py:full,runs/pretrained --config.data.path=photos --config.data.size=96 \
        --workdir=runs/photos

WORKDIR is a run of any model of images with classes, or one that convert.py --from_hf has made. The data are those of that run
until flags say otherwise; where the grid of patches is another one, the tables of positions are resized. The head is new.

:full,WORKDIR     trains everything, at a low rate.
:probe,WORKDIR    trains the head alone, on what the body, frozen and without dropout, makes of the images: a linear probe.

The same from scratch: --config.init_from=
Few labels, 20 images of each class: --config.data.per_class=20 --config.data.draw=0 (another number: other images)
Some of the classes of a folder: --config.data.classes='[34:42]' (docs/data.md). configs/vit_products.py compares all of these.
"""

import ml_collections

from configs import base
from configs.classify import OF_CLASSES, of_images
from training.config import resolve

HOW = 'full', 'probe'
DROPS = 'dropout', 'attention_dropout', 'last_dropout', 'drop_path'  # fields of models that leave something out in training


def get_config(variant=''):
    how, _, workdir = variant.partition(',')
    if how not in HOW or not workdir:
        hint = resolve.did_you_mean(how, HOW) if how not in HOW else 'the workdir comes after a comma.'
        raise ValueError(f'There is no variant {variant!r} of this config; write HOW,WORKDIR, such as full,runs/photos: {hint}')
    c = of_images(workdir, 'transfer')
    # Classes of the same number are other ones: the head is new in any case.
    c.init_rules = (OF_CLASSES, 'fresh'), *c.init_rules[1:]
    cosine = base.part('training.schedules:CosineDecay', warmup_steps=20)
    if how == 'full':
        c.optimizer = base.optimizer(learning_rate=5e-4, weight_decay=0.05, schedule=cosine)
    else:
        c.optimizer = base.optimizer(learning_rate=1e-2, schedule=cosine)
        c.optimizer.rate_rules = (OF_CLASSES, 1.0), (r'.*', 0.0)
        settled(c.model)
    c.data.batch_size = 32
    c.train.steps, c.log.every_steps, c.checkpoint.every_steps = 400, 20, 200
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()


def settled(model):
    """Sets the dropout of a model and of its stacks to 0, and freezes the running moments of batch normalization."""
    for name, value in model.items():
        if isinstance(value, ml_collections.ConfigDict):
            settled(value)
        elif name == 'frozen' and 'momentum' in model:
            model.frozen = True
        elif name in DROPS and isinstance(value, float):
            model[name] = 0.0
