"""A small GPT on the source code and documentation strings of Python's own standard library, without its tests.

    python train.py            # or: make train

:code     Files are split at random into 90 % to train on, 5 % validation and 5 % test; a vocabulary of 2,048 pieces is learnt
          from the first. 700 steps (0.37 epochs) reach 1.656 bits per byte on the validation files (perplexity 24.7 a
          piece, context and stride 128), where gzip -9 needs 2.058 and xz -9 1.737: 2 minutes on two cores of a Xeon,
          compilation included (Python 3.11, whose library is the text, jax 0.10.2, float32).
          On two quiet cores of a Xeon with AMX (family 6 model 167) a step takes 105 ms; with --config.dtype=mixed it takes 71,
          and 700 of them, in one minute, reach 1.656 too.
          With other parts, on two cores of an EPYC: Rotary() 1.543, the mask of a window of 32 and one global token 1.650,
          Linear() 1.677. On the first 1,059,544 bytes of tiny Shakespeare (--config.data.path=input.txt, 4.29 epochs) 2.345
          bits per byte on the validation part and 2.578 on the test part.
:mixture  A quarter of the rows, by weight, comes from other text instead, whose held-out part is also measured separately; the
          vocabulary is learnt from both. Not yet run to its end.

    python train.py --config=configs/quickstart.py:mixture --config.data.parts.prose.path=FOLDER
"""

from configs import base


def get_config(variant=''):
    mixture = base.variant_of(variant, ['code', 'mixture']) == 'mixture'
    c = base.config()
    common = dict(tokenizer='SentencePiece(vocab=2048)', length=128, batch_size=16)
    if mixture:
        c.data = base.data('data.text.mixture:Mixture', parts={
            'code': dict(weight=3, source='stdlib'), 'prose': dict(path='prose')}, **common)
    else:
        c.data = base.data('data.text.documents:Text', source='auto', **common)
    c.model = base.part('transformer.models.gpt:Gpt', layers=4, heads=4, width=128, length=128, **base.NO_BIASES,
                        initial='Scaled(scale=0.045)')
    c.task = base.part('transformer.tasks.language_model:NextToken')
    c.optimizer = base.optimizer(learning_rate=4e-3, b2=0.98, weight_decay=0.1, schedule=base.part(
        'training.schedules:LinearDecay', warmup_steps=50))
    c.train.steps = 700
    c.log.every_steps = 40
    c.checkpoint.every_steps = 350
    c.evals.valid = base.evaluation('transformer.evaluators.language_model:Perplexity', split='valid', every_steps=350)
    if mixture:
        c.evals.prose = base.evaluation('transformer.evaluators.language_model:Perplexity', split='prose.valid',
                                        every_steps=350)
    c.evals.compressors = base.evaluation('transformer.evaluators.language_model:Compressors', split='valid')
    c.evals.samples = base.evaluation('transformer.evaluators.language_model:Continuations', split='valid', prompt='',
                                      every_steps=350)
    return c.lock()
