"""T5 of version 1.0 (Raffel et al. 2020): pretrained by span corruption, or as T5-small trained to translate from scratch.

    python train.py --config=configs/t5_small.py --config.data.path=TEXT_FOLDER
    echo 'Thank you <extra_id_0> me to your party <extra_id_1> week .' | python predict.py --workdir=runs/t5_small

:spans  span corruption (section 3.1.4) of text, with 4 layers of 256 in the encoder and in the decoder, small enough for a CPU:
        8,192 pieces, 32 of them sentinels, are learnt from the text; rows of 128 tokens are full, and 15 % of the text is
        missing. --config.data.documents=line if lines are documents. T5-small itself:
        --config.model.encoder.layers=6, .heads=8, .width=512, .feed_forward='Mlp(inner=2048, activation=Relu(), bias=False,
        dropout=0.0)', the same of model.decoder, and --config.data.tokenizer='SentencePiece(vocab=32128, sentinels=100)'.
        Not yet run to its end; configs/objectives.py trains it for 0.9e14 operations, on word pieces, and measures it.
:pairs  T5-small, 60 million parameters, on tab-separated pairs in packed rows of 128 tokens; for a GPU, not yet run. T5's own
        weights, which convert.py takes in, are trained further with configs/finetune.py.
:step   8 rows of 128 and of 64 tokens and 32,128 pieces in float32, on bytes of CLDR's phrases: for timing its step on a CPU.

            python -m benchmarks.train_step --config=configs/t5_small.py:step --steps=20

        3.6 to 3.8 s a step on two busy cores of a Xeon (Python 3.11, jax 0.10.2); in turns with PyTorch 2.13 and Hugging
        Face's model 0.90 and 1.07 of its time.
"""

from configs import base

VARIANTS = 'spans', 'pairs', 'step'
DOT = 'Softmax(score=Dot())'  # scores are not divided by the root of the width


def get_config(variant=''):
    variant = base.variant_of(variant, VARIANTS)
    c = base.config()
    if variant == 'spans':
        c.data = base.data('data.seq2seq.corrupted:Corrupted', path='text', length=128,
                           tokenizer='SentencePiece(vocab=8192, sentinels=32)')
    elif variant == 'step':
        c.data = base.data('data.seq2seq.parallel:Parallel', source='cldr', tokenizer='Byte()', source_length=128, length=64,
                           long='truncate', batch_size=8)
    else:
        c.data = base.data('data.seq2seq.parallel:Parallel', source='table', path='pairs.tsv', train='train[:95%]',
                           valid='train[95%:]',
                           test='', tokenizer='SentencePiece(vocab=32000)', source_length=128, length=128, batch_size=64)
    c.model = base.part('transformer.models.encoder_decoder:EncoderDecoder', source_length=128, length=128,
                        scale_embedding=False, head='NextWords(scaled=True)', cross_attention=DOT, **stacks(variant))
    if variant == 'step':
        c.model.vocab = 32128
    c.task = base.part('transformer.tasks.language_model:SequenceToSequence')
    c.optimizer = base.optimizer(learning_rate=1e-3, schedule=base.part('training.schedules:InverseSqrt', warmup_steps=1000))
    c.train.steps = 20_000
    c.evals.valid = base.evaluation('transformer.evaluators.base:Averages', split='valid', every_steps=1000)
    return c.lock()


def stacks(variant):
    """The encoder and the decoder. Only training on pairs has dropout: T5 is pretrained without it in version 1.1, and small
    models see little of a text twice."""
    small, rate = variant == 'spans', 0.1 if variant == 'pairs' else 0.0
    layers, heads, width = (4, 4, 256) if small else (6, 8, 512)
    return base.both(
        layers=layers, heads=heads, width=width,
        feed_forward=f'Mlp(inner={4 * width}, activation=Relu(), bias=False, dropout={rate})',
        projection_bias=False, output_bias=False, norm='RMSNorm(epsilon=1e-6)', positions='T5Bias()', residual='PreNorm()',
        attention=DOT, initial='T5()', dropout=rate, last_dropout=rate)
