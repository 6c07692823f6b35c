"""T5-small of version 1.0 (Raffel et al. 2020, section 3.1.2), 60 million parameters, learns to translate from scratch.

    python train.py --config=configs/t5_small.py --config.data.path=PAIRS.tsv

:pairs  tab-separated pairs in packed rows of 128 tokens; for a GPU, not yet run. T5's own weights, which convert.py takes in,
        are trained further with configs/finetune.py.
:step   8 rows of 128 and of 64 tokens and 32,128 pieces in float32, on bytes of CLDR's phrases: for timing its step on a CPU.

            python -m benchmarks.train_step --config=configs/t5_small.py:step --steps=20

        3.6 to 3.8 s a step on two busy cores of a Xeon (Python 3.11, jax 0.10.2); in turns with PyTorch 2.13 and Hugging
        Face's model 0.90 and 1.07 of its time.
"""

from configs import base

VARIANTS = 'pairs', 'step'
DOT = 'Softmax(score=Dot())'  # scores are not divided by the root of the width


def get_config(variant=''):
    step = base.variant_of(variant, VARIANTS) == 'step'
    rate = 0.0 if step else 0.1
    c = base.config()
    if step:
        c.data = base.data('data.text.parallel:Parallel', source='cldr', tokenizer='Byte()', source_length=128, length=64,
                           long='truncate', batch_size=8)
    else:
        c.data = base.data('data.text.parallel:Parallel', source='table', path='pairs.tsv', train='train[:95%]',
                           valid='train[95%:]',
                           test='', tokenizer='SentencePiece(vocab=32000)', source_length=128, length=128, batch_size=64)
    c.model = base.part(
        'transformer.models.encoder_decoder:EncoderDecoder', source_length=128, length=128, scale_embedding=False,
        head='NextWords(scaled=True)', cross_attention=DOT, **base.both(
            layers=6, heads=8, width=512, feed_forward=f'Mlp(inner=2048, activation=Relu(), bias=False, dropout={rate})',
            projection_bias=False, output_bias=False, norm='RMSNorm(epsilon=1e-6)', positions='T5Bias()', residual='PreNorm()',
            attention=DOT, dropout=rate, last_dropout=rate))
    if step:
        c.model.vocab = 32128
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence')
    c.optimizer = base.optimizer(learning_rate=1e-3, schedule=base.part('training.schedules:InverseSqrt', warmup_steps=1000))
    c.train.steps = 20_000
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    return c.lock()
