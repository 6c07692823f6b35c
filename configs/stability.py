"""What keeps a deep GPT stable: where the norm stands, how its matrices begin, whether the learning rate warms up.

    python -m configs.stability [--workdir=runs/stability] [--config.part.field=value ...]

trains ten points on bytes of Python's standard library, each 12 layers of width 64 for 300 steps of 16 x 64 bytes, and draws
WORKDIR/plots/stability.png: the loss, and the norm of the gradient by layer at the first step and at the end. Points that are
finished are not trained again. A flag holds for all of them; one alone:

    python train.py --config=configs/stability.py:post --config.optimizer.schedule.warmup_steps=0

:pre, :post  pre-norm, begun as GPT-2; post-norm, begun as Xavier; 100 steps of warm-up.
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

Post-norm begun as Xavier learns the frequencies and no more without warm-up: its gradient ends 500 times smaller in the first
block than in the last. With warm-up it learns; at a rate of 2e-3 it does not even then (3.134). Pre-norm needs no warm-up
(Xiong et al. 2020), and ReZero and T-Fixup learn without norm and warm-up, though slower than pre-norm in so few steps. Not
as the papers tell it: begun with small branches (scaled), post-norm needs no warm-up and is as good as pre-norm. No update
was skipped anywhere. 7.5 minutes of processor time, compilation included (Xeon, Python 3.11, jax 0.10.2, float32).
"""

import contextlib
import math

from absl import flags

from configs import base
from training import cli

if __name__ == '__main__':
    flags.DEFINE_string('workdir', 'runs/stability', 'folder of the runs and of plots/stability.png')
    cli.answer_help(config='configs/stability.py')  # at once, before jax is imported

# variant: (residual, the initialisation of its paper)
VARIANTS = {'pre': ('PreNorm()', 'scaled'), 'post': ('PostNorm()', 'xavier'), 'rezero': ('ReZero()', 'xavier'),
            'tfixup': ('NoNorm()', 'tfixup')}
# GPT-2's 0.02 is for its width of 768: the same 0.55 / sqrt(width) here.
INITIALS = {'scaled': 'Scaled(scale=0.07)', 'xavier': 'Xavier()', 'tfixup': 'TFixup()'}
# (variant, initialisation, whether it warms up)
GRID = (*((variant, initial, warm) for variant in ('pre', 'post') for initial in ('scaled', 'xavier')
          for warm in (True, False)), ('rezero', 'xavier', False), ('tfixup', 'tfixup', False))
# of the picture
LINES = {'pre': ('pre-norm', 'tab:blue'), 'post': ('post-norm', 'tab:red'), 'rezero': ('ReZero', 'tab:green'),
         'tfixup': ('no norm', 'tab:purple')}
STYLES = {'scaled': ('scaled', '-', '--'), 'xavier': ('Xavier', '-.', ':'), 'tfixup': ('T-Fixup', '-', '--')}  # warm, cold


def get_config(variant=''):
    variant = base.variant_of(variant, tuple(VARIANTS))
    residual, initial = VARIANTS[variant]
    c = base.config()
    c.data = base.data('data.text:Text', source='stdlib', tokenizer='Byte()', valid='train[90%:91%]', length=64,
                       batch_size=16)
    c.model = base.part('transformer.gpt:Gpt', layers=12, heads=4, width=64, length=64, bias=False, residual=residual,
                        initial=INITIALS[initial])
    c.task = base.part('transformer.tasks:NextToken')
    c.optimizer = base.optimizer(learning_rate=1e-3, clip=0.0, schedule=base.part(
        'training.schedules:Linear', warmup_steps=100 if variant in ('pre', 'post') else 0))
    c.train.steps = 300
    c.train.nonfinite = 'skip'  # a run that diverges is a result
    c.log.every_steps, c.log.gradients = 1, True
    c.evals.valid = base.evaluation('transformer.evaluators:Perplexity', split='valid')
    return c.lock()


def main(config, name):
    from training import workdir  # jax is slow to import

    return train_grid(config, workdir.local(flags.FLAGS.workdir))


def train_grid(config, folder):
    """Trains every point of the grid that is not finished yet, with what it prints in POINT.log, and draws the picture;
    returns the exit code of the process."""
    import train

    folder.mkdir(parents=True, exist_ok=True)
    for point, own in points(config):
        with open(folder / f'{point}.log', 'a') as log, contextlib.redirect_stdout(log):
            code = train.train(own, folder / point)
        if code:  # stopped by a signal
            return code
        print(f'{point}: {outcome(folder / point)}', flush=True)
    print(picture(folder))
    return 0


def points(config):
    """(name, config) of every point of the grid; the warm-up is that of `config`."""
    for variant, initial, warm in GRID:
        own = config.copy_and_resolve_references()
        with own.unlocked():
            own.model.residual, own.model.initial = VARIANTS[variant][0], INITIALS[initial]
            own.optimizer.schedule.warmup_steps *= warm
        yield point_of(variant, initial, warm), own


def point_of(variant, initial, warm):
    return f'{variant}-{initial}-{"warm" if warm else "cold"}'


def outcome(folder):
    """The last loss on held-out text, and how many updates were skipped."""
    from training import report

    skipped = report.rows(folder, 'train')[-1]['skipped']
    loss = report.rows(folder, 'valid')[-1]['loss']
    return f'{loss:.3f} nats a byte' + (f', {skipped} updates skipped' if skipped else '')


def picture(folder):
    """Draws plots/stability.png: the loss over the steps, and the norm of the gradient by layer at the first step and over
    the last tenth of them; returns its path."""
    import numpy as np
    from matplotlib.figure import Figure

    from training import report

    figure = Figure(figsize=(13, 6), dpi=120, layout='constrained')
    losses, first, last = figure.subplots(1, 3, width_ratios=(1.6, 1, 1))
    last.sharey(first)
    first.set_yscale('log')
    for variant, initial, warm in GRID:
        point = point_of(variant, initial, warm)
        rows = report.rows(folder / point, 'train')
        (label, colour), (begun, *styles) = LINES[variant], STYLES[initial]
        style = dict(color=colour, linestyle=styles[not warm], linewidth=1.6)
        values = lambda name, rows=rows: np.array([row[name] for row in rows])
        lap, end = math.ceil(len(rows) / 30), math.ceil(len(rows) / 10)  # steps of a point of the curve, and of the end
        mean = lambda x, lap=lap: [x[i:i + lap].mean() for i in range(0, len(x), lap)]
        label = f'{label}, {begun}, {"warm-up" if warm else "no warm-up"}: {outcome(folder / point)}'
        losses.plot(mean(values('step')), mean(values('loss')), label=label, **style)
        blocks = [name for name in rows[0] if name.startswith('grad_norm/block_')]
        blocks.sort(key=lambda name: int(name.rpartition('_')[2]))
        norms = np.stack([values(name) for name in blocks], 1)  # [steps, blocks]
        if not warm:  # at the first step the learning rate has changed nothing yet
            first.plot(norms[0], marker='o', markersize=3, **style)
        last.plot(norms[-end:].mean(0), marker='o', markersize=3, **style)
    losses.set(title='training loss', xlabel='step', ylabel='nats a byte')
    first.set(title='gradient by layer, first step', xlabel='block', ylabel="norm of the gradient of the block's parameters")
    last.set(title=f'gradient by layer, last {end} steps', xlabel='block')
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
    figure.legend(loc='outside lower center', ncols=3, frameon=False, title='held-out loss at the end', fontsize=9)
    path = folder / 'plots' / 'stability.png'
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path)
    return path


if __name__ == '__main__':
    cli.run(main, config='configs/stability.py')
