r"""What larger images, smaller patches and a class token cost a ViT, and what they bring: seconds of training and accuracy.

    python sweep.py --config=configs/vit_sizes.py --config.data.path=FOLDER [--workdir=runs/vit_sizes]

FOLDER holds Fashion-MNIST, train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz; the last 5,000 images are held out, and
all are resized from 28x28. The 16 points have the same 4 blocks of width 64 and 1,500 steps of 128 images, 3.5 epochs; they
differ in the side of the images (14, 28, 56), of the patches, and in whether the class token is read or the mean of patches.
A step is 0.7 GFLOP with 4 patches and 11 with 64: 97 TFLOP in all.

Seconds of training steps and accuracy on the held-out images, each once, on a core of an EPYC (family 25 model 1) beside other
work (Python 3.11, jax 0.10.2, float32):

                        class token                mean
    image  patch    seconds  accuracy    seconds  accuracy
       14      2      497.4    0.8640      482.8    0.8662
       14      7      41.98    0.8692      37.90    0.8678
       28      4      502.6    0.8686      503.1    0.8666
       28      7      123.9    0.8676      124.2    0.8678
       28     14      49.18    0.8772      41.92    0.8712
       56      7      741.5    0.8754      797.1    0.8658
       56     14      121.6    0.8702      116.6    0.8622
       56     28      46.62    0.8662      41.57    0.8758

The standard error of an accuracy is 0.005, and 16 equal ones would lie as far apart, 3.2 of it. So after 3.5 epochs nothing is
better than another: 4 patches, which cost a twelfth of 49 to 64, know as much of an image, a class token as much as the mean.

On scikit-learn's digits, of 8x8 pixels, in minutes:

    python sweep.py --config=configs/vit_sizes.py:digits

One point alone, such as images of 28 in patches of 7 with a class token:

    python train.py --config=configs/vit_sizes.py --config.data.path=FOLDER --config.data.size=28 --config.model.patch=7 \
        --config.model.pool=cls
"""

from configs import base
from display import figures
from training import workdir
from training.report import report
from training.report.sweeps import Sweep, costs

# {variant: {side of an image: sides of its patches}}
SIZES = {'fashion_mnist': {14: (2, 7), 28: (4, 7, 14), 56: (7, 14, 28)}, 'digits': {8: (2, 4), 16: (2, 4, 8)}}
POOLS = {'cls': 'class token', 'mean': 'mean of the patches'}


def get_config(variant=''):
    digits = base.variant_of(variant, list(SIZES)) == 'digits'
    c = base.config()
    if digits:
        c.data = base.data('data.images.labelled:Images', source='digits', size=8, steps='Crop(padding=1)', batch_size=64)
    else:
        c.data = base.data('data.images.labelled:Images', source='idx', path='fashion_mnist', size=28, train='train[:55000]',
                           valid='train[55000:]', steps='Flip()', batch_size=128)
    c.model = base.part('vit.models.vit:Vit', patch=4, layers=4, heads=4, width=64, pool='mean',
                        positions='Learned(scale=0.2)')
    c.task = base.part('vit.tasks.classification:Classification')
    c.optimizer = base.optimizer(learning_rate=2e-3, weight_decay=0.05, schedule=base.part(
        'training.schedules:CosineDecay', warmup_steps=100))
    c.train.steps = 500 if digits else 1500
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid')
    return c.lock()


def sweep(variant=''):
    sizes = SIZES[base.variant_of(variant, list(SIZES))]
    return Sweep({f'{size}-{patch}-{pool}': {'data.size': size, 'model.patch': patch, 'model.pool': pool}
                  for size, patches in sizes.items() for patch in patches for pool in POOLS}, measure, picture,
                 title='image-patch-pool')


def measure(folder):
    """{'': {'patches', 'TFLOP' and 'seconds' of training, 'valid accuracy'}} of a run."""
    config = workdir.load_config(folder)
    return {'': {'patches': (config.data.size // config.model.patch) ** 2} | costs(folder) | {
        'valid accuracy': report.rows(folder, 'valid')[-1]['accuracy']}}


def picture(folders, table):
    """The accuracy against the seconds of training, a line for each size of images, a panel for each way of pooling."""
    figure, body = figures.new(9, 4.6, dpi=120)
    panels = dict(zip(POOLS, body.subplots(1, 2, sharex=True, sharey=True)))
    points = {}
    for name in folders:
        size, patch, pool = name.split('-')
        points.setdefault((int(size), pool), []).append((int(patch), table[name]))
    sizes = sorted({size for size, _ in points})
    for (size, pool), line in points.items():
        seconds, accuracy = ([row[column].mean for _, row in line] for column in ('seconds', 'valid accuracy'))
        place, axes = sizes.index(size), panels[pool]
        axes.plot(seconds, [100 * one for one in accuracy], color=figures.COLOURS[place], marker='o', markersize=5,
                  label=f'{size} x {size}')
        for (patch, _), x, y in zip(line, seconds, accuracy):  # the labels of each size on a side of their own
            axes.annotate(f'{patch}', (x, 100 * y), textcoords='offset points', xytext=((0, 7), (9, -4), (0, -13))[place % 3],
                          fontsize=8.5, ha='center', color=figures.COLOURS[place])
    for pool, axes in panels.items():
        axes.set(title=POOLS[pool], xlabel='seconds of training (logarithmic scale)')
        figures.logarithmic(axes.xaxis)
        axes.margins(0.1, 0.12)
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
    first, last = panels.values()
    first.set_ylabel('held-out images that are classified right, %')
    last.legend(frameon=False, fontsize=8.5, title='images of', loc='lower right')
    return figures.explain(figure, 'Image size, patch size and class token: what accuracy costs',
                           'Each point is a ViT with the same blocks after as many steps, which reads its class token '
                           '(left) or averages its patches (right); its number is the side of the patches in pixels.')
