"""A ViT on early convolutions instead of patches (Xiao et al. 2021) on Fashion-MNIST.

Three convolutions of stride 2, 2 and 1 lead to 7x7 patches, with layer norm where the paper has batch norm.

Data and training are those of configs/swin_fashion_mnist.py, of which the last 5,000 training images are held out, for 20
epochs.

    python train.py --config=configs/hybrid_fashion_mnist.py --config.data.path=FOLDER

94.1 % of these, in 77 minutes of one core of a Xeon with AMX (family 6 model 167; Python 3.11, jax 0.10.2), beside other work,
with --config.dtype=mixed; the same ViT on patches gets 92.2 %. 953,146 parameters, 0.31 GFLOP an image in training; 20 epochs
with Muon are 345 TFLOP.
"""

from configs import base
from configs.vit_fashion_mnist import AUGMENTED, compared


def get_config(variant=''):
    base.variant_of(variant, [''])
    return compared(base.part(
        'vit.models.hierarchical:Hierarchical', stem='Convolutions(size=3, strides=(2, 2, 1))',
        positions='Learned(scale=0.2)', drop_path=0.1, stages=base.stages(
            layers=(8,), widths=(96,), heads=(6,), positions='NoPositions()', initial='Xavier()')),
        images=f'{AUGMENTED} >> Normalize()')
