"""Learns a number for each text or pair of texts, such as their similarity, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/rate.py:runs/bert --config.data.path=stsb --config.data.columns='(8, 9)' \
        --config.data.label=10 --config.data.header --config.data.train=train.tsv --config.data.valid=dev.tsv \
        --workdir=runs/stsb
    printf 'a man plays\ta man is playing' | python predict.py --workdir=runs/stsb

A line is a text or two and a number, separated by tabs (data/text/labelled.py). The head is that of configs/classify.py with
one output, whose squared error is the loss.
"""

from configs.classify import of_texts


def get_config(variant=''):
    return of_texts(variant, 'rate', 'number')
