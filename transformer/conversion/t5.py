"""T5 of Hugging Face transformers, v1.0 and v1.1."""

import dataclasses
from functools import partial

import numpy as np

from transformer.attention.mechanism import Softmax
from transformer.attention.positions.relative import T5Bias
from transformer.attention.scores import Dot
from transformer.conversion.common import (
    ACTIVATIONS,
    PAIRS,
    STACKS,
    TOKENS,
    classes_of_pairs,
    dense,
    pair_limits,
    prefixed,
    spans_of_pairs,
    with_head,
)
from transformer.conversion.fields import Field, Fields, at, head
from transformer.conversion.forms import Heads
from transformer.conversion.tables import Family, Row
from transformer.layers.feed_forward import Gated, Mlp
from transformer.layers.heads import NextWords, NoHead, TokenClasses
from transformer.layers.norm import RMSNorm
from transformer.layers.residual import PreNorm


def _t5_config(config, weights):
    """T5 v1.0 ties the output layer to the table and divides its input by sqrt(D); v1.1 does neither. Before transformers 5
    tie_word_embeddings meant both; now scale_decoder_outputs means the division, and only the weights show whether the layer is
    tied. `T5Model` has no output layer, and is read as tied."""
    shared, own = weights.get('shared.weight'), weights.get('lm_head.weight')
    said = config.get('tie_word_embeddings', True)
    if own is None:
        tied = said or config.get('architectures') == ['T5Model']
    else:
        tied = said and shared is not None and np.array_equal(shared(), own())
    return config | {'tie_word_embeddings': tied, 'scale_decoder_outputs': config.get('scale_decoder_outputs', said)}


def _t5_feed_forward(config, fronts):
    """The feed-forward of all stacks; feed_forward_proj determines dense_act_fn and is_gated_act."""
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
    return {f'{front}feed_forward': part for front in fronts}


def _t5_feed_forward_proj(model, fronts):
    """The inverse of `_t5_feed_forward`."""
    given = {f'{front}feed_forward': at(model, f'{front}feed_forward') for front in fronts}
    ours = {path: dataclasses.replace(part, inner=0, dropout=0.0) for path, part in given.items()}
    for theirs in ('gated-gelu', *ACTIVATIONS, *(f'gated-{name}' for name in ACTIVATIONS)):
        if _t5_feed_forward({'feed_forward_proj': theirs}, fronts) == ours:
            return {'feed_forward_proj': theirs}
    raise ValueError(' and '.join(f'model.{path} is {part!r}' for path, part in given.items())
                     + ', which T5 cannot be; choose one without biases, the same in all stacks.')


T5_BUCKETS = 'relative_attention_num_buckets', 'relative_attention_max_distance'


LAYERS = 'num_layers', 'num_decoder_layers'  # their numbers of layers
ALONE = '',  # the prefix for an encoder alone, whose fields are the model's own


def _everywhere(name, fronts):
    """The paths of a field of all stacks, for which they have a single field."""
    return ' '.join(front + name for front in fronts)


def _t5_sizes(config, fronts):
    layers = config.get('num_layers', 6)
    found = {f'{fronts[0]}layers': layers}
    if len(fronts) > 1:
        found[f'{fronts[1]}layers'] = config.get('num_decoder_layers') or layers
    return found | {f'{front}head_width': config.get('d_kv', 64) for front in fronts} | {
        f'{front}feed_forward.inner': config.get('d_ff', 2048) for front in fronts}


def _t5_shape(model, fronts):
    """The inverse of `_t5_sizes`; the 0 of our models, which stands for a default size, is replaced by that size."""
    def widths(front):
        width = at(model, f'{front}width')
        return (at(model, f'{front}head_width') or width // at(model, f'{front}heads'),
                at(model, f'{front}feed_forward').width(width))

    if len({*map(widths, fronts)}) > 1:
        raise ValueError('The widths of heads and feed-forwards in model.encoder and model.decoder differ, which T5 cannot '
                         'have; make them equal.')
    head_width, inner = widths(fronts[0])
    return {'d_kv': head_width, 'd_ff': inner} | {
        name: at(model, f'{front}layers') for name, front in zip(LAYERS, fronts)}


def _t5_positions(config, fronts):
    part = T5Bias(*(config.get(name, default) for name, default in zip(T5_BUCKETS, (32, 128))))
    return {f'{front}positions': part for front in fronts}


def _t5_buckets(model, fronts):
    """The inverse of `_t5_positions`."""
    given = {f'{front}positions': at(model, f'{front}positions') for front in fronts}
    one, *others = given.values()
    if not isinstance(one, T5Bias) or any(other != one for other in others):
        raise ValueError(' and '.join(f'model.{path} is {part}' for path, part in given.items())
                         + ', which T5 cannot have; expected T5Bias() of one kind in all stacks.')
    return dict(zip(T5_BUCKETS, (one.buckets, one.distance)))


def _t5_fields(fronts):
    """The fields of stacks whose paths have these prefixes."""
    def together(names, paths, read, write):
        return Fields((names, tuple(f'{front}{path}' for path in paths for front in fronts)), partial(read, fronts=fronts),
                      partial(write, fronts=fronts))

    layers = LAYERS[:len(fronts)]
    return (
        Field('vocab_size', 'vocab', 32128),
        Field('d_model', _everywhere('width', fronts), 512),
        together(('d_kv', 'd_ff', *layers), ('layers', 'head_width', 'feed_forward.inner'), _t5_sizes, _t5_shape),
        Field('num_heads', _everywhere('heads', fronts), 8),
        Field('dropout_rate', f'{_everywhere("dropout", fronts)} {_everywhere("feed_forward.dropout", fronts)}', 0.1),
        Field('layer_norm_epsilon', _everywhere('norm.epsilon', fronts), 1e-6),
        together(('feed_forward_proj', 'dense_act_fn', 'is_gated_act'), ('feed_forward',), _t5_feed_forward,
                 _t5_feed_forward_proj),
        together(T5_BUCKETS, ('positions',), _t5_positions, _t5_buckets))


def _t5_implied(fronts):
    """{path: value} of the fields that are fixed in every stack of theirs."""
    return {f'{front}{name}': value for front in fronts for name, value in {
        'projection_bias': False, 'output_bias': False, 'norm': RMSNorm(), 'residual': PreNorm(), 'embedding_norm': False,
        'attention_dropout': -1.0, 'last_dropout': -1.0, 'attention': Softmax(score=Dot())}.items()}


def _t5_rows(tower, cross=False, front=None):
    """The rows of the encoder, or of the decoder, whose blocks have cross attention; `front`: the prefix of our names."""
    front = f'{tower}/' if front is None else front
    block, theirs, last = f'{front}block_{{i}}', f'{tower}.block.{{i}}.layer', 2 if cross else 1

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
        Row(f'{front}positions/bias', f'{tower}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'),
        Row(f'{block}/feed_forward_norm/scale', f'{theirs}.{last}.layer_norm.weight'),
        dense('input', 'wi'), dense('gate', 'wi_0'), dense('linear', 'wi_1'), dense('output', 'wo', 'F D -> D F'),
        Row(f'{front}norm/scale', f'{tower}.final_layer_norm.weight'))


_T5 = Family(
    kind='t5',
    use='',
    model='transformer.models.encoder_decoder:EncoderDecoder',
    architecture='',
    prepared=_t5_config,
    fields=_t5_fields(STACKS),
    aside=('classifier_dropout', 'initializer_factor', 'is_decoder', 'n_positions', 'scale_decoder_outputs',
           'tie_word_embeddings'),
    # Sources may have any length: positions enter as buckets of their offsets.
    implied={'source_length': 2**31 - 1, 'scale_embedding': False, 'source_vocab': 0, 'cross_attention': Softmax(score=Dot()),
             **_t5_implied(STACKS)},
    free=('length', 'source_length'),
    rows=(
        Row('tokens/embedding', 'shared.weight'),
        *_t5_rows('encoder'),
        *_t5_rows('decoder', cross=True)),
    inputs=lambda config: PAIRS,
    limits=pair_limits,
    forms=(Heads(STACKS),),
    # A weight in the files of the first T5 that no version reads.
    computed=r'(transformer\.)?decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',
    copies=dict.fromkeys(('encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight'), 'shared.weight'))
_ENCODER = Family(
    kind='t5',
    use='',
    model='transformer.models.bert:Bert',
    architecture='',
    fields=_t5_fields(ALONE),
    aside=(*_T5.aside, 'num_decoder_layers', 'is_encoder_decoder'),
    # Texts may have any length, as above.
    implied={'length': 2**31 - 1, 'types': 0, **_t5_implied(ALONE)},
    free=('length',),
    rows=(Row('tokens/embedding', 'shared.weight'), *_t5_rows('encoder', front='')),
    inputs=lambda config: TOKENS,
    limits=lambda model: {'input_ids': model.vocab, 'attention_mask': 2},
    forms=(Heads(),),
    copies={'encoder.embed_tokens.weight': 'shared.weight'})
# tie_word_embeddings: whether the output layer is the embedding; scale_decoder_outputs: whether its input is x / sqrt(D).
_OUTPUT = Fields(
    (('tie_word_embeddings', 'scale_decoder_outputs'), ('head',)),
    lambda config: {'head': NextWords(tied=config['tie_word_embeddings'], scaled=config['scale_decoder_outputs'])},
    lambda model: _output_of(model['head']))


def _output_of(head):
    if head not in [NextWords(tied=tied, scaled=scaled) for tied in (True, False) for scaled in (True, False)]:
        raise ValueError(f'model.head is {head!r}, which has no counterpart there; expected NextWords() without a bias.')
    return {'tie_word_embeddings': head.tied, 'scale_decoder_outputs': head.scaled}


T5_MODELS = (
    with_head(_T5, 'T5ForConditionalGeneration', 'pairs', Row('output/kernel', 'lm_head.weight', 'D V -> V D'),
              fields=(_OUTPUT,), others=('T5Model', 'T5WithLMHeadModel')),
    classes_of_pairs(prefixed(_T5, 'transformer.'), 'T5ForSequenceClassification'),
    spans_of_pairs(_T5, 'T5ForQuestionAnswering'),
    with_head(_ENCODER, 'T5EncoderModel', 'hidden', head=NoHead()),
    with_head(prefixed(_ENCODER, 'transformer.'), 'T5ForTokenClassification', 'tags', *dense('classes', 'classifier'),
              fields=(head(TokenClasses, default=0.0),)))
