"""The critical batch size: steps and bytes that a small GPT takes to one held-out loss, at batches of 1 to 64 kB.

    python sweep.py --config=configs/critical_batch.py --workdir=runs/critical_batch --processes=2

Two layers of width 64 read Python's standard library, or --config.data.path=FILE of 12 MB or more, in rows of 128 bytes, 8 to
512 of them a step, at a constant rate after a warm-up of 10 steps. Each batch is trained at the RATES times (rows / 8)^(1/4);
the rate that reaches 1.9 nats a byte on held-out text in the fewest steps counts. Steps are interpolated between evaluations,
the loss linearly in log steps; a batch that does not reach it at any rate is left out.

The table has for each batch, in bytes, the best rate, the steps S and the bytes E to TARGET, and the simple noise scale there
(transformer/evaluators/gradient_noise.py); the row 'fit' has B_crit = E_min / S_min, S_min and E_min of the hyperbola
(S / S_min - 1) (E / E_min - 1) = 1 (training/report/critical_batch.py). WORKDIR/plots/critical_batch.png shows both.

The noise scale is known before any run has ended and is taken for B_crit in its place (McCandlish et al. 2018, section 2.2);
Merrill et al. (2025, arXiv 2505.23971) find that it does not predict it.

    bytes a batch      1k      2k      4k      8k     16k     32k     64k
    rate           0.0035  0.0042  0.0049  0.0059  0.0070  0.0083  0.0051
    steps             350     212     130      98      93      79      79
    noise scale     1,900   2,060   1,930   2,050   1,440   1,580   1,600    bytes

The critical batch is 3,810 bytes (3,520 to 4,140 by one standard error), S_min is 72 and E_min 274,000 bytes: about twice the
noise scale at the same loss. One seed; the middle one of the three rates is best but for 64k, where it takes 81 steps and a
still lower one might take fewer than 79. On the two cores of a Xeon (family 6 model 167; Python 3.11, jax 0.10.2, float32) the
runs take about 20 minutes; the higher rates at 64k and the highest at 32k were trained on an EPYC (family 25 model 1).
"""

import collections
import math

from configs import base
from display import figures
from training import workdir
from training.report import report
from training.report.critical_batch import critical
from training.report.sweeps import Estimate, Sweep

LENGTH = 128  # bytes
TARGET = 1.9  # nats a byte
STEPS = {8: 450, 16: 275, 32: 180, 64: 140, 128: 115, 256: 100, 512: 92}  # {rows of a batch: steps of its runs}
RATES = 0.0018, 0.0035, 0.007  # at 8 rows
LOOKS = 25, 5  # evaluations of the loss, and of the noise, in a run


def get_config(variant=''):
    c = base.config()
    c.data = base.data('data.text.documents:Text', source='auto', tokenizer='Byte()', valid='train[90%:90.5%]', length=LENGTH,
                       batch_size=8)
    c.model = base.part('transformer.models.gpt:Gpt', layers=2, heads=4, width=64, length=LENGTH, **base.NO_BIASES,
                        positions='Rotary()', initial='Scaled(scale=0.07)')
    c.task = base.part('transformer.tasks.language_model:NextToken')
    c.optimizer = base.optimizer(learning_rate=RATES[0], b2=0.98, weight_decay=0.1, schedule=base.part(
        'training.schedules:ConstantRate', warmup_steps=10))
    c.train.steps = STEPS[8]
    c.train.nonfinite = 'skip'  # a rate that diverges is a result
    c.log.every_steps = 20
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid', every_steps=18)
    c.evals.noise = base.evaluation('transformer.evaluators.gradient_noise:GradientNoise', split='train[90.5%:92%]',
                                    every_steps=90)
    return c.lock()


def rates(rows):
    """The rates at which a batch is trained."""
    return [float(f'{rate * (rows / 8) ** 0.25:.2g}') for rate in RATES]


def sweep(variant=''):
    points = {f'{rows}-{rate}': {
        'data.batch_size': rows, 'optimizer.learning_rate': rate, 'train.steps': steps,
        'evals.valid.every_steps': steps // LOOKS[0], 'evals.noise.every_steps': steps // LOOKS[1]}
        for rows, steps in STEPS.items() for rate in rates(rows)}
    return Sweep(points, draw=picture, table=table_of, title='rows of a batch')


def reached(folder, length):
    """(steps to TARGET, the noise scale there, in bytes) of a run with rows of `length`; None for what it does not reach or
    tell."""
    import numpy as np

    looks = [(row['step'], row['loss']) for row in report.rows(folder, 'valid') if math.isfinite(row['loss'])]
    place = next((i for i, (_, loss) in enumerate(looks) if loss <= TARGET), None)
    if place is None:
        return None, None
    steps, loss = looks[place]
    if place:
        before, higher = looks[place - 1]
        steps = before * (steps / before) ** ((higher - TARGET) / (higher - loss))
    noise = report.rows(folder, 'noise')
    variance, squared = (np.interp(steps, [row['step'] for row in noise], [row[name] for row in noise])
                         for name in ('gradient_variance', 'gradient_squared'))
    return float(steps), float(length * variance / squared) if squared > 0 else None


def table_of(folders):
    """{rows of a batch: its numbers at the best rate}, and the row 'fit', if there is one."""
    found = collections.defaultdict(dict)
    length = workdir.load_config(next(folder for runs in folders.values() for folder in runs)).data.length
    for name, runs in folders.items():
        rows, rate = name.split('-', 1)
        found[int(rows)][float(rate)] = [reached(folder, length) for folder in runs]
    table = {str(rows): row_of(rows * length, of_rates) for rows, of_rates in found.items()}
    fit, _ = fitted(table)
    if fit:
        table['fit'] = {'batch': Estimate.of([fit.batch]), 'rate': None, 'steps': Estimate.of([fit.steps]),
                        'bytes': Estimate.of([fit.tokens]), 'noise scale': None}
    return table


def row_of(batch, of_rates):
    """The numbers of a batch of so many bytes from {rate: what `reached` says of each run}: the rate at which all runs reach
    TARGET and the mean of their steps is least."""
    mean = {rate: sum(steps for steps, _ in runs) / len(runs) for rate, runs in of_rates.items()
            if runs and all(steps for steps, _ in runs)}
    row = {'batch': Estimate.of([batch]), **dict.fromkeys(('rate', 'steps', 'bytes', 'noise scale'))}
    if mean:
        rate = min(mean, key=mean.get)
        steps, noise = zip(*of_rates[rate])
        row |= {'rate': Estimate.of([rate]), 'steps': Estimate.of(steps),
                'bytes': Estimate.of([batch * one for one in steps]),
                'noise scale': Estimate.of(noise) if all(noise) else None}
    return row


def fitted(table):
    """(the hyperbola as a `critical_batch.Critical`, or None; what is to be said of it)."""
    there = [row for name, row in table.items() if name != 'fit' and row['steps']]
    try:
        fit = critical(*([row[name].mean for row in there] for name in ('steps', 'bytes')))
    except ValueError as error:
        return None, str(error)
    batch, low, high, steps, tokens = (f'{float(f"{x:.3g}"):,.0f}' for x in (
        fit.batch, *(fit.batch * math.exp(sign * fit.error) for sign in (-1, 1)), fit.steps, fit.tokens))
    return fit, (f'The critical batch, {batch} bytes ({low} to {high} by one standard error), takes twice the least steps, '
                 f'{steps}, and twice the least bytes, {tokens}.')


def edges(there):
    """A sentence that names the batches whose best rate is the lowest or the highest of those tried; '' if there are none."""
    found = [name for name, row in there.items() if row['rate'].mean in (rates(int(name))[0], rates(int(name))[-1])]
    return f' Another rate might be better still for {", ".join(found)} rows.' if found else ''


def picture(folders, table):
    """A figure of the steps against the bytes with the hyperbola, and of the noise scale beside the critical batch."""
    import numpy as np

    there = {name: row for name, row in table.items() if name != 'fit' and row['steps']}
    fit, said = fitted(table)
    column = lambda name: [row[name].mean if row[name] else math.nan for row in there.values()]
    figure, body = figures.new(9.0, 4.4, dpi=120)
    hyperbola, noise = body.subplots(1, 2)
    if fit:
        batches = [row['batch'].mean for name, row in table.items() if name != 'fit']
        along = np.geomspace(min(batches) / 2, max(batches) * 2, 100)
        steps, tokens = fit.at(along)
        hyperbola.plot(tokens, steps, '--', color=figures.COLOURS[1], linewidth=1.2, label='fit')
        hyperbola.plot(2 * fit.tokens, 2 * fit.steps, '*', markersize=13, color=figures.COLOURS[1], label='critical batch')
        hyperbola.axhline(fit.steps, color='gray', linewidth=0.8, linestyle=':', label='least steps, least bytes')
        hyperbola.axvline(fit.tokens, color='gray', linewidth=0.8, linestyle=':')
        noise.axhline(fit.batch, color=figures.COLOURS[1], label='critical batch')
        noise.axhspan(*(fit.batch * math.exp(sign * fit.error) for sign in (-1, 1)), color=figures.COLOURS[1], alpha=0.15,
                      linewidth=0)
    hyperbola.plot(column('bytes'), column('steps'), 'o', color=figures.COLOURS[0], label='runs, with bytes a batch')
    for row in there.values():
        hyperbola.annotate(f'{row["batch"].mean / 1024:g}k', (row['bytes'].mean, row['steps'].mean), xytext=(5, 7),
                           textcoords='offset points', fontsize=8.5)
    noise.plot(column('batch'), column('noise scale'), 'o-', color=figures.COLOURS[0], linewidth=1,
               label='noise scale at the loss')
    hyperbola.margins(0.12)
    hyperbola.set(xlabel=f'bytes E to {TARGET} nats a byte', ylabel='steps S')
    noise.set(xlabel='batch B trained with, bytes', ylabel='noise scale, critical batch, bytes')
    for axes, drawn in (hyperbola, there), (noise, fit or np.isfinite(column('noise scale')).any()):
        if drawn:
            axes.set(xscale='log', yscale='log')
        axes.legend(frameon=False, fontsize=8.5)
        axes.yaxis.set_major_formatter('{x:,.0f}')
        axes.yaxis.set_minor_formatter('{x:,.0f}')
        axes.tick_params(axis='y', which='both', labelsize=8.5)
        axes.grid(alpha=0.3, which='both')
        axes.spines[['top', 'right']].set_visible(False)
    return figures.explain(
        figure, 'What a larger batch saves in steps and costs in bytes',
        'Each point is a batch at its best rate. ' + said + edges(there) + ' The simple noise scale, measured from the '
        'gradients of single rows, is meant to predict the critical batch.')
