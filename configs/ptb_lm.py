"""A word-level language model of the Penn Treebank, of at most 3 million parameters.

    python train.py --config=configs/ptb_lm.py --config.data.path=FOLDER

`FOLDER` holds ptb.train.txt and ptb.valid.txt (Mikolov et al. 2010), .gz too. Not yet run to its end.
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, [''])
    c = base.config()
    c.data = base.data('data.text:Text', path='ptb', documents='stream', tokenizer='Word()', train='*ptb.train*',
                       valid='*ptb.valid*', test='*ptb.test*', length=128, batch_size=12)
    c.model = base.part('transformer.gpt:Gpt', layers=4, heads=5, width=160, length=128, bias=False, dropout=0.2)
    c.task = base.part('transformer.tasks:NextToken')
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, weight_decay=0.1, average_decay=0.998,
                                 schedule=base.part('training.schedules:Linear', warmup_steps=100))
    c.train.steps = 7000
    c.log.every_steps = 50
    c.checkpoint.every_steps = 1000
    c.evals.valid = base.evaluation('transformer.evaluators:Perplexity', split='valid', stride=32, every_steps=1000)
    c.evals.samples = base.evaluation('transformer.evaluators:Continuations', split='valid', prompt='\n', tokens=60)
    return c.lock()
