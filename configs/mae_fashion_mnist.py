"""A masked autoencoder (MAE, He et al. 2022) on Fashion-MNIST, 28x28 pictures of clothing: it predicts three of four patches.

The labels are not used. The last 5,000 of the 60,000 training images are held out.

    python train.py --config=configs/mae_fashion_mnist.py --config.data.path=FOLDER --workdir=runs/mae
    python predict.py --workdir=runs/mae --input=PICTURE --pictures=FOLDER
    python train.py --config=configs/finetune_images.py:runs/mae --workdir=runs/mae_classes

`FOLDER` is that of configs/vit_fashion_mnist.py, whose encoder this has; it reads 12 of 49 patches and a class token, and the
decoder of 4 blocks of width 64 all 50. `samples/reconstructions_STEP.png` has what was filled in. The probe is logistic
regression on the mean of the encoder's states over all patches, without the class token (--config.evals.probe.feature=pooled
reads that alone); a random encoder's is measured by the same command with --config.train.steps=1. Each of the three times that
it is measured costs a forward pass over all 60,000 images, 6 TFLOP, and minutes of one core for the regressions.
configs/vision_comparison.py trains both, and compares fine-tuning with all labels and with few to training from scratch.

A step of 256 images is 38.5 GFLOP, all of them 497 TFLOP. After 40 of the 60 epochs (--config.train.steps=8600, 104 minutes of
one core of a Xeon with AMX, family 6 model 207, with --config.dtype=mixed) the probe gets 87.7 % of the held-out images right,
where the aim was 87 and that of a random encoder has 81.6 %; the filled images show what they are. The 60 have not been run.

:photos  the same model on images of one's own, of any size and without classes: random parts of all images in FOLDER and in the
         folders in it, of 64x64 pixels. A step of 256 images is 52 GFLOP; not yet run.

    python train.py --config=configs/mae_fashion_mnist.py:photos --config.data.path=FOLDER --workdir=runs/mae_photos
"""

from configs import base


def get_config(variant=''):
    variant = base.variant_of(variant, ('fashion_mnist', 'photos'))
    c = base.config()
    c.data = base.data('data.images.labelled:Images', source='idx', path='fashion_mnist', train='train[:55000]',
                       valid='train[55000:]', steps='ResizedCrop(scale=(0.5, 1.0)) >> Flip()', batch_size=256,
                       reader='vit.readers.filled:FilledPatches')
    c.model = base.part('vit.models.mae:Mae', patch=4, encoder=dict(layers=6, heads=7, width=112),
                        decoder=dict(layers=4, heads=4, width=64))
    c.task = base.part('vit.tasks.reconstruction:Reconstruction')
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, weight_decay=0.05, schedule=base.part(
        'training.schedules:CosineDecay', warmup_steps=300))
    c.train.steps = 12_900  # 60 epochs
    c.log.every_steps = 43
    c.checkpoint.every_steps = 430
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=860)
    c.evals.reconstructions = base.evaluation('vit.evaluators.reconstructions:Reconstructions', split='valid', every_steps=2580)
    c.evals.probe = base.evaluation('vit.evaluators.probe:LinearProbe', split='valid', every_steps=4300)
    if variant == 'photos':
        c.data.update(source='unlabelled', path='photos', train='train[:95%]', valid='train[95%:]', size=64, steps='Flip()',
                      fit='RandomCrop(scale=(0.2, 1.0))')
        c.model.patch = 8
        del c.evals.probe  # which needs classes
    return c.lock()
