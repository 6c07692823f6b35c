"""DistilBERT of Hugging Face transformers: a BERT without token types and without a pooler (Sanh et al. 2019)."""

from functools import partial

from transformer.conversion.bert import BERT_BODY, TIED, activation
from transformer.conversion.common import (
    ABSOLUTE,
    ACTIVATIONS,
    TOKENS,
    attention,
    bare,
    dense,
    norm,
    token_limits,
    with_head,
)
from transformer.conversion.fields import Field, dropouts, head, inner, score
from transformer.conversion.forms import Biases, Heads, Table
from transformer.conversion.tables import Family, Row
from transformer.layers.activations import Relu
from transformer.layers.heads import Classes, MaskedWords, NoHead, Span, TokenClasses

_LAYER = 'distilbert.transformer.layer.{i}'
DISTILBERT_BODY = Family(
    kind='distilbert',
    model='transformer.models.bert:Bert',
    architecture='',
    use='',
    prefix='distilbert.',
    fields=(
        Field('vocab_size', 'vocab', 30522),
        Field('dim', 'width', 768),
        Field('n_layers', 'layers', 6),
        Field('n_heads', 'heads', 12),
        inner('hidden_dim', 3072),
        Field('activation', 'feed_forward.activation', 'gelu', ACTIVATIONS),
        dropouts('dropout', 'attention_dropout'),
        Field('max_position_embeddings', 'length', 512),
        ABSOLUTE),
    # sinusoidal_pos_embds is about the initial table alone; the dropout rates are of heads other than a family's own.
    aside=('qa_dropout', 'seq_classif_dropout', 'sinusoidal_pos_embds', 'tie_weights_', 'tie_word_embeddings'),
    implied={'types': 0, 'norm.epsilon': 1e-12},
    rows=(
        Row('tokens/embedding', 'distilbert.embeddings.word_embeddings.weight'),
        Row('positions/embedding', 'distilbert.embeddings.position_embeddings.weight'),
        *norm('embedding_norm', 'distilbert.embeddings.LayerNorm'),
        *attention('block_{i}/attention', f'{_LAYER}.attention', 'q_lin', 'k_lin', 'v_lin', 'out_lin'),
        *norm('block_{i}/attention_norm', f'{_LAYER}.sa_layer_norm'),
        *dense('block_{i}/feed_forward/input', f'{_LAYER}.ffn.lin1'),
        *dense('block_{i}/feed_forward/output', f'{_LAYER}.ffn.lin2'),
        *norm('block_{i}/feed_forward_norm', f'{_LAYER}.output_layer_norm')),
    inputs=lambda config: TOKENS,
    limits=token_limits,
    forms=(Heads(), Biases(), Table()),
    computed=BERT_BODY.computed)

DISTILBERT = (
    with_head(DISTILBERT_BODY, 'DistilBertForMaskedLM', 'masked', *dense('transform', 'vocab_transform'),
              *norm('transform_norm', 'vocab_layer_norm'), Row('output/bias', 'vocab_projector.bias'), head=MaskedWords(),
              fields=(TIED, activation('activation')),
              copies={'vocab_projector.weight': 'distilbert.embeddings.word_embeddings.weight'}),
    with_head(DISTILBERT_BODY, 'DistilBertForSequenceClassification', 'classes', *dense('pooler', 'pre_classifier'),
              *dense('classes', 'classifier'),
              fields=(head(partial(Classes, activation=Relu()), 'seq_classif_dropout', 0.2),)),
    with_head(DISTILBERT_BODY, 'DistilBertForMultipleChoice', 'choices', *dense('pooler', 'pre_classifier'),
              *dense('classes', 'classifier'),
              fields=(score(partial(Classes, activation=Relu()), 'seq_classif_dropout', 0.2),)),
    with_head(DISTILBERT_BODY, 'DistilBertForTokenClassification', 'tags', *dense('classes', 'classifier'),
              fields=(head(TokenClasses, None),)),
    with_head(DISTILBERT_BODY, 'DistilBertForQuestionAnswering', 'spans', *dense('span', 'qa_outputs'), head=Span(),
              fields=(Field('qa_dropout', 'head.dropout', 0.1),)),
    bare(with_head(DISTILBERT_BODY, 'DistilBertModel', 'hidden', head=NoHead())))
