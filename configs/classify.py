"""Learns the classes of texts, of pairs of texts or of images, beginning with another run (its variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/classify.py:runs/bert --config.data.path=sst2 --config.data.columns='(2,)' \
        --config.data.label=1 --config.data.train=train.tsv.gz --config.data.valid=dev.tsv.gz --workdir=runs/sst2
    echo 'a joy from start to end' | python predict.py --workdir=runs/sst2

The head is that of the model's family (transformer/outputs.py:Classes); it begins anew where the other run has none with as
many classes. Texts are in tab-separated files (data/labelled.py), images in a folder for each class.
"""

import re

from configs import base
from configs.finetune import HEAD, begun, with_head

HEADS = {'transformer.bert:Bert': 'Classes()',
         'transformer.encoder_decoder:EncoderDecoder': "Classes(at='last', dropout=0.0, twice=True)",
         'transformer.gpt:Gpt': "Classes(at='last', pooler=False, bias=False, dropout=0.0)"}


def get_config(variant=''):
    c, other = begun(variant, 'classify')
    if other.model.name != 'vit.vit:Vit':
        roberta = re.search(r'\boffset=[1-9]', other.model.get('positions', ''))
        heads = HEADS | ({'transformer.bert:Bert': 'Classes(twice=True)'} if roberta else {})
        return with_head(variant, 'classify', heads, 'data.labelled:Labelled', 'transformer.text_tasks:TextClasses', {},
                         train='train[:90%]', valid='train[90%:]', test='')
    fields = {key: value for key, value in other.model.items() if key not in ('name', 'classes')}
    c.model = base.part(other.model.name, **fields | {'pooler': False})
    c.data, c.task = other.data, base.part('vit.tasks:Classification')
    c.evals.valid = base.evaluation('transformer.evaluators:Averages', split='valid')
    c.init_rules = (HEAD, 'offered'), (r'.*', 'keep')
    return c.lock()
