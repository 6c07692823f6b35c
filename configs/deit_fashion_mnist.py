"""DeiT: the small ViT of configs/vit_fashion_mnist.py with a distillation token that learns from another run, the variant.

Touvron et al. 2021, Training data-efficient image transformers & distillation through attention.

    python train.py --config=configs/deit_fashion_mnist.py:runs/TEACHER --workdir=runs/deit

The teacher is a run of any model on labelled images, such as a convolutional network; its data, with their augmentation, are
those of the student. The student learns the teacher's predictions; its probabilities instead, as in the paper's table 3:

    --config.task.targets='Soft(temperature=3.0)' --config.task.share=0.1

A ResNet, its two students, and the same ViT without a teacher, with one table:

    python sweep.py --config=configs/vision_comparison.py:DATA,deit --workdir=runs/vision --processes=2

On Fashion-MNIST it gets 92.5 % of the held-out images right after 18.6 epochs, learning the predictions of a ResNet-20 with
94.7 %; the aim was 93.2, and one point more than without a teacher, which gives 92.4 % (`vit_cls` of that sweep). 71 minutes on
two cores of an EPYC (family 25 model 17), beside other work.
922,228 parameters; a step of 128 images is 41 GFLOP and the forward pass of the teacher.
"""

from configs import base, vit_fashion_mnist
from training import workdir


def get_config(variant=''):
    if not variant:
        raise ValueError('configs/deit_fashion_mnist.py distils a run on images; name its workdir, '
                         '--config=configs/deit_fashion_mnist.py:WORKDIR (such as a run of configs/vit_fashion_mnist.py).')
    teacher = workdir.of_variant(variant)
    if teacher.data.pipeline != 'data.images.labelled:Images':
        raise ValueError(f'{variant} is a run on {teacher.data.pipeline}; configs/deit_fashion_mnist.py distils runs on '
                         'data.images.labelled:Images.')
    c = vit_fashion_mnist.get_config('small')
    with c.unlocked(), teacher.unlocked():
        teacher.data.batch_size = c.data.batch_size
        c.companions.teacher, c.data = variant, teacher.data
        c.model.pool, c.model.distillation = 'cls', 'logits'
        c.task = base.part('vit.tasks.distillation:Distillation', label_smoothing=c.task.label_smoothing)
    return c.lock()
