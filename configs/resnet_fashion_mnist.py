"""The yardstick: a residual network of 20 layers (He et al. 2016, section 4.2) on Fashion-MNIST, 28x28 grey pictures of clothing.

The last 5,000 of its 60,000 training images are held out.

    python train.py --config=configs/resnet_fashion_mnist.py --config.data.path=FOLDER

`FOLDER` holds train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz (github.com/zalandoresearch/fashion-mnist).

:small   0.27M parameters, 18.6 epochs of SGD.
:digits  the same on the 1,797 digits of scikit-learn, 8x8.
"""

from configs import base

VARIANTS = 'small', 'digits'


def get_config(variant=''):
    variant = base.variant_of(variant, VARIANTS)
    c = base.config()
    c.model = base.part('vit.models.resnet:Resnet', block='Basic()', widths=(16, 32, 64), depths=(3, 3, 3))
    c.model.stem.update(width=16, size=3, stride=1, pool=False)
    c.task = base.part('vit.tasks.classification:Classification')
    c.data = base.data('data.images.labelled:Images', source='digits', batch_size=64)
    c.optimizer = base.optimizer('training.optimizer:SGD', learning_rate=0.05, weight_decay=5e-4, clip=0.0,
                                 schedule=base.part('training.schedules:CosineDecay', warmup_steps=20))
    c.train.steps = 200
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=50)
    return c.lock()
