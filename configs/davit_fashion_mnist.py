"""A DaViT (Ding et al. 2022) on Fashion-MNIST: attention in windows of 7x7 patches and attention between channels take turns.

The last 5,000 of its 60,000 training images are held out; the data are those of configs/vit_fashion_mnist.py.

    python train.py --config=configs/davit_fashion_mnist.py --config.data.path=FOLDER

890,410 parameters, 0.38 GFLOP an image in training; 20 epochs with Muon are 423 TFLOP. Not yet run to its end; the aim is
94.0 % of the held-out images.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.images.labelled:Images', source='idx', path='fashion_mnist', train='train[:55000]',
                       valid='train[55000:]', steps='Crop(padding=1) >> Flip()', batch_size=128)
    c.task = base.part('vit.tasks.classification:Classification', label_smoothing=0.1)
    c.model = base.part(
        'vit.models.hierarchical:Hierarchical', stem='Convolutions(size=7, strides=(2,))', merging='Downsampling()',
        pool_first=True, drop_path=0.1, stages=base.stages(
            layers=(4, 6), widths=(50, 100), heads=(5, 10), positions='NoPositions()', initial='Xavier()',
            partition="Alternate(Windows(size=7, shrink='never'), Whole())", residual='Convolved()',
            attention='Alternate(Softmax(), ChannelGroups(version=1))'))
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, weight_decay=0.05, average_decay=0.998,
                                 schedule=base.part('training.schedules:CosineDecay', warmup_steps=300))
    c.train.steps = 8600  # 20 epochs
    c.log.every_steps = 43
    c.checkpoint.every_steps = 400
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=860)
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()
