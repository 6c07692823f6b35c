"""The Transformer of Vaswani et al. 2017 on WMT 2014, in the setting of their section 5, in bfloat16.

    python -m data.prepare wmt14_translate/de-en
    python train.py --config=configs/transformer_wmt14.py[:VARIANT]

:base   6 + 6 layers, 512 wide, 63.1 million parameters; 100,000 steps; they report 27.3 BLEU from English to German on
        newstest2014 and 38.1 to French.
:big    1,024 wide, 214.2 million parameters, dropout 0.3; 300,000 steps; 28.4 and 41.8.

One vocabulary of 37,000 pieces and one table for sources, targets and output; rows of 256 tokens hold several pairs, 25,000
source and target tokens a step; Adam with b2 0.98, 4,000 steps of warm-up and the inverse square root; label smoothing 0.1;
a beam of 4 with length penalty 0.6. They average the last checkpoints; here a moving average of the parameters is evaluated.
To French: --config.data.name=wmt14_translate/fr-en --config.data.languages=en,fr
--config.data.tokenizer='SentencePiece(vocab=32000)' (with :big, --config.model.encoder.dropout=0.1
--config.model.decoder.dropout=0.1).

For GPUs and TPUs; not yet run to its end. They took 12 hours for :base on eight P100, 3.5 days for :big.
"""

from configs import base

# width, inner width, heads, dropout, steps
SHAPES = {'base': (512, 2048, 8, 0.1, 100_000), 'big': (1024, 4096, 16, 0.3, 300_000)}
WARMUP = 4000


def get_config(variant=''):
    variant = base.variant_of(variant, tuple(SHAPES))
    width, inner, heads, dropout, steps = SHAPES[variant]
    c = base.config()
    c.dtype = 'bfloat16'
    c.data = base.data('data.seq2seq.parallel:Parallel', source='tfds', name='wmt14_translate/de-en', languages='en,de',
                       train='train',
                       valid='validation', test='test', tokenizer='SentencePiece(vocab=37000)', source_length=256, length=256,
                       batch_size=96)
    c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder', **base.both(
        layers=6, heads=heads, width=width, dropout=dropout, feed_forward=f'Mlp(inner={inner}, activation=Relu())'),
        source_length=512, length=512)
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence', label_smoothing=0.1)
    c.optimizer = base.optimizer(learning_rate=(width * WARMUP) ** -0.5, b2=0.98, eps=1e-9, clip=0.0, average_decay=0.999,
                                 schedule=base.part('training.schedules:InverseSqrt', warmup_steps=WARMUP))
    c.train.steps = steps
    c.log.every_steps = 100
    c.checkpoint.every_steps = 2500
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=5000)
    c.evals.translations = base.evaluation('transformer.evaluators.translations:Translations', split='test', every_steps=50_000,
                                           strategy='Beam(size=4, length_penalty=0.6)')
    return c.lock()
