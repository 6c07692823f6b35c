"""Fine-tunes the encoder of a masked autoencoder, or a ViT, to the classes of its images (the variant is the run).

    python train.py --config=configs/mae_fashion_mnist.py --config.data.path=FOLDER --workdir=runs/mae
    python train.py --config=configs/finetune_images.py:runs/mae --workdir=runs/mae_classes

With few labels:  --config.data.train='train[:1000]' --config.train.steps=1000
From scratch:     --config.init_from= --config.optimizer.rate_rules="(('.*', 1.0),)"

The data, their augmentation and the batch size are those of the run; after one on images without classes --config.data.path
names a folder with a folder for each class. The head is new unless the run has one with as many classes, and the rest is learnt
with a rate that falls by a quarter from block to block, down to the patches (Bao et al. 2022; He et al. 2022, table 9).
"""

from configs import base
from configs.classify import VIT, of_images

DECAY = 0.75  # of the learning rate, from a block to the one below
FRONT = r'(patches|class_token|distillation_token|registers|positions)\b.*'


def get_config(variant=''):
    c = of_images(variant, 'finetune_images')
    if c.model.name != VIT:
        raise ValueError(f'{variant} is a run of {c.model.name}, which has no blocks for the rates of this config; use '
                         f'--config=configs/classify.py:{variant}.')
    c.model.drop_path = 0.1  # He et al. 2022, table 9
    c.task.label_smoothing = 0.1
    c.optimizer = base.optimizer(learning_rate=1e-3, weight_decay=0.05, average_decay=0.998, schedule=base.part(
        'training.schedules:CosineDecay', warmup_steps=200))
    layers = c.model.layers
    blocks = tuple((rf'block_{i}/.*', DECAY ** (layers - i)) for i in reversed(range(layers)))
    c.optimizer.rate_rules = *blocks, (FRONT, DECAY ** (layers + 1)), (r'.*', 1.0)
    c.train.steps = 4300
    c.log.every_steps = 43
    c.checkpoint.every_steps = 430
    c.evals.valid.every_steps = 430
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()
