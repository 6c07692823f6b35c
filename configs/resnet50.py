"""ResNet-50, 25.6 million parameters, on ImageNet (He et al. 2016), in batches of 1,024 (Goyal et al. 2017, section 5.1).

224 x 224, 90 epochs; for GPUs and TPUs, not yet run. (Goyal et al.: 76.5 % on the validation part.)

    python train.py --config=configs/resnet50.py --config.data.source=folder --config.data.name= --config.data.path=FOLDER

FOLDER has the folders train and validation, and these one for each class. Without these flags it reads TFDS's imagenet2012,
which `python -m data.prepare imagenet2012` has prepared.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.dtype = 'bfloat16'
    c.data = base.data('data.images.labelled:Images', source='tfds', name='imagenet2012', train='train', valid='validation',
                       test='', fit='RandomCrop()', steps='Flip() >> Normalize()', size=224, channels=3, batch_size=1024)
    c.task = base.part('vit.tasks.classification:Classification')
    c.model = base.part('vit.models.resnet:Resnet')
    # Decoupled: with momentum 0.9 as much as 1e-4 in the gradient.
    c.optimizer = base.optimizer('training.optimizer:SGD', learning_rate=0.4, weight_decay=1e-3, clip=0.0, momentum=0.9,
                                 nesterov=True, schedule=base.part('training.schedules:CosineDecay', warmup_steps=6256))
    c.train.steps = 112_600  # 90 epochs
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=5000)
    return c.lock()
