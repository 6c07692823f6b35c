"""Learns a tag for each word, such as the names in a text, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/tag.py:runs/bert --config.data.path=names.conll --workdir=runs/names
    echo 'Ada Lovelace was born in London' | python predict.py --workdir=runs/names

The head is a layer on the hidden state of the first token of each word (Devlin et al. 2019, section 5.3). Files have a word and
its tag on each line, and a blank line after each sentence (data/text/tagged.py); the accuracy and the F1 of whole names are
measured.
"""

from configs.finetune import with_head

HEADS = {'transformer.models.bert:Bert': 'TokenClasses()', 'transformer.models.gpt:Gpt': 'TokenClasses(dropout=0.1)',
         'transformer.models.encoder_decoder:EncoderDecoder': 'TokenClasses(dropout=0.1)'}  # its decoder reads it again


def get_config(variant=''):
    return with_head(variant, 'tag', HEADS, 'data.text.tagged:Tagged', 'transformer.tasks.reading:Tags',
                     {'entities': 'transformer.evaluators.reading:Entities'}, train='train[:90%]', valid='train[90%:]', test='')
