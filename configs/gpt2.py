"""GPT-2 124M (Radford et al. 2019) on your own text: rows of 1024 packed tokens, bfloat16, for a GPU.

    python train.py --config=configs/gpt2.py --config.data.path=TEXT_FOLDER

The vocabulary of 50,257 pieces is learnt from the text, which therefore has to be large (a hundred megabytes or more).
"""

from configs import base


def get_config(variant=''):
    base.variant_of(variant, ['124m'])
    c = base.config()
    c.dtype = 'bfloat16'
    c.data = base.data('data.text:Text', path='text', tokenizer='SentencePiece(vocab=50257)', length=1024, batch_size=512)
    c.model = base.part('transformer.gpt:Gpt', vocab=50257)
    c.task = base.part('transformer.tasks:NextToken')
    c.optimizer = base.optimizer(learning_rate=6e-4, b2=0.95, weight_decay=0.1, schedule=base.part(
        'training.optimizer:Cosine', warmup_steps=700, final=0.1))
    c.train.steps = 19_000
    c.train.microbatches = 32
    c.evals.valid = base.evaluation('transformer.evaluators:Perplexity', split='valid', every_steps=1000)
    return c.lock()
