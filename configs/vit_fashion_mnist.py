"""ViTs on Fashion-MNIST (Xiao et al. 2017), 28x28 grey pictures of clothing in 10 classes; the last 5,000 of its 60,000
training images are held out.

    python train.py --config=configs/vit_fashion_mnist.py:small --config.data.path=FOLDER

`FOLDER` holds train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz (github.com/zalandoresearch/fashion-mnist).

:small  920,650 parameters, 10 epochs with Muon: 90.3 % of the held-out images, and 90.8 % of the training images as they are
        augmented, so it has not learnt all it could. 45 minutes on two cores of a Xeon, beside other work (Python 3.11,
        jax 0.10.2, float32).
:d2l    the textbook's (Zhang et al., Dive into Deep Learning, section 11.8): 96x96 pixels, patches of 16, 2 blocks of width
        512, 10 epochs of SGD at 0.1; for a GPU, not yet run.
"""

from configs import base

VARIANTS = ('small', 'd2l')


def get_config(variant=''):
    small = base.variant_of(variant, VARIANTS) == 'small'
    c = base.config()
    split = dict(train='train[:55000]', valid='train[55000:]')  # the file is in random order
    c.task = base.part('vit.tasks:Classification', label_smoothing=0.1 if small else 0.0)
    if small:
        c.data = base.data('data.images:Images', source='idx', path='fashion_mnist', steps='Crop(padding=2) | Flip()',
                           batch_size=128, **split)
        c.model = base.part('vit.vit:Vit', patch=4, layers=6, heads=7, width=112, pool='mean', position_scale=0.2)
        c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, weight_decay=0.05, average_decay=0.998,
                                     schedule=base.part('training.schedules:Cosine', warmup_steps=300))
        c.train.steps = 4300  # 10 epochs
    else:
        c.data = base.data('data.images:Images', source='idx', path='fashion_mnist', size=96, batch_size=128, **split)
        c.model = base.part('vit.vit:Vit', patch=16, layers=2, heads=8, width=512, inner=2048, dropout=0.1)
        c.optimizer = base.optimizer('training.optimizer:SGD', learning_rate=0.1, clip=0.0,
                                     schedule=base.part('training.schedules:Constant'))
        c.train.steps = 4300  # 10 epochs
    c.log.every_steps = 43
    c.checkpoint.every_steps = 430
    c.evals.valid = base.evaluation('transformer.evaluators:Averages', split='valid', every_steps=430)
    c.evals.mistakes = base.evaluation('vit.evaluators:Mistakes', split='valid')
    return c.lock()
