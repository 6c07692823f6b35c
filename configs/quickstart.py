"""A small GPT on the source code of Python's own standard library."""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.text:Text', source='stdlib', tokenizer='SentencePiece(vocab=2048)', length=128,
                       batch_size=16)
    c.model = base.part('transformer.gpt:Gpt', layers=4, heads=4, width=128, length=128, bias=False,
                        init_scale=0.045)
    c.task = base.part('transformer.tasks:NextToken')
    c.optimizer = base.optimizer(learning_rate=4e-3, b2=0.98, weight_decay=0.1, schedule=base.part(
        'training.optimizer:Linear', warmup_steps=50))
    c.train.steps = 700
    c.log.every_steps = 40
    c.checkpoint.every_steps = 350
    c.evals.valid = base.evaluation('transformer.evaluators:Perplexity', split='valid', every_steps=350)
    c.evals.compressors = base.evaluation('transformer.evaluators:Compressors', split='valid')
    c.evals.samples = base.evaluation('transformer.evaluators:Continuations', split='valid', prompt='def ',
                                      every_steps=350)
    return c.lock()
