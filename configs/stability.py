"""What keeps a deep GPT stable: the place of the norm, the initialisation, warm-up of the learning rate.

    python sweep.py --config=configs/stability.py [--workdir=runs/stability] [--config.part.field=value ...]

trains ten points on bytes of Python's standard library, each 12 layers of width 64 for 300 steps of 16 x 64 bytes, and draws
WORKDIR/plots/stability.png: the loss, and the norm of the gradient by layer at the first step and at the end. One alone:

    python train.py --config=configs/stability.py:post --config.optimizer.schedule.warmup_steps=0

:pre, :post  pre-norm, initialised like GPT-2; post-norm, initialised by Xavier; 100 steps of warm-up.
:rezero      branches times a learnt number from 0, Xavier, no warm-up.
:tfixup      no norm, T-Fixup, no warm-up.

Held-out loss in nats a byte, one seed, AdamW without decay or clipping, a rate of 1e-3 that falls linearly to 0; the
frequencies of the bytes alone give 3.147:

    warm-up                no       yes
    pre-norm, scaled       2.369    2.356
    pre-norm, Xavier       2.512    2.547
    post-norm, scaled      2.343    2.367
    post-norm, Xavier      3.140    2.785
    ReZero, Xavier         2.813
    no norm, T-Fixup       2.724

Without warm-up, post-norm with Xavier's initialisation learns no more than the frequencies: its gradient ends 500 times smaller
in the first block than in the last. With warm-up it learns, but not at a rate of 2e-3 (3.134). Pre-norm needs no warm-up (Xiong
et al. 2020), and ReZero and T-Fixup learn without norm and warm-up, though slower than pre-norm in so few steps. Contrary to
the papers, post-norm with small initial branches (scaled) needs no warm-up and is as good as pre-norm. No update was skipped.
7.5 minutes of processor time, compilation included (Xeon, Python 3.11, jax 0.10.2, float32).
"""

import math

from configs import base
from display import figures
from training.report import report
from training.report.sweeps import Sweep

# variant: (residual, the initialisation of its paper)
VARIANTS = {'pre': ('PreNorm()', 'scaled'), 'post': ('PostNorm()', 'xavier'), 'rezero': ('ReZero()', 'xavier'),
            'tfixup': ('NoNorm()', 'tfixup')}
# GPT-2's 0.02 is for its width of 768: the same 0.55 / sqrt(width) here.
INITIALS = {'scaled': 'Scaled(scale=0.07)', 'xavier': 'Xavier()', 'tfixup': 'TFixup()'}
# (variant, initialisation, whether it warms up)
GRID = (*((variant, initial, warm) for variant in ('pre', 'post') for initial in ('scaled', 'xavier')
          for warm in (True, False)), ('rezero', 'xavier', False), ('tfixup', 'tfixup', False))
# of the picture
LINES = {'pre': ('pre-norm', figures.COLOURS[0]), 'post': ('post-norm', figures.COLOURS[1]),
         'rezero': ('ReZero', figures.COLOURS[2]), 'tfixup': ('no norm', figures.COLOURS[3])}
STYLES = {'scaled': ('scaled', '-', '--'), 'xavier': ('Xavier', '-.', ':'), 'tfixup': ('T-Fixup', '-', '--')}  # warm, cold


def get_config(variant=''):
    variant = base.variant_of(variant, tuple(VARIANTS))
    residual, initial = VARIANTS[variant]
    c = base.config()
    c.data = base.data('data.text.documents:Text', source='auto', tokenizer='Byte()', valid='train[90%:91%]', length=64,
                       batch_size=16)
    c.model = base.part('transformer.models.gpt:Gpt', layers=12, heads=4, width=64, length=64, residual=residual,
                        **base.NO_BIASES, initial=INITIALS[initial])
    c.task = base.part('transformer.tasks.language_model:NextToken')
    c.optimizer = base.optimizer(learning_rate=1e-3, clip=0.0, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=100 if variant in ('pre', 'post') else 0))
    c.train.steps = 300
    c.train.nonfinite = 'skip'  # a run that diverges is a result
    c.log.every_steps, c.log.gradients = 1, True
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid')
    return c.lock()


def sweep(variant=''):
    if variant:
        raise ValueError(f'The sweep has all variants; leave out :{variant}, or train it alone with train.py.')
    points = {}
    for kind, initial, warm in GRID:
        points[f'{kind}-{initial}-{"warm" if warm else "cold"}'] = {
            'model.residual': VARIANTS[kind][0], 'model.initial': INITIALS[initial],
            **({} if warm else {'optimizer.schedule.warmup_steps': 0})}
    return Sweep(points, measure, picture)


def measure(folder):
    """The last loss on held-out text, in nats a byte, and the number of skipped updates."""
    return {'': {'held out': report.rows(folder, 'valid')[-1]['loss'],
                 'skipped': report.rows(folder, 'train')[-1]['skipped']}}


def picture(folders, table):
    """The loss over the steps, and the gradient norm by layer at the first step and over the last tenth of the steps; the mean
    of several seeds."""
    import numpy as np

    figure, body = figures.new(13, 6, dpi=120)
    losses, first, last = body.subplots(1, 3, width_ratios=(1.6, 1, 1))
    last.sharey(first)
    first.set_yscale('log')
    for name, runs in folders.items():
        kind, initial, warmth = name.split('-')
        rows = [report.rows(folder, 'train') for folder in runs]
        (label, colour), (begun, *styles) = LINES[kind], STYLES[initial]
        style = dict(color=colour, linestyle=styles[warmth == 'cold'], linewidth=1.6)
        values = lambda name, rows=rows: np.mean([[row[name] for row in run] for run in rows], 0)
        steps, skipped = len(rows[0]), table[name]['skipped'].mean
        lap, end = math.ceil(steps / 30), math.ceil(steps / 10)  # steps of a point of the curve, and of the end
        mean = lambda x, lap=lap: [x[i:i + lap].mean() for i in range(0, len(x), lap)]
        outcome = f'{table[name]["held out"]} nats a byte' + (f', {skipped:g} updates skipped' if skipped else '')
        label = f'{label}, {begun}, {"warm-up" if warmth == "warm" else "no warm-up"}: {outcome}'
        losses.plot(mean(values('step')), mean(values('loss')), label=label, **style)
        blocks = [name for name in rows[0][0] if name.startswith('grad_norm/block_')]
        blocks.sort(key=lambda name: int(name.rpartition('_')[2]))
        norms = np.stack([values(name) for name in blocks], 1)  # [steps, blocks]
        if warmth == 'cold':  # at the first step the learning rate has changed nothing yet
            first.plot(norms[0], marker='o', markersize=3, **style)
        last.plot(norms[-end:].mean(0), marker='o', markersize=3, **style)
    losses.set(title='training loss', xlabel='step', ylabel='nats a byte')
    first.set(title='gradient by layer, first step', xlabel='block', ylabel="norm of the gradient of the block's parameters")
    last.set(title=f'gradient by layer, last {end} steps', xlabel='block', ylabel='the same norm')
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
    body.legend(loc='outside lower center', ncols=2, frameon=False, title='held-out loss at the end', fontsize=11)
    return figures.explain(
        figure, 'Where the norm stands, the first weights and the warm-up: which runs train',
        f'Left, the training loss of each run as means of {lap} steps; middle and right, the norm of the gradient of each '
        'block at the first step and over the last tenth of the steps (logarithmic scale).')
