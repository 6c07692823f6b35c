"""What keeps a deep GPT stable: the place of the norm, the initialisation, warm-up of the learning rate.

    python sweep.py --config=configs/stability.py [--workdir=runs/stability] [--config.part.field=value ...]

trains twelve points on bytes of Python's standard library, each 12 layers of width 64 for 300 steps of 16 x 64 bytes, and
draws WORKDIR/plots/stability.png: the loss, and the norm of the gradient by layer at the first step and at the end. One alone:

    python train.py --config=configs/stability.py:post --config.optimizer.schedule.warmup_steps=0

:pre, :post  pre-norm, initialised like GPT-2; post-norm, initialised by Xavier; 100 steps of warm-up.
:rezero      branches times a learnt number from 0, Xavier, no warm-up.
:tfixup      no norm, T-Fixup, no warm-up.
:dtfixup     no norm, DT-Fixup, no warm-up.
:admin       post-norm whose stream has a weight that grows with the layer, Xavier, no warm-up.

Further sweeps of the same runs, of which the picture shows the loss, the size of the updates and that of gradients:

    python sweep.py --config=configs/stability.py:queries     the gradients of queries and keys, and of values, where the norm
                                                              and the first weights differ
    python sweep.py --config=configs/stability.py:optimizers  the size of the updates of AdamW and of SGD with momentum
    python sweep.py --config=configs/stability.py:heads       1 to 16 heads of pre-norm
    python sweep.py --config=configs/stability.py:norms       layer norm and batch norm, before and after the branches

Held-out loss in nats a byte, one seed, AdamW without decay or clipping, a rate of 1e-3 that falls linearly to 0; the
frequencies of the bytes alone give 3.147:

    warm-up                no       yes
    pre-norm, scaled       2.369    2.356
    pre-norm, Xavier       2.512    2.547
    post-norm, scaled      2.343    2.367
    post-norm, Xavier      3.140    2.785
    Admin, Xavier          2.380
    ReZero, Xavier         2.813
    no norm, T-Fixup       2.724
    no norm, DT-Fixup      2.619

Without warm-up, post-norm with Xavier's initialisation learns no more than the frequencies: its gradient ends 500 times smaller
in the first block than in the last. With warm-up it learns, but not at a rate of 2e-3 (3.134), and with Admin's weights of the
stream it needs none. Pre-norm needs no warm-up (Xiong et al. 2020), and ReZero, T-Fixup and DT-Fixup learn without norm and
warm-up, though slower than pre-norm in so few steps. Contrary to the papers, post-norm with small initial branches (scaled)
needs no warm-up and is as good as pre-norm. No update was skipped.

The further sweeps, with warm-up, and the norms of the gradients of all queries, keys and values at the end:

                             loss   queries    keys   values
    pre-norm, scaled        2.356    0.078     0.104   0.156
      batch norm instead    2.638    0.222     0.260   0.474
      SGD instead           2.299    0.094     0.106   0.243
    pre-norm, Xavier        2.547    0.186     0.170   0.314
    post-norm, scaled       2.367    0.035     0.071   0.071
      batch norm instead    2.682    0.264     0.315   0.493
    post-norm, Xavier       2.785    0.122     0.131   0.471
      SGD instead           3.131    0.0013    0.0012  0.064

Queries and keys have 0.3 to 1 times the gradient of values where a network learns. Where it does not, post-norm with Xavier's
initialisation under SGD, they have a fiftieth, as tokens that are nearly alike give nothing to choose from; the updates of
AdamW do not shrink with them, and it learns. From pre-norm, SGD, with momentum and
clipped at 1, learns more than AdamW at these rates, 0.1 and 1e-3. Batch
norm is worse than layer norm in either place. The number of heads, 1 to 16, changes next to nothing: 2.341, 2.348, 2.356,
2.357, 2.357.
A run takes 40 seconds of a core of a Xeon, compilation included, and 50 to 110 seconds of one of an EPYC beside other work
(Python 3.11, jax 0.10.2, float32).
"""

import itertools
import math

from configs import base
from display import figures
from training.report import report
from training.report.sweeps import Sweep

# variant: (residual, the initialisation of its paper)
VARIANTS = {'pre': ('PreNorm()', 'scaled'), 'post': ('PostNorm()', 'xavier'), 'rezero': ('ReZero()', 'xavier'),
            'tfixup': ('NoNorm()', 'tfixup'), 'dtfixup': ('NoNorm()', 'dtfixup'), 'admin': ('Admin(variance=0.3)', 'xavier')}
# GPT-2's 0.02 is for its width of 768: the same 0.55 / sqrt(width) here.
INITIALS = {'scaled': 'Scaled(scale=0.07)', 'xavier': 'Xavier()', 'tfixup': 'TFixup()', 'dtfixup': 'DTFixup(largest=1.5)'}
# (variant, initialisation, whether it warms up)
GRID = (*((variant, initial, warm) for variant in ('pre', 'post') for initial in ('scaled', 'xavier')
          for warm in (True, False)), ('rezero', 'xavier', False), ('tfixup', 'tfixup', False),
        ('dtfixup', 'dtfixup', False), ('admin', 'xavier', False))
SWEEPS = 'queries', 'optimizers', 'heads', 'norms'  # the further ones
NORMS = {'layer': 'LayerNorm(bias=False)', 'batch': 'OverBatch()'}
HEADS = 1, 2, 4, 8, 16
# of the picture
LINES = {'pre': ('pre-norm', figures.COLOURS[0]), 'post': ('post-norm', figures.COLOURS[1]),
         'rezero': ('ReZero', figures.COLOURS[2]), 'tfixup': ('no norm', figures.COLOURS[3]),
         'dtfixup': ('no norm', figures.COLOURS[4]), 'admin': ('Admin', figures.COLOURS[5])}
STYLES = {'scaled': ('scaled', '-', '--'), 'xavier': ('Xavier', '-.', ':'), 'tfixup': ('T-Fixup', '-', '--'),
          'dtfixup': ('DT-Fixup', '-', '--')}  # warm, cold


def get_config(variant=''):
    variant = base.variant_of(variant, (*VARIANTS, *SWEEPS))
    residual, initial = VARIANTS['pre' if variant in SWEEPS else variant]
    c = base.config()
    c.data = base.data('data.text.documents:Text', source='auto', tokenizer='Byte()', valid='train[90%:91%]', length=64,
                       batch_size=16)
    c.model = base.part('transformer.models.gpt:Gpt', layers=12, heads=4, width=64, length=64, residual=residual,
                        **base.NO_BIASES, initial=INITIALS[initial])
    c.task = base.part('transformer.tasks.language_model:NextToken')
    c.optimizer = base.optimizer(learning_rate=1e-3, clip=0.0, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=100 if variant in ('pre', 'post', *SWEEPS) else 0))
    c.train.steps = 300
    c.train.nonfinite = 'skip'  # a run that diverges is a result
    c.log.every_steps, c.log.gradients = 1, True
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid')
    if variant in SWEEPS:
        c.evals.gradients = base.evaluation('transformer.evaluators.activations:Gradients', split='valid', every_steps=100)
    return c.lock()


def sweep(variant=''):
    if variant in SWEEPS:
        return Sweep(further(variant), measure_parts, picture_of_parts)
    if variant:
        raise ValueError(f'The sweep has all variants; leave out :{variant}, or train it alone with train.py; further sweeps '
                         f'are {", ".join(SWEEPS)}.')
    points = {}
    for kind, initial, warm in GRID:
        points[f'{kind}-{initial}-{"warm" if warm else "cold"}'] = {
            'model.residual': VARIANTS[kind][0], 'model.initial': INITIALS[initial],
            **({} if warm else {'optimizer.schedule.warmup_steps': 0})}
    return Sweep(points, measure, picture)


def measure(folder):
    """The last loss on held-out text, in nats a byte, and the number of skipped updates, 0 with train.nonfinite=stop."""
    return {'': {'held out': report.rows(folder, 'valid')[-1]['loss'],
                 'skipped': report.rows(folder, 'train')[-1].get('skipped', 0)}}


def further(variant):
    """{point: its fields} of one of `SWEEPS`."""
    if variant == 'heads':
        return {f'heads-{heads}': {'model.heads': heads} for heads in HEADS}
    kinds = {f'{kind}-{initial}': {'model.residual': VARIANTS[kind][0], 'model.initial': INITIALS[initial]}
             for kind, initial in itertools.product(('pre', 'post'), ('scaled', 'xavier'))}
    if variant == 'queries':
        return kinds
    if variant == 'norms':
        return {f'{norm}-{kind}': kinds[f'{kind}-scaled'] | {'model.norm': NORMS[norm]}
                for norm, kind in itertools.product(NORMS, ('pre', 'post'))}
    own = {'adamw': {}, 'sgd': {'optimizer': base.optimizer(
        'training.optimizer:SGD', momentum=0.9, learning_rate=0.1, clip=1.0, schedule=base.part(
            'training.schedules:LinearDecay', warmup_steps=100))}}
    return {f'{name}-{kind}': fields | kinds[kind] for name, fields in own.items() for kind in ('pre-scaled', 'post-xavier')}


PARTS = 'query', 'key', 'value'


def of_parts(folder):
    """{part: [evaluations, blocks]}, the norms of the gradients of queries, keys and values in each block."""
    import numpy as np

    rows = report.rows(folder, 'gradients')
    blocks = sum(name.endswith('/query') for name in rows[0])
    return {part: np.array([[row[f'block_{i}/attention/{part}'] for i in range(blocks)] for row in rows]) for part in PARTS}


def measure_parts(folder):
    """What `measure` gives, the norm of the last gradient of queries, of keys and of values, and the mean norms of updates and
    of gradients over the run."""
    rows = report.rows(folder, 'train')
    mean = lambda name: sum(row[name] for row in rows) / len(rows)
    return {'': measure(folder)[''] | {part: float((norms[-1] ** 2).sum() ** 0.5) for part, norms in of_parts(folder).items()}
            | {'update': mean('update_norm'), 'gradient': mean('grad_norm')}}


def picture_of_parts(folders, table):
    """The loss and the size of the updates over the steps, and the last gradients of queries, keys and values by block; the
    first of several seeds."""
    figure, body = figures.new(13, 4.6, dpi=120)
    losses, updates, gradients = body.subplots(1, 3)
    for number, (name, runs) in enumerate(folders.items()):
        rows, colour = report.rows(runs[0], 'train'), figures.COLOURS[number % len(figures.COLOURS)]
        column = lambda what, rows=rows: [row[what] for row in rows]
        losses.plot(column('step'), column('loss'), color=colour, linewidth=1.2,
                    label=f'{name}: {table[name]["held out"]} nats a byte')
        updates.plot(column('step'), [update / size for update, size in zip(column('update_norm'), column('param_norm'))],
                     color=colour, linewidth=1.2)
        for (part, norms), style in zip(of_parts(runs[0]).items(), (':', '--', '-')):
            gradients.plot(norms[-1], color=colour, linestyle=style, linewidth=1.2, label=part if number == 0 else None)
    losses.set(title='training loss', xlabel='step', ylabel='nats a byte')
    updates.set(title='size of the updates', xlabel='step', ylabel='norm of the update over that of the parameters',
                yscale='log')
    gradients.set(title='gradients at the end', xlabel='block', ylabel='norm', yscale='log')
    gradients.legend(frameon=False, fontsize=9)
    for axes in (losses, updates, gradients):
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
    body.legend(*losses.get_legend_handles_labels(), loc='outside lower center', ncols=3, frameon=False, fontsize=10)
    return figures.explain(
        figure, 'Updates, and gradients of queries, keys and values',
        'Where the tokens that an attention sees are nearly alike, queries and keys have much smaller gradients than values. '
        'Adam makes its updates as large for all of them, SGD in proportion to the gradient.')


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
