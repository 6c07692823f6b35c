"""How much attention matters with the length of a sentence: BLEU by the words of the source, with and without attention.

It is figure 2 of Bahdanau et al. 2015 on English and French sentences of Tatoeba (the data of configs/transformer_fra_eng.py, a
fifth held out): a decoder that attends to the source, and one that gets the encoder's last state alone, which has the same
width whatever the length of the sentence (Cho et al. 2014). The model is that of configs/bahdanau_fra_eng.py:full.

    python sweep.py --config=configs/attention_length.py --config.data.path=fra.txt [--workdir=runs/attention_length]

trains four points, prints BLEU for each bin of lengths, with the bounds of its bootstrap interval of 95 % and the number of
pairs, and writes that to WORKDIR/attention_length.json and, as curves, to WORKDIR/plots/attention_length.png. One alone:

    python train.py --config=configs/attention_length.py:none --config.data.path=fra.txt

:bahdanau, :none            one layer of 256 GRUs, with and without attention.
:bahdanau_wide, :none_wide  the same of 384.

Whether two runs differ by more than chance, bin by bin:

    python eval.py --workdir=runs/attention_length/bahdanau --evaluator=by_length --against=runs/attention_length/none
"""

from configs import bahdanau_fra_eng, base
from display import figures
from training.report import report
from training.report.sweeps import Sweep

ATTENTION, NONE = 'Bahdanau(score=Additive(width=256), combined=True)', 'NoAttention()'
VARIANTS = {'bahdanau': (ATTENTION, 256), 'none': (NONE, 256), 'bahdanau_wide': (ATTENTION, 384), 'none_wide': (NONE, 384)}


def get_config(variant=''):
    variant = base.variant_of(variant, tuple(VARIANTS))
    c = bahdanau_fra_eng.get_config('full').unlock()
    c.data.train, c.data.valid = 'train[:80%]', 'train[80%:]'  # long sentences are few: many held-out pairs
    c.model.attention, c.model.width = VARIANTS[variant]
    c.train.steps = 3000
    del c.evals.translations, c.evals.sentences
    c.evals.valid.split = 'valid[:25%]'
    c.evals.by_length = base.evaluation('transformer.evaluators.translations:ByLength', split='valid', limit=500,
                                        strategy='Beam(size=4, length_penalty=0.6)', bounds=(4, 6, 8, 10, 12, 14, 16, 19))
    return c.lock()


def sweep(variant=''):
    if variant:
        raise ValueError(f'The sweep has all variants; leave out :{variant}, or train it alone with train.py.')
    return Sweep({name: {'model.attention': attention, 'model.width': width} for name, (attention, width) in VARIANTS.items()},
                 measure, picture, title='words in the source')


def measure(folder):
    """{'': {bin: BLEU}, 'low', 'high': {bin: bound of its interval}, 'pairs': {bin: number}} of a run."""
    last = report.rows(folder, 'by_length')[-1]
    columns = lambda name: {key.partition('/')[2]: value for key, value in last.items() if key.startswith(f'{name}/')}
    return {'': columns('bleu')} | {name: columns(name) for name in ('low', 'high', 'pairs')}


def picture(folders, table):
    """BLEU over the bins of lengths, with the bootstrap intervals; the means of several seeds."""
    figure, body = figures.new(9, 5, dpi=120)
    axes = body.subplots()
    for name in folders:
        bleu, low, high = ([number.mean for number in table[row].values()] for row in (name, f'{name}_low', f'{name}_high'))
        attention, width = VARIANTS[name]
        colour, line = figures.COLOURS[attention == NONE], '-' if width == 256 else '--'
        axes.plot(bleu, color=colour, linestyle=line, marker='o', markersize=4,
                  label=f'{"no " * (attention == NONE)}attention, {width} wide')
        axes.fill_between(range(len(bleu)), low, high, color=colour, alpha=0.15, linewidth=0)
    counts = table[f'{next(iter(folders))}_pairs']
    figures.name_ticks(axes.xaxis, range(len(counts)), [f'{name}\n{number.mean:g} pairs' for name, number in counts.items()],
                       fontsize=8)
    axes.set(xlabel='words in the source', ylabel='BLEU of held-out pairs, %')
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return figures.explain(figure, 'Translation with and without attention, by the length of the sentence',
                           'BLEU of held-out pairs whose source has so many words, for recurrent encoder-decoders with and '
                           'without attention; bands are bootstrap intervals of 95 % over the pairs.')
