"""BART of Hugging Face transformers."""

from transformer.attention.positions.absolute import Learned
from transformer.conversion.common import (
    ACTIVATIONS,
    PAIRS,
    STACKS,
    attention,
    classes_of_pairs,
    dense,
    norm,
    pair_limits,
    spans_of_pairs,
    with_head,
)
from transformer.conversion.fields import Field, dropouts, inner
from transformer.conversion.forms import AddedBias, Biases, Heads, Table
from transformer.conversion.tables import Family, Row
from transformer.layers.heads import NextWords
from transformer.layers.residual import PostNorm


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
    model='transformer.models.encoder_decoder:EncoderDecoder',
    architecture='',
    use='',
    prefix='model.',
    fields=(
        Field('vocab_size', 'vocab', 50265),
        Field('d_model', 'encoder.width decoder.width', 1024),
        *(field for stack in ('encoder', 'decoder') for field in (
            Field(f'{stack}_layers', f'{stack}.layers', 12),
            Field(f'{stack}_attention_heads', f'{stack}.heads', 16),
            inner(f'{stack}_ffn_dim', 4096, f'{stack}.'))),
        Field('activation_function', 'encoder.feed_forward.activation decoder.feed_forward.activation', 'gelu', ACTIVATIONS),
        dropouts('dropout', 'attention_dropout', (0.1, 0.0), ('encoder.', 'decoder.')),
        Field('activation_dropout', 'encoder.feed_forward.dropout decoder.feed_forward.dropout', 0.0),
        Field('max_position_embeddings', 'length source_length', 1024),
        Field('scale_embedding', 'scale_embedding', False),
        Field('tie_word_embeddings', default=True)),
    fixed=(*(Field(name, default=False) for name in (
               'add_bias_logits', 'add_final_layer_norm', 'is_decoder', 'normalize_before', 'static_position_embeddings')),
           *(Field(name, default=0.0) for name in ('encoder_layerdrop', 'decoder_layerdrop')),
           Field('extra_pos_embeddings', default=2), Field('normalize_embedding', default=True)),
    aside=('classif_dropout', 'classifier_dropout', 'force_bos_token_to_be_generated', 'init_std', 'num_hidden_layers'),
    implied={'source_vocab': 0} | {f'{stack}.{name}': value for stack in ('encoder', 'decoder') for name, value in {
        'embedding_norm': True, 'positions': Learned(offset=2), 'residual': PostNorm()}.items()},
    rows=(
        Row('tokens/embedding', 'model.shared.weight'),
        *_bart_rows('encoder'),
        *_bart_rows('decoder')),
    inputs=lambda config: PAIRS,
    limits=pair_limits,
    forms=(Heads(STACKS), Biases(STACKS), Table((('encoder.', 'source_length'), ('decoder.', 'length')), offset=2, equal=True),
           AddedBias()),
    computed=r'(model\.)?(encoder|decoder)\.version',
    copies=dict.fromkeys(('model.encoder.embed_tokens.weight', 'model.decoder.embed_tokens.weight', 'lm_head.weight'),
                         'model.shared.weight'))
BART = (
    with_head(_BART, 'BartForConditionalGeneration', 'pairs', Row('added/bias', 'final_logits_bias', 'V -> 1 V', absent=True),
              head=NextWords(added=True), others=('BartModel',)),
    classes_of_pairs(_BART, 'BartForSequenceClassification'),
    spans_of_pairs(_BART, 'BartForQuestionAnswering'))
