"""The recurrent encoder-decoder with attention of Bahdanau et al. 2015 on English and French sentences of Tatoeba.

It is that of Dive into Deep Learning (Zhang et al., section 11.4); the data is that of configs/transformer_fra_eng.py.

    python train.py --config=configs/bahdanau_fra_eng.py[:VARIANT] --config.data.path=fra.txt

:d2l   the textbook's setting: 512 pairs, 2 + 2 layers of 256 GRUs, additive attention, dropout 0.2 (on its weights too), Adam
       0.005, 30 epochs:

           go . => va !, 1.000                             i lost . => j'ai perdu ., 1.000
           he's calm . => il est <unk> ., 0.658            i'm home . => je suis chez moi ., 1.000

       (the textbook: 1, 1, 0, 1). 2.5 minutes on two cores of a Xeon, beside other work (Python 3.11, jax 0.10.2, float32).
:full  all pairs but a held-out twentieth; one layer, its encoder in both directions, rows of three lengths, 3.13 million
       parameters. After 2.4 epochs BLEU 36.3, chrF 56.4 of the 7,435 held-out pairs (beam of 4). Its four sentences:

           go . => va !, 1.000                       i lost . => j'ai perdu ., 1.000
           he's calm . => il est calme ., 1.000      i'm home . => je suis chez moi ., 1.000

       60 minutes on one core of a Xeon (Python 3.11, jax 0.10.2, float32).

Other attention: --config.model.attention='Luong(score=Bilinear())', 'Luong(score=Bilinear(), window=3, predictive=True)',
'NoAttention()', 'Bahdanau(past=True)'; other cells: --config.model.cell='Lstm()'.
"""

from configs import base, transformer_fra_eng


def get_config(variant=''):
    variant = base.variant_of(variant, ('full', 'd2l'))
    c = base.config()
    c.data = transformer_fra_eng.data(variant, packing='buckets')
    model = 'transformer.models.bahdanau:RecurrentEncoderDecoder'
    if variant == 'd2l':
        c.model = base.part(model, source_length=9, length=9, layers=2, width=256, bidirectional=False, dropout=0.2,
                            attention='Bahdanau(score=Additive(width=256), dropout=0.2)')
        c.optimizer = base.optimizer(learning_rate=5e-3, schedule=base.part('training.schedules:ConstantRate'))
        c.train.steps = 120
    else:
        c.model = base.part(model, source_length=64, length=64, layers=1, width=256, share=True, tied=True, outer_dropout=0.2,
                            attention='Bahdanau(score=Additive(width=256), combined=True)')
        c.optimizer = base.optimizer(learning_rate=2e-3, b2=0.98, average_decay=0.998,
                                     schedule=base.part('training.schedules:LinearDecay', warmup_steps=200))
        c.train.steps = 4000
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence', label_smoothing=0.1 if variant == 'full' else 0.0)
    c.log.every_steps = 10 if variant == 'd2l' else 50
    c.checkpoint.every_steps = 500
    transformer_fra_eng.evaluations(c, variant)
    return c.lock()
