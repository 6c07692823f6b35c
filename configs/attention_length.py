"""How much attention matters with the length of a sentence: BLEU by the words of the source, with and without attention.

It is figure 2 of Bahdanau et al. 2015 on English and French sentences of Tatoeba (the data of configs/transformer_fra_eng.py, a
fifth held out): a decoder that attends to the source, and one that gets the encoder's last state alone, which has the same
width whatever the length of the sentence (Cho et al. 2014). The model is that of configs/bahdanau_fra_eng.py:full, one layer of
256 GRUs.

    python sweep.py --config=configs/attention_length.py --config.data.path=fra.txt [--workdir=runs/attention_length]

trains both, prints BLEU for each bin of lengths, with the bounds of its bootstrap interval of 95 % and the number of pairs, and
writes that to WORKDIR/attention_length.json and, as curves, to WORKDIR/plots/attention_length.png. One alone:

    python train.py --config=configs/attention_length.py:none --config.data.path=fra.txt

Whether two runs differ by more than chance, bin by bin:

    python eval.py --workdir=runs/attention_length/bahdanau --evaluator=by_length --against=runs/attention_length/none

BLEU of 3,515 held-out pairs after 3,000 steps:

    words               1-4   5-6   7-8  9-10  11-12  13-14  15-16  17-19   20+
    attention          29.4  35.7  37.5  34.4   31.2   27.4   26.5   21.5  16.9
    no attention       22.6  25.9  26.1  21.2   13.9   10.5    8.4    7.1   5.1

Both lose with the length, without attention more: of 7 to 8 words it has 70 % of the BLEU with attention, of 15 to 16 words
32 %. Every bin differs by more than chance (paired bootstrap, p 0.0001). Long sentences are few: the last bin has 49 pairs.
38 minutes without and about 50 with attention, on one core of an EPYC beside other work (family 25 model 1, Python 3.11, jax
0.10.2, float32).
"""

import re

from configs import bahdanau_fra_eng, base
from display import figures
from training.report import report
from training.report.sweeps import Sweep

ATTENTION, NONE = 'Bahdanau(score=Additive(width=256), combined=True)', 'NoAttention()'
VARIANTS = {'bahdanau': ATTENTION, 'none': NONE}


def get_config(variant=''):
    variant = base.variant_of(variant, tuple(VARIANTS))
    c = bahdanau_fra_eng.get_config('full').unlock()
    c.data.train, c.data.valid = 'train[:80%]', 'train[80%:]'  # long sentences are few: many held-out pairs
    c.model.attention = VARIANTS[variant]
    c.train.steps = 3000
    del c.evals.translations, c.evals.sentences
    c.evals.valid.split = 'valid[:25%]'
    c.evals.by_length = base.evaluation('transformer.evaluators.translations:ByLength', split='valid', limit=500,
                                        strategy='Beam(size=4, length_penalty=0.6)', bounds=(4, 6, 8, 10, 12, 14, 16, 19))
    return c.lock()


def sweep(variant=''):
    if variant:
        raise ValueError(f'The sweep has all variants; leave out :{variant}, or train it alone with train.py.')
    return Sweep({name: {'model.attention': attention} for name, attention in VARIANTS.items()}, measure, picture,
                 title='words in the source')


def measure(folder):
    """{'': {bin: BLEU}, 'low', 'high': {bin: bound of its interval}, 'pairs': {bin: number}} of a run."""
    last = report.rows(folder, 'by_length')[-1]
    bins = [key.removeprefix('bleu/') for key in last if key.startswith('bleu/')]
    bins.sort(key=lambda one: int(re.split('[-+]', one)[0]))  # the rows have their keys in the order of letters
    columns = lambda name: {one: last[f'{name}/{one}'] for one in bins}
    return {'': columns('bleu')} | {name: columns(name) for name in ('low', 'high', 'pairs')}


def picture(folders, table):
    """BLEU over the bins of lengths, with the bootstrap intervals; the means of several seeds."""
    figure, body = figures.new(9, 5, dpi=120)
    axes = body.subplots()
    for name in folders:
        bleu, low, high = ([number.mean for number in table[row].values()] for row in (name, f'{name}_low', f'{name}_high'))
        colour = figures.COLOURS[name == 'none']
        axes.plot(bleu, color=colour, marker='o', markersize=4, label=f'{"no " * (name == "none")}attention')
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
