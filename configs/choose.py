r"""Learns which of several answers to a question is right, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/choose.py:runs/bert --config.data.path=swag --config.data.train=train \
        --config.data.valid=valid --workdir=runs/swag
    printf 'She opens the door.\tShe goes out.\tThe door is blue.' | python predict.py --workdir=runs/swag

A row of a table has a context or a question, or both, the answers and the right one (docs/data.md). Each answer is read behind
the context in a row of its own; a linear layer gives it a score, and a softmax over the answers makes probabilities of the
scores (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 3.3). The head is that of
transformers' ...ForMultipleChoice in the model's family. A GPT with its language model as an auxiliary loss:
configs/gpt_finetune.py:choices,RUN.
"""

from configs.classify import of_texts


def get_config(variant=''):
    return of_texts(variant, 'choose', 'choices')
