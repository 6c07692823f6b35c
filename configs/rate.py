"""Learns a number for each text or pair of texts, such as their similarity, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/rate.py:runs/bert --config.data.path=stsb --config.data.train=train \
        --config.data.valid=valid --workdir=runs/stsb
    printf 'a man plays\ta man is playing' | python predict.py --workdir=runs/stsb

A row of a table is a text or two and a number (docs/data.md); `python -m data.similarity` makes such a table of sentences with
their translations. The head is that of configs/classify.py with one output, whose
squared error is the loss.
"""

from configs.classify import of_texts


def get_config(variant=''):
    return of_texts(variant, 'rate', 'number')
