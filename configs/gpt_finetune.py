r"""Learns classes or multiple choice as GPT-1 does, with its language model as an auxiliary loss, from a run of a GPT.

    python train.py --config=configs/quickstart.py --config.data.path=BOOKS --workdir=runs/gpt \
        --config.data.tokenizer='SentencePiece(vocab=8192, special=("begin",))'
    python train.py --config=configs/gpt_finetune.py:runs/gpt --config.data.path=sst2 --config.data.train=train \
        --config.data.valid=valid --workdir=runs/sst2
    python train.py --config=configs/gpt_finetune.py:mrpc,runs/gpt --config.data.path=glue_data/MRPC --workdir=runs/mrpc
    python train.py --config=configs/gpt_finetune.py:choices,runs/gpt --config.data.path=race --workdir=runs/race

Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", sections 3.2, 3.3 and 4.1: a text stands
between a start and an extract token, two texts have a delimiter between them, and the last state gives the class. Pairs whose
order says nothing (mrpc, qqp, stsb; --config.data.both=True) are read in both orders, whose states are added. The tokens have
the roles begin, cls and separator; of SentencePiece's <s> is the first two and </s> the third, of GPT-2's <|endoftext|> all
three. λ is 0.5, the learning rate 6.25e-5 with a linear decay. Each of several answers to a question (configs/choose.py) is
behind the context and the question, [z; q; $; a].

The variant is the workdir of a run (configs/classify.py), or TASK,WORKDIR with a task of configs/glue.py or `choices`.
"""

from configs import base, classify, glue

SYMMETRIC = 'mrpc', 'qqp', 'stsb'
HEAD = "ClassesAndWords(at='last', pooler=False, bias=False, dropout=0.1)"
CHOICE = 'NextWordsAndChoice(dropout=0.1)'  # GPT2DoubleHeadsModel of transformers


def get_config(variant=''):
    task, comma, _ = variant.rpartition(',')
    if task == 'choices':
        c = classify.of_texts(variant.removeprefix('choices,'), 'gpt_finetune', 'choices')
    else:
        c = glue.get_config(variant) if comma else classify.of_texts(variant, 'gpt_finetune', 'classes')
    if c.model.name != 'transformer.models.gpt:Gpt':
        raise ValueError(f'{variant} is a run of {c.model.name}, and an auxiliary language model needs a GPT; use '
                         'configs/classify.py, glue.py or choose.py.')
    with c.unlocked():
        c.model.head, c.task.auxiliary = HEAD, 0.5
        c.data.framing = 'gpt'
        if task == 'choices':
            c.model.head, c.data.question_with = CHOICE, 'context'
        else:
            c.data.both = task.rpartition('/')[2] in SYMMETRIC
        c.optimizer = base.optimizer(learning_rate=6.25e-5, weight_decay=0.01, schedule=base.part(
            'training.schedules:LinearDecay', warmup_steps=10))
    return c.lock()
