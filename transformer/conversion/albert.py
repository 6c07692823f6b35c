"""ALBERT of Hugging Face transformers: a BERT whose layers share parameters in groups, and whose tables are always projected to
the width of the model, even from an equal one (Lan et al. 2020)."""

import dataclasses

from transformer.conversion.bert import BERT_BODY, sizes, words
from transformer.conversion.common import attention, bare, dense, norm, with_head
from transformer.conversion.fields import Field, Fields, head, score
from transformer.conversion.tables import Row
from transformer.layers.heads import Classes, MaskedWords, NoHead, Pretraining, Span, TokenClasses
from transformer.layers.universal import Groups


def _size(model):
    """{name: the width of the tables} in their config."""
    if not model['embedding_width']:
        raise ValueError('model.embedding_width is 0, so that tables are not projected to the width of the model; set it.')
    return {'embedding_size': model['embedding_width']}


_LAYER = 'albert.encoder.albert_layer_groups.{i}.albert_layers.0'
ALBERT_BODY = dataclasses.replace(
    BERT_BODY, kind='albert', prefix='albert.', implied={'depth': Groups()},
    fields=(*sizes(30000, 4096, 64, 16384, 'gelu_new', 0.0), Field('num_hidden_groups', 'depth.groups', 1),
            Fields((('embedding_size',), ('embedding_width',)), Field('embedding_size', 'embedding_width', 128).read, _size)),
    fixed=(Field('inner_group_num', default=1), Field('position_embedding_type', default='absolute')),
    # The last ones are of Google's files, and nothing reads them.
    aside=('classifier_dropout_prob', 'tie_word_embeddings', 'down_scale_factor', 'gap_size', 'layers_to_keep',
           'net_structure_type', 'num_memory_blocks'),
    rows=(
        Row('tokens/embedding', 'albert.embeddings.word_embeddings.weight'),
        Row('positions/embedding', 'albert.embeddings.position_embeddings.weight'),
        Row('types/embedding', 'albert.embeddings.token_type_embeddings.weight'),
        *norm('embedding_norm', 'albert.embeddings.LayerNorm'),
        *dense('embedding_projection', 'albert.encoder.embedding_hidden_mapping_in'),
        *attention('block_{i}/attention', f'{_LAYER}.attention', 'query', 'key', 'value', 'dense'),
        *norm('block_{i}/attention_norm', f'{_LAYER}.attention.LayerNorm'),
        *dense('block_{i}/feed_forward/input', f'{_LAYER}.ffn'),
        *dense('block_{i}/feed_forward/output', f'{_LAYER}.ffn_output'),
        *norm('block_{i}/feed_forward_norm', f'{_LAYER}.full_layer_layer_norm')),
    renamed=())
UNREAD = BERT_BODY.computed + r'|(\w+\.)?pooler\.(weight|bias)'  # older files have a pooler that their head ignores

_FOUND, _FINDS = words('albert', 'predictions', 'predictions.dense', 'predictions.LayerNorm', 'gelu_new')
_POOLER = dense('pooler', 'albert.pooler')
_RATE = 'classifier_dropout_prob', 0.1
ALBERT = (
    with_head(ALBERT_BODY, 'AlbertForMaskedLM', 'masked', *_FOUND, head=MaskedWords(), computed=UNREAD, **_FINDS),
    with_head(  # the order of sentences, without the dropout that transformers has before this layer
        ALBERT_BODY, 'AlbertForPreTraining', 'order', *_FOUND, *_POOLER, *dense('next_sentence', 'sop_classifier.classifier'),
        head=Pretraining(), outputs={'logits': 'prediction_logits', 'next_logits': 'sop_logits'}, **_FINDS),
    with_head(ALBERT_BODY, 'AlbertForSequenceClassification', 'classes', *_POOLER, *dense('classes', 'classifier'),
              fields=(head(Classes, *_RATE),)),
    with_head(ALBERT_BODY, 'AlbertForMultipleChoice', 'choices', *_POOLER, *dense('classes', 'classifier'),
              fields=(score(Classes, *_RATE),)),
    with_head(ALBERT_BODY, 'AlbertForTokenClassification', 'tags', *dense('classes', 'classifier'),
              fields=(head(TokenClasses, *_RATE),), computed=UNREAD),
    with_head(ALBERT_BODY, 'AlbertForQuestionAnswering', 'spans', *dense('span', 'qa_outputs'), head=Span(), computed=UNREAD),
    bare(with_head(ALBERT_BODY, 'AlbertModel', 'hidden', *_POOLER, head=NoHead(pooler=True))),
    bare(with_head(ALBERT_BODY, 'AlbertModel', 'hidden', head=NoHead())))
