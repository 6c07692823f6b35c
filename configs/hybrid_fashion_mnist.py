"""A ViT on early convolutions instead of patches (Xiao et al. 2021) on Fashion-MNIST.

Three convolutions of stride 2, 2 and 1 lead to 7x7 patches, with layer norm where the paper has batch norm.

The last 5,000 of its 60,000 training images are held out; the data are those of configs/vit_fashion_mnist.py.

    python train.py --config=configs/hybrid_fashion_mnist.py --config.data.path=FOLDER

953,146 parameters, 0.30 GFLOP an image in training; 20 epochs with Muon are 325 TFLOP. Not yet run to its end.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.images.labelled:Images', source='idx', path='fashion_mnist', train='train[:55000]',
                       valid='train[55000:]', steps='Crop(padding=1) >> Flip()', batch_size=128)
    c.task = base.part('vit.tasks.classification:Classification', label_smoothing=0.1)
    c.model = base.part(
        'vit.models.hierarchical:Hierarchical', drop_path=0.1, stem='Convolutions(size=3, strides=(2, 2, 1))',
        positions='Learned(scale=0.2)', stages=base.stages(
            layers=(8,), widths=(96,), heads=(6,), positions='NoPositions()', initial='Xavier()'))
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, weight_decay=0.05, average_decay=0.998,
                                 schedule=base.part('training.schedules:CosineDecay', warmup_steps=300))
    c.train.steps = 8600  # 20 epochs
    c.log.every_steps = 43
    c.checkpoint.every_steps = 400
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=860)
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()
