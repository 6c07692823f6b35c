"""The tables of DaViT, which are timm's: transformers has no such classifier."""

import dataclasses

from transformer.attention.mechanism import AlternateAttention, Softmax
from transformer.attention.mechanisms.channels import ChannelGroups
from transformer.attention.partition import AlternatePartition, Whole
from transformer.attention.positions.base import NoPositions
from transformer.conversion.common import dense, norm
from transformer.conversion.fields import Field
from transformer.conversion.tables import Family, Row
from transformer.layers.activations import Gelu
from transformer.layers.norm import LayerNorm
from transformer.layers.residual import Convolved
from vit.conversion.stages import of_stages
from vit.conversion.timm import ASIDE, FIELDS, both, fused
from vit.layers.stages import Convolutions, Downsampling
from vit.layers.windows import Windows


def _read(config, given):
    """Each of their blocks is two of ours, one in windows and one over channels."""
    return {'attention': AlternateAttention(Softmax(), ChannelGroups(2 if given['channel_attn_v2'] else 1)),
            'partition': AlternatePartition(Windows(size=given['window_size'], shrink='never'), Whole()),
            'positions': NoPositions(), 'residual': Convolved(activation=Gelu() if given['cpe_act'] else None),
            'norm': LayerNorm()}


def _write(first):
    return dict(cpe_act=getattr(first.residual, 'activation', None) is not None,
                channel_attn_v2=getattr(getattr(first.attention, 'odd', None), 'version', 1) == 2)


_STAGES = of_stages(
    _read, _write, each=2, depths=[1, 1, 3, 1], embed_dims=[96, 192, 384, 768], num_heads=[3, 6, 12, 24], window_size=7,
    mlp_ratio=4.0, qkv_bias=True, cpe_act=False, channel_attn_v2=False)
_BLOCK, _THEIRS = 'stage_{s}/block_{i}', 'stages.{s}.blocks.{i/2}.{i%2}'


def _depthwise(branch, number):
    return (Row(f'{_BLOCK}/{branch}_convolution/kernel', f'{_THEIRS}.cpe{number}.proj.weight', 'P Q C -> C 1 P Q'),
            Row(f'{_BLOCK}/{branch}_convolution/bias', f'{_THEIRS}.cpe{number}.proj.bias'))


_DAVIT = Family(
    kind='timm_davit',
    model='vit.models.hierarchical:Hierarchical',
    architecture='DaVit',
    use='',
    fields=(Field('down_kernel_size', 'merging.size', 2), Field('norm_eps', default=1e-5), Field('ffn', default=True),
            Field('norm_layer', default='layernorm2d'), Field('norm_layer_cl', default='layernorm'),
            Field('attn_types', default=['spatial', 'channel']),
            Field('drop_path_rate', 'drop_path', 0.0),  # there both halves of a block have one rate
            *FIELDS, _STAGES),
    aside=(*ASIDE, 'named_blocks'),
    implied={'stem': Convolutions(), 'merging': Downsampling(), 'positions': NoPositions()},
    renamed=((r'\.spatial_block\.', '.0.'), (r'\.channel_block\.', '.1.')),
    rows=(
        Row('stem_0/kernel', 'stem.conv.weight', 'P Q C D -> D C P Q'),
        Row('stem_0/bias', 'stem.conv.bias'),
        *norm('stem_0_norm', 'stem.norm'),
        *_depthwise('attention', 1),
        *_depthwise('feed_forward', 2),
        *fused(f'{_BLOCK}/attention', f'{_THEIRS}.attn'),
        *norm(f'{_BLOCK}/attention_norm', f'{_THEIRS}.norm1'),
        *norm(f'{_BLOCK}/feed_forward_norm', f'{_THEIRS}.norm2'),
        *dense(f'{_BLOCK}/feed_forward/input', f'{_THEIRS}.mlp.fc1'),
        *dense(f'{_BLOCK}/feed_forward/output', f'{_THEIRS}.mlp.fc2'),
        *norm('stage_{s}/merging_norm', 'stages.{s}.downsample.norm'),
        Row('stage_{s}/merging/kernel', 'stages.{s}.downsample.conv.weight', 'P Q C D -> D C P Q'),
        Row('stage_{s}/merging/bias', 'stages.{s}.downsample.conv.bias')),
    inputs=None,
    limits=None)


def _ordered(first, name):
    """The family whose norm at the end is called `name`; first: whether patches are averaged before it."""
    order = Field('head_norm_first', 'pool_first', not first, {not first: first})
    return both(dataclasses.replace(_DAVIT, fields=(*_DAVIT.fields, order), rows=(*_DAVIT.rows, *norm('norm', name))))


DAVIT = *_ordered(True, 'head.norm'), *_ordered(False, 'norm_pre')
