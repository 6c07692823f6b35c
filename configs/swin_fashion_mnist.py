"""A Swin (Liu et al. 2021) on Fashion-MNIST: 14x14 patches of 2x2 pixels in shifted windows of 7x7, then 7x7 patches.

The last 5,000 of its 60,000 training images are held out; the data are those of configs/vit_fashion_mnist.py.

    python train.py --config=configs/swin_fashion_mnist.py --config.data.path=FOLDER

699,700 parameters, 0.33 GFLOP an image in training; 20 epochs with Muon are 368 TFLOP. Not yet run to its end; the aim is
93.8 % of the held-out images, where the ViT of about this size has 92.2 %.
"""

from configs import base

LAYERS, WIDTHS, HEADS = (4, 5), (48, 96), (3, 6)


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.images.labelled:Images', source='idx', path='fashion_mnist', train='train[:55000]',
                       valid='train[55000:]', steps='Crop(padding=1) >> Flip()', batch_size=128)
    c.task = base.part('vit.tasks.classification:Classification', label_smoothing=0.1)
    c.model = base.part('vit.models.hierarchical:Hierarchical', drop_path=0.1, stem='Patches(size=2)', stages=base.stages(
        layers=LAYERS, widths=WIDTHS, heads=HEADS, positions='SwinBias()', initial='Xavier()',
        partition='Alternate(Windows(size=7), Windows(size=7, shift=3))'))
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, weight_decay=0.05, average_decay=0.998,
                                 schedule=base.part('training.schedules:CosineDecay', warmup_steps=300))
    c.train.steps = 8600  # 20 epochs
    c.log.every_steps = 43
    c.checkpoint.every_steps = 400
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=860)
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()
