r"""Learns a number for each text or pair of texts, such as their similarity, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/rate.py:runs/bert --config.data.path=stsb --config.data.train=train \
        --config.data.valid=valid --workdir=runs/stsb
    printf 'a man plays\ta man is playing' | python predict.py --workdir=runs/stsb

A row of a table is a text or two and a number (docs/data.md); `python -m data.similarity` makes such a table of sentences with
their translations. The head is that of configs/classify.py with one output, whose
squared error is the loss.

Measured on the table that data.similarity makes of 148,688 English and French sentences of Tatoeba, 18,000 pairs to train on,
from the run `masked` of configs/objectives.py, with --config.train.steps=4000 --config.optimizer.learning_rate=2e-4
--config.optimizer.schedule.warmup_steps=400 --config.data.batch_size=32 --config.model.dropout=0.1: Spearman 0.572, Pearson
0.571 on 1,000 other pairs. The squared error is 0.007 on what it has seen for seven epochs and 0.018 on those, so more would
come of more pairs or longer pretraining. 52 minutes of one core of an EPYC (family 25 model 1), beside other work.
"""

from configs.classify import of_texts


def get_config(variant=''):
    return of_texts(variant, 'rate', 'number')
