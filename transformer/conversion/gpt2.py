"""GPT-2 of Hugging Face transformers."""

from functools import partial

from transformer.attention.masks.patterns import Causal
from transformer.attention.mechanism import Softmax
from transformer.attention.scores import Dot
from transformer.conversion.common import ABSOLUTE, ACTIVATIONS, TOKENS, dense, norm, token_limits, with_head
from transformer.conversion.fields import Field, Fields, dropouts, head
from transformer.conversion.forms import Biases, Heads, Table
from transformer.conversion.tables import Family, Row
from transformer.layers.heads import Classes, NextWords, NextWordsAndChoice, Span, TokenClasses
from transformer.layers.residual import PreNorm

_GPT2 = Family(
    kind='gpt2',
    model='transformer.models.gpt:Gpt',
    architecture='',
    use='',
    prefix='transformer.',
    fields=(
        Field('vocab_size', 'vocab', 50257),
        Field('n_positions', 'length', 1024),
        Field('n_embd', 'width', 768),
        Field('n_layer', 'layers', 12),
        Field('n_head', 'heads', 12),
        Field('n_inner', 'feed_forward.inner', none=0),
        Field('activation_function', 'feed_forward.activation', 'gelu_new', ACTIVATIONS),
        dropouts('resid_pdrop embd_pdrop', 'attn_pdrop'),
        Field('layer_norm_epsilon', 'norm.epsilon', 1e-5),
        Field('scale_attn_weights', 'attention', True, {True: Softmax(), False: Softmax(score=Dot())}),
        Field('scale_attn_by_inverse_layer_idx', default=False),
        Field('add_cross_attention', default=False),
        ABSOLUTE),
    aside=('is_decoder', 'n_ctx', 'n_special', 'predict_special_tokens', 'reorder_and_upcast_attn', 'summary_activation',
           'summary_first_dropout', 'summary_proj_to_labels', 'summary_type', 'summary_use_proj', 'tie_word_embeddings'),
    implied={'residual': PreNorm(), 'mask': Causal()},
    rows=(
        Row('tokens/embedding', 'transformer.wte.weight'),
        Row('positions/embedding', 'transformer.wpe.weight'),
        *norm('block_{i}/attention_norm', 'transformer.h.{i}.ln_1'),
        Row('block_{i}/attention/{query,key,value}/kernel', 'transformer.h.{i}.attn.c_attn.weight', 'K D N H -> D (K N H)'),
        Row('block_{i}/attention/{query,key,value}/bias', 'transformer.h.{i}.attn.c_attn.bias', 'K N H -> (K N H)'),
        Row('block_{i}/attention/output/kernel', 'transformer.h.{i}.attn.c_proj.weight', 'N H D -> (N H) D'),
        Row('block_{i}/attention/output/bias', 'transformer.h.{i}.attn.c_proj.bias'),
        *norm('block_{i}/feed_forward_norm', 'transformer.h.{i}.ln_2'),
        Row('block_{i}/feed_forward/input/kernel', 'transformer.h.{i}.mlp.c_fc.weight'),
        Row('block_{i}/feed_forward/input/bias', 'transformer.h.{i}.mlp.c_fc.bias'),
        Row('block_{i}/feed_forward/output/kernel', 'transformer.h.{i}.mlp.c_proj.weight'),
        Row('block_{i}/feed_forward/output/bias', 'transformer.h.{i}.mlp.c_proj.bias'),
        *norm('norm', 'transformer.ln_f')),
    inputs=lambda config: TOKENS,
    limits=token_limits,
    forms=(Heads(), Biases(), Table()),
    computed=r'transformer\.h\.\d+\.attn\.(masked_)?bias')  # the causal mask
_WORDS = Row('output/kernel', 'lm_head.weight', 'D V -> V D')
_COPIES = {'lm_head.weight': 'transformer.wte.weight'}
_CHOICE = Fields(
    (('tie_word_embeddings', 'summary_first_dropout'), ('head',)),
    lambda config: {'head': NextWordsAndChoice(tied=config.get('tie_word_embeddings', True),
                                               dropout=config.get('summary_first_dropout', 0.1))},
    lambda model: _choice_of(model['head'], model['dropout']))


def _choice_of(head, rate):
    """The inverse of `_CHOICE.read`."""
    if not isinstance(head, NextWordsAndChoice) or head.bias or head.scaled or head.added:
        raise ValueError(f'model.head is {head!r}, which has no counterpart there; expected '
                         f'{NextWordsAndChoice()!r}, tied or not.')
    return {'tie_word_embeddings': head.tied, 'summary_first_dropout': head.dropout if head.dropout >= 0 else rate}


GPT2 = (
    with_head(
        _GPT2, 'GPT2LMHeadModel', 'text', _WORDS, others=('GPT2Model',), copies=_COPIES,
        fields=(Field('tie_word_embeddings', 'head', True, {True: NextWords(), False: NextWords(tied=False)}),)),
    with_head(
        _GPT2, 'GPT2DoubleHeadsModel', 'text', _WORDS, *dense('choice', 'multiple_choice_head.summary'), copies=_COPIES,
        fields=(_CHOICE,), outputs={'choice_logits': 'mc_logits'}, fixed=(
            *_GPT2.fixed, Field('summary_type', default='cls_index'), Field('summary_use_proj', default=True),
            Field('summary_proj_to_labels', default=True), Field('summary_activation'))),
    with_head(
        _GPT2, 'GPT2ForSequenceClassification', 'classes', Row('classes/kernel', 'score.weight', 'D C -> C D'),
        fields=(head(partial(Classes, at='last', pooler=False, bias=False, dropout=0.0), dropout=None),)),
    with_head(_GPT2, 'GPT2ForTokenClassification', 'tags', *dense('classes', 'classifier'),
              fields=(head(partial(TokenClasses, dropout=0.1)),)),
    with_head(_GPT2, 'GPT2ForQuestionAnswering', 'spans', *dense('span', 'qa_outputs'), head=Span()))
