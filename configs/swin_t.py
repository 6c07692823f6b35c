"""Swin-T, 28.3 million parameters, on ImageNet (Liu et al. 2021, section 4.1 and appendix A2.1).

    python train.py --config=configs/swin_t.py --config.data.source=folder --config.data.name= --config.data.path=FOLDER

:imagenet  224 x 224, 300 epochs of 1,024 (the paper: 81.3 % on the validation part); for GPUs and TPUs, not yet run. FOLDER has
           the folders train and validation, and these one for each class. Without these flags it reads TFDS's imagenet2012,
           which `python -m data.prepare imagenet2012` has prepared.
:step      4 images of scikit-learn's digits, resized to 224 x 224 x 3, in float32: for timing its step on a CPU.

               python -m benchmarks.train_step --config=configs/swin_t.py:step --steps=20

           662 to 684 ms a step on two quiet cores of a Xeon (family 6 model 167, Python 3.11, jax 0.10.2), 0.93 of the time of
           timm's in PyTorch 2.14 (721 to 743 ms, in turns).
"""

from configs import base

VARIANTS = 'imagenet', 'step'


def get_config(variant=''):
    step = base.variant_of(variant, VARIANTS) == 'step'
    c = base.config()
    if step:
        c.data = base.data('data.images.labelled:Images', source='digits', size=224, channels=3, batch_size=4)
        c.task = base.part('vit.tasks.classification:Classification')
    else:
        c.dtype = 'bfloat16'
        c.data = base.data('data.images.labelled:Images', source='tfds', name='imagenet2012', train='train', valid='validation',
                           test='', fit="RandomCrop(filter='bicubic')",
                           steps='Flip() >> RandAugment() >> Erase(probability=0.25, scale=(0.02, 0.33)) >> Normalize()',
                           size=224, channels=3, batch_size=1024)
        c.task = base.part('vit.tasks.classification:Classification', label_smoothing=0.1,
                           augment='OneOf(Mixup(alpha=0.8), CutMix())')
    c.model = base.part('vit.models.hierarchical:Hierarchical', drop_path=0.0 if step else 0.2, stages=base.stages(
        layers=(2, 2, 6, 2), widths=(96, 192, 384, 768), heads=(3, 6, 12, 24), positions='SwinBias()',
        partition='AlternatePartition(Windows(size=7), Windows(size=7, shift=3))'))
    # The norm at which gradients are clipped is that of their code; the paper says 1.
    c.optimizer = base.optimizer(learning_rate=1e-3, weight_decay=0.05, clip=5.0, schedule=base.part(
        'training.schedules:CosineDecay', warmup_steps=25_000))
    c.train.steps = 375_000  # 300 epochs
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=5000)
    return c.lock()
