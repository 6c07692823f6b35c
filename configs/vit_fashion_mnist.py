"""ViTs on Fashion-MNIST (Xiao et al. 2017), 28x28 grey pictures of clothing in 10 classes.

The last 5,000 of its 60,000 training images are held out.

    python train.py --config=configs/vit_fashion_mnist.py:small --config.data.path=FOLDER

`FOLDER` holds train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz (github.com/zalandoresearch/fashion-mnist).

:small  920,650 parameters, 18.6 epochs with Muon: 92.2 % of the held-out images, and 94 % of the training images as they are
        augmented. (10 epochs, crops of two pixels: 90.3 and 90.8 %.) 68 minutes on two cores of a Xeon, beside other work, at
        240 to 320 images/s: at 300 the steps are 57 minutes (Python 3.11, jax 0.10.2, float32).
:d2l    the textbook's (Zhang et al., Dive into Deep Learning, section 11.8): all 60,000 images of 96x96 pixels, patches of 16,
        2 blocks of width 512, attention without biases, positions drawn from N(0, 1), dropout after both dense layers (here
        also on what attention adds), 10 epochs of SGD at 0.1, measured on the 10,000 test images, whose files have to be in
        FOLDER too. Trained on 55,000 images, as `d2l_vit` of configs/vision_comparison.py: 86.7 % of the other 5,000.
"""

from configs import base

VARIANTS = ('small', 'd2l')


def get_config(variant=''):
    if base.variant_of(variant, VARIANTS) == 'small':
        return compared(base.part('vit.models.vit:Vit', patch=4, layers=6, heads=7, width=112, pool='mean',
                                  positions='Learned(scale=0.2)'), steps=8000)  # 18.6 epochs
    c = base.config()
    c.data = base.data('data.images.labelled:Images', source='idx', path='fashion_mnist', train='train', valid='test', size=96,
                       batch_size=128)
    c.task = base.part('vit.tasks.classification:Classification')
    c.model = base.part('vit.models.vit:Vit', patch=16, layers=2, heads=8, width=512, dropout=0.1,
                        feed_forward='Mlp(dropout=0.1)', projection_bias=False, output_bias=False,
                        positions='Learned(scale=1.0)', initial='PyTorch()')
    c.optimizer = base.optimizer('training.optimizer:SGD', learning_rate=0.1, clip=0.0,
                                 schedule=base.part('training.schedules:ConstantRate'))
    c.train.steps = 4688  # 10 epochs
    return _measured(c, every_steps=800)


AUGMENTED = 'Crop(padding=1) >> Flip()'


def compared(model, steps=8600, images=AUGMENTED):
    """The config of a model in the comparison of Transformers of images on Fashion-MNIST; by default for 20 epochs."""
    c = base.config()
    # The file is in random order.
    c.data = base.data('data.images.labelled:Images', source='idx', path='fashion_mnist', train='train[:55000]',
                       valid='train[55000:]', steps=images, batch_size=128)
    c.task = base.part('vit.tasks.classification:Classification', label_smoothing=0.1)
    c.model = model
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, weight_decay=0.05, average_decay=0.998,
                                 schedule=base.part('training.schedules:CosineDecay', warmup_steps=300))
    c.train.steps = steps
    return _measured(c, every_steps=steps // 10)


def _measured(c, every_steps):
    c.log.every_steps = 43
    c.checkpoint.every_steps = 400
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=every_steps)
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()
