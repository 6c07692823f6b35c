"""A character-level GPT on tiny Shakespeare, in nanoGPT's two settings."""

from configs import base

VARIANTS = ('cpu', 'base')


def get_config(variant=''):
    variant = base.variant_of(variant, VARIANTS)
    c = base.config()
    large = variant == 'base'
    length = 256 if large else 64
    c.data = base.data('data.text:Text', path='tinyshakespeare/input.txt', documents='stream', tokenizer='Char()',
                       train='train[:1003854]', valid='train[1003854:1059624]', test='train[1059624:]', length=length,
                       batch_size=64 if large else 12)
    c.model = base.part('transformer.gpt:Gpt', layers=6 if large else 4, heads=6 if large else 4,
                        width=384 if large else 128, length=length, bias=False, dropout=0.2 if large else 0.0,
                        init_scale=0.02 if large else 0.06)
    c.task = base.part('transformer.tasks:NextToken')
    if large:  # nanoGPT's own schedule
        c.optimizer = base.optimizer(learning_rate=1e-3, b2=0.99, weight_decay=0.1, schedule=base.part(
            'training.optimizer:Cosine', warmup_steps=100, final=0.1))
    else:
        c.optimizer = base.optimizer(learning_rate=4e-3, b2=0.99, weight_decay=0.1, schedule=base.part(
            'training.optimizer:Linear', warmup_steps=100))
    c.train.steps = 5000 if large else 2000
    c.log.every_steps = 50
    c.checkpoint.every_steps = 1000
    c.evals.valid = base.evaluation('transformer.evaluators:Perplexity', split='valid', every_steps=250)
    c.evals.samples = base.evaluation('transformer.evaluators:Continuations', split='valid', prompt='\n',
                                      tokens=length - 1)
    return c.lock()
