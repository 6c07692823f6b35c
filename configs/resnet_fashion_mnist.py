"""ResNets on Fashion-MNIST, the yardstick of the Transformers of images (He et al. 2016).

    python train.py --config=configs/resnet_fashion_mnist.py:small --config.data.path=FOLDER

configs/vit_fashion_mnist.py says what FOLDER holds.

:small   the residual network of 20 layers with 16, 32 and 64 channels (He et al. 2016, section 4.2), whose stem keeps the
         28x28 pixels: 272,186 parameters, 20 epochs of SGD with Nesterov's momentum. 94.7 % of the last 5,000 training
         images, which are held out (the aim was 93.8), in 73 minutes on a core of an EPYC (family 25 model 17), beside other
         work, with --config.dtype=mixed, which leaves convolutions in float32; 94.4 % in 2 minutes of an H100, beside other
         runs, and on a core of another EPYC for the last tenth. On a CPU, where zeros around images are multiplied too,
         a step of 128 images is 22.2 GFLOP and takes 0.75 seconds on a core of an EPYC (family 25 model 1), 0.88 with XLA's
         gradients of the kernels (float32, jax 0.10.2):

             python -m benchmarks.train_step --config=configs/resnet_fashion_mnist.py:small --config.data.path=FOLDER --steps=20

:wide    the same with twice the channels, 1,084,010 parameters, 25 epochs, random erasing (Zhong et al. 2017), label smoothing
         and a moving average of the parameters, for three hours on two cores. A step is 88.7 GFLOP, all of them 953 TFLOP, and
         takes 2.1 seconds on one of these cores, 6.0 with XLA's gradients of the kernels. Not yet run to its end: what was to
         be reached in three hours, 94.5 % of the held-out images, `small` reaches in 73 minutes.

:d2l     the ResNet-18 of the textbook in its setting (Zhang et al., Dive into Deep Learning, section 8.6): all 60,000 images at
         96x96 pixels, 10 epochs of SGD at 0.01 with batches of 128, measured on the 10,000 test images, whose files have to be
         in FOLDER too. The network is that of transformers, 11,175,370 parameters: no biases in convolutions, a norm in every
         shortcut, and kernels as He et al. draw them, where the book has biases, no norm there, and Xavier's. A step is 201
         GFLOP on a GPU, 215 on a CPU. Trained on 55,000 images, as `d2l_resnet18` of configs/vision_comparison.py: 90.8 % of
         the other 5,000. The book's first edition took larger steps:

             --config.optimizer.learning_rate=0.05 --config.data.batch_size=256 --config.train.steps=2344

:digits  the network of 20 layers on scikit-learn's digits of 8x8 pixels: 99.4 % of the 360 held-out ones (loss 0.032), in a
         minute on two cores of an EPYC, beside other work (Python 3.11, jax 0.10.2, float32).
"""

from configs import base

VARIANTS = 'small', 'wide', 'd2l', 'digits'
IMAGES = 'data.images.labelled:Images'


def get_config(variant=''):
    variant = base.variant_of(variant, VARIANTS)
    c = base.config()
    c.task = base.part('vit.tasks.classification:Classification')
    if variant == 'd2l':
        c.data = base.data(IMAGES, source='idx', path='fashion_mnist', size=96, batch_size=128, train='train', valid='test')
        c.model = base.part('vit.models.resnet:Resnet', block='Basic()', widths=(64, 128, 256, 512), depths=(2, 2, 2, 2))
        c.optimizer = base.optimizer('training.optimizer:SGD', learning_rate=0.01, clip=0.0,
                                     schedule=base.part('training.schedules:ConstantRate'))
        c.train.steps = 4688  # 10 epochs
    else:
        wide = 1 + (variant == 'wide')
        c.model = base.part('vit.models.resnet:Resnet', block='Basic()', widths=(16 * wide, 32 * wide, 64 * wide),
                            depths=(3, 3, 3))
        c.model.stem.update(width=16 * wide, size=3, stride=1, pool=False)
        if variant == 'digits':
            c.data = base.data(IMAGES, source='digits', batch_size=64)
            c.train.steps = 400
        else:
            # The file is in random order.
            c.data = base.data(IMAGES, source='idx', path='fashion_mnist', steps='Crop(padding=2) >> Flip()', batch_size=128,
                               train='train[:55000]', valid='train[55000:]')
            c.train.steps = 8600  # 20 epochs
            if variant == 'wide':
                c.data.steps += ' >> Erase()'
                c.task.label_smoothing = 0.1
                c.train.steps = 10_750  # 25 epochs
        # Decoupled: with momentum 0.9 as much as 5e-4 in the gradient.
        c.optimizer = base.optimizer('training.optimizer:SGD', learning_rate=0.1, weight_decay=5e-3, clip=0.0, momentum=0.9,
                                     nesterov=True, schedule=base.part('training.schedules:CosineDecay',
                                                                       warmup_steps=c.train.steps // 20),
                                     average_decay=0.998 if variant == 'wide' else 0.0)
    c.log.every_steps = 43
    c.checkpoint.every_steps = 100 if variant in ('wide', 'd2l') else 400  # a few minutes
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=c.train.steps // 10)
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()
