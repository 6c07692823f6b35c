"""A small Transformer on the captions of Multi30k, English to German (Elliott et al. 2016).

    python train.py --config=configs/transformer_multi30k.py --config.data.path=FOLDER

`FOLDER` holds train.en, train.de, val.en, val.de (github.com/multi30k/dataset, data/task1/raw), .gz too.

2,093,056 parameters, 40.5 epochs: BLEU 40.3, chrF 63.1 of the 1,014 pairs of the validation part (beam of 4); after 1,500
steps 35.0, after 3,000 38.8, after 4,500 40.3. With dropout 0.3 instead of 0.2 and 4,500 steps 37.5 (30.3 after 1,500). 193
minutes on one or two cores of a Xeon, beside other work and with two interruptions (Python 3.11, jax 0.10.2, float32); a step
takes 1.15 seconds on the two cores alone.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.seq2seq.parallel:Parallel', source='files', path='multi30k', languages='en,de', train='train',
                       valid='val',
                       test='test_2016_flickr', tokenizer='SentencePiece(vocab=6000)', source_length=64, length=64,
                       batch_size=64)
    c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder', **base.both(
        layers=4, heads=4, width=128, dropout=0.2, feed_forward='Mlp(inner=256, activation=Relu())'),
        source_length=128, length=128)
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence', label_smoothing=0.1)
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=4e-3, b2=0.98, weight_decay=0.0,
                                 average_decay=0.998, schedule=base.part('training.schedules:LinearDecay', warmup_steps=400))
    c.train.steps = 5000
    c.log.every_steps = 50
    c.checkpoint.every_steps = 500
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=500)
    c.evals.translations = base.evaluation('transformer.evaluators.translations:Translations', split='valid', every_steps=1500,
                                           strategy='Beam(size=4, length_penalty=0.6)')
    return c.lock()
