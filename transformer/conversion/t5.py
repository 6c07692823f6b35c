"""T5 of Hugging Face transformers, v1.0 and v1.1."""

import dataclasses

import numpy as np

from transformer.attention.mechanism import Softmax
from transformer.attention.positions.relative import T5Bias
from transformer.attention.scores import Dot
from transformer.conversion.common import (
    ACTIVATIONS,
    PAIRS,
    classes_of_pairs,
    pair_limits,
    prefixed,
    spans_of_pairs,
    with_head,
)
from transformer.conversion.tables import Family, Field, Fields, Row, at
from transformer.layers.feed_forward import Gated, Mlp
from transformer.layers.heads import NextWords
from transformer.layers.norm import RMSNorm
from transformer.layers.residual import PreNorm


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
    """The feed-forward of both stacks; dense_act_fn and is_gated_act follow from feed_forward_proj."""
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
    part = (Gated if gated else Mlp)(activation=ACTIVATIONS[activation], bias=False)
    return {f'{stack}.feed_forward': part for stack in STACKS}


def _t5_feed_forward_proj(model):
    """The inverse of `_t5_feed_forward`."""
    ours = {f'{stack}.feed_forward': dataclasses.replace(at(model, f'{stack}.feed_forward'), inner=0, dropout=0.0)
            for stack in STACKS}
    for theirs in ('gated-gelu', *ACTIVATIONS, *(f'gated-{name}' for name in ACTIVATIONS)):
        if _t5_feed_forward({'feed_forward_proj': theirs}) == ours:
            return {'feed_forward_proj': theirs}
    raise ValueError(f'model.encoder.feed_forward is {at(model, "encoder.feed_forward")!r} and that of the decoder '
                     f'{at(model, "decoder.feed_forward")!r}, which T5 cannot be; choose one for both, without biases.')


T5_BUCKETS = 'relative_attention_num_buckets', 'relative_attention_max_distance'


STACKS = 'encoder', 'decoder'


def both(name):
    """The paths of a field of both stacks, which is one there."""
    return ' '.join(f'{stack}.{name}' for stack in STACKS)


def _t5_sizes(config):
    layers = config.get('num_layers', 6)
    found = {'encoder.layers': layers, 'decoder.layers': config.get('num_decoder_layers') or layers}
    return found | {f'{stack}.head_width': config.get('d_kv', 64) for stack in STACKS} | {
        f'{stack}.feed_forward.inner': config.get('d_ff', 2048) for stack in STACKS}


def _t5_shape(model):
    """The inverse of `_t5_sizes`: 0, which stands for something else in a model of ours, is nothing there."""
    sizes = {(stack.each_head, stack.feed_forward.width(stack.width)) for stack in map(model.get, STACKS)}
    if len(sizes) > 1:
        raise ValueError('The widths of heads and feed-forwards in model.encoder and model.decoder differ, which T5 cannot '
                         'have; make them equal.')
    (head_width, inner), = sizes
    return {'d_kv': head_width, 'd_ff': inner, 'num_layers': model['encoder'].layers,
            'num_decoder_layers': model['decoder'].layers}


def _t5_positions(config):
    part = T5Bias(*(config.get(name, default) for name, default in zip(T5_BUCKETS, (32, 128))))
    return {f'{stack}.positions': part for stack in STACKS}


def _t5_buckets(model):
    """The inverse of `_t5_positions`."""
    one, other = (model[stack].positions for stack in STACKS)
    if not isinstance(one, T5Bias) or one != other:
        raise ValueError(f'model.encoder.positions is {one} and model.decoder.positions {other}, which T5 cannot have; '
                         'expected T5Bias() of one kind in both.')
    return dict(zip(T5_BUCKETS, (one.buckets, one.distance)))


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
    model='transformer.models.encoder_decoder:EncoderDecoder',
    architecture='',
    prepared=_t5_config,
    fields=(
        Field('vocab_size', 'vocab', 32128),
        Field('d_model', both('width'), 512),
        Fields((('d_kv', 'd_ff', 'num_layers', 'num_decoder_layers'),
                tuple(f'{both("layers")} {both("head_width")} {both("feed_forward.inner")}'.split())), _t5_sizes, _t5_shape),
        Field('num_heads', both('heads'), 8),
        Field('dropout_rate', f'{both("dropout")} {both("feed_forward.dropout")}', 0.1),
        Field('layer_norm_epsilon', both('norm.epsilon'), 1e-6),
        Fields((('feed_forward_proj', 'dense_act_fn', 'is_gated_act'), tuple(both('feed_forward').split())), _t5_feed_forward,
               _t5_feed_forward_proj),
        Fields((T5_BUCKETS, tuple(both('positions').split())), _t5_positions, _t5_buckets)),
    aside=('classifier_dropout', 'initializer_factor', 'is_decoder', 'n_positions', 'scale_decoder_outputs',
           'tie_word_embeddings'),
    # Sources may have any length, as positions are told by buckets of their offsets.
    implied={'source_length': 2**31 - 1, 'scale_embedding': False, 'source_vocab': 0,
             'cross_attention': Softmax(score=Dot()),
             **{f'{stack}.{name}': value for stack in STACKS for name, value in {
                 'projection_bias': False, 'output_bias': False, 'norm': RMSNorm(), 'residual': PreNorm(),
                 'attention_dropout': -1.0, 'last_dropout': -1.0, 'attention': Softmax(score=Dot())}.items()}},
    free=('length', 'source_length'),
    rows=(
        Row('tokens/embedding', 'shared.weight'),
        *_t5_rows('encoder', cross=False),
        *_t5_rows('decoder', cross=True)),
    inputs=lambda config: PAIRS,
    limits=pair_limits,
    # Of the first T5, which nothing reads.
    computed=r'(transformer\.)?decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
    copies=dict.fromkeys(('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight'), 'shared.weight'))
# tie_word_embeddings: whether the output layer is the embedding; scale_decoder_outputs: whether x / sqrt(D) goes into it.
_OUTPUT = Fields(
    (('tie_word_embeddings', 'scale_decoder_outputs'), ('head',)),
    lambda config: {'head': NextWords(tied=config['tie_word_embeddings'], scaled=config['scale_decoder_outputs'])},
    lambda model: _output_of(model['head']))


def _output_of(head):
    if head not in [NextWords(tied=tied, scaled=scaled) for tied in (True, False) for scaled in (True, False)]:
        raise ValueError(f'model.head is {head!r}, which has no form there; expected NextWords() without a bias.')
    return {'tie_word_embeddings': head.tied, 'scale_decoder_outputs': head.scaled}


T5_MODELS = (
    with_head(_T5, 'T5ForConditionalGeneration', 'pairs', Row('output/kernel', 'lm_head.weight', 'D V -> V D'),
              fields=(_OUTPUT,), others=('T5Model', 'T5WithLMHeadModel')),
    classes_of_pairs(prefixed(_T5, 'transformer.'), 'T5ForSequenceClassification'),
    spans_of_pairs(_T5, 'T5ForQuestionAnswering'))
