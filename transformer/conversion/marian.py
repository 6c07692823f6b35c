"""Marian of Hugging Face transformers: encoder and decoder of Vaswani et al. 2017, with sinusoids and post-norm.

In Marian's sinusoids all sines come first and then all cosines; here each sine is beside its cosine. So its model is ours with
every axis of the width D = 2·K transposed, from (K P) to (P K).
"""

from transformer.attention.positions.absolute import Sinusoidal
from transformer.conversion.common import ACTIVATIONS, PAIRS, STACKS, attention, norm, pair_limits
from transformer.conversion.fields import Field, Fields, dropouts, inner
from transformer.conversion.forms import AddedBias, Biases, Heads, OwnTables
from transformer.conversion.tables import Family, Row
from transformer.layers.heads import NextWords
from transformer.layers.residual import PostNorm


def _row(ours, theirs, axes='D -> D', **more):
    """A row in which the axis D is transposed."""
    left, right = axes.split(' -> ')
    order = lambda text, wanted: ' '.join(wanted if axis == 'D' else axis for axis in text.split())
    return Row(ours, theirs, f'{order(left, "(K P)")} -> {order(right, "(P K)")}', sizes=(('P', 2),), **more)


def _transposed(row):
    """The row with its axis D transposed, if it has one; a vector without named axes is along D."""
    axes = row.axes or 'D -> D'
    return _row(row.ours, row.theirs, axes) if 'D' in axes.split() else row


def _marian_rows(tower):
    """The rows of the encoder, or of the decoder."""
    block, theirs, names = f'{tower}/block_{{i}}', f'model.{tower}.layers.{{i}}', ('q_proj', 'k_proj', 'v_proj', 'out_proj')
    return (
        *map(_transposed, (
            *attention(f'{block}/attention', f'{theirs}.self_attn', *names),
            *norm(f'{block}/attention_norm', f'{theirs}.self_attn_layer_norm'),
            *attention(f'{block}/cross_attention', f'{theirs}.encoder_attn', *names),
            *norm(f'{block}/cross_attention_norm', f'{theirs}.encoder_attn_layer_norm'),
            *norm(f'{block}/feed_forward_norm', f'{theirs}.final_layer_norm'))),
        _row(f'{block}/feed_forward/input/kernel', f'{theirs}.fc1.weight', 'D F -> F D'),
        Row(f'{block}/feed_forward/input/bias', f'{theirs}.fc1.bias'),
        _row(f'{block}/feed_forward/output/kernel', f'{theirs}.fc2.weight', 'F D -> D F'),
        _row(f'{block}/feed_forward/output/bias', f'{theirs}.fc2.bias'))


def _width_of(model):
    """The field d_model, an even number."""
    written = Field('d_model', 'encoder.width decoder.width', 1024).write(model)
    if written['d_model'] % 2:
        raise ValueError(f'model.encoder.width is {written["d_model"]}; expected an even number.')
    return written


_SIZES = 'vocab_size', 'decoder_vocab_size', 'max_position_embeddings'


def _sizes(config):
    source, length = config.get('vocab_size', 58101), config.get('max_position_embeddings', 1024)
    target = config.get('decoder_vocab_size') or source
    target = source if config.get('share_encoder_decoder_embeddings', True) else target
    return {'vocab': target, 'source_vocab': source if source != target else 0, 'length': length, 'source_length': length}


def _sizes_of(model):
    """The inverse of `_sizes`; sinusoids have no longest row, so the larger of the two lengths stands for both."""
    return dict(zip(_SIZES, (model['source_vocab'] or model['vocab'], model['vocab'],
                             max(model['length'], model['source_length']))))


def _untied(head):
    """The inverse of `_OUTPUT`, where tables are not shared."""
    if head not in [NextWords(tied=tied, added=True) for tied in (True, False)]:
        raise ValueError(f'model.head is {head!r}, which has no counterpart there; expected NextWords(), tied or not.')
    return {'tie_word_embeddings': head.tied}


_OUTPUT = Fields(
    (('tie_word_embeddings',), ('head',)),
    lambda config: {'head': NextWords(tied=config.get('tie_word_embeddings', True), added=True)},
    lambda model: _untied(model['head']))


def _marian(share, tables, fields, copies, **implied):
    return Family(
        kind='marian',
        model='transformer.models.encoder_decoder:EncoderDecoder',
        architecture='MarianMTModel',
        use='pairs',
        prefix='model.',
        fields=(
            Fields((_SIZES, ('vocab', 'source_vocab', 'length', 'source_length')), _sizes, _sizes_of),
            Fields((('d_model',), ('encoder.width', 'decoder.width')),
                   Field('d_model', 'encoder.width decoder.width', 1024).read, _width_of),
            *(field for stack in ('encoder', 'decoder') for field in (
                Field(f'{stack}_layers', f'{stack}.layers', 12),
                Field(f'{stack}_attention_heads', f'{stack}.heads', 16),
                inner(f'{stack}_ffn_dim', 4096, f'{stack}.'))),
            Field('activation_function', 'encoder.feed_forward.activation decoder.feed_forward.activation', 'gelu',
                  ACTIVATIONS),
            dropouts('dropout', 'attention_dropout', (0.1, 0.0), STACKS),
            Field('activation_dropout', 'encoder.feed_forward.dropout decoder.feed_forward.dropout', 0.0),
            Field('scale_embedding', 'scale_embedding', False),
            Field('share_encoder_decoder_embeddings', 'share', share, {share: share}),
            Fields((('forced_eos_token_id',), ()), lambda config: {}, lambda model: {'forced_eos_token_id': None}),
            *fields),
        fixed=(*(Field(name, default=False) for name in (
                   'add_bias_logits', 'add_final_layer_norm', 'is_decoder', 'normalize_before', 'normalize_embedding')),
               *(Field(name, default=0.0) for name in ('encoder_layerdrop', 'decoder_layerdrop')),
               Field('static_position_embeddings', default=True)),
        aside=('classif_dropout', 'classifier_dropout', 'extra_pos_embeddings', 'force_bos_token_to_be_generated', 'init_std',
               'num_hidden_layers'),
        implied={'share': share, **implied} | {f'{front}{name}': value for front in STACKS for name, value in {
            'embedding_norm': False, 'positions': Sinusoidal(), 'residual': PostNorm()}.items()},
        rows=(
            *tables,
            *_marian_rows('encoder'),
            *_marian_rows('decoder'),
            Row('added/bias', 'final_logits_bias', 'V -> 1 V', absent=True)),
        inputs=lambda config: PAIRS,
        limits=pair_limits,
        outputs={'hidden': '', 'source_hidden': ''},  # whose axis has another order
        forms=(Heads(STACKS), Biases(STACKS), *([] if share else [OwnTables()]), AddedBias()),
        computed=r'(model\.)?(encoder|decoder)\.(version|embed_positions\.weight)',
        copies=copies)


MARIAN = (
    _marian(  # one table for sources and one for targets; first, as the weights of this family also fit the other one
        False, (
            _row('source_tokens/embedding', 'model.encoder.embed_tokens.weight', 'V D -> V D'),
            _row('target_tokens/embedding', 'model.decoder.embed_tokens.weight', 'V D -> V D'),
            _row('output/kernel', 'lm_head.weight', 'D V -> V D')),
        (_OUTPUT,), {'lm_head.weight': 'model.decoder.embed_tokens.weight'}),
    _marian(  # one table for sources, targets and output
        True, (_row('tokens/embedding', 'model.shared.weight', 'V D -> V D'),), (Field('tie_word_embeddings', default=True),),
        dict.fromkeys(('model.encoder.embed_tokens.weight', 'model.decoder.embed_tokens.weight', 'lm_head.weight'),
                      'model.shared.weight'), head=NextWords(added=True)))
