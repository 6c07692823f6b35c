r"""Transfers a model of images to other classes and another size; the variant is HOW,WORKDIR.

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

import collections.abc
import dataclasses

import ml_collections

from configs import base
from configs.classify import OF_CLASSES, of_images
from training.config import resolve

HOW = 'full', 'probe'
DROPS = 'dropout', 'attention_dropout', 'last_dropout', 'drop_path'  # fields that leave something out in training


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
        settled(c.model, resolve.construct(c.model, extra={'classes': 1}))
    c.data.batch_size = 32
    c.train.steps, c.log.every_steps, c.checkpoint.every_steps = 400, 20, 200
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()


def settled(model, built):
    """Sets the dropout of a group of fields, of which `built` is made, to 0, also inside of its parts, and freezes the running
    moments of batch normalization. Raises ValueError for a norm of a Transformer whose moments cannot be frozen."""
    known = built if isinstance(built, collections.abc.Mapping) else {
        name: getattr(getattr(built, slot.inside) if slot.inside else built, name)
        for name, slot in resolve.slots(type(built)).items()}
    for name, value in model.items():
        if isinstance(value, ml_collections.ConfigDict):
            settled(value, known[name])
        elif name == 'frozen' and 'momentum' in model:
            model.frozen = True
        elif name == 'norm' and str(value).startswith('OverBatch'):
            raise ValueError(f'norm={value} moves its moments in training, so the body of a probe would not stay as it is; use '
                             ':full.')
        elif name in DROPS and isinstance(value, float):
            model[name] = 0.0
        elif isinstance(value, str) and name in known and (part := undropped(known[name])) != known[name]:
            model[name] = repr(part)


def undropped(part):
    """A part of a model, or a value of a field of it, with no dropout anywhere inside."""
    if isinstance(part, tuple):
        return tuple(map(undropped, part))
    if not dataclasses.is_dataclass(part):
        return part
    own = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
    changes = {name: 0.0 if name in DROPS else undropped(value) for name, value in own.items()}
    changes = {name: value for name, value in changes.items() if value != own[name]}
    return dataclasses.replace(part, **changes) if changes else part
