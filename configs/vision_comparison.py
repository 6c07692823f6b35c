"""Every model of images on Fashion-MNIST, each with its own recipe: accuracy, parameters, operations and seconds of training.

    python sweep.py --config=configs/vision_comparison.py:DATA --workdir=runs/vision --processes=2

DATA is a folder with fashion_mnist, as in configs/vit_fashion_mnist.py. The last 5,000 training images are held out; where the
10,000 test images are in its folder too, the table has the accuracy on them, also of runs that were finished before. A part of
the sweep alone, in the same workdir, is --config=configs/vision_comparison.py:DATA,PART:

models    the ResNet of 20 layers and a wide one, the ViT, Swin, DaViT, and the ViT on convolutions: 2,990 TFLOP.
deit      the ViT with a class token, and with a distillation token, taught by that ResNet, by its predictions (`deit_hard`) and
          by its probabilities (`deit_soft`): 1,270 TFLOP with the teacher.
mae       the masked autoencoder and its linear probe, that of a random encoder (`mae_random`), the encoder fine-tuned with all
          labels (`mae_tuned`) and with 1,000 (`mae_1000`); against these, with 1,000 labels, the random encoder fine-tuned in
          the same way (`random_1000`) and the ViT trained as from scratch (`vit_1000`): 1,090 TFLOP.
textbook  the ViT and the ResNet-18 of Dive into Deep Learning (section 11.8.6), as there for 10 epochs of 96x96 pixels:
          1,710 TFLOP.

These are counts of a CPU, where convolutions multiply zeros around images too; the table below has those of the GPU.

The table has a row for each run, whose operations and seconds are without those of the run that it begins with. The seconds are
those of a run on its share of the cores, whose number is beside them: for those of both, --only=POINT first. The table of a
part takes the place of the one before; the command without a part, once all are finished, makes that of all. DIR/plots has a
picture of the models, and one of the masked autoencoder.

Finished so far, with --config.dtype=mixed: on one H100 that trained three to four other points at the same time (Python 3.12,
jax 0.11.2), and on one or two cores of an EPYC (family 25 model 17; Python 3.11, jax 0.10.2) or one of a Xeon with AMX (family
6 model 167), beside other work; accuracy on the held-out images, seconds as in the table:

                  valid accuracy    parameters    TFLOP    seconds
    resnet                 0.947       272,186      191      4,350    core of an EPYC
    vit_cls                0.924       920,874      319      6,934    core of a Xeon
    deit_hard              0.925       922,228      382      4,243    two cores of an EPYC
    swin                   0.937       699,700      571     18,716    core of another Xeon, below
    davit                  0.941       821,770      430     14,270    core of another Xeon, below
    hybrid                 0.941       953,146      345      4,601    core of a Xeon
    d2l_vit                0.867     6,457,866      788         23    H100
    d2l_resnet18           0.908    11,175,370      865         88    H100

With the mean of all patches instead of a class token (`vit`, configs/vit_fashion_mnist.py:small, in float32) it is 0.922,
with 920,650 parameters and 312 TFLOP.

The encoder of a masked autoencoder, with --config.dtype=mixed on one core of another Xeon with AMX (family 6 model 207; Python
3.11, jax 0.10.2) for each run, beside another: of 5,000 held-out images

    linear probe of a random encoder                    mae_random     0.816
    linear probe after 40 epochs without labels         mae            0.877    332 TFLOP, --config.train.steps=8600
    fine-tuned with all labels for 20 epochs            mae_tuned      0.925    321 TFLOP
    with 1,000 labels: the ViT from scratch             vit_1000       0.834     78 TFLOP
                       the random encoder fine-tuned    random_1000    0.797     75 TFLOP
                       the masked autoencoder's         mae_1000       0.865     75 TFLOP

The aims were a probe of 0.87 (reached), 0.930 with all labels (missed), and 5 points over scratch with 1,000, which are 3.1.
The first 817 steps of the autoencoder had the learning rates of its 60 epochs, the first 1,720 of the fine-tuning with all
labels those of 8, after which it was 0.915. The other points have not been run to their end.

Swin has had its 30 epochs, DaViT 21 (--config.train.steps=9030), both on that second Xeon, in parts with other train.steps, to
which the rates fell: Swin had those of 19 epochs until step 1,305, of 14 until 3,565, of 13 until 5,590 (0.926 there), of 25
until 7,000 and of 24 until 10,320 (0.934 there); DaViT those of 11 until 2,190, of 10 until 4,300 (0.933 there) and of 23
until 5,690. The aims were 0.938, which Swin misses, and 0.940, which DaViT reaches.

The teacher helps the ViT by 0.1 points, less than the 0.4 to which 5,000 images tell an accuracy: after 18.6 epochs the student
says of 93.8 % of the held-out images what its teacher says.

The textbook's ViT is faster and worse than its ResNet-18, as the book says of sets so small: convolutions know of neighbours
and shifts what attention has to learn. In its last 860 steps it gets 85.7 % of the training images right, the ResNet 96.6 %.
"""

import json
import pathlib

from configs import base, resnet_fashion_mnist, vit_fashion_mnist, vit_products
from display import figures
from training import mesh as meshes
from training import run as runs
from training import workdir
from training.config import schema
from training.report import report
from training.report.sweeps import Point, Sweep, costs

AUGMENTED = {'data.steps': vit_fashion_mnist.AUGMENTED}
# {point: (its name, its kind)} of the picture of the models
MODELS = {'resnet': ('ResNet-20', 'convolutions'), 'resnet_wide': ('ResNet-20, twice as wide', 'convolutions'),
          'vit': ('ViT, mean', 'attention'), 'vit_cls': ('ViT, class token', 'attention'),
          'deit_hard': ('DeiT, predictions', 'attention'), 'deit_soft': ('DeiT, probabilities', 'attention'),
          'swin': ('Swin', 'windows'), 'davit': ('DaViT', 'windows'), 'hybrid': ('ViT on convolutions', 'both'),
          'd2l_vit': ("textbook's ViT", 'attention'), 'd2l_resnet18': ("textbook's ResNet-18", 'convolutions')}
# {kind: what its points are}, in the order of the colours
KINDS = {'attention': 'blue attention between all patches', 'convolutions': 'orange convolutions',
         'windows': 'green attention in windows', 'both': 'pink attention after convolutions'}
MARKERS = 'oDsv^PX'
LABELS = {'mae_random': 'linear probe, random encoder', 'mae': 'linear probe, pretrained', 'vit': 'ViT from scratch',
          'mae_tuned': 'fine-tuned', 'vit_1000': 'ViT from scratch, 1,000 labels',
          'random_1000': 'random encoder fine-tuned, 1,000 labels', 'mae_1000': 'fine-tuned, 1,000 labels'}


def get_config(variant=''):
    """`resnet`, which train.py trains alone."""
    root, _ = parsed(variant)
    return schema.changed(resnet_fashion_mnist.get_config('small'), points_of(root)['models']['resnet'].fields)


def parsed(variant):
    """(DATA, {part: its points}) of DATA[,PART]."""
    root, _, part = variant.partition(',')
    parts = points_of(root)
    if not root or part not in ('', *parts):
        raise ValueError(f'configs/vision_comparison.py:DATA[,PART] takes a folder of data and one of {", ".join(parts)}; '
                         f'{variant!r} was given.')
    return root, {part: parts[part]} if part else parts


def sweep(variant=''):
    root, parts = parsed(variant)
    points = {name: point for part in parts.values() for name, point in part.items()}
    return Sweep(points, measure_tested if tested(root) else measure, picture, title='point')


def tested(root):
    """Whether the test images of Fashion-MNIST are there."""
    return any(pathlib.Path(root, 'fashion_mnist').glob('t10k-images*'))


def points_of(root):
    """{part: {name: `Point`}}."""
    splits = {'valid': 860} | ({'test': 0} if tested(root) else {})
    evals = {split: base.evaluation('transformer.evaluators.base:Averages', split=split, every_steps=every).to_dict()
             for split, every in splits.items()}
    evals['mistakes'] = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid').to_dict()
    own = {'evals': evals}

    def on(config, **fields):
        """A point on Fashion-MNIST."""
        return Point(f'configs/{config}', {'data.path': f'{root}/fashion_mnist'} | own | fields)

    def tuned(start, **fields):
        """The encoder of a point, fine-tuned; its head reads the mean as well, as nothing has asked for a class token."""
        return Point(f'configs/finetune_images.py:{{{start}}}', {'model.pool': 'both'} | own | fields)

    few = {'data.train': 'train[:1000]'}
    book = {'data.train': 'train[:55000]', 'data.valid': 'train[55000:]', 'train.steps': 4297}  # 10 epochs of them
    return {
        'models': {'resnet': on('resnet_fashion_mnist.py:small'), 'resnet_wide': on('resnet_fashion_mnist.py:wide'),
                   'vit': on('vit_fashion_mnist.py:small'), **{
                       name: on(f'{name}_fashion_mnist.py') for name in ('swin', 'davit', 'hybrid')}},
        'deit': {'resnet': on('resnet_fashion_mnist.py:small'),
                 'vit_cls': on('vit_fashion_mnist.py:small', **{'model.pool': 'cls'}),
                 'deit_hard': Point('configs/deit_fashion_mnist.py:{resnet}', AUGMENTED | own),
                 'deit_soft': Point('configs/deit_fashion_mnist.py:{resnet}', AUGMENTED | own | {
                     'task.targets': 'Soft(temperature=3.0)', 'task.share': 0.1})},
        'mae': {'mae': Point('configs/mae_fashion_mnist.py', {'data.path': f'{root}/fashion_mnist'}),
                'mae_random': Point('configs/mae_fashion_mnist.py', {'data.path': f'{root}/fashion_mnist', 'train.steps': 1}),
                'mae_tuned': tuned('mae'), **{
                    f'{name}_1000': tuned(start, **few, **{'train.steps': 1000})
                    for name, start in (('mae', 'mae'), ('random', 'mae_random'))},
                # The recipe of training from scratch, and as many images as mae_1000 sees in its larger batches.
                'vit_1000': on('vit_fashion_mnist.py:small', **few, **{'train.steps': 2000})},
        'textbook': {'d2l_vit': on('vit_fashion_mnist.py:d2l', **book),
                     'd2l_resnet18': on('resnet_fashion_mnist.py:d2l', **book)}}


def measure(folder, splits=('valid',)):
    """{'': the row of a run}: accuracies of splits and of a linear probe, None where it has none, and what the run costs,
    on so many cores."""
    def accuracy(split):
        rows = report.rows(folder, split)
        return rows[-1].get('accuracy') if rows else None

    run = runs.build(workdir.load_config(folder), meshes.make(1), folder, applied=True)
    return {'': {f'{split} accuracy': accuracy(split) for split in (*splits, 'probe')} | {
        'parameters': run.parameters()} | costs(folder) | {
            'cores': json.loads((folder / 'environment.json').read_text())['cores']}}


def measure_tested(folder):
    """`measure` with the test images."""
    return measure(folder, ('valid', 'test'))


def picture(folders, table):
    """{ending of its name: picture} of the parts whose points are there."""
    accuracy = lambda name: table[name]['probe accuracy' if name in ('mae', 'mae_random') else 'valid accuracy']
    drawn = {}
    if any(name in folders for name in MODELS):
        drawn[''] = of_models({name: table[name] for name in MODELS if name in folders})
    if 'mae' in folders:
        drawn['mae'] = vit_products.bars(
            {label: accuracy(name) for name, label in LABELS.items() if name in folders},
            'held-out images that are classified right, %', 'classifier',
            'What a masked autoencoder learns of images without their labels',
            'Linear classifiers on the frozen encoder, before and after it has learnt to fill in patches; and the encoder '
            'trained further with labels, against those that have seen these labels alone.')
    return drawn


def of_models(table):
    """A figure of the accuracy against operations and parameters."""
    figure, body = figures.new(9.0, 4.4, dpi=120)
    order = sorted(table, key=lambda name: -table[name]['valid accuracy'].mean)
    panels = body.subplots(1, 2, sharey=True)
    for axes, column, unit, title in zip(panels, ('TFLOP', 'parameters'), (1, 1e6), (
            'TFLOP of training', 'million parameters')):
        for name in order:
            label, kind = MODELS[name]
            place = [one for one in MODELS if MODELS[one][1] == kind].index(name)
            row = table[name]['valid accuracy']
            axes.errorbar(table[name][column].mean / unit, 100 * row.mean, yerr=100 * row.deviation if row.count > 1 else None,
                          color=figures.COLOURS[[*KINDS].index(kind)], marker=MARKERS[place], markersize=7, linestyle='',
                          label=f'{label}: {100 * row.mean:.1f} %')
        axes.set_xlabel(f'{title} (logarithmic)')
        figures.logarithmic(axes.xaxis)
        axes.grid(alpha=0.3)
        axes.margins(0.1, 0.1)
        axes.spines[['top', 'right']].set_visible(False)
    panels[0].set_ylabel('held-out images that are classified right, %')
    body.legend(*panels[0].get_legend_handles_labels(), loc='outside right center', frameon=False, fontsize=8.5)
    there = {MODELS[name][1] for name in order}
    return figures.explain(figure, 'Models of images on Fashion-MNIST: what accuracy costs',
                           'Each point is a model with its own recipe, from the best to the worst in the legend; '
                           + ', '.join(said for kind, said in KINDS.items() if kind in there) + '.')
