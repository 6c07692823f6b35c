r"""Learns which of two responses people prefer, as a reward for each, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/prefer.py:runs/bert --config.data.path=choices.jsonl --workdir=runs/reward
    printf 'Name a colour.\tBlue.' | python predict.py --workdir=runs/reward

A row of a table is a prompt, the chosen and the rejected response (docs/data.md). The head is that of configs/rate.py; the
difference of two rewards is the logit of the preference (Ouyang et al. 2022, "Training language models to follow instructions
with human feedback", section 3.5).
"""

from configs.classify import of_texts


def get_config(variant=''):
    return of_texts(variant, 'prefer', 'preferences')
