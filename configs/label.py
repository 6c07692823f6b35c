"""Learns the labels of texts or of pairs of texts, any number of them each, beginning with another run (its variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/label.py:runs/bert --config.data.path=topics.tsv --workdir=runs/topics
    echo 'rates rise as oil falls' | python predict.py --workdir=runs/topics

A line of topics.tsv is a text, a tab, and its labels with commas between them, or nothing (data/text/labelled.py). The head is
that of configs/classify.py, with a sigmoid for each label.
"""

from configs.classify import of_texts


def get_config(variant=''):
    return of_texts(variant, 'label', 'labels')
