"""GPT-2's smallest model, 124M parameters (Radford et al. 2019).

:124m  on your own text, rows of 1024 packed tokens, bfloat16, for a GPU; not yet run.

           python train.py --config=configs/gpt2.py:124m --config.data.path=TEXT_FOLDER

       The vocabulary of 50,257 pieces is learnt from the text, which has to be large for that (100 MB or more).
:step  one row of 512 in float32, the same model on bytes of Python's standard library: for timing its step on a CPU.

           python -m benchmarks.train_step --config=configs/gpt2.py:step --steps=20

       2.48 s a step, 207 tokens/s on two cores of a Xeon (Python 3.11, jax 0.10.2); in turns with PyTorch 2.13 and Hugging
       Face's model, 0.90 to 0.93 of its time.
"""

from configs import base

VARIANTS = ('124m', 'step')


def get_config(variant=''):
    step = base.variant_of(variant, VARIANTS) == 'step'
    c = base.config()
    c.dtype = 'float32' if step else 'bfloat16'
    c.data = base.data(
        'data.text:Text', source='stdlib' if step else 'files', path='' if step else 'text', length=512 if step else 1024,
        tokenizer='Byte()' if step else 'SentencePiece(vocab=50257)', batch_size=1 if step else 512)
    c.model = base.part('transformer.gpt:Gpt', vocab=50257, activation='gelu_tanh')
    c.task = base.part('transformer.tasks:NextToken')
    c.optimizer = base.optimizer(learning_rate=6e-4, b2=0.95, weight_decay=0.1, schedule=base.part(
        'training.schedules:Cosine', warmup_steps=700, final=0.1))
    c.train.steps = 19_000
    c.train.microbatches = 1 if step else 32
    c.evals.valid = base.evaluation('transformer.evaluators:Perplexity', split='valid', every_steps=1000)
    return c.lock()
