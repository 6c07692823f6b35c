"""muP: what a larger width does to the activations and to the best learning rate of a GPT, with and without it.

    python sweep.py --config=configs/mup.py --workdir=runs/mup --seeds=5
    python sweep.py --config=configs/mup.py:rates --workdir=runs/mup_rates

The first is the coordinate check (Yang et al. 2022, section D.1): 10 steps of Adam at one rate, 0.004, with widths from 32 to
512, and after each step the mean |x| of activations on held-out text. The table has those after the last step, and the slope
of log mean |x| against log width: 0 if nothing depends on the width. WORKDIR/plots/mup.png shows all steps.

:rates trains widths of 64, 128 and 256 for 200 steps at nine rates, sqrt(2) apart, and tabulates and draws the held-out loss
over the rate (figure 1 of the paper).

After the last step, 5 seeds; the slope, its deviation between seeds, and the mean |x| at widths 32 and 512:

                             standard form                       muP
    scores of block 0       1.33 ± 0.11   0.26 to 14.2     0.00 ± 0.07   0.24 to 0.25
    end of block 0          1.76 ± 0.20   0.47 to 52.5    -0.10 ± 0.06   0.69 to 0.52
    scores of block 1       1.24 ± 0.47   0.36 to 27.9    -0.12 ± 0.10   0.33 to 0.26
    end of block 1          1.51 ± 0.16   1.33 to 69.3    -0.13 ± 0.07   2.03 to 1.41
    logits                  0.46 ± 0.02   0.89 to 2.95    -0.01 ± 0.03   1.52 to 1.48

Under muP nothing grows, but block 1 and its scores still fall a little with the width, as all scores and logits do at the first
steps, where they are those of random matrices. 25 minutes on a third of a core of an EPYC (family 25 model 1; Python 3.11, jax
0.10.2, float32).

Held-out loss of :rates, one seed, nats a byte; docs/mup_rates.png shows it:

                              best rate  0.0014   0.002  0.0028  0.0039  0.0055  0.0078   0.011   0.016   0.022
    standard form, 64            0.0055   2.446   2.397   2.356   2.329   2.328   2.376   2.509   2.584   2.698
    standard form, 128           0.0028   2.316   2.297   2.285   2.363   2.474   2.680   2.700   2.849   2.785
    standard form, 256           0.0014   2.247   2.306   2.380   2.524   2.597   2.739   2.833   2.887   2.899
    muP, 64                      0.0055   2.443   2.395   2.361   2.333   2.331   2.426   2.591   2.673   2.682
    muP, 128                     0.0055   2.407   2.361   2.319   2.302   2.279   2.329   2.559   2.692   2.696
    muP, 256                     0.0055   2.395   2.344   2.301   2.268   2.253   2.278   2.322   2.568   2.710

The best rate halves with each doubling of the width in the standard form and stays under muP, where the wider model is better
at every rate to 0.011. At its own best rate, the lowest of those tried, the standard form of width 256 is as good, 2.247 beside
2.253. 19 minutes of one core of a Xeon (family 6 model 167; Python 3.11, jax 0.10.2, float32).

The standard form is GPT-2's initialisation with 0.55 / sqrt(width), as in configs/scaling.py; muP has the base 64, at which
the two differ in nothing but queries that begin with zeros (section D.2). Both have 2 blocks with 4 heads; the text is bytes
of Python's standard library, or --config.data.path=FILE.
"""

import collections
import math

from configs import base
from display import figures
from training.report import report
from training.report.sweeps import Estimate, Sweep

BASE = 64
WIDTHS = 32, 64, 128, 256, 512
FORMS = {'standard': ('standard form', lambda width: f'Scaled(scale={0.55 / math.sqrt(width):.3g})'),
         'mup': ('muP', lambda width: f'MuP(scale={0.55 / math.sqrt(BASE):.3g}, base={BASE}, zero=True)')}
RATES = tuple(2.0 ** (-9.5 + number / 2) for number in range(9))  # 0.0014 to 0.022
NORMED = 'hidden'  # after the last norm an activation has one size, whatever comes before


def get_config(variant=''):
    c = base.config()
    c.data = base.data('data.text.documents:Text', source='auto', tokenizer='Byte()', valid='train[90%:91%]', length=64,
                       batch_size=8)
    c.model = base.part('transformer.models.gpt:Gpt', layers=2, heads=4, width=BASE, length=64, **base.NO_BIASES,
                        initial=FORMS['mup'][1](BASE))
    c.task = base.part('transformer.tasks.language_model:NextToken')
    if base.variant_of(variant, ('sizes', 'rates')) == 'sizes':
        c.optimizer = base.optimizer(learning_rate=0.004, b2=0.98, clip=0.0, schedule=base.part(
            'training.schedules:ConstantRate'))
        c.train.steps, c.log.every_steps = 10, 1
        c.evals.sizes = base.evaluation('transformer.evaluators.activations:Activations', split='valid', every_steps=1)
    else:
        c.optimizer = base.optimizer(learning_rate=0.005, b2=0.98, schedule=base.part(
            'training.schedules:LinearDecay', warmup_steps=10))
        c.train.steps, c.log.every_steps = 200, 20
        c.train.nonfinite = 'skip'  # a run that diverges is a result
        c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid')
    return c.lock()


def sweep(variant=''):
    of = lambda form, width: {'model.width': width, 'model.initial': FORMS[form][1](width)}
    if base.variant_of(variant, ('sizes', 'rates')) == 'sizes':
        points = {f'{form}-{width}': of(form, width) for form in FORMS for width in WIDTHS}
        return Sweep(points, draw=sizes_drawn, table=sizes_table)
    points = {f'{form}-{width}-{rate:.2g}': of(form, width) | {'optimizer.learning_rate': rate}
              for form in FORMS for width in WIDTHS[1:-1] for rate in RATES}
    return Sweep(points, draw=rates_drawn, table=rates_table)


def by_width(folders):
    """{form: {width: [folders of its runs]}} of {FORM-WIDTH: folders}."""
    found = collections.defaultdict(dict)
    for name, runs in folders.items():
        form, width = name.split('-')
        if runs:
            found[form][int(width)] = runs
    return dict(found)


def sizes_of(folders):
    """{activation: [runs, steps]}, the mean |x| after each step."""
    import numpy as np

    rows = [report.rows(folder, 'sizes') for folder in folders]
    names = [name for name in rows[0][0] if name not in ('step', 'split', NORMED)]
    return {name: np.array([[row[name] for row in run] for run in rows]) for name in names}


def slopes(widths, sizes):
    """The slope of log size against log width, by least squares: [widths, ..] -> [..]."""
    import numpy as np

    x = np.log(widths) - np.mean(np.log(widths))
    return np.tensordot(x, np.log(np.maximum(sizes, 1e-30)), 1) / np.square(x).sum()


def sizes_table(folders):
    """{FORM-WIDTH: {activation: its size after the last step}}, and {FORM-slope: {activation: the slope}}."""
    import numpy as np

    table = {}
    for form, runs in by_width(folders).items():
        found = {width: sizes_of(one) for width, one in runs.items()}
        names = next(iter(found.values()))
        table |= {f'{form}-{width}': {name: Estimate.of(one[name][:, -1].tolist()) for name in names}
                  for width, one in found.items()}
        if len(found) > 1:
            last = lambda name, found=found: np.stack([one[name][:, -1] for one in found.values()])
            table[f'{form}-slope'] = {name: Estimate.of(slopes([*found], last(name)).tolist()) for name in names}
    return table


def sizes_drawn(folders, table):
    """The size of each activation over the width, a line for each step: the standard form above, muP below."""
    import matplotlib

    forms = {form: {width: sizes_of(one) for width, one in runs.items()} for form, runs in by_width(folders).items()}
    names = [*next(iter(next(iter(forms.values())).values()))]
    figure, body = figures.new(2.9 * len(names), 5.6, dpi=120)
    panels = body.subplots(len(forms), len(names), sharex=True, sharey='col', squeeze=False)
    for row, (form, found) in zip(panels, forms.items()):
        for axes, name in zip(row, names):
            steps = next(iter(found.values()))[name].shape[1]
            for step in range(steps):
                colour = matplotlib.colormaps[figures.SEQUENTIAL](0.25 + 0.75 * step / max(1, steps - 1))
                axes.plot([*found], [one[name][:, step].mean() for one in found.values()], marker='o', markersize=3,
                          linewidth=1.2, color=colour, label=f'step {step + 1}')
            slope = table.get(f'{form}-slope')
            axes.set(xscale='log', yscale='log', title=f'{FORMS[form][0]}, {called(name)}' + (
                f'\nslope {slope[name].mean:.2f}' if slope else ''))
            axes.title.set_fontsize(9.5)
            axes.set_xticks([*found], [str(width) for width in found])
            axes.minorticks_off()
            axes.grid(alpha=0.3, which='both')
            axes.spines[['top', 'right']].set_visible(False)
        row[0].set_ylabel('mean |x|')
    for axes in panels[-1]:
        axes.set_xlabel('width')
    shown = panels[0, 0].get_legend_handles_labels()
    body.legend(*(one[::max(1, len(one) - 1)] for one in shown), loc='outside right upper', frameon=False, fontsize=9)
    return figures.explain(
        figure, 'How large activations are at each width: standard form and muP',
        'Each line is a step of training, later ones darker. In the standard form one learning rate changes a wide model more '
        'than a narrow one; under muP the lines become level.')


def called(name):
    """The name of an activation in a title."""
    block, _, inside = name.partition('/')
    if not inside:
        return name
    return f'{"scores" if inside.endswith("scores") else "end"} of {block.replace("_", " ")}'


def losses(folders):
    """{(form, width): {rate: the held-out loss of each run at the end}}."""
    found = collections.defaultdict(dict)
    for name, runs in folders.items():
        form, width, rate = name.split('-', 2)
        if runs:
            found[form, int(width)][float(rate)] = [report.rows(folder, 'valid')[-1]['loss'] for folder in runs]
    return dict(found)


def best(of_rates):
    """The rate with the lowest mean loss; nan if all have diverged."""
    means = {rate: sum(runs) / len(runs) for rate, runs in of_rates.items()}
    return min((rate for rate, loss in means.items() if math.isfinite(loss)), key=means.get, default=math.nan)


def rates_table(folders):
    """{FORM-WIDTH: {'best rate', and for each rate the loss}}."""
    found = losses(folders)
    rates = dict.fromkeys(rate for of_rates in found.values() for rate in of_rates)
    return {f'{form}-{width}': {'best rate': Estimate.of([best(of_rates)])} | {
        f'{rate:.2g}': Estimate.of(of_rates[rate]) if rate in of_rates else None for rate in rates}
        for (form, width), of_rates in found.items()}


def rates_drawn(folders, table):
    """The held-out loss over the rate, a line for each width: the standard form left, muP right."""
    found = losses(folders)
    forms = [*dict.fromkeys(form for form, _ in found)]
    widths = [*dict.fromkeys(width for _, width in found)]
    figure, body = figures.new(9.0, 4.4, dpi=120)
    panels = body.subplots(1, len(forms), sharex=True, sharey=True, squeeze=False)[0]
    for (form, width), of_rates in found.items():
        axes, colour = panels[forms.index(form)], figures.COLOURS[widths.index(width)]
        means = {rate: sum(runs) / len(runs) for rate, runs in of_rates.items()}
        axes.plot([*means], [*means.values()], marker='o', markersize=3.5, linewidth=1.4, color=colour,
                  label=f'width {width}, best at {best(of_rates):.2g}')
        if (lowest := means.get(best(of_rates))) is not None:
            axes.plot(best(of_rates), lowest, marker='o', markersize=9, fillstyle='none', color=colour)
    for form, axes in zip(forms, panels):
        axes.set(xscale='log', title=FORMS[form][0], xlabel='learning rate')
        shown = sorted({rate for of_rates in found.values() for rate in of_rates})[::2]
        axes.set_xticks(shown, [f'{rate:.2g}' for rate in shown])
        axes.minorticks_off()
        axes.legend(frameon=False, fontsize=8.5)
        axes.grid(alpha=0.3, which='both')
        axes.spines[['top', 'right']].set_visible(False)
    panels[0].set_ylabel('held-out loss, nats a byte')
    return figures.explain(
        figure, 'The best learning rate of each width: standard form and muP',
        'Each point is a run of as many steps; circles are the best. Where they stand at one rate, as they should under muP, '
        'that rate can be sought with a narrow model for a wide one.')
