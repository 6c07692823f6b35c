"""The shifting task on real text: of 100 words in, the second to the last come out, and one more that cannot be known.

    python train.py --config=configs/shift_text.py

Files of the standard library, the 5,000 most frequent words, 1.10 million parameters, 2.2 epochs: of the 47,877 words that can
be copied in held-out files, 99.90 % are; unknown ones and ends of lines are not counted. 5 minutes on two cores of an EPYC
(Python 3.11, jax 0.10.2, float32).
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.text.shift:Shift', source='auto', tokenizer='Word(vocab=5000)', length=100, batch_size=16)
    c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder', **base.both(layers=1, heads=4, width=128),
                        source_length=100, length=100)
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence')
    c.optimizer = base.optimizer(learning_rate=2e-3, b2=0.98, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=50))
    c.train.steps = 2000
    c.log.every_steps = 20
    c.checkpoint.every_steps = 500
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=200)
    return c.lock()
