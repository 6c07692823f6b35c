"""Position encodings beyond the length of training: a small GPT trained on rows of 64 bytes, evaluated on 64, 128, 256 and 512.

    python sweep.py --config=configs/extrapolation.py [--workdir=runs/extrapolation] [--config.part.field=value ...]

trains one run for each of 16 encodings of a GPT, on bytes of Python's standard library, prints the table below and writes it to
WORKDIR/extrapolation.json and, as curves, to WORKDIR/plots/extrapolation.png. One encoding alone:

    python train.py --config=configs/extrapolation.py:rotary

:no_positions, :learned, ..., :etc   the encodings of VARIANTS.

Held-out loss in nats a byte, one seed; the text is cut into rows of this many bytes, and every byte is predicted once, from
those before it in its row; n/a: the table of positions has no rows beyond those of training.

    bytes in a row                    64     128     256     512
    no_positions                   1.993   2.066   2.191   2.321
    learned                        1.722     n/a     n/a     n/a
    learned_layers                 1.753     n/a     n/a     n/a
    sinusoidal                     1.762   2.418   2.844   3.075
    sinusoidal_layers              1.785   2.449   2.854   3.057
    sinusoidal_queries_keys        1.655   2.475   2.974   3.257
    sinusoidal_scores              1.755   1.795   1.892   2.033
    sinusoidal_scores_times        1.608   1.591   1.590   1.596
    rotary                         1.505   1.600   2.337   2.791
    rotary_linear                  1.505   2.136   2.634   2.924
    rotary_ntk                     1.505   1.515   1.742   2.273
    shaw                           1.498   1.480   1.485   1.515
    t5                             1.704   1.800   2.040   2.291
    alibi                          1.680   1.664   1.658   1.656
    transformer_xl                 1.479   1.455   1.446   1.445
    deberta                        1.471   1.454   1.466   1.502
    tupe                           1.526     n/a     n/a     n/a
    etc                            1.504   1.485   1.490   1.519

Encodings of the distance in the scores extrapolate: Transformer-XL, ALiBi and scores multiplied by the similarity of sinusoids
(sinusoidal_scores_times) gain from rows of eight times the length, as longer rows give more context; clipped distances (Shaw,
DeBERTa, ETC) gain at twice the length and lose a little at eight times. Sinusoids added to anything but the scores, and rotary
positions, do not extrapolate. Of the two scalings, applied here without further training, NTK almost keeps the loss at twice
the length and fails beyond; linear fails at once. T5's biases for distances above 64 were never trained. Without positions a
causal model learns something of the order too, but least of all.

A run takes about 85 seconds of processor time, compilation and evaluation included (the first ten together 14 minutes, before
gathers made Shaw, DeBERTa and ETC faster on a CPU): Xeon, Python 3.11, jax 0.10.2, float32, on cores shared with others.
"""

import dataclasses
import functools

from configs import base
from display import figures
from training.config import resolve
from training.report.sweeps import Sweep

# Sinusoids as large as the token embeddings, which have standard deviation 0.07 here and no factor sqrt(D).
VARIANTS = {
    'no_positions': 'NoPositions()', 'learned': 'Learned()', 'learned_layers': "Learned(at='layers')",
    'sinusoidal': 'Sinusoidal(scale=0.1)', 'sinusoidal_layers': "Sinusoidal(at='layers', scale=0.1)",
    'sinusoidal_queries_keys': "Sinusoidal(at='queries_keys')", 'sinusoidal_scores': "Sinusoidal(at='scores')",
    'sinusoidal_scores_times': "Sinusoidal(at='scores_times')", 'rotary': 'Rotary()', 'shaw': 'Shaw(distance=16)',
    't5': 'T5Bias(buckets=32, distance=128)', 'alibi': 'Alibi()', 'transformer_xl': 'TransformerXl()',
    'deberta': 'Disentangled(distance=64)', 'tupe': 'Tupe()', 'etc': 'Etc(tokens=1, distance=16)',
}
SCALINGS = ('linear', 'ntk')  # of rotary positions, without further training
TRAINED = 64
LENGTHS = (64, 128, 256, 512)


def get_config(variant=''):
    variant = base.variant_of(variant, tuple(VARIANTS))
    c = base.config()
    c.data = base.data('data.text.documents:Text', source='auto', tokenizer='Byte()', valid='train[90%:91%]', length=TRAINED,
                       batch_size=32)
    c.model = base.part('transformer.models.gpt:Gpt', layers=4, heads=4, width=64, length=TRAINED, **base.NO_BIASES,
                        positions=VARIANTS[variant], initial='Scaled(scale=0.07)')
    c.task = base.part('transformer.tasks.language_model:NextToken')
    c.optimizer = base.optimizer(learning_rate=3e-3, schedule=base.part('training.schedules:LinearDecay', warmup_steps=50))
    c.train.steps = 600
    c.log.every_steps = 50
    c.checkpoint.every_steps = 300
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid')
    return c.lock()


def sweep(variant=''):
    if variant:
        raise ValueError(f'The sweep has all encodings; leave out :{variant}, or train it alone with train.py.')
    return Sweep({name: {'model.positions': positions} for name, positions in VARIANTS.items()},
                 functools.partial(measure, lengths=LENGTHS), picture, title='bytes in a row')


def measure(folder, lengths):
    """{'': {length: nats a byte, None where the encoding is undefined}} of a run; for rotary positions also with each scaling
    by the ratio of the lengths, {'linear': {...}, 'ntk': {...}}."""
    from training import run as runs  # jax is slow to import

    snapshot = runs.load(folder)
    positions, trained = snapshot.model.stack.positions, snapshot.model.length
    kinds = {'': lambda length: positions if length <= trained or positions.free_length else None}
    if isinstance(positions, resolve.load('transformer.attention.positions.rotary:Rotary')):
        kinds |= {scaling: lambda length, scaling=scaling: dataclasses.replace(
            positions, scaling=scaling, factor=max(1.0, length / trained)) for scaling in SCALINGS}
    return {key: {str(length): loss(snapshot, kind(length), length) for length in lengths} for key, kind in kinds.items()}


def loss(snapshot, positions, length):
    """Nats a byte on held-out text in rows of `length` bytes; each byte is scored once, given the bytes before it in its
    row."""
    if positions is None:
        return None
    stack = dataclasses.replace(snapshot.model.stack, positions=positions)
    run = dataclasses.replace(snapshot.run, model=snapshot.model.clone(stack=stack))
    rows = max(1, run.eval_rows * run.data.config.length // length)  # as many bytes in a batch as in training
    batches = run.data.evaluation(run.config.evals.valid.split, rows, context=length)
    return dataclasses.replace(snapshot, run=run).averages(batches)['loss']


def picture(folders, table):
    """The losses over the length of the rows, with a band of one standard deviation if there are several seeds."""
    figure, body = figures.new(10, 6, dpi=120)
    axes = body.subplots()
    lengths = sorted({int(length) for row in table.values() for length in row})
    for i, (name, row) in enumerate(table.items()):
        known = {int(length): number for length, number in row.items() if number is not None}
        colour, line = figures.COLOURS[i % 7], ('-', '--', ':', '-.')[i // 7 % 4]
        mean = [number.mean for number in known.values()]  # lengths without a finite loss are left out
        axes.plot(known.keys(), mean, color=colour, linestyle=line, marker='o', markersize=3, label=name)
        low, high = ([number.mean + sign * number.deviation for number in known.values()] for sign in (-1, 1))
        axes.fill_between([*known], low, high, color=colour, alpha=0.2, linewidth=0)  # nothing for one seed
    axes.set_xscale('log', base=2)
    axes.set_xticks(lengths, map(str, lengths))
    axes.axvline(TRAINED, color='gray', linewidth=0.8, label=f'trained on {TRAINED} bytes')
    axes.set(xlabel='bytes in a row (logarithmic scale)', ylabel='loss, nats a byte, held out')
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    body.legend(loc='outside right center', frameon=False, fontsize=9)
    band = '; bands are one standard deviation over seeds' if any(one.count > 1 for row in table.values()
                                                                for one in row.values() if one) else ''
    return figures.explain(figure, 'Position encodings beyond the length of training',
                           f'The held-out loss of runs trained on rows of {TRAINED} bytes, in rows of other lengths{band}.')
