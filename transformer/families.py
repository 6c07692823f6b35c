"""The families of text models that convert.py knows, as tables; how they are read is in `transformer.conversion`."""

import dataclasses
import re
from functools import partial

import numpy as np

from transformer.attention.masks import Causal
from transformer.attention.mechanism import Softmax
from transformer.attention.positions import Learned
from transformer.attention.relative import T5
from transformer.attention.scores import Dot
from transformer.conversion import Family, Field, Fields, Row, dropouts, head, inner
from transformer.encoder_decoder import TargetWords
from transformer.outputs import (
    Classes,
    MaskedWords,
    NextSentence,
    NextWords,
    NoHead,
    Pretraining,
    Span,
    TokenClasses,
)
from transformer.residual import PostNorm, PreNorm

ACTIVATIONS = {'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu': 'gelu',
               'relu': 'relu'}
TOKENS = {'inputs': ((1, 1), 'int32')}
PAIRS = TOKENS | {'decoder_inputs': ((1, 1), 'int32')}
ABSOLUTE = Fields(((), ('positions',)), lambda config: {'positions': Learned()}, lambda model: require_learned(model, 0))


def require_learned(model, offset):
    """{}; ValueError for positions that are not of a learnt table."""
    given = model.positions
    if not isinstance(given, Learned) or (given.at, given.offset) != ('input', offset):
        raise ValueError(f'model.positions is {given!r}, which has no form there; expected {Learned(offset=offset)!r}.')
    return {}


def dense(ours, theirs):
    """The rows of a dense layer, whose matrix they have the other way round."""
    return Row(f'{ours}/kernel', f'{theirs}.weight', 'D F -> F D'), Row(f'{ours}/bias', f'{theirs}.bias')


def norm(ours, theirs):
    """The rows of a layer norm."""
    return Row(f'{ours}/scale', f'{theirs}.weight'), Row(f'{ours}/bias', f'{theirs}.bias')


def attention(ours, theirs, query, key, value, output):
    """The rows of an attention that has a matrix each for queries, keys and values."""
    return (
        *(row for name, their in (('query', query), ('key', key), ('value', value)) for row in (
            Row(f'{ours}/{name}/kernel', f'{theirs}.{their}.weight', 'D N H -> (N H) D'),
            Row(f'{ours}/{name}/bias', f'{theirs}.{their}.bias', 'N H -> (N H)'))),
        Row(f'{ours}/output/kernel', f'{theirs}.{output}.weight', 'N H D -> D (N H)'),
        Row(f'{ours}/output/bias', f'{theirs}.{output}.bias'))


def with_head(family, architecture, use, *rows, fields=(), head=None, **changes):
    """The same body under another head: its rows, and its field or the value that it always has."""
    implied = dict(family.implied) | ({} if head is None else {'head': head})
    return dataclasses.replace(family, architecture=architecture, use=use, rows=(*family.rows, *rows), implied=implied,
                               fields=(*family.fields, *fields), **changes)


def bare(family):
    """The same where the model alone was saved, whose weights have no prefix."""
    rows = tuple(dataclasses.replace(row, theirs=row.theirs.removeprefix(family.prefix)) for row in family.rows)
    renamed = *family.renamed, (f'^{re.escape(family.prefix)}', '')
    return dataclasses.replace(family, prefix='', rows=rows, renamed=renamed)


def prefixed(family, prefix):
    """The same where the names of all weights of the body begin with a prefix."""
    rows = tuple(dataclasses.replace(row, theirs=prefix + row.theirs) for row in family.rows)
    copies = {prefix + copy: prefix + of for copy, of in family.copies.items()}
    return dataclasses.replace(family, prefix=prefix, rows=rows, copies=copies)


def _read_again(model, inputs, start):
    """Under a head that is no language model a decoder is given the source once more, behind `start`."""
    if 'decoder_inputs' in inputs:
        return inputs
    ids = np.asarray(inputs['inputs'])
    more = {'decoder_inputs': np.concatenate([np.full_like(ids[:, :1], start), ids[:, :-1]], 1)}
    return inputs | more | ({'decoder_segments': inputs['segments']} if 'segments' in inputs else {})


def classes_of_pairs(family, architecture):
    """An encoder and a decoder that read the same, of which the last state stands for all."""
    return with_head(family, architecture, 'classes', *dense('pooler', 'classification_head.dense'),
                     *dense('classes', 'classification_head.out_proj'), derived=_read_again,
                     fields=(head(partial(Classes, at='last', twice=True), default=0.0),))


def spans_of_pairs(family, architecture):
    """As `classes_of_pairs`, for the places of an answer."""
    return with_head(family, architecture, 'spans', *dense('span', 'qa_outputs'), head=Span(), derived=_read_again)


_GPT2 = Family(
    kind='gpt2',
    model='transformer.gpt:Gpt',
    architecture='',
    use='',
    prefix='transformer.',
    fields=(
        Field('vocab_size', 'vocab', 50257),
        Field('n_positions', 'length', 1024),
        Field('n_embd', 'width', 768),
        Field('n_layer', 'layers', 12),
        Field('n_head', 'heads', 12),
        Field('n_inner', 'inner', none=0),
        Field('activation_function', 'activation', 'gelu_new', ACTIVATIONS),
        dropouts('resid_pdrop embd_pdrop', 'attn_pdrop'),
        Field('layer_norm_epsilon', 'epsilon', 1e-5),
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
    computed=r'transformer\.h\.\d+\.attn\.(masked_)?bias')  # the causal mask

GPT2 = (
    with_head(
        _GPT2, 'GPT2LMHeadModel', 'text', Row('output/kernel', 'lm_head.weight', 'D V -> V D'), others=('GPT2Model',),
        fields=(Field('tie_word_embeddings', 'head', True, {True: NextWords(), False: NextWords(tied=False)}),),
        copies={'lm_head.weight': 'transformer.wte.weight'}),
    with_head(
        _GPT2, 'GPT2ForSequenceClassification', 'classes', Row('classes/kernel', 'score.weight', 'D C -> C D'),
        fields=(head(partial(Classes, at='last', pooler=False, bias=False, dropout=0.0), dropout=None),)),
    with_head(_GPT2, 'GPT2ForTokenClassification', 'tags', *dense('classes', 'classifier'),
              fields=(head(partial(TokenClasses, dropout=0.1)),)),
    with_head(_GPT2, 'GPT2ForQuestionAnswering', 'spans', *dense('span', 'qa_outputs'), head=Span()))

_BERT = Family(
    kind='bert',
    model='transformer.bert:Bert',
    architecture='',
    use='',
    prefix='bert.',
    fields=(
        Field('vocab_size', 'vocab', 30522),
        Field('hidden_size', 'width', 768),
        Field('num_hidden_layers', 'layers', 12),
        Field('num_attention_heads', 'heads', 12),
        inner('intermediate_size', 3072),
        Field('hidden_act', 'activation', 'gelu', ACTIVATIONS),
        dropouts('hidden_dropout_prob', 'attention_probs_dropout_prob'),
        Field('max_position_embeddings', 'length', 512),
        Field('type_vocab_size', 'types', 2),
        Field('layer_norm_eps', 'epsilon', 1e-12),
        ABSOLUTE),
    fixed=(Field('position_embedding_type', default='absolute'), Field('is_decoder', default=False),
           Field('add_cross_attention', default=False)),
    aside=('classifier_dropout', 'directionality', 'pooler_fc_size', 'pooler_num_attention_heads', 'pooler_num_fc_layers',
           'pooler_size_per_head', 'pooler_type', 'tie_word_embeddings'),
    implied={'residual': PostNorm(), 'embedding_norm': True},
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
    renamed=((r'LayerNorm\.gamma$', 'LayerNorm.weight'), (r'LayerNorm\.beta$', 'LayerNorm.bias')),
    computed=r'(\w+\.)?embeddings\.position_ids')
_UNREAD = _BERT.computed + r'|(\w+\.)?pooler\.dense\.(weight|bias)'  # of older files, under heads that have no pooler


def _words(ours, theirs, transform, norm_there):
    """(what a head that fills in masked words adds to a table, changes of the family)."""
    rows = *dense('transform', transform), *norm('transform_norm', norm_there), Row('output/bias', f'{theirs}.bias')
    copies = {f'{theirs}.decoder.weight': f'{ours}.embeddings.word_embeddings.weight',
              f'{theirs}.decoder.bias': f'{theirs}.bias'}
    return rows, dict(fields=(Field('tie_word_embeddings', default=True),), copies=copies)


_FOUND, _FINDS = _words('bert', 'cls.predictions', 'cls.predictions.transform.dense', 'cls.predictions.transform.LayerNorm')
_POOLER, _NEXT = dense('pooler', 'bert.pooler.dense'), dense('next_sentence', 'cls.seq_relationship')

BERT = (
    with_head(_BERT, 'BertForMaskedLM', 'masked', *_FOUND, head=MaskedWords(), computed=_UNREAD, **_FINDS),
    with_head(  # others: the weights of both are in the files of the models that Google has published
        _BERT, 'BertForPreTraining', 'sentences', *_FOUND, *_POOLER, *_NEXT, head=Pretraining(), **_FINDS,
        others=('BertForMaskedLM',),
        outputs={'logits': 'prediction_logits', 'next_logits': 'seq_relationship_logits'}),
    with_head(_BERT, 'BertForNextSentencePrediction', 'next', *_POOLER, *_NEXT, head=NextSentence(),
              outputs={'next_logits': 'logits'}),
    with_head(_BERT, 'BertForSequenceClassification', 'classes', *_POOLER, *dense('classes', 'classifier'),
              fields=(head(Classes),)),
    with_head(_BERT, 'BertForTokenClassification', 'tags', *dense('classes', 'classifier'), fields=(head(TokenClasses),),
              computed=_UNREAD),
    with_head(_BERT, 'BertForQuestionAnswering', 'spans', *dense('span', 'qa_outputs'), head=Span(), computed=_UNREAD),
    bare(with_head(_BERT, 'BertModel', 'hidden', *_POOLER, head=NoHead(pooler=True))),
    bare(with_head(_BERT, 'BertModel', 'hidden', head=NoHead())))


def _roberta_length(config):
    """The token that fills rows up has a row of its own in the table of positions, and all before it have one of no use."""
    offset = (config.get('pad_token_id', 1) or 0) + 1
    return {'length': config.get('max_position_embeddings', 512) - offset, 'positions': Learned(offset=offset)}


def _roberta_positions(model):
    """The inverse of `_roberta_length`."""
    offset = getattr(model.positions, 'offset', 0) or 2
    require_learned(model, offset)
    return {'max_position_embeddings': model.length + offset, 'pad_token_id': offset - 1}


def _roberta_counted(model, inputs, start):
    """Positions count the tokens that fill nothing up, whatever the attention mask says."""
    offset = model.positions.offset
    if 'positions' in inputs:
        return inputs | {'positions': inputs['positions'] - offset}
    there = inputs['inputs'] != offset - 1
    return inputs | {'positions': (there.cumsum(1) * there - 1).astype(np.int32)}


_ROBERTA = dataclasses.replace(
    _BERT, kind='roberta', prefix='roberta.',
    fields=(
        *(field for field in _BERT.fields if not {*field.names[1]} & {'length', 'positions'}),
        Fields((('max_position_embeddings', 'pad_token_id'), ('length', 'positions')), _roberta_length, _roberta_positions)),
    rows=tuple(dataclasses.replace(row, theirs=row.theirs.replace('bert.', 'roberta.', 1)) for row in _BERT.rows),
    derived=_roberta_counted)
_FOUND, _FINDS = _words('roberta', 'lm_head', 'lm_head.dense', 'lm_head.layer_norm')

ROBERTA = (
    with_head(_ROBERTA, 'RobertaForMaskedLM', 'masked', *_FOUND, head=MaskedWords(), computed=_UNREAD, **_FINDS),
    with_head(_ROBERTA, 'RobertaForSequenceClassification', 'classes', *dense('pooler', 'classifier.dense'),
              *dense('classes', 'classifier.out_proj'), fields=(head(partial(Classes, twice=True)),), computed=_UNREAD),
    with_head(_ROBERTA, 'RobertaForTokenClassification', 'tags', *dense('classes', 'classifier'), fields=(head(TokenClasses),),
              computed=_UNREAD),
    with_head(_ROBERTA, 'RobertaForQuestionAnswering', 'spans', *dense('span', 'qa_outputs'), head=Span(), computed=_UNREAD),
    bare(with_head(_ROBERTA, 'RobertaModel', 'hidden', *dense('pooler', 'roberta.pooler.dense'), head=NoHead(pooler=True))),
    bare(with_head(_ROBERTA, 'RobertaModel', 'hidden', head=NoHead())))


def _t5_config(config, weights):
    """T5 v1.0 has one table and divides by sqrt(D) before the output layer; v1.1 has that layer of its own and does not.
    Before transformers 5 tie_word_embeddings said both; there scale_decoder_outputs says the second, and the first is told by
    the weights alone. `T5Model` has no output layer; here the table is taken for it."""
    shared, own = weights.get('shared.weight'), weights.get('lm_head.weight')
    said = config.get('tie_word_embeddings', True)
    if own is None:
        tied = said or config.get('architectures') == ['T5Model']
    else:
        tied = said and shared is not None and np.array_equal(shared(), own())
    return config | {'tie_word_embeddings': tied, 'scale_decoder_outputs': config.get('scale_decoder_outputs', said)}


def _t5_feed_forward(config):
    """{'activation', 'gated'}; dense_act_fn and is_gated_act follow from feed_forward_proj."""
    given = config.get('feed_forward_proj', 'relu')
    activation, gated = given.removeprefix('gated-'), given.startswith('gated-')
    activation = 'gelu_new' if given == 'gated-gelu' else activation
    if activation not in ACTIVATIONS:
        raise ValueError(f'config.json has feed_forward_proj={given!r}, which is not supported; expected one of '
                         f'{", ".join(ACTIVATIONS)}, or with gated- before it.')
    for name, wanted in (('dense_act_fn', activation), ('is_gated_act', gated)):
        if config.get(name, wanted) != wanted:
            raise ValueError(f'config.json has {name}={config[name]!r}, but feed_forward_proj={given!r}, which is {wanted!r}; '
                             'mend one of them.')
    return {'activation': ACTIVATIONS[activation], 'gated': gated}


def _t5_feed_forward_proj(model):
    """The inverse of `_t5_feed_forward`."""
    for theirs in ('gated-gelu', *ACTIVATIONS, *(f'gated-{name}' for name in ACTIVATIONS)):
        if _t5_feed_forward({'feed_forward_proj': theirs}) == {'activation': model.activation, 'gated': model.gated}:
            return {'feed_forward_proj': theirs}
    raise ValueError(f'model.activation is {model.activation!r} and model.gated {model.gated}, which T5 cannot be; choose '
                     'another activation.')


T5_BUCKETS = 'relative_attention_num_buckets', 'relative_attention_max_distance'


def _t5_sizes(config):
    layers = config.get('num_layers', 6)
    return {'head_width': config.get('d_kv', 64), 'inner': config.get('d_ff', 2048), 'encoder_layers': layers,
            'layers': config.get('num_decoder_layers') or layers}


def _t5_shape(model):
    """The inverse of `_t5_sizes`: 0, which stands for something else in a model of ours, is nothing there."""
    return {'d_kv': model.each_head, 'd_ff': model.inner or 4 * model.width, 'num_layers': model.encoder_layers or model.layers,
            'num_decoder_layers': model.layers}


def _t5_positions(config):
    return {'positions': T5(*(config.get(name, default) for name, default in zip(T5_BUCKETS, (32, 128))))}


def _t5_buckets(model):
    """The inverse of `_t5_positions`."""
    if not isinstance(model.positions, T5):
        raise ValueError(f'model.positions is {model.positions}, which T5 cannot have; expected T5().')
    return dict(zip(T5_BUCKETS, (model.positions.buckets, model.positions.distance)))


def _t5_rows(tower, cross):
    """The rows of the encoder, or of the decoder, whose blocks have cross attention."""
    block, theirs, last = f'{tower}/block_{{i}}', f'{tower}.block.{{i}}.layer', 2 if cross else 1

    def attention(name, number, module):
        return (
            Row(f'{block}/{name}_norm/scale', f'{theirs}.{number}.layer_norm.weight'),
            *(Row(f'{block}/{name}/{ours}/kernel', f'{theirs}.{number}.{module}.{ours[0]}.weight', 'D N H -> (N H) D')
              for ours in ('query', 'key', 'value')),
            Row(f'{block}/{name}/output/kernel', f'{theirs}.{number}.{module}.o.weight', 'N H D -> D (N H)'))

    def dense(ours, name, axes='D F -> F D'):
        return Row(f'{block}/feed_forward/{ours}/kernel', f'{theirs}.{last}.DenseReluDense.{name}.weight', axes)

    return (
        *attention('attention', 0, 'SelfAttention'), *(attention('cross_attention', 1, 'EncDecAttention') if cross else ()),
        Row(f'{tower}/positions/bias', f'{tower}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'),
        Row(f'{block}/feed_forward_norm/scale', f'{theirs}.{last}.layer_norm.weight'),
        dense('input', 'wi'), dense('gate', 'wi_0'), dense('linear', 'wi_1'), dense('output', 'wo', 'F D -> D F'),
        Row(f'{tower}/norm/scale', f'{tower}.final_layer_norm.weight'))


_T5 = Family(
    kind='t5',
    use='',
    model='transformer.encoder_decoder:EncoderDecoder',
    architecture='',
    prepared=_t5_config,
    fields=(
        Field('vocab_size', 'vocab', 32128),
        Field('d_model', 'width', 512),
        Fields((('d_kv', 'd_ff', 'num_layers', 'num_decoder_layers'), ('head_width', 'inner', 'encoder_layers', 'layers')),
               _t5_sizes, _t5_shape),
        Field('num_heads', 'heads', 8),
        Field('dropout_rate', 'dropout', 0.1),
        Field('layer_norm_epsilon', 'epsilon', 1e-6),
        Field('tie_word_embeddings', 'share', True, {True: 'all', False: 'inputs'}),
        Fields((('feed_forward_proj', 'dense_act_fn', 'is_gated_act'), ('activation', 'gated')), _t5_feed_forward,
               _t5_feed_forward_proj),
        Fields((T5_BUCKETS, ('positions',)), _t5_positions, _t5_buckets)),
    aside=('classifier_dropout', 'initializer_factor', 'is_decoder', 'n_positions', 'scale_decoder_outputs'),
    implied={'bias': False, 'normalization': 'rms', 'residual': PreNorm(), 'scale_embedding': False, 'source_vocab': 0,
             **dict.fromkeys(('attention_dropout', 'inner_dropout', 'last_dropout'), -1.0),
             **dict.fromkeys(('attention', 'encoder_attention', 'cross_attention'), Softmax(score=Dot()))},
    free=('length', 'source_length'),
    rows=(
        Row('tokens/embedding', 'shared.weight'),
        *_t5_rows('encoder', cross=False),
        *_t5_rows('decoder', cross=True)),
    inputs=lambda config: PAIRS,
    # Of the first T5, which nothing reads.
    computed=r'(transformer\.)?decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
    copies=dict.fromkeys(('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight'), 'shared.weight'))

T5_MODELS = (
    with_head(_T5, 'T5ForConditionalGeneration', 'pairs', Row('output/kernel', 'lm_head.weight', 'D V -> V D'),
              fields=(Field('scale_decoder_outputs', 'head', True, {True: TargetWords(scale=True), False: TargetWords()}),),
              others=('T5Model', 'T5WithLMHeadModel')),
    classes_of_pairs(prefixed(_T5, 'transformer.'), 'T5ForSequenceClassification'),
    spans_of_pairs(_T5, 'T5ForQuestionAnswering'))


def _bart_length(model):
    if model.length != model.source_length:
        raise ValueError(f'model.length is {model.length} and model.source_length {model.source_length}, which are one field '
                         'there; make them equal.')
    return {'max_position_embeddings': model.length}


def _bart_layers(model):
    return {'encoder_layers': model.encoder_layers or model.layers, 'decoder_layers': model.layers}


def _bart_rows(tower):
    """The rows of the encoder, or of the decoder."""
    block, theirs, names = f'{tower}/block_{{i}}', f'model.{tower}.layers.{{i}}', ('q_proj', 'k_proj', 'v_proj', 'out_proj')
    return (
        Row(f'{tower}/positions/embedding', f'model.{tower}.embed_positions.weight'),
        *norm(f'{tower}/embedding_norm', f'model.{tower}.layernorm_embedding'),
        *attention(f'{block}/attention', f'{theirs}.self_attn', *names),
        *norm(f'{block}/attention_norm', f'{theirs}.self_attn_layer_norm'),
        *attention(f'{block}/cross_attention', f'{theirs}.encoder_attn', *names),
        *norm(f'{block}/cross_attention_norm', f'{theirs}.encoder_attn_layer_norm'),
        *dense(f'{block}/feed_forward/input', f'{theirs}.fc1'), *dense(f'{block}/feed_forward/output', f'{theirs}.fc2'),
        *norm(f'{block}/feed_forward_norm', f'{theirs}.final_layer_norm'))


_BART = Family(
    kind='bart',
    model='transformer.encoder_decoder:EncoderDecoder',
    architecture='',
    use='',
    prefix='model.',
    fields=(
        Field('vocab_size', 'vocab', 50265),
        Field('d_model', 'width', 1024),
        Fields((('encoder_layers', 'decoder_layers'), ('encoder_layers', 'layers')),
               lambda config: {'encoder_layers': config.get('encoder_layers', 12), 'layers': config.get('decoder_layers', 12)},
               _bart_layers),
        Field('encoder_attention_heads decoder_attention_heads', 'heads', 16),
        inner('encoder_ffn_dim decoder_ffn_dim', 4096),
        Field('activation_function', 'activation', 'gelu', ACTIVATIONS),
        dropouts('dropout', 'attention_dropout', (0.1, 0.0)),
        Fields((('activation_dropout',), ('inner_dropout',)),
               lambda config: {'inner_dropout': config.get('activation_dropout', 0.0)},
               lambda model: {'activation_dropout': model.rate(model.inner_dropout)}),
        Fields((('max_position_embeddings',), ('length', 'source_length')),
               lambda config: dict.fromkeys(('length', 'source_length'), config.get('max_position_embeddings', 1024)),
               _bart_length),
        Field('scale_embedding', 'scale_embedding', False),
        Field('tie_word_embeddings', default=True)),
    fixed=(*(Field(name, default=False) for name in (
               'add_bias_logits', 'add_final_layer_norm', 'is_decoder', 'normalize_before', 'static_position_embeddings')),
           *(Field(name, default=0.0) for name in ('encoder_layerdrop', 'decoder_layerdrop')),
           Field('extra_pos_embeddings', default=2), Field('normalize_embedding', default=True)),
    aside=('classif_dropout', 'classifier_dropout', 'force_bos_token_to_be_generated', 'init_std', 'num_hidden_layers'),
    implied={'embedding_norm': True, 'positions': Learned(offset=2), 'residual': PostNorm(), 'source_vocab': 0},
    rows=(
        Row('tokens/embedding', 'model.shared.weight'),
        *_bart_rows('encoder'),
        *_bart_rows('decoder')),
    inputs=lambda config: PAIRS,
    computed=r'(model\.)?(encoder|decoder)\.version',
    copies=dict.fromkeys(('model.encoder.embed_tokens.weight', 'model.decoder.embed_tokens.weight', 'lm_head.weight'),
                         'model.shared.weight'))

BART = (
    with_head(_BART, 'BartForConditionalGeneration', 'pairs', Row('added/bias', 'final_logits_bias', 'V -> 1 V', absent=True),
              head=TargetWords(added=True), others=('BartModel',)),
    classes_of_pairs(_BART, 'BartForSequenceClassification'),
    spans_of_pairs(_BART, 'BartForQuestionAnswering'))

FAMILIES = *GPT2, *BERT, *ROBERTA, *T5_MODELS, *BART
