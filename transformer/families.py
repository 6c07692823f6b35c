"""The families of text models that convert.py knows, as tables; how they are read is in `transformer.conversion`."""

import numpy as np

from transformer.attention.masks import Causal
from transformer.attention.mechanism import Softmax
from transformer.attention.positions import Learned
from transformer.attention.relative import T5
from transformer.attention.scores import Dot
from transformer.conversion import Family, Field, Fields, Row
from transformer.residual import PreNorm

ACTIVATIONS = {'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu': 'gelu',
               'relu': 'relu'}

GPT2 = Family(
    kind='gpt2',
    model='transformer.gpt:Gpt',
    architecture='GPT2LMHeadModel',
    others=('GPT2Model',),
    prefix='transformer.',
    fields=(
        Field('vocab_size', 'vocab', 50257),
        Field('n_positions', 'length', 1024),
        Field('n_embd', 'width', 768),
        Field('n_layer', 'layers', 12),
        Field('n_head', 'heads', 12),
        Field('n_inner', 'inner', none=0),
        Field('activation_function', 'activation', 'gelu_new', ACTIVATIONS),
        Field('resid_pdrop embd_pdrop attn_pdrop', 'dropout', 0.1),
        Field('layer_norm_epsilon', 'epsilon', 1e-5),
        Field('scale_attn_weights', 'attention', True, {True: Softmax(), False: Softmax(score=Dot())}),
        Field('tie_word_embeddings', 'tied', True),
        Field('scale_attn_by_inverse_layer_idx', default=False),
        Field('add_cross_attention', default=False)),
    aside=('is_decoder', 'n_ctx', 'n_special', 'predict_special_tokens', 'reorder_and_upcast_attn', 'summary_activation',
           'summary_first_dropout', 'summary_proj_to_labels', 'summary_type', 'summary_use_proj'),
    implied={'residual': PreNorm(), 'mask': Causal(), 'positions': Learned(), 'bias': True, 'key_heads': 0, 'kept': ()},
    rows=(
        Row('tokens/embedding', 'transformer.wte.weight'),
        Row('positions/embedding', 'transformer.wpe.weight'),
        Row('block_{i}/attention_norm/scale', 'transformer.h.{i}.ln_1.weight'),
        Row('block_{i}/attention_norm/bias', 'transformer.h.{i}.ln_1.bias'),
        Row('block_{i}/attention/{query,key,value}/kernel', 'transformer.h.{i}.attn.c_attn.weight', 'K D N H -> D (K N H)'),
        Row('block_{i}/attention/{query,key,value}/bias', 'transformer.h.{i}.attn.c_attn.bias', 'K N H -> (K N H)'),
        Row('block_{i}/attention/output/kernel', 'transformer.h.{i}.attn.c_proj.weight', 'N H D -> (N H) D'),
        Row('block_{i}/attention/output/bias', 'transformer.h.{i}.attn.c_proj.bias'),
        Row('block_{i}/feed_forward_norm/scale', 'transformer.h.{i}.ln_2.weight'),
        Row('block_{i}/feed_forward_norm/bias', 'transformer.h.{i}.ln_2.bias'),
        Row('block_{i}/feed_forward/input/kernel', 'transformer.h.{i}.mlp.c_fc.weight'),
        Row('block_{i}/feed_forward/input/bias', 'transformer.h.{i}.mlp.c_fc.bias'),
        Row('block_{i}/feed_forward/output/kernel', 'transformer.h.{i}.mlp.c_proj.weight'),
        Row('block_{i}/feed_forward/output/bias', 'transformer.h.{i}.mlp.c_proj.bias'),
        Row('norm/scale', 'transformer.ln_f.weight'),
        Row('norm/bias', 'transformer.ln_f.bias'),
        Row('output/kernel', 'lm_head.weight', 'D V -> V D')),
    inputs={'inputs': ((1, 1), 'int32')},
    computed=r'transformer\.h\.\d+\.attn\.(masked_)?bias',  # the causal mask
    copies={'lm_head.weight': 'transformer.wte.weight'})


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


T5_FAMILY = Family(
    kind='t5',
    model='transformer.encoder_decoder:EncoderDecoder',
    architecture='T5ForConditionalGeneration',
    others=('T5Model', 'T5WithLMHeadModel'),
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
        Field('scale_decoder_outputs', 'scale_output', True),
        Fields((('feed_forward_proj', 'dense_act_fn', 'is_gated_act'), ('activation', 'gated')), _t5_feed_forward,
               _t5_feed_forward_proj),
        Fields((T5_BUCKETS, ('positions',)), _t5_positions, _t5_buckets)),
    aside=('classifier_dropout', 'initializer_factor', 'is_decoder', 'n_positions'),
    implied={'bias': False, 'dropout_everywhere': True, 'normalization': 'rms', 'residual': PreNorm(),
             'scale_embedding': False, 'source_vocab': 0,
             **dict.fromkeys(('attention', 'encoder_attention', 'cross_attention'), Softmax(score=Dot()))},
    free=('length', 'source_length'),
    rows=(
        Row('tokens/embedding', 'shared.weight'),
        Row('output/kernel', 'lm_head.weight', 'D V -> V D'),
        *_t5_rows('encoder', cross=False),
        *_t5_rows('decoder', cross=True)),
    inputs={'inputs': ((1, 1), 'int32'), 'decoder_inputs': ((1, 1), 'int32')},
    # Of the first T5, which nothing reads.
    computed=r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
    copies=dict.fromkeys(('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight'), 'shared.weight'))

FAMILIES = {family.kind: family for family in (GPT2, T5_FAMILY)}
