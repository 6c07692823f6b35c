"""The tables of ViTMAE; `transformer.conversion.tables` explains how tables are read."""

import dataclasses
import math

from transformer.attention.positions.absolute import Learned
from transformer.conversion.common import ACTIVATIONS, STACKS, attention, bare, dense, norm, require_learned
from transformer.conversion.fields import Field, Fields, at, dropouts, inner
from transformer.conversion.forms import Biases, Heads, Table
from transformer.conversion.tables import Family, Row
from vit.conversion.vit import image_of, pixels, squares

_BOTH = lambda field: ' '.join(f'{front}{field}' for front in STACKS)


def _require_tables(model):
    for front in STACKS:
        require_learned(at(model, f'{front}positions'), 0)
    return {}


# Sines and cosines, which are stored as weights and not trained.
_FROZEN = Fields(((), tuple(f'{front}positions' for front in STACKS)),
                 lambda config: {f'{front}positions': Learned(frozen=True) for front in STACKS}, _require_tables)


def _nearest_width(model):
    """transformers makes sines for its decoder before it reads the table, of a width that is a multiple of 4."""
    width, step = at(model, 'decoder.width'), math.lcm(4, at(model, 'decoder.heads'))
    return {'decoder.width': -(-width // step) * step if model['decodes'] and width % 4 else width}


_WIDTH = Field('decoder_hidden_size', 'decoder.width', 512)


def _stack(ours, theirs):
    """The rows of the blocks of a stack."""
    block, layer = f'{ours}/block_{{i}}', f'{theirs}.{{i}}'
    return (*attention(f'{block}/attention', f'{layer}.attention', 'attention.query', 'attention.key', 'attention.value',
                       'output.dense'),
            *norm(f'{block}/attention_norm', f'{layer}.layernorm_before'),
            *norm(f'{block}/feed_forward_norm', f'{layer}.layernorm_after'),
            *dense(f'{block}/feed_forward/input', f'{layer}.intermediate.dense'),
            *dense(f'{block}/feed_forward/output', f'{layer}.output.dense'))


_ENCODER = (
    Row('encoder/class_token', 'vit.embeddings.cls_token', 'D -> 1 1 D'),
    Row('encoder/positions/embedding', 'vit.embeddings.position_embeddings', 'T D -> 1 T D'),
    Row('encoder/patches/kernel', 'vit.embeddings.patch_embeddings.projection.weight', '(P Q C) D -> D C P Q',
        sizes=(('P', 'patch'), ('Q', 'patch'))),
    Row('encoder/patches/bias', 'vit.embeddings.patch_embeddings.projection.bias'),
    *_stack('encoder', 'vit.encoder.layer'),
    *norm('encoder/norm', 'vit.layernorm'))

_DECODER = (
    *dense('decoder/embed', 'decoder.decoder_embed'),
    Row('decoder/mask_token', 'decoder.mask_token', 'D -> 1 1 D'),
    Row('decoder/positions/embedding', 'decoder.decoder_pos_embed', 'T D -> 1 T D'),
    *_stack('decoder', 'decoder.decoder_layers'),
    *norm('decoder/norm', 'decoder.decoder_norm'),
    *dense('decoder/pixels', 'decoder.decoder_pred'))

_MAE = Family(
    kind='vit_mae',
    model='vit.models.mae:Mae',
    architecture='ViTMAEForPreTraining',
    use='reconstruction',
    prefix='vit.',
    renamed=((r'^decoder\.decoder_encoder\.layer\.', 'decoder.decoder_layers.'),),  # as transformers 5.24 writes them
    fields=(
        Field('hidden_size', 'encoder.width', 768),
        Field('num_hidden_layers', 'encoder.layers', 12),
        Field('num_attention_heads', 'encoder.heads', 12),
        inner('intermediate_size', 3072, 'encoder.'),
        Fields(_WIDTH.names, _WIDTH.read, _WIDTH.write, _nearest_width),
        Field('decoder_num_hidden_layers', 'decoder.layers', 8),
        Field('decoder_num_attention_heads', 'decoder.heads', 16),
        inner('decoder_intermediate_size', 2048, 'decoder.'),
        Field('hidden_act', _BOTH('feed_forward.activation'), 'gelu', ACTIVATIONS),
        dropouts('hidden_dropout_prob', 'attention_probs_dropout_prob', (0.0, 0.0), STACKS),
        Field('layer_norm_eps', _BOTH('norm.epsilon'), 1e-12),
        Field('patch_size', 'patch', 16),
        Field('qkv_bias', _BOTH('projection_bias'), True),
        Field('mask_ratio', 'mask_ratio', 0.75),
        Field('norm_pix_loss', 'normalize', False),
        _FROZEN),
    aside=('image_size', 'num_channels'),
    implied={},
    rows=(*_ENCODER, *_DECODER),
    inputs=lambda config: {'image': (image_of(config), 'float32')},
    limits=lambda model: {'pixel_values': None, 'noise': None},
    derived=pixels,
    outputs={'pixels': 'logits', 'mask': 'mask', 'restore': 'ids_restore', 'hidden': '', 'pooled': ''},
    forms=(Heads(STACKS), Biases(STACKS, projections=False), Table((('encoder.', ''), ('decoder.', '')))))

VIT_MAE = (
    dataclasses.replace(_MAE, check=squares(_MAE.architecture)),
    bare(dataclasses.replace(_MAE, architecture='ViTMAEModel', use='hidden', implied={'decodes': False}, rows=_ENCODER,
                             outputs={'mask': 'mask', 'restore': 'ids_restore', 'pooled': ''})))
