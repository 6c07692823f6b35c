"""The tables of DINOv2 with registers (Darcet et al. 2024): a ViT with scaled branches, with a feed-forward that may be gated,
and with a head that reads the class token and the mean of the patches."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from transformer.attention.positions.absolute import Learned
from transformer.conversion.common import ACTIVATIONS, attention, bare, dense, norm, require_learned
from transformer.conversion.fields import Field, Fields, dropouts
from transformer.conversion.forms import Biases, Heads, Table
from transformer.conversion.tables import Family, Row
from transformer.layers.activations import Silu
from transformer.layers.feed_forward import Gated, Mlp
from transformer.layers.residual import LayerScale
from vit.conversion.vit import CLASSES, image_of, pixels, squares

_RATIOS = range(1, 65)  # mlp_ratio is a whole number


def _inner(width: int, ratio: float, gated: bool) -> int:
    """The inner width: of a gated feed-forward two thirds of the other's, rounded up to a multiple of 8."""
    inner = int(width * ratio)
    return (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner


def _read(config, gated):
    if config.get('use_swiglu_ffn', False) is not gated:
        raise ValueError(f'config.json has use_swiglu_ffn={not gated}, but the feed-forwards of the weights are '
                         f'{"" if gated else "not "}gated; mend it, or fetch both again.')
    width, act = config.get('hidden_size', 768), config.get('hidden_act', 'gelu')
    inner = _inner(width, config.get('mlp_ratio', 4), gated)
    if gated:
        return {'feed_forward': Gated(inner=inner, activation=Silu())}
    if act not in ACTIVATIONS:
        raise ValueError(f'config.json has hidden_act={act!r}, which is not supported; expected one of '
                         f'{", ".join(map(repr, ACTIVATIONS))}.')
    return {'feed_forward': Mlp(inner=0 if inner == 4 * width else inner, activation=ACTIVATIONS[act])}


def _write(model, gated):
    part, width = model['feed_forward'], model['width']
    activations = {Silu(): 'gelu'} if gated else {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    ratios = [ratio for ratio in _RATIOS if type(part) is (Gated if gated else Mlp)
              and _inner(width, ratio, gated) == part.width(width)]
    if not ratios or not part.bias or part.activation not in activations:
        raise ValueError(f'model.feed_forward is {part!r}, which has no counterpart there.')
    return {'mlp_ratio': ratios[0], 'use_swiglu_ffn': gated, 'hidden_act': activations[part.activation]}


def _feed_forward(gated):
    return Fields((('mlp_ratio', 'use_swiglu_ffn', 'hidden_act'), ('feed_forward',)), lambda config: _read(config, gated),
                  lambda model: _write(model, gated))


# There all layers have one rate of drop path.
_PATHS = Fields((('drop_path_rate',), ('drop_path', 'constant_drop_path')), lambda config: {
    'drop_path': float(config.get('drop_path_rate', 0.0)), 'constant_drop_path': True}, lambda model: {
        'drop_path_rate': model['drop_path']}, lambda model: {
            'constant_drop_path': model['constant_drop_path'] or model['drop_path'] > 0})
_POSITIONS = Fields(((), ('positions',)), lambda config: {'positions': Learned(antialias=True)},
                    lambda model: require_learned(model['positions'], 0))
_LAYER, _MLP = 'dinov2_with_registers.encoder.layer.{i}', 'dinov2_with_registers.encoder.layer.{i}.mlp'
_INNER = {
    False: (*dense('block_{i}/feed_forward/input', f'{_MLP}.fc1'), *dense('block_{i}/feed_forward/output', f'{_MLP}.fc2')),
    True: (Row('block_{i}/feed_forward/{gate,linear}/kernel', f'{_MLP}.weights_in.weight', 'K D F -> (K F) D'),
           Row('block_{i}/feed_forward/{gate,linear}/bias', f'{_MLP}.weights_in.bias', 'K F -> (K F)'),
           *dense('block_{i}/feed_forward/output', f'{_MLP}.weights_out'))}


def _mask_token(weights: Mapping) -> dict:
    """The token in place of masked patches, which every file has and only pretraining reads, as zeros."""
    return {name.replace('cls_token', 'mask_token'): np.zeros_like(x[0]) for name, x in weights.items()
            if name.endswith('embeddings.cls_token')}


def _family(gated):
    return Family(
        kind='dinov2_with_registers',
        model='vit.models.vit:Vit',
        architecture='',
        use='',
        prefix='dinov2_with_registers.',
        fields=(
            Field('hidden_size', 'width', 768),
            Field('num_hidden_layers', 'layers', 12),
            Field('num_attention_heads', 'heads', 12),
            dropouts('hidden_dropout_prob', 'attention_probs_dropout_prob', (0.0, 0.0)),
            Field('layer_norm_eps', 'norm.epsilon', 1e-6),
            Field('patch_size', 'patch', 16),
            Field('qkv_bias', 'projection_bias', True),
            Field('num_register_tokens', 'registers', 4),
            Field('layerscale_value', 'residual.initial', 1.0),
            _feed_forward(gated), _PATHS, _POSITIONS),
        aside=('apply_layernorm', 'image_size', 'num_channels', 'out_features', 'out_indices', 'reshape_hidden_states',
               'stage_names'),
        implied={'residual': LayerScale()},
        computed=r'.*embeddings\.mask_token',
        buffers=_mask_token,
        rows=(
            Row('class_token', 'dinov2_with_registers.embeddings.cls_token', 'D -> 1 1 D'),
            Row('registers', 'dinov2_with_registers.embeddings.register_tokens', 'R D -> 1 R D'),
            Row('positions/embedding', 'dinov2_with_registers.embeddings.position_embeddings', 'T D -> 1 T D'),
            Row('patches/kernel', 'dinov2_with_registers.embeddings.patch_embeddings.projection.weight',
                '(P Q C) D -> D C P Q', sizes=(('P', 'patch'), ('Q', 'patch'))),
            Row('patches/bias', 'dinov2_with_registers.embeddings.patch_embeddings.projection.bias'),
            *attention('block_{i}/attention', f'{_LAYER}.attention', 'attention.query', 'attention.key', 'attention.value',
                       'output.dense'),
            *norm('block_{i}/attention_norm', f'{_LAYER}.norm1'),
            *norm('block_{i}/feed_forward_norm', f'{_LAYER}.norm2'),
            Row('block_{i}/attention_scale/scale', f'{_LAYER}.layer_scale1.lambda1'),
            Row('block_{i}/feed_forward_scale/scale', f'{_LAYER}.layer_scale2.lambda1'),
            *_INNER[gated],
            *norm('norm', 'dinov2_with_registers.layernorm')),
        inputs=lambda config: {'image': (image_of(config), 'float32')},
        limits=lambda model: {'pixel_values': None},
        # It resizes its table at every call, from a square, unless images are square and of the size of the table.
        check=squares('Dinov2WithRegistersModel'),
        derived=pixels,
        prepared=lambda config, weights: {'use_swiglu_ffn': gated} | config,
        forms=(Heads(), Biases(projections=False), Table((('', ''),))))


def _both(gated):
    family = _family(gated)
    return (
        dataclasses.replace(
            family, architecture='Dinov2WithRegistersForImageClassification', use='images', outputs={'pooled': ''},
            fields=(*family.fields, CLASSES), rows=(*family.rows, *dense('head', 'classifier')),
            implied=family.implied | {'pool': 'both'}),
        bare(dataclasses.replace(family, architecture='Dinov2WithRegistersModel', use='hidden',
                                 implied=family.implied | {'classes': 0})))


DINOV2 = *_both(False), *_both(True)
