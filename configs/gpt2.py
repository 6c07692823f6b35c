"""GPT-2's smallest shape (124M), for measuring the step."""
from configs import base


def get_config(variant=''):
    base.variant_of(variant, ['124m'])
    c = base.config()
    c.data = base.data('data.text:Text', source='stdlib', tokenizer='Byte()', length=512, batch_size=1)
    c.model = base.part('transformer.gpt:Gpt', vocab=50257)
    c.task = base.part('transformer.tasks:NextToken')
    c.optimizer = base.optimizer(learning_rate=1e-3, weight_decay=0.1, schedule=base.part('training.optimizer:Constant'))
    return c.lock()
