"""A masked autoencoder (MAE, He et al. 2022) on Fashion-MNIST, 28x28 pictures of clothing: it predicts three of four patches.

The labels are not used. The last 5,000 of the 60,000 training images are held out.

    python train.py --config=configs/mae_fashion_mnist.py --config.data.path=FOLDER --workdir=runs/mae
    python predict.py --workdir=runs/mae --input=PICTURE --pictures=FOLDER
    python train.py --config=configs/finetune_images.py:runs/mae --workdir=runs/mae_classes

`FOLDER` is that of configs/vit_fashion_mnist.py, whose encoder this has; it reads 12 of 49 patches and a class token, and the
decoder of 2 blocks of width 64 all 50. `samples/reconstructions_STEP.png` has what was filled in. The probe is logistic
regression on the mean of the encoder's states over all patches, without the class token (--config.evals.probe.feature=pooled
reads that alone); a random encoder's is measured by the same command with --config.train.steps=1. Each of the three times that
it is measured costs a forward pass over all 60,000 images, 6 TFLOP, and 10 seconds of one core for 55,000 images.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, ('none',))
    c = base.config()
    c.data = base.data('data.images.labelled:Images', source='idx', path='fashion_mnist', train='train[:55000]',
                       valid='train[55000:]', steps='Crop(padding=1) >> Flip()', batch_size=256,
                       reader='vit.readers.filled:FilledPatches')
    c.model = base.part('vit.models.mae:Mae', patch=4, encoder=dict(layers=6, heads=7, width=112),
                        decoder=dict(layers=2, heads=4, width=64))
    c.task = base.part('vit.tasks.reconstruction:Reconstruction')
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, weight_decay=0.05, schedule=base.part(
        'training.schedules:CosineDecay', warmup_steps=300))
    c.train.steps = 12_900  # 60 epochs
    c.log.every_steps = 43
    c.checkpoint.every_steps = 430
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=860)
    c.evals.reconstructions = base.evaluation('vit.evaluators.reconstructions:Reconstructions', split='valid', every_steps=2580)
    c.evals.probe = base.evaluation('vit.evaluators.probe:LinearProbe', split='valid', every_steps=4300)
    return c.lock()
