"""Scaling laws on a laptop: the loss of small GPTs against parameters, data and computation, and the best sizes.

    python sweep.py --config=configs/scaling.py --workdir=runs/scaling --processes=2
    python sweep.py --config=configs/scaling.py:DATA --workdir=runs/scaling_texts --processes=2

The text is the bytes of Python's standard library (12.1 MB in Python 3.11, nine tenths of it to train on), or of as much of
one's own (--config.data.path=FILE). With DATA, a folder as in configs/objectives.py, it is all English in it, 28 MB, as 10
million of 2,048 pieces learnt from it. Each number of operations of a `Grid` is spent on the five sizes nearest to what it says
is best, of those for which the text suffices: no run sees a token twice, but of the shorter libraries of Python 3.12 and 3.13
the longest one sees about 5 % again. Rows are 128 tokens, 4 a step; the rate, which falls linearly to 0 after 4 % of the steps,
is 0.3 / width, so that each run ends its schedule. One more run, `held_out`, is there for the laws to predict. With 16 rows of
bytes, four times fewer steps, 3e11 operations of two layers of 32 end at 1.81 nats instead of 1.68, of 64 at 2.02 instead of
1.84. With 4 rows and twice the rate they end at 1.74 and 1.88, with half of it at 1.70 and 1.89. Of 1,024 pieces 1e12
operations of two layers of 32 end at 3.81, and of three of 64 at 3.84; with twice the rate at 3.84 and 3.82, with half at 3.82
and 3.97.

The table has the size of each run, N with and without its table of tokens, the tokens that it has read, D, its operations C,
how often it has read the text, and the loss on held-out text. C is of the products of all steps, each counted once: the kernel
of attention that a CPU takes computes scores again, which is 7.4 % more for two layers of 16 and 2.3 % for four of 128.
Pictures in WORKDIR/plots: the loss against C, D and N, the curves of equal C (`valleys`), and the best size of C by the three
approaches of Hoffmann et al. 2022 (training/report/scaling.py) and by the joint surface of Kaplan et al. 2020, beside those of
Kaplan's counts, N without the table and C as 6·N·D.

On DATA the parabolas are lowest at

    C          3e11      1e12      3e12      1e13      2e13    operations
    N        67,900   129,000   207,000   354,000   510,000    parameters
    loss      4.558     4.220     3.952     3.668     3.527    nats a token

The exponent of the best size is 0.412 by the best runs, 0.471 by the parabolas, 0.413 by the surface (four fifths of fits to
runs drawn again lie in 0.328 to 0.499; 0.460 with Huber's loss) and 0.495 by the joint surface. Counted as Kaplan et al. do it
is 0.504 by the best runs and 0.581 by the surface, 0.09 and 0.17 more: the table is 88 % of the smallest size and 18 % of the
largest. The run of 1e14 operations ends at 3.276; the surface says 3.366, 2.8 % more, and the joint surface 3.226, 1.5 % less.
Of the runs that they are fitted to the first is off by 1.1 % (root of the mean square) and the second, with a parameter less,
by 0.4 %; fitted without the budget of 2e13, they say of its four runs -3.6 to 1.4 % and -0.6 to 1.8 % more than these end at.
On two cores of an EPYC (family 25 model 1; Python 3.11, jax 0.10.2, float32) the 24 runs took 67 minutes and the last one 44 of
one core, beside other work.

On the bytes of the standard library the parabolas are lowest at

    C          1e11      3e11      1e12      3e12      6e12    operations
    N        21,300    34,700    60,000   115,000   162,000    parameters
    loss      1.943     1.702     1.459     1.319     1.230    nats a byte

There the exponent is 0.474 by the best runs, 0.500 by the parabolas and 0.459 by the surface (0.423 to 0.495; 0.444 with
Huber's loss), which is 0.778 + 53.5·N^-0.468 + 123.9·D^-0.396 and has C as 6·N·D. Kaplan's counts give 0.506 and 0.512, 0.03
and 0.05 more: of 257 tokens the table is 40 % of the smallest size and 10 % of the best one at 6e12 operations. Parabolas do
not apply to these counts: runs of one budget differ up to twofold in them. The run of 1e14 operations ends at 1.012; the
surface says 1.065, 5.2 % more, and 1.087 by Huber's loss; the joint surface was not fitted there. On the same processor the 25
runs took 47 minutes of one core and the last one 88, beside other work.
"""

import contextlib
import dataclasses
import math

from configs import base, objectives
from display import figures
from training import mesh as meshes
from training import run as runs
from training import workdir
from training.config import resolve
from training.report import flops, report, scaling
from training.report.sweeps import Sweep

LENGTH, ROWS, PER_BUDGET = 128, 4, 5
SMALL = (2, 16), (2, 24), (2, 32), (2, 48), (2, 64), (3, 64)  # (layers, width)


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is trained: the sizes, (layers, width), nearest to the square root of budget / `ratio` parameters.

    Attributes:
      tokenizer, vocabulary: of the text, and its tokens, with what separates documents.  tokens: to train on.
      budgets: operations of the runs that laws are fitted to.  held_out: (operations, layers, width) of the run left out.
    """

    tokenizer: str
    vocabulary: int
    tokens: float
    sizes: tuple
    ratio: float
    budgets: tuple
    held_out: tuple

    def cost(self, layers, width):
        """Operations of a step: 6 for each weight of a matrix and token, and those of scores and of weights with values."""
        return ROWS * LENGTH * (6 * self.parameters(layers, width) + 12 * layers * LENGTH * width)

    def parameters(self, layers, width):
        return 12 * layers * width ** 2 + self.vocabulary * width

    def points(self):
        """[(budget, layers, width, steps)] of the points that the laws are fitted to."""
        found = []
        for budget in self.budgets:
            steps = {size: round(budget / self.cost(*size)) for size in self.sizes}
            there = [size for size in self.sizes if steps[size] * ROWS * LENGTH <= self.tokens]
            centre = math.log(math.sqrt(budget / self.ratio))
            nearest = sorted(there, key=lambda size: abs(math.log(self.parameters(*size)) - centre))[:PER_BUDGET]
            found += [(budget, *size, steps[size]) for size in sorted(nearest)]
        return found

    def last(self):
        """(budget, layers, width, steps) of the run whose loss the laws are to predict."""
        budget, *size = self.held_out
        return budget, *size, round(budget / self.cost(*size))


GRIDS = {
    '': Grid('Byte()', 257, tokens=10.85e6, ratio=280, sizes=(*SMALL, (3, 96), (4, 128), (4, 192)),
             budgets=(1e11, 3e11, 1e12, 3e12, 6e12), held_out=(1e14, 4, 192)),
    'DATA': Grid('SentencePiece(vocab=2048)', 2048, tokens=10e6, ratio=85,
                 sizes=((2, 12), *SMALL, (3, 80), (3, 96), (4, 128), (4, 192)),
                 budgets=(3e11, 1e12, 3e12, 1e13, 2e13), held_out=(1e14, 4, 192))}


SURFACES = {'surface': scaling.projected, 'joint surface': scaling.joint}


def grid(variant):
    return GRIDS['DATA' if variant else '']


def get_config(variant=''):
    c = base.config()
    if variant:
        c.data = base.data('data.text.documents:Text', corpus=objectives.corpus(variant), length=LENGTH, batch_size=ROWS,
                           tokenizer=grid(variant).tokenizer)
    else:
        c.data = base.data('data.text.documents:Text', source='auto', tokenizer=grid(variant).tokenizer, valid='train[90%:92%]',
                           length=LENGTH, batch_size=ROWS)
    c.model = base.part('transformer.models.gpt:Gpt', layers=2, heads=2, width=32, length=LENGTH, **base.NO_BIASES,
                        positions='Rotary()', initial='Scaled(scale=0.07)')
    c.task = base.part('transformer.tasks.language_model:NextToken')
    c.optimizer = base.optimizer(learning_rate=0.01, b2=0.98, weight_decay=0.1, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=20))
    c.train.steps = 500
    c.log.every_steps = 50
    c.checkpoint.every_steps = 1000
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid')
    return c.lock()


def sweep(variant=''):
    points = {f'{budget:.0e}-{layers}x{width}'.replace('+', ''): {
        'model.layers': layers, 'model.width': width, 'model.heads': max(1, width // 16), 'model.initial': initial(width),
        'train.steps': steps, 'optimizer.learning_rate': 0.3 / width, 'optimizer.schedule.warmup_steps': max(1, steps // 25)}
        for budget, layers, width, steps in [*grid(variant).points(), grid(variant).last()]}
    return Sweep(points, measure, picture, title='operations-layers x width')


def initial(width):
    """GPT-2's 0.02 is for its width of 768: the same 0.55 / sqrt(width) here."""
    return f'Scaled(scale={0.55 / math.sqrt(width):.3g})'


def measure(folder):
    """{'': {'N', 'N of blocks', 'D', 'C', 'epochs', 'loss'}} of a run, C in floating point operations."""
    config = workdir.load_config(folder)
    made = runs.build(config, meshes.make(1), folder, applied=True)
    table = math.prod(made.shapes.params['tokens']['embedding'].shape)
    tokens = config.train.steps * config.data.batch_size * config.data.length
    return {'': {'N': made.parameters(), 'N of blocks': made.parameters() - table, 'D': tokens,
                 'C': float(config.train.steps * operations(made)),
                 'epochs': config.train.steps / made.data.batches_per_epoch, 'loss': report.rows(folder, 'valid')[-1]['loss']}}


def operations(made):
    """Those of the products of a step, each once: what a kernel or `remat` computes again is another share of each size."""
    stack = made.model.stack
    plain = {'implementation': 'plain'} if 'implementation' in resolve.fields(type(stack.attention)) else {}
    stack = dataclasses.replace(stack, remat='none', attention=dataclasses.replace(stack.attention, **plain))
    made = dataclasses.replace(made, model=made.model.clone(stack=stack))
    return flops.count_jaxpr(made.trace(made.longest).jaxpr) // made.config.train.dispatch


def means(table):
    return {name: {column: number.mean for column, number in row.items()} for name, row in table.items()}


def parted(table):
    """The rows of a table that laws are fitted to, and those of runs held out."""
    held = {one.held_out[0] for one in GRIDS.values()}
    fitted = {name: row for name, row in table.items() if float(name.partition('-')[0]) not in held}
    return fitted, {name: row for name, row in table.items() if name not in fitted}


def runs_of(table, size='N'):
    """The `scaling.Runs` of a table; with size='N of blocks' as Kaplan et al. count, C = 6·N·D."""
    rows = means(table)
    column = lambda name: [row[name] for row in rows.values()]
    flops = column('C') if size == 'N' else [6 * row[size] * row['D'] for row in rows.values()]
    return scaling.Runs([float(name.partition('-')[0]) for name in rows], column(size), column('D'), flops, column('loss'))


def laws(table):
    """{approach: (N_best of C as a `scaling.Power`, or None; what is to be said of it)}."""
    counted, kaplan = runs_of(table), runs_of(table, 'N of blocks')

    def exponent(power):
        return power, f'a = {power.exponent:.3f}'

    def of_surface(given, fit=scaling.projected):
        found, flops = fit(given), (given.flops.min(), given.flops.max())
        power, said = exponent(scaling.Power.of(flops, found.best(flops)))
        return power, f'{said}, off by {scaling.deviation(found, given):.1%}'

    def surface():
        power, said = of_surface(counted)
        low, high = scaling.intervals(counted, lambda one: one.exponent)
        return power, f'{said}\n(80 %: {low:.3f} to {high:.3f}; Huber: {scaling.huber(counted).exponent:.3f})'

    ways = {'best runs': lambda: exponent(scaling.envelope(counted)),
            'parabolas': lambda: exponent(scaling.valleys(counted)[0]), 'surface': surface,
            'joint surface': lambda: of_surface(counted, scaling.joint),
            "best runs, Kaplan's counts": lambda: exponent(scaling.envelope(kaplan)),
            "surface, Kaplan's counts": lambda: of_surface(kaplan)}
    found = {}
    for name, way in ways.items():
        try:
            found[name] = way()
        except ValueError as error:
            found[name] = None, str(error)
    return found


def picture(folders, table):
    """{'': the loss against C and N, and the best N of C; 'data': the loss against D}."""
    fitted, held = parted(table)
    counted = runs_of(fitted)
    return {'': of_computation(counted, laws(fitted), predicted(fitted, held), repeated(table)), 'data': of_data(counted)}


def repeated(table):
    """A sentence on the runs that have read their text more than once, which the laws know nothing of; '' without any."""
    epochs = [row['epochs'] for row in means(table).values() if row['epochs'] > 1.1]
    return '' if not epochs else (f'{len(epochs)} runs have read their text more than once, up to {max(epochs):.1f} times: new '
                                  'text would have brought them more.')


def predicted(fitted, held):
    """[(C, loss, {surface: the loss that it says})] of the rows held out, where the fitted rows have surfaces."""
    surfaces = {}
    for name, fit in SURFACES.items() if held else ():
        with contextlib.suppress(ValueError):  # `laws` says why
            surfaces[name] = fit(runs_of(fitted))
    return [(row['C'], row['loss'], {name: float(surface(row['N'], row['D'])) for name, surface in surfaces.items()})
            for row in means(held).values() if surfaces]


def of_computation(counted, found, held, more=''):
    """A figure of the runs, the curves of equal C, the best size of C by each way of `laws`, and what was `predicted`."""
    import numpy as np

    figure, body = figures.new(13.5, 6.0, dpi=120)
    curves, equal, best = body.subplots(1, 3)
    sizes(curves, counted, counted.flops, 'operations C')
    if found['parabolas'][0]:
        flops, _, loss = zip(*scaling.valleys(counted)[1])
        curves.plot(flops, loss, '--', color=figures.COLOURS[-1], linewidth=1, label='best size')
    for flops, loss, guesses in held:
        curves.scatter([flops], [loss], marker='*', s=90, color=figures.COLOURS[-1], label='held out', zorder=3)
        for marker, (name, guess) in zip('*D', guesses.items()):
            curves.scatter([flops], [guess], marker=marker, s=90 if marker == '*' else 40, facecolor='none',
                           edgecolor=figures.COLOURS[-1], label=f'predicted, {name}')
    for place, budget in enumerate(np.unique(counted.budget)):
        own = counted[counted.budget == budget]
        colour = figures.COLOURS[place % len(figures.COLOURS)]
        equal.plot(own.parameters, own.loss, 'o', color=colour, label=f'{budget:.0e} operations')
        if len(own.loss) >= scaling.LEAST:
            along = np.geomspace(own.parameters.min(), own.parameters.max(), 60)
            equal.plot(along, np.polyval(np.polyfit(np.log(own.parameters), own.loss, 2), np.log(along)), '--', color=colour,
                       linewidth=1)
    equal.set(xscale='log', xlabel='parameters N', ylabel='held-out loss, nats a token')
    flops = np.geomspace(counted.flops.min(), counted.flops.max(), 2)
    for place, (name, (power, said)) in enumerate(found.items()):
        if power:
            best.plot(flops, power(flops), color=figures.COLOURS[place], label=f'{name}: {said}')
    best.set(xscale='log', yscale='log', xlabel='operations C', ylabel='best number of parameters N')
    best.set_ylim(top=3 * best.get_ylim()[1])
    for axes, place in (curves, 'upper right'), (equal, 'upper right'), (best, 'upper left'):
        axes.legend(frameon=False, fontsize=8.5, loc=place)
        axes.grid(alpha=0.3)
        axes.spines[['top', 'right']].set_visible(False)
    said = ['The filled star is a run of {:.1e} operations to which nothing was fitted: it ends at {:.3f}; {}.'.format(
        flops, loss, ', '.join(f'the {name} says {guess:.3f} ({guess / loss - 1:+.1%})' for name, guess in guesses.items()))
            for flops, loss, guesses in held]
    said += [f'{name}: {said}' for name, (power, said) in found.items() if not power]
    said.insert(0, 'Each point is a run at the end of its schedule; dashed are the parabolas, and on the left their lowest '
                'points. The best size is proportional to C to the power of a.')
    return figures.explain(figure, 'How the loss falls with computation, and the best size for each amount of it',
                           ' '.join(filter(None, [*said, more])))


def of_data(counted):
    """A figure of the loss against the tokens read."""
    figure, body = figures.new(6.5, 4.6, dpi=120)
    axes = body.subplots()
    sizes(axes, counted, counted.tokens, 'tokens read D')
    axes.legend(frameon=False, fontsize=8.5)
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    return figures.explain(figure, 'How the loss falls with data',
                           'Each point is a run; lines join those of a size. Of larger ones the same text teaches more.')


def sizes(axes, counted, across, label):
    """Draws the loss against `across`, with a line for each number of parameters."""
    import numpy as np
    from matplotlib import colormaps

    there = np.unique(counted.parameters)
    for colour, size in zip(colormaps[figures.SEQUENTIAL](np.linspace(0.3, 1, len(there))), there):
        own = np.flatnonzero(counted.parameters == size)
        own = own[np.argsort(across[own])]
        axes.plot(across[own], counted.loss[own], marker='o', markersize=4, linewidth=1, color=colour,
                  label=f'{size:,.0f} parameters')
    axes.set(xscale='log', xlabel=label, ylabel='held-out loss, nats a token')
