"""What a ViT that has learnt 34 types of products knows of 8 others, of which it sees 20 photographs each.

    python sweep.py --config=configs/vit_products.py --config.data.path=products.zip --workdir=runs/vit_products

`products.zip` is a folder or an archive of colour photographs with a table, of Fashion Product Images (Small) (Aggarwal 2019,
kaggle.com/datasets/paramaggarwal/fashion-product-images-small): images/ID.jpg of 60x80 pixels, and captions.tsv with the
columns `id` and `attributes`, whose third part is the type: Apparel - Topwear - Shirts - Blue - Casual. For the styles.csv of
Kaggle: --config.data.features=id,articleType --config.data.pattern=

The sweep trains four points, prints how many of the held-out photographs of the 8 types each gets right, and draws it:

pretrained  the 34 most frequent types, at 64x48 (also train.py --config=configs/vit_products.py). 942,962 parameters; a step of
            64 photographs is 21 GFLOP, and 32 epochs of 12,189 are 124 TFLOP, 26 minutes at 80 GFLOP/s.
full        from it to the 8 next types, 20 photographs of each, at 80x64: positions are resized, everything is trained
            (configs/transfer.py). 17 GFLOP a step of 32, 400 steps.
probe       the same with the body frozen.
scratch     the same 160 photographs from random parameters, as `pretrained` is trained: with Muon and label smoothing. Its
            1,500 steps of 64 show it seven times as many images as full sees; 34 GFLOP a step, 51 TFLOP.

The goals: full is at least 15 points above scratch, and not below probe. Of 272 held-out photographs 90 % is known to 2 points
either way: --seeds=3 has the mean over networks, orders and what augmentation draws (each with a pretraining of its own), and
eval.py --against compares two runs photograph by photograph. Other 20 photographs are drawn with --config.data.draw.

Measured on held-out photographs, on a core of an EPYC (family 25 model 1) beside other work (Python 3.11, jax 0.10.2, float32):
`pretrained` gets 82.1 % of its 34 types right, `full` 87.9 % of the 8 others, `probe` 87.5 %, `scratch` 84.6 %: so
much augmentation and Muon teach a network from scratch nearly as much, and full is 3.3 points above it, not 15.
"""

from configs import base
from display import figures
from training.report import report
from training.report.sweeps import Point, Sweep

NEW = {'data.classes': '[34:42]', 'data.per_class': 20, 'data.train': 'train[:50%]', 'data.valid': 'train[50%:]',
       'data.size': 80, 'data.width': 64}
LABELS = {'full': 'all of it trained', 'probe': 'its head alone trained', 'scratch': 'from scratch'}


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.images.labelled:Images', source='folder', path='products.zip', features='id,attributes',
                       pattern='^(?:.*? - ){2}(.*?) - ', classes='[:34]', train='train[:90%]', valid='train[90%:]', size=64,
                       width=48, channels=3, batch_size=64,
                       steps='ResizedCrop(scale=(0.6, 1.0)) >> Flip() >> Jitter() >> Normalize()')
    c.model = base.part('vit.models.vit:Vit', patch=8, layers=6, heads=4, width=112, pool='mean',
                        positions='Learned(scale=0.2)', dropout=0.1)
    c.task = base.part('vit.tasks.classification:Classification', label_smoothing=0.1)
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, weight_decay=0.05, average_decay=0.998,
                                 schedule=base.part('training.schedules:CosineDecay', warmup_steps=200))
    c.train.steps = 6000
    c.log.every_steps = 50
    c.checkpoint.every_steps = 500
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    c.evals.mistakes = base.evaluation('vit.evaluators.mistakes:Mistakes', split='valid')
    return c.lock()


def sweep(variant=''):
    base.variant_of(variant, [''])
    points = {how: Point(f'configs/transfer.py:{how},{{pretrained}}', NEW) for how in ('full', 'probe')}
    scratch = NEW | {'train.steps': 1500}
    return Sweep({'pretrained': {}} | points | {'scratch': scratch}, measure, picture, title='photographs of products')


def measure(folder):
    """{'': {'valid accuracy', 'valid loss'}} of a run: for the point `pretrained` on its own 34 types."""
    last = report.rows(folder, 'valid')[-1]
    return {'': {f'valid {name}': last[name] for name in ('accuracy', 'loss')}}


def picture(folders, table):
    """The accuracy of each way on the held-out photographs of the new types."""
    return bars({label: table[name]['valid accuracy'] for name, label in LABELS.items() if name in folders},
                'held-out photographs that are classified right, %', 'training',
                'What a ViT that knows other products makes of 20 labels for each of 8 types',
                'A ViT that was trained on 34 types of products learns 8 others from 20 photographs of each, at a larger size; '
                'and the same ViT without that training.')


def bars(found, across, down, title, caption):
    """A figure of accuracies as bars, {label: Estimate}, in per cent, with the names of its axes."""
    figure, body = figures.new(6.4, 0.9 + 0.55 * len(found), dpi=120)
    axes = body.subplots()
    spread = [100 * one.deviation if one.count > 1 else 0.0 for one in found.values()]
    axes.barh(range(len(found)), [100 * one.mean for one in found.values()], xerr=spread,
              color=[figures.COLOURS[i % len(figures.COLOURS)] for i in range(len(found))])
    for place, (one, beside) in enumerate(zip(found.values(), spread)):
        axes.text(100 * one.mean + beside + 1.5, place, f'{100 * one.mean:.1f}', va='center', fontsize=9)
    axes.set(yticks=range(len(found)), yticklabels=[*found], xlim=(0, 108), xticks=range(0, 101, 20),
             xlabel=across, ylabel=down)
    axes.invert_yaxis()
    axes.spines[['top', 'right']].set_visible(False)
    return figures.explain(figure, title, caption + ' Lines are standard deviations over seeds.' * any(spread))
