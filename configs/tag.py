"""Learns a tag for each word, such as the names in a text, starting from another run (the variant).

    python convert.py --from_hf=FOLDER --workdir=runs/bert
    python train.py --config=configs/tag.py:runs/bert --config.data.path=names.conll --workdir=runs/names
    echo 'Ada Lovelace was born in London' | python predict.py --workdir=runs/names

The head is a layer on the hidden state of the first token of each word (Devlin et al. 2019, section 5.3), with the dropout of
transformers' ...ForTokenClassification in the model's family. Files have a word and its tag on each line, and a blank line
after each sentence (data/text/tagged.py); the accuracy and the F1 of whole names are measured.
"""

from configs.classify import family_of
from configs.finetune import BERT, begun, encoder_of, with_head

HEADS = {BERT: 'TokenClasses()', 'transformer.models.gpt:Gpt': 'TokenClasses(dropout=0.1)',
         'transformer.models.encoder_decoder:EncoderDecoder': 'TokenClasses(dropout=0.1)'}  # its decoder reads it again


def get_config(variant=''):
    _, other = begun(variant, 'tag')
    (model, fields), _ = encoder_of(other.model)
    heads = HEADS | ({BERT: head_of(fields)} if model == BERT else {})
    return with_head(variant, 'tag', heads, 'data.text.tagged:Tagged', 'transformer.tasks.reading:Tags',
                     {'entities': 'transformer.evaluators.reading:Entities'}, train='train[:90%]', valid='train[90%:]', test='')


def head_of(model):
    """The head for tags in the family of a BERT."""
    return {'albert': 'TokenClasses(dropout=0.1)', 't5': 'TokenClasses(dropout=0.0)'}.get(family_of(model), HEADS[BERT])
