"""The form of timm: config.json has {architecture, model_args, pretrained_cfg}, and the defaults of the arguments are those of
the architecture. `flat` makes of it a config as the tables read it (transformer/conversion/tables.py), `nested` the reverse."""

import dataclasses
from collections.abc import Mapping

from transformer.attention.positions.base import NoPositions
from transformer.conversion.common import dense, norm
from transformer.conversion.fields import Field, Fields, labels
from transformer.conversion.tables import Family, Row
from transformer.layers.norm import LayerNorm
from vit.conversion.swin import CLASSES, listed, pixels, rate_of, ratio_of, swin_stages, windows_of, with_free
from vit.conversion.vit import image_of
from vit.layers.stages import PatchMerging
from vit.layers.windows import Windows

_IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_SWIN = dict(patch_size=4, window_size=7, embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24])
_DEEP = dict(depths=[2, 2, 18, 2])
_BASE = _SWIN | _DEEP | dict(embed_dim=128, num_heads=[4, 8, 16, 32])
_LARGE = _SWIN | _DEEP | dict(embed_dim=192, num_heads=[6, 12, 24, 48])
# {architecture: (kind, its arguments)}, as the functions of these names in timm give them.
ARCHITECTURES = {
    'swin_tiny_patch4_window7_224': ('timm_swin', _SWIN),
    'swin_small_patch4_window7_224': ('timm_swin', _SWIN | _DEEP),
    'swin_base_patch4_window7_224': ('timm_swin', _BASE),
    'swin_base_patch4_window12_384': ('timm_swin', _BASE | dict(window_size=12)),
    'swin_large_patch4_window7_224': ('timm_swin', _LARGE),
    'swin_large_patch4_window12_384': ('timm_swin', _LARGE | dict(window_size=12)),
}
_WRITTEN = {'timm_swin': ('swin_tiny_patch4_window7_224', dict(first_conv='patch_embed.proj', fixed_input_size=True))}
_PREPARED = 'crop_pct', 'interpolation'
_ASIDE = (*_PREPARED, 'image_mean', 'image_size', 'image_std', 'img_size', 'in_chans', 'num_channels', 'num_classes')


def is_timm(config: Mapping) -> bool:
    """Whether a config.json is of timm."""
    return 'architecture' in config and 'model_type' not in config


def flat(config: Mapping) -> dict:
    """The arguments of the model under their names, and classes and images as in configs of transformers. Raises ValueError for
    an architecture that is not known."""
    name = config['architecture']
    if name not in ARCHITECTURES:
        raise ValueError(f'config.json names the architecture {name!r} of timm; expected one of {", ".join(ARCHITECTURES)}.')
    kind, usual = ARCHITECTURES[name]
    given, own = dict(config.get('model_args') or {}), config.get('pretrained_cfg') or {}
    channels, *sides = own.get('input_size', (3, 224, 224))
    sides = given.get('img_size') or sides
    count = given.get('num_classes', config.get('num_classes', own.get('num_classes', 1000)))
    names = config.get('label_names') or [f'LABEL_{i}' for i in range(count)]
    if len(names) != count:
        raise ValueError(f'config.json has {len(names)} label_names for num_classes={count}; give one for each class.')
    channels = given.get('in_chans', channels)
    mean, std = ([*map(float, own.get(key, usual))] for key, usual in zip(('mean', 'std'), _IMAGENET))
    prepared = {'image_mean': mean, 'image_std': std} if len(mean) == len(std) == channels else {}
    prepared |= {name: own[name] for name in _PREPARED if name in own}
    return {'model_type': kind, **usual, **given, 'image_size': sides, 'num_channels': channels, 'num_classes': count,
            'id2label': dict(enumerate(names)), **prepared}


def preparation(config: Mapping) -> dict:
    """The mean and the standard deviation of images, named as in preprocessor_config.json, of a config that `flat` has made."""
    return {name: config[name] for name in ('image_mean', 'image_std') if name in config}


def otherwise_prepared(config: Mapping) -> str:
    """How timm prepares images in another way than a run here does, for a report; '': in the same way."""
    usual = {'crop_pct': 1.0, 'interpolation': 'bilinear'}
    found = [f'{name}={config[name]!r}' for name in _PREPARED if config.get(name, usual[name]) != usual[name]]
    return f', which are resized as a whole and bilinearly, in timm with {" and ".join(found)}' if found else ''


def nested(config: Mapping, prepared: Mapping) -> dict:
    """The inverse of `flat`; prepared: the preprocessor_config.json with which transformers prepares the images."""
    kind = config['model_type']
    architecture, more = _WRITTEN[kind]
    height, width = image_of(config)[1:3]
    names = labels(config) if 'id2label' in config else []
    args = {name: value for name, value in config.items() if name in _ARGUMENTS[kind]}
    args |= {'img_size': [height, width]} if more.get('fixed_input_size') else {}
    return {
        'architecture': architecture, 'num_classes': len(names), 'label_names': names,
        'model_args': args | {'in_chans': config['num_channels'], 'num_classes': len(names)},
        'pretrained_cfg': {
            'input_size': [config['num_channels'], height, width], 'num_classes': len(names), 'crop_pct': 1.0,
            'interpolation': 'bilinear', 'mean': list(prepared['image_mean']), 'std': list(prepared['image_std']),
            'classifier': 'head.fc', **more}}


def fused(ours: str, theirs: str) -> tuple[Row, ...]:
    """The rows of an attention with one matrix for queries, keys and values."""
    return (Row(f'{ours}/{{query,key,value}}/kernel', f'{theirs}.qkv.weight', 'K D N H -> (K N H) D'),
            Row(f'{ours}/{{query,key,value}}/bias', f'{theirs}.qkv.bias', 'K N H -> (K N H)'),
            Row(f'{ours}/output/kernel', f'{theirs}.proj.weight', 'N H D -> D (N H)'),
            Row(f'{ours}/output/bias', f'{theirs}.proj.bias'))


def one_window(given) -> int:
    """The size of all windows. Raises ValueError for windows of several sizes, or that are not square."""
    sizes = {side for size in (given if isinstance(given, list | tuple) else [given])
             for side in (size if isinstance(size, list | tuple) else [size])}
    if len(sizes) != 1:
        raise ValueError(f'config.json has window_size={given!r}; expected one size of square windows for all stages.')
    return sizes.pop()


def _read(config):
    given = {name: config.get(name, usual) for name, usual in dict(
        _SWIN, mlp_ratio=4.0, qkv_bias=True, drop_path_rate=0.1, always_partition=False).items()}
    if not isinstance(given['embed_dim'], int):
        raise ValueError(f'config.json has embed_dim={given["embed_dim"]!r}; expected the width of the first stage, a number.')
    windows = Windows(size=one_window(given['window_size']), shrink='never' if given['always_partition'] else 'sides',
                      roll_first=True)
    return {'stages': swin_stages(
        [given['embed_dim'] * 2 ** i for i in range(len(given['depths']))], given['depths'], given['num_heads'],
        windows=windows, ratio=given['mlp_ratio'], drop_path=given['drop_path_rate'], projection_bias=given['qkv_bias'],
        norm=LayerNorm())}


def _write(model):
    stacks = listed(model['stages'])
    first, windows = stacks[0], windows_of(stacks[0].partition)
    return dict(embed_dim=first.width, depths=[one.layers for one in stacks], num_heads=[one.heads for one in stacks],
                window_size=windows.size, mlp_ratio=ratio_of(first), qkv_bias=first.projection_bias,
                drop_path_rate=rate_of(stacks), always_partition=windows.shrink == 'never')


# Dropout acts in training alone, and is 0 in all that timm publishes.
_RATES = tuple(Field(name, default=0.0) for name in ('drop_rate', 'proj_drop_rate', 'attn_drop_rate'))
_STAGES = Fields((('embed_dim', 'depths', 'num_heads', 'window_size', 'mlp_ratio', 'qkv_bias', 'drop_path_rate',
                   'always_partition'), ('stages',)), _read, _write, lambda model: {
    'stages': with_free(_read(_write(model))['stages'], model['stages'])})
_BLOCK, _THEIRS = 'stage_{s}/block_{i}', 'layers.{s}.blocks.{i}'

_FAMILY = Family(
    kind='timm_swin',
    model='vit.models.hierarchical:Hierarchical',
    architecture='',
    use='',
    fields=(Field('patch_size', 'stem.size', 4), Field('global_pool', default='avg'), *_RATES, _STAGES),
    aside=(*_ASIDE, 'dynamic_img_size', 'strict_img_size'),
    implied={'merging': PatchMerging(), 'pool_first': False, 'positions': NoPositions()},
    computed=r'.*\.(relative_position_index|attn_mask)',
    rows=(
        Row('patches/kernel', 'patch_embed.proj.weight', '(P Q C) D -> D C P Q',
            sizes=(('P', 'stem.size'), ('Q', 'stem.size'))),
        Row('patches/bias', 'patch_embed.proj.bias'),
        *norm('patches_norm', 'patch_embed.norm'),
        *fused(f'{_BLOCK}/attention', f'{_THEIRS}.attn'),
        Row(f'{_BLOCK}/attention/positions/bias', f'{_THEIRS}.attn.relative_position_bias_table', 'I J N -> (I J) N',
            reversed_axis=0),
        *norm(f'{_BLOCK}/attention_norm', f'{_THEIRS}.norm1'),
        *norm(f'{_BLOCK}/feed_forward_norm', f'{_THEIRS}.norm2'),
        *dense(f'{_BLOCK}/feed_forward/input', f'{_THEIRS}.mlp.fc1'),
        *dense(f'{_BLOCK}/feed_forward/output', f'{_THEIRS}.mlp.fc2'),
        *norm('stage_{s}/merging_norm', 'layers.{s}.downsample.norm'),
        Row('stage_{s}/merging/kernel', 'layers.{s}.downsample.reduction.weight', 'D F -> F D'),
        *norm('norm', 'norm')),
    inputs=lambda config: {'image': (image_of(config), 'float32')},
    limits=lambda model: {'pixel_values': None},
    derived=pixels)


def _both(family):
    """The family with classes, and without."""
    return (dataclasses.replace(family, architecture='SwinTransformer', use='images', fields=(*family.fields, CLASSES),
                                rows=(*family.rows, *dense('head', 'head.fc')), outputs={'pooled': ''}),
            dataclasses.replace(family, architecture='SwinTransformer', use='hidden', implied=family.implied | {'classes': 0}))


TIMM = _both(_FAMILY)
_ARGUMENTS = {'timm_swin': [name for field in _FAMILY.fields for name in field.names[0]]}
