"""RoBERTa of Hugging Face transformers."""

import dataclasses
from functools import partial

import numpy as np

from transformer.attention.positions.absolute import Learned
from transformer.conversion.bert import BERT_BODY, TIED, UNREAD, sizes, words
from transformer.conversion.common import bare, dense, require_learned, with_head
from transformer.conversion.fields import Fields, head, score
from transformer.conversion.forms import Biases, Heads, Types
from transformer.layers.activations import Gelu
from transformer.layers.heads import (
    Classes,
    MaskedWords,
    NoHead,
    Span,
    TokenClasses,
)


def _roberta_length(config):
    """Position embeddings begin after the id of the padding token; the rows of the table up to it are not used."""
    offset = (config.get('pad_token_id', 1) or 0) + 1
    return {'length': config.get('max_position_embeddings', 512) - offset, 'positions': Learned(offset=offset)}


def _roberta_positions(model):
    """The inverse of `_roberta_length`."""
    positions = model['positions']
    offset = (isinstance(positions, Learned) and positions.offset) or 2
    require_learned(positions, offset)
    return {'max_position_embeddings': model['length'] + offset, 'pad_token_id': offset - 1}


def _roberta_counted(model, inputs, start):
    """Positions count the tokens that are not padding tokens, whatever the attention mask is."""
    offset = model.stack.positions.offset
    if 'positions' in inputs:
        return inputs | {'positions': inputs['positions'] - offset}
    there = inputs['inputs'] != offset - 1
    return inputs | {'positions': (there.cumsum(1) * there - 1).astype(np.int32)}


_ROBERTA = dataclasses.replace(
    BERT_BODY, kind='roberta', prefix='roberta.',
    fields=(
        *(field for field in sizes(50265) if not {*field.names[1]} & {'length', 'positions'}),
        Fields((('max_position_embeddings', 'pad_token_id'), ('length', 'positions')), _roberta_length, _roberta_positions)),
    rows=tuple(dataclasses.replace(row, theirs=row.theirs.replace('bert.', 'roberta.', 1)) for row in BERT_BODY.rows),
    derived=_roberta_counted,
    forms=(Heads(), Biases(), Types()))
_FOUND, _FINDS = words('roberta', 'lm_head', 'lm_head.dense', 'lm_head.layer_norm')

ROBERTA = (
    with_head(  # whose head has this activation whatever that of the feed-forwards is
        _ROBERTA, 'RobertaForMaskedLM', 'masked', *_FOUND, head=MaskedWords(Gelu()), computed=UNREAD,
        **_FINDS | {'fields': (TIED,)}),
    with_head(_ROBERTA, 'RobertaForSequenceClassification', 'classes', *dense('pooler', 'classifier.dense'),
              *dense('classes', 'classifier.out_proj'), fields=(head(partial(Classes, twice=True)),), computed=UNREAD),
    with_head(_ROBERTA, 'RobertaForMultipleChoice', 'choices', *dense('pooler', 'roberta.pooler.dense'),
              *dense('classes', 'classifier'), fields=(score(Classes, None),)),
    with_head(_ROBERTA, 'RobertaForTokenClassification', 'tags', *dense('classes', 'classifier'), fields=(head(TokenClasses),),
              computed=UNREAD),
    with_head(_ROBERTA, 'RobertaForQuestionAnswering', 'spans', *dense('span', 'qa_outputs'), head=Span(), computed=UNREAD),
    bare(with_head(_ROBERTA, 'RobertaModel', 'hidden', *dense('pooler', 'roberta.pooler.dense'), head=NoHead(pooler=True))),
    bare(with_head(_ROBERTA, 'RobertaModel', 'hidden', head=NoHead())))
