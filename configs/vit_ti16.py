"""ViT-Ti/16, 5.7 million parameters, on ImageNet (Dosovitskiy et al. 2021; Touvron et al. 2021, table 1).

Augmentation and decay are one of the settings that Steiner et al. 2022 compare: their 'light2', which is random crops, flips,
two operations of RandAugment with magnitude 10, and Mixup(0.2), with a decay of 0.1, the larger of their two, and without
dropout. (Their code takes 'light1' for Ti/16, without Mixup and with magnitude 0, and batches of 4,096.)

    python train.py --config=configs/vit_ti16.py --config.data.source=folder --config.data.name= --config.data.path=FOLDER

:imagenet  224 x 224, 300 epochs of 1,024; for GPUs and TPUs, not yet run. FOLDER has the folders train and validation, and
           these one for each class. Without these flags it reads TFDS's imagenet2012, which
           `python -m data.prepare imagenet2012` has prepared.
:step      16 images of scikit-learn's digits, resized to 224 x 224 x 3, in float32: for timing its step on a CPU.

               python -m benchmarks.train_step --config=configs/vit_ti16.py:step --steps=20

           751 to 770 ms a step on two quiet cores of a Xeon (family 6 model 167, Python 3.11, jax 0.10.2), 1.30 of the time of
           timm's in PyTorch 2.14 (561 to 611 ms, in turns): MKL, at home there, multiplies its dense layers at 333 to 389
           GFLOP/s, XLA at 181 to 297, which is 416 ms a step, and no flag of XLA for CPUs takes more than 5 % off. On two busy
           ones of an older Xeon 2.2 to 3.0 s, in turns with PyTorch 2.13 and Hugging Face's ViT 1.46 and 1.82 of its time.
           Attention is the reason: 5 % of the operations and 40 % of the step. XLA on CPU multiplies the small matrices of 197
           x 64 at 12 to 33 GFLOP/s, where the dense layers reach 90, and forms scores, exponentials and sums in passes of their
           own (25 ms a layer); PyTorch has one fused kernel (30 ms a layer, forward and back, where XLA at best takes 38).
           Products in the order of their axes (transformer/attention/kernels/attend.py) have made a layer 10 % faster. Padding
           the rows to 208 or 256, one product a head, and a loop over heads were slower. On that Xeon, which has AMX,
           --config.dtype=mixed takes 458 to 461 ms, in turns with 745 to 753 in float32. On one core of such a Xeon, beside
           a training on the other, 1,165 and 1,233 ms, in turns with the model of keras-hub 0.32 (Keras 3.15 on the same jax,
           the same batch and optimizer, train_on_batch), which takes 4,162 and 4,313.
"""

from configs import base

VARIANTS = 'imagenet', 'step'


def get_config(variant=''):
    step = base.variant_of(variant, VARIANTS) == 'step'
    c = base.config()
    if step:
        c.data = base.data('data.images.labelled:Images', source='digits', size=224, channels=3, batch_size=16)
    else:
        c.dtype = 'bfloat16'
        c.data = base.data('data.images.labelled:Images', source='tfds', name='imagenet2012', train='train', valid='validation',
                           test='', fit='RandomCrop()', steps='Flip() >> RandAugment(magnitude=10) >> Normalize()', size=224,
                           channels=3, batch_size=1024)
    c.model = base.part('vit.models.vit:Vit', patch=16, layers=12, heads=3, width=192, norm='LayerNorm(epsilon=1e-6)')
    c.task = base.part('vit.tasks.classification:Classification', augment='Unmixed()' if step else 'Mixup(alpha=0.2)')
    c.optimizer = base.optimizer(learning_rate=1e-3, weight_decay=0.1, schedule=base.part(
        'training.schedules:CosineDecay', warmup_steps=10_000))
    c.train.steps = 375_000  # 300 epochs
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=5000)
    return c.lock()
