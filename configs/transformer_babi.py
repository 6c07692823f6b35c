"""Transformers over the sentences of bAbI's stories (Dehghani et al. 2019, section 3.1); the data is that of
configs/memory_network_babi.py.

    python train.py --config=configs/transformer_babi.py[:VARIANT] --config.data.path=FOLDER

:universal  one block for all six steps.
:adaptive   the same, each sentence with as many steps as it needs, which are charged for.
:plain      six blocks.

Not yet run to its end.
"""

from configs import base


def get_config(variant=''):
    variant = base.variant_of(variant, ('universal', 'adaptive', 'plain'))
    c = base.config()
    c.data = base.data('data.babi:Babi', path='babi', size='10k', batch_size=64)
    depth = {'universal': 'Universal()', 'adaptive': 'Universal(halting=True)', 'plain': 'Own()'}[variant]
    c.model = base.part('transformer.story_transformer:StoryTransformer', layers=6, heads=4, width=128, inner=256, dropout=0.1,
                        depth=depth)
    c.task = base.part('transformer.question_tasks:Answers', ponder=0.01 if variant == 'adaptive' else 0.0)
    c.optimizer = base.optimizer('training.optimizer:Muon', learning_rate=3e-3, b2=0.98, average_decay=0.999,
                                 schedule=base.part('training.schedules:Linear', warmup_steps=200))
    c.train.steps = 20000
    c.log.every_steps = 100
    c.checkpoint.every_steps = 1000
    c.evals.valid = base.evaluation('transformer.question_tasks:TaskErrors', split='valid', every_steps=2000)
    return c.lock()
