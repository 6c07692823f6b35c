"""A GPT translates: source and target are one row, and the tokens of the source see each other.

The prefix language model of Raffel et al. 2020, section 3.2.1, on the phrases of configs/transformer_cldr.py: English to
French, 33,283 to train on. The loss is on the target alone.

    python train.py --config=configs/gpt_translate.py
    echo "Monday, March 3, 2031" | python predict.py --workdir=runs/gpt_translate

Any two locales: --config.data.languages=de,es. With --config.data.bidirectional=False a source is read from left to right.
Pairs of your own: --config.data.source=table --config.data.path=PAIRS.tsv, and if they are one file its parts:
--config.data.train='train[:90%]' --config.data.valid='train[90%:95%]' --config.data.test='train[95%:]'.
Not yet run to its end.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, ['none'])
    c = base.config()
    c.data = base.data('data.seq2seq.prefixed:Prefixed', source='cldr', languages='en,fr', train='train', valid='valid',
                       test='test', tokenizer='SentencePiece(vocab=1024)', source_length=96, length=96, batch_size=8)
    c.model = base.part('transformer.models.gpt:Gpt', layers=4, heads=4, width=128, length=192)
    c.task = base.part('transformer.tasks.language_model:PrefixNextToken')
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, b2=0.98, average_decay=0.99,
                                 schedule=base.part('training.schedules:LinearDecay', warmup_steps=100))
    c.train.steps = 900
    c.checkpoint.every_steps = 500
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=300)
    c.evals.translations = base.evaluation('transformer.evaluators.translations:Translations', split='valid', every_steps=900)
    return c.lock()
