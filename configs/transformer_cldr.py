"""WIP"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.parallel:Parallel', source='cldr', languages='en,fr', tokenizer='SentencePiece(vocab=1024)',
                       train='train', valid='valid', test='test', source_length=96, length=96, batch_size=8)
    c.model = base.part('transformer.encoder_decoder:EncoderDecoder', layers=2, heads=4, width=128, source_length=96, length=96)
    c.task = base.part('transformer.tasks:SequenceToSequence')
    c.optimizer = base.optimizer(learning_rate=3e-3, b2=0.98, weight_decay=0.0, schedule=base.part(
        'training.schedules:Linear', warmup_steps=100))
    c.train.steps = 1000
    c.log.every_steps = 50
    c.checkpoint.every_steps = 500
    c.evals.valid = base.evaluation('transformer.evaluators:Averages', split='valid', every_steps=250)
    c.evals.translations = base.evaluation('transformer.translation:Translations', split='valid', every_steps=500)
    return c.lock()
