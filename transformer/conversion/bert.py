"""BERT of Hugging Face transformers."""

import contextlib

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
from transformer.conversion.fields import Field, Fields, at, dropouts, head, inner, score
from transformer.conversion.forms import Biases, Heads, Table, Types
from transformer.conversion.tables import Family, Row
from transformer.layers.heads import Classes, MaskedWords, NextSentence, NoHead, Pretraining, Span, TokenClasses


def sizes(vocab: int = 30522, width: int = 768, heads: int = 12, wide: int = 3072, activation: str = 'gelu',
          rate: float = 0.1) -> tuple:
    """The fields of BERT's config, with the defaults of a family."""
    return (
        Field('vocab_size', 'vocab', vocab),
        Field('hidden_size', 'width', width),
        Field('num_hidden_layers', 'layers', 12),
        Field('num_attention_heads', 'heads', heads),
        inner('intermediate_size', wide),
        Field('hidden_act', 'feed_forward.activation', activation, ACTIVATIONS),
        dropouts('hidden_dropout_prob', 'attention_probs_dropout_prob', (rate, rate)),
        Field('max_position_embeddings', 'length', 512),
        Field('type_vocab_size', 'types', 2),
        Field('layer_norm_eps', 'norm.epsilon', 1e-12),
        ABSOLUTE)


BERT_BODY = Family(
    kind='bert',
    model='transformer.models.bert:Bert',
    architecture='',
    use='',
    prefix='bert.',
    fields=sizes(),
    fixed=(Field('position_embedding_type', default='absolute'), Field('is_decoder', default=False),
           Field('add_cross_attention', default=False)),
    aside=('classifier_dropout', 'directionality', 'pooler_fc_size', 'pooler_num_attention_heads', 'pooler_num_fc_layers',
           'pooler_size_per_head', 'pooler_type', 'tie_word_embeddings'),
    implied={},
    rows=(
        Row('tokens/embedding', 'bert.embeddings.word_embeddings.weight'),
        Row('positions/embedding', 'bert.embeddings.position_embeddings.weight'),
        Row('types/embedding', 'bert.embeddings.token_type_embeddings.weight'),
        *norm('embedding_norm', 'bert.embeddings.LayerNorm'),
        *attention('block_{i}/attention', 'bert.encoder.layer.{i}.attention', 'self.query', 'self.key', 'self.value',
                   'output.dense'),
        *norm('block_{i}/attention_norm', 'bert.encoder.layer.{i}.attention.output.LayerNorm'),
        *dense('block_{i}/feed_forward/input', 'bert.encoder.layer.{i}.intermediate.dense'),
        *dense('block_{i}/feed_forward/output', 'bert.encoder.layer.{i}.output.dense'),
        *norm('block_{i}/feed_forward_norm', 'bert.encoder.layer.{i}.output.LayerNorm')),
    inputs=lambda config: TOKENS,
    limits=lambda model: token_limits(model) | {'token_type_ids': model.types},
    forms=(Heads(), Biases(), Table(), Types()),
    renamed=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias')),
    computed=r'(\w+\.)?embeddings\.position_ids')
UNREAD = BERT_BODY.computed + r'|(\w+\.)?pooler\.dense\.(weight|bias)'  # older files have a pooler that their head ignores


TIED = Field('tie_word_embeddings', default=True)


def activation(name: str = 'hidden_act', default: str = 'gelu') -> Fields:
    """The field of a head that has the activation of the feed-forwards, which another field of the family reads."""
    both = Field(name, 'feed_forward.activation head.activation', default, ACTIVATIONS)

    def nearest(own):
        with contextlib.suppress(ValueError):  # one of the two has none
            if at(own, 'head.activation') != (of_both := at(own, 'feed_forward.activation')):
                return {'head.activation': of_both}
        return {}

    return Fields(((name,), ('head.activation',)),
                  lambda config: {'head.activation': ACTIVATIONS[config.get(name, default)]}, both.write, nearest)


def words(ours: str, theirs: str, transform: str, norm_there: str, default: str = 'gelu') -> tuple[tuple, dict]:
    """(rows of a head for masked words, changes of the family with it); `default` is that of the activation."""
    rows = *dense('transform', transform), *norm('transform_norm', norm_there), Row('output/bias', f'{theirs}.bias')
    copies = {f'{theirs}.decoder.weight': f'{ours}.embeddings.word_embeddings.weight',
              f'{theirs}.decoder.bias': f'{theirs}.bias'}
    return rows, dict(fields=(TIED, activation(default=default)), copies=copies)


_FOUND, _FINDS = words('bert', 'cls.predictions', 'cls.predictions.transform.dense', 'cls.predictions.transform.LayerNorm')
_POOLER, _NEXT = dense('pooler', 'bert.pooler.dense'), dense('next_sentence', 'cls.seq_relationship')
BERT = (
    with_head(BERT_BODY, 'BertForMaskedLM', 'masked', *_FOUND, head=MaskedWords(), computed=UNREAD, **_FINDS),
    with_head(  # others: Google's files hold the weights of both heads under this name
        BERT_BODY, 'BertForPreTraining', 'sentences', *_FOUND, *_POOLER, *_NEXT, head=Pretraining(), **_FINDS,
        others=('BertForMaskedLM',),
        outputs={'logits': 'prediction_logits', 'next_logits': 'seq_relationship_logits'}),
    with_head(BERT_BODY, 'BertForNextSentencePrediction', 'next', *_POOLER, *_NEXT, head=NextSentence(),
              outputs={'next_logits': 'logits'}),
    with_head(BERT_BODY, 'BertForSequenceClassification', 'classes', *_POOLER, *dense('classes', 'classifier'),
              fields=(head(Classes),)),
    with_head(BERT_BODY, 'BertForMultipleChoice', 'choices', *_POOLER, *dense('classes', 'classifier'),
              fields=(score(Classes),)),
    with_head(BERT_BODY, 'BertForTokenClassification', 'tags', *dense('classes', 'classifier'), fields=(head(TokenClasses),),
              computed=UNREAD),
    with_head(BERT_BODY, 'BertForQuestionAnswering', 'spans', *dense('span', 'qa_outputs'), head=Span(), computed=UNREAD),
    bare(with_head(BERT_BODY, 'BertModel', 'hidden', *_POOLER, head=NoHead(pooler=True))),
    bare(with_head(BERT_BODY, 'BertModel', 'hidden', head=NoHead())))
