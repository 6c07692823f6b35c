"""A small Transformer on the captions of Multi30k, English to German (Elliott et al. 2016).

    python train.py --config=configs/transformer_multi30k.py --config.data.path=FOLDER

`FOLDER` holds train.en, train.de, val.en, val.de (github.com/multi30k/dataset, data/task1/raw), .gz too. Not yet run to its
end.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.parallel:Parallel', source='files', path='multi30k', languages='en,de', train='train', valid='val',
                       test='test_2016_flickr', tokenizer='SentencePiece(vocab=6000)', source_length=64, length=64,
                       batch_size=64)
    c.model = base.part('transformer.encoder_decoder:EncoderDecoder', layers=4, heads=4, width=128, inner=256,
                        source_length=128, length=128, dropout=0.3)
    c.task = base.part('transformer.tasks:SequenceToSequence', label_smoothing=0.1)
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=4e-3, b2=0.98, weight_decay=0.0,
                                 average_decay=0.998, schedule=base.part('training.schedules:Linear', warmup_steps=400))
    c.train.steps = 4500
    c.log.every_steps = 50
    c.checkpoint.every_steps = 500
    c.evals.valid = base.evaluation('transformer.evaluators:Averages', split='valid', every_steps=500)
    c.evals.translations = base.evaluation('transformer.translation:Translations', split='valid', every_steps=1500,
                                           strategy='Beam(size=4, length_penalty=0.6)')
    return c.lock()
