"""ELECTRA of Hugging Face transformers: a BERT whose tables may be narrower than the model (Clark et al. 2020).

Tables as wide as the model have no projection there, so that such an ELECTRA is a BERT.
"""

import dataclasses
from functools import partial

from transformer.conversion.bert import BERT_BODY, TIED, activation, sizes
from transformer.conversion.common import bare, dense, norm, with_head
from transformer.conversion.fields import Field, Fields, head, score
from transformer.conversion.tables import Row
from transformer.layers.activations import Gelu
from transformer.layers.heads import Classes, MaskedWords, NoHead, ReplacedTokens, Span, TokenClasses


def _width(config):
    """{path: the width of the tables}: 0 for that of the model."""
    own, width = (Field(name, name, default).read(config)[name] for name, default in (('embedding_size', 128),
                                                                                     ('hidden_size', 256)))
    return {'embedding_width': 0 if own == width else own}


def _size(model):
    """The inverse of `_width`."""
    if model['embedding_width'] == model['width']:
        raise ValueError(f'model.embedding_width is {model["embedding_width"]}, that of the model, to which tables are not '
                         'projected there; expected 0.')
    return {'embedding_size': model['embedding_width'] or model['width']}


ELECTRA_BODY = dataclasses.replace(
    BERT_BODY, kind='electra', prefix='electra.',
    fields=(*sizes(width=256, heads=4, wide=1024), Fields((('embedding_size',), ('embedding_width',)), _width, _size)),
    aside=('classifier_dropout', 'summary_activation', 'summary_last_dropout', 'summary_type', 'summary_use_proj',  # of choices
           'tie_word_embeddings'),
    rows=(*(dataclasses.replace(row, theirs=row.theirs.replace('bert.', 'electra.', 1)) for row in BERT_BODY.rows),
          *dense('embedding_projection', 'electra.embeddings_project')),
    renamed=())

ELECTRA = (
    with_head(ELECTRA_BODY, 'ElectraForPreTraining', 'replaced', *dense('discriminator', 'discriminator_predictions.dense'),
              *dense('replaced', 'discriminator_predictions.dense_prediction'), head=ReplacedTokens(), fields=(activation(),),
              outputs={'replaced_logits': 'logits'}),
    with_head(  # the generator, whose head has this activation whatever that of the feed-forwards is
        ELECTRA_BODY, 'ElectraForMaskedLM', 'masked', *dense('transform', 'generator_predictions.dense'),
        *norm('transform_norm', 'generator_predictions.LayerNorm'), Row('output/bias', 'generator_lm_head.bias'),
        head=MaskedWords(Gelu()), fields=(TIED,),
        copies={'generator_lm_head.weight': 'electra.embeddings.word_embeddings.weight'}),
    with_head(ELECTRA_BODY, 'ElectraForSequenceClassification', 'classes', *dense('pooler', 'classifier.dense'),
              *dense('classes', 'classifier.out_proj'), fields=(head(partial(Classes, activation=Gelu(), twice=True)),)),
    with_head(ELECTRA_BODY, 'ElectraForMultipleChoice', 'choices', *dense('pooler', 'sequence_summary.summary'),
              *dense('classes', 'classifier'),
              fields=(score(partial(Classes, activation=Gelu()), 'summary_last_dropout', 0.1),),
              fixed=(*ELECTRA_BODY.fixed, Field('summary_type', default='first'), Field('summary_use_proj', default=True),
                     Field('summary_activation', default='gelu'), Field('summary_first_dropout', default=0.0),
                     Field('summary_proj_to_labels', default=False))),
    with_head(ELECTRA_BODY, 'ElectraForTokenClassification', 'tags', *dense('classes', 'classifier'),
              fields=(head(TokenClasses),)),
    with_head(ELECTRA_BODY, 'ElectraForQuestionAnswering', 'spans', *dense('span', 'qa_outputs'), head=Span()),
    bare(with_head(ELECTRA_BODY, 'ElectraModel', 'hidden', head=NoHead())))
