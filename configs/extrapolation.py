"""Position encodings beyond the length of training: a small GPT trained on rows of 64 bytes, evaluated on 64, 128, 256 and 512.

    python -m configs.extrapolation [--workdir=runs/extrapolation] [--config.part.field=value ...]

trains one run for every encoding that a GPT can have, on bytes of Python's standard library, prints the table below and writes
it to WORKDIR/extrapolation.json and, as curves, to WORKDIR/plots/extrapolation.png. Runs that are finished are not trained
again. A flag holds for all of them; one alone:

    python train.py --config=configs/extrapolation.py:rotary

:no_positions, :learned, ..., :etc   the encodings of VARIANTS.

TABLE
"""

import contextlib
import dataclasses
import json
import math

from absl import flags

from configs import base
from training import cli

if __name__ == '__main__':
    flags.DEFINE_string('workdir', 'runs/extrapolation', 'folder of the runs, the table and plots/extrapolation.png')
    cli.answer_help(config='configs/extrapolation.py')  # at once, before jax is imported

# Sinusoids as large as the embeddings of the tokens, which are drawn with 0.07 here and not multiplied by sqrt(D).
VARIANTS = {
    'no_positions': 'NoPositions()', 'learned': 'Learned()', 'learned_layers': "Learned(at='layers')",
    'sinusoidal': 'Sinusoidal(scale=0.1)', 'sinusoidal_layers': "Sinusoidal(at='layers', scale=0.1)",
    'sinusoidal_queries_keys': "Sinusoidal(at='queries_keys')", 'sinusoidal_scores': "Sinusoidal(at='scores')",
    'sinusoidal_scores_times': "Sinusoidal(at='scores_times')", 'rotary': 'Rotary()', 'shaw': 'Shaw(distance=16)',
    't5': 'T5(buckets=32, distance=128)', 'alibi': 'Alibi()', 'transformer_xl': 'TransformerXl()',
    'deberta': 'Deberta(distance=64)', 'tupe': 'Tupe()', 'etc': 'Etc(tokens=1, distance=16)',
}
SCALINGS = ('linear', 'ntk')  # of rotary positions, without further training
TRAINED = 64
LENGTHS = (64, 128, 256, 512)


def get_config(variant=''):
    variant = base.variant_of(variant, tuple(VARIANTS))
    c = base.config()
    c.data = base.data('data.text:Text', source='stdlib', tokenizer='Byte()', valid='train[90%:91%]', length=TRAINED,
                       batch_size=32)
    c.model = base.part('transformer.gpt:Gpt', layers=4, heads=4, width=64, length=TRAINED, bias=False,
                        positions=VARIANTS[variant], initial='Scaled(scale=0.07)')
    c.task = base.part('transformer.tasks:NextToken')
    c.optimizer = base.optimizer(learning_rate=3e-3, schedule=base.part('training.schedules:Linear', warmup_steps=50))
    c.train.steps = 600
    c.log.every_steps = 50
    c.checkpoint.every_steps = 300
    c.evals.valid = base.evaluation('transformer.evaluators:Perplexity', split='valid')
    return c.lock()


def main(config, name):
    from training import workdir  # jax is slow to import

    return train_grid(config, workdir.local(flags.FLAGS.workdir))


def train_grid(config, folder):
    """Trains every variant that is not finished yet, with what it prints in VARIANT.log, measures it at all lengths and writes
    the table; returns the exit code of the process."""
    import train

    folder.mkdir(parents=True, exist_ok=True)
    measured = {}
    print(heading(), flush=True)
    for variant, own in points(config):
        with open(folder / f'{variant}.log', 'a') as log, contextlib.redirect_stdout(log):
            code = train.train(own, folder / variant)
        if code:  # stopped by a signal
            return code
        rows = measure(folder / variant)
        for name, losses in rows.items():
            print(line(name, losses), flush=True)
        measured |= rows
    (folder / 'extrapolation.json').write_text(json.dumps(measured, indent=1) + '\n')
    print(picture(measured, folder / 'plots' / 'extrapolation.png'))
    return 0


def points(config):
    """(variant, config) of every run."""
    for variant, positions in VARIANTS.items():
        own = config.copy_and_resolve_references()
        with own.unlocked():
            own.model.positions = positions
        yield variant, own


def measure(folder):
    """{name: {length: nats a byte, None where the encoding means nothing}} of a run, and of one with rotary positions also
    under each scaling by as much as the rows are longer."""
    from training import run as runs

    snapshot = runs.load(folder)
    model = snapshot.model
    meant = {length: model.positions if length <= model.length or model.positions.free_length else None
             for length in LENGTHS}
    kinds = {folder.name: meant}
    if hasattr(model.positions, 'scaling'):
        for scaling in SCALINGS:
            kinds[f'{folder.name}_{scaling}'] = {length: dataclasses.replace(
                model.positions, scaling=scaling, factor=max(1.0, length / model.length)) for length in LENGTHS}
    return {name: {length: loss(snapshot, kind, length) for length, kind in found.items()}
            for name, found in kinds.items()}


def loss(snapshot, positions, length):
    """Nats a byte on held-out text cut into rows of so many bytes, each scored once from what is before it in its row."""
    if positions is None:
        return None
    run = dataclasses.replace(snapshot.run, model=snapshot.model.clone(positions=positions))
    rows = max(1, run.eval_rows * run.data.config.length // length)  # as many bytes in a batch as in training
    batches = run.data.evaluation(run.config.evals.valid.split, rows, context=length)
    return dataclasses.replace(snapshot, run=run).averages(batches)['loss']


def heading():
    return f'{"bytes in a row":28}' + ''.join(f'{length:>8}' for length in LENGTHS)


def line(name, losses):
    return f'{name:28}' + ''.join(f'{"n/a" if value is None else format(value, ".3f"):>8}' for value in losses.values())


def picture(measured, path):
    """Draws the losses over the length of the rows; returns the path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), dpi=120, layout='constrained')
    axes = figure.subplots()
    colours = [f'C{i}' for i in range(10)]
    for i, (name, losses) in enumerate(measured.items()):
        known = {length: value for length, value in losses.items() if value is not None and math.isfinite(value)}
        axes.plot(known.keys(), known.values(), color=colours[i % 10], linestyle=('-', '--', ':')[i // 10], marker='o',
                  markersize=3, label=name)
    axes.set_xscale('log', base=2)
    axes.set_xticks(LENGTHS, map(str, LENGTHS))
    axes.axvline(TRAINED, color='gray', linewidth=0.8)
    axes.set(title=f'trained on rows of {TRAINED} bytes', xlabel='bytes in a row', ylabel='nats a byte, held out')
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    figure.legend(loc='outside right center', frameon=False, fontsize=9)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path)
    return path


if __name__ == '__main__':
    cli.run(main, config='configs/extrapolation.py')
