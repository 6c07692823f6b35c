"""Learns any number of labels for each text or pair of texts, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/label.py:runs/bert --config.data.path=topics.tsv --workdir=runs/topics
    echo 'rates rise as oil falls' | python predict.py --workdir=runs/topics

A line of topics.tsv is a text, a tab, and its labels separated by commas, or nothing (docs/data.md). The head is that of
configs/classify.py with a sigmoid for each label.
"""

from configs.classify import of_texts


def get_config(variant=''):
    return of_texts(variant, 'label', 'labels')
