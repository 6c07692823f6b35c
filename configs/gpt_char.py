"""A character-level GPT on any text, in nanoGPT's two settings (github.com/karpathy/nanoGPT).

    python train.py --config=configs/gpt_char.py --config.data.path=input.txt

Trained on the first 90 % of the text, validated on the next 5 %, tested on the rest; every character is scored once in windows
of the training length. Tiny Shakespeare, the text that these settings were chosen for, is the `input.txt` of
github.com/karpathy/char-rnn (1,115,394 bytes).

:cpu          nanoGPT's laptop setting: 4 layers, 4 heads, 128 wide, no bias, no dropout, 2,000 steps of 12 x 64 characters, but
              a peak of 4e-3 that falls linearly to zero, and matrices drawn with 0.033 (nanoGPT: 1e-3, a cosine to a tenth;
              0.02). A step takes 33 ms, 1.10 to 1.16 times PyTorch 2.13's, measured in turns.
:shakespeare  The same on tiny Shakespeare, cut by bytes: 90 % and 5 % of that file, also where it ends earlier. It reaches
              1.693 nats a character on the validation part, with nanoGPT's schedule and initial scale 1.879: a minute and a
              half on two cores of a Xeon (Python 3.11, jax 0.10.2, float32). A larger initial scale learns faster still (0.06:
              1.655), but its first loss is 2.4 % above ln V.
:base         nanoGPT's setting for a GPU: 10.7M parameters, 5,000 steps of 64 x 256, dropout 0.2, but matrices drawn with 0.016
              (nanoGPT: 0.02), for a first loss near ln V; nanoGPT reports 1.4697 on tiny Shakespeare. Not yet run.
"""

from configs import base

VARIANTS = ('cpu', 'shakespeare', 'base')


def get_config(variant=''):
    variant = base.variant_of(variant, VARIANTS)
    c = base.config()
    large = variant == 'base'
    length = 256 if large else 64
    parts = {}
    if variant == 'shakespeare':
        parts = dict(train='train[:1003854]', valid='train[1003854:1059624]', test='train[1059624:]')
    c.data = base.data('data.text.documents:Text', path='input.txt', documents='stream', tokenizer='Char()',
                       length=length, batch_size=64 if large else 12, **parts)
    c.model = base.part('transformer.models.gpt:Gpt', layers=6 if large else 4, heads=6 if large else 4,
                        width=384 if large else 128, length=length, **base.NO_BIASES, dropout=0.2 if large else 0.0,
                        initial='Scaled(scale=0.016)' if large else 'Scaled(scale=0.033)')
    c.task = base.part('transformer.tasks.language_model:NextToken')
    if large:  # nanoGPT's own schedule
        c.optimizer = base.optimizer(learning_rate=1e-3, b2=0.99, weight_decay=0.1, schedule=base.part(
            'training.schedules:CosineDecay', warmup_steps=100, final=0.1))
    else:
        c.optimizer = base.optimizer(learning_rate=4e-3, b2=0.99, weight_decay=0.1, schedule=base.part(
            'training.schedules:LinearDecay', warmup_steps=100))
    c.train.steps = 5000 if large else 2000
    c.log.every_steps = 50
    c.checkpoint.every_steps = 1000
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid', every_steps=250)
    c.evals.samples = base.evaluation('transformer.evaluators.language_model:Continuations', split='valid', prompt='\n',
                                      tokens=length - 1)
    return c.lock()
