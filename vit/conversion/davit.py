"""The tables of DaViT, which are timm's: transformers has no such classifier."""

import dataclasses

from transformer.attention.mechanism import Alternate as AlternateAttention
from transformer.attention.mechanism import Softmax
from transformer.attention.mechanisms.channels import ChannelGroups
from transformer.attention.partition import Alternate, Whole
from transformer.attention.positions.base import NoPositions
from transformer.conversion.common import dense, norm
from transformer.conversion.fields import Field, Fields
from transformer.conversion.tables import Family, Row
from transformer.layers.activations import Gelu
from transformer.layers.feed_forward import Mlp
from transformer.layers.norm import LayerNorm
from transformer.layers.residual import Convolved
from transformer.layers.stack import Stack
from vit.conversion.swin import listed, rate_of, rates, ratio_of, windows_of, with_free
from vit.conversion.timm import ASIDE, FIELDS, both, fused, one_window
from vit.layers.stages import Convolutions, Downsampling
from vit.layers.windows import Windows

_DEFAULTS = dict(depths=[1, 1, 3, 1], embed_dims=[96, 192, 384, 768], num_heads=[3, 6, 12, 24], window_size=7, mlp_ratio=4.0,
                 qkv_bias=True, cpe_act=False, channel_attn_v2=False, drop_path_rate=0.0)


def _read(config):
    """Each of their blocks is two of ours, one in windows and one over channels."""
    given = {name: config.get(name, usual) for name, usual in _DEFAULTS.items()}
    if len({len(given[name]) for name in ('depths', 'embed_dims', 'num_heads')}) != 1:
        raise ValueError(f'config.json has depths={given["depths"]!r}, embed_dims={given["embed_dims"]!r} and '
                         f'num_heads={given["num_heads"]!r}; expected one of each for every stage.')
    ratio, stages = given['mlp_ratio'], {}
    layers = [2 * depth for depth in given['depths']]
    for i, (count, width, heads, rate) in enumerate(zip(
            layers, given['embed_dims'], given['num_heads'], rates(layers, given['drop_path_rate']))):
        stages[f'stage_{i}'] = Stack(
            layers=count, width=width, heads=heads, positions=NoPositions(), projection_bias=given['qkv_bias'],
            attention=AlternateAttention(Softmax(), ChannelGroups(2 if given['channel_attn_v2'] else 1)),
            partition=Alternate(Windows(size=one_window(given['window_size']), shrink='never'), Whole()),
            residual=Convolved(activation=Gelu() if given['cpe_act'] else None),
            feed_forward=Mlp(inner=0 if int(ratio * width) == 4 * width else int(ratio * width)), norm=LayerNorm(), **rate)
    return {'stages': stages}


def _write(model):
    stacks = listed(model['stages'])
    first = stacks[0]
    return dict(
        depths=[-(-one.layers // 2) for one in stacks], embed_dims=[one.width for one in stacks],
        num_heads=[one.heads for one in stacks], window_size=windows_of(first.partition).size, mlp_ratio=ratio_of(first),
        qkv_bias=first.projection_bias, cpe_act=getattr(first.residual, 'activation', None) is not None,
        channel_attn_v2=getattr(getattr(first.attention, 'odd', None), 'version', 1) == 2, drop_path_rate=rate_of(stacks))


_STAGES = Fields((tuple(_DEFAULTS), ('stages',)), _read, _write, lambda model: {
    'stages': with_free(_read(_write(model))['stages'], model['stages'])})
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
            Field('attn_types', default=['spatial', 'channel']), *FIELDS, _STAGES),
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
