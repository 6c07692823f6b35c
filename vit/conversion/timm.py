"""The form of timm: config.json has {architecture, model_args, pretrained_cfg}, and the defaults of the arguments are those of
the architecture. `flat` makes of it a config as the tables read it (transformer/conversion/tables.py), `nested` the reverse."""

import dataclasses
from collections.abc import Mapping

from transformer.conversion.common import dense
from transformer.conversion.fields import Field, labels
from transformer.conversion.tables import Family, Row
from vit.conversion import preparation
from vit.conversion.vit import CLASSES, image_of, pixels

_IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_SWIN = dict(patch_size=4, window_size=7, embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24])
_DEEP = dict(depths=[2, 2, 18, 2])
_BASE = _SWIN | _DEEP | dict(embed_dim=128, num_heads=[4, 8, 16, 32])
_LARGE = _SWIN | _DEEP | dict(embed_dim=192, num_heads=[6, 12, 24, 48])
_DAVIT = dict(depths=[1, 1, 3, 1], embed_dims=[96, 192, 384, 768], num_heads=[3, 6, 12, 24])
_WIDE = dict(depths=[1, 1, 9, 1], embed_dims=[128, 256, 512, 1024], num_heads=[4, 8, 16, 32])
_HUGE = dict(embed_dims=[256, 512, 1024, 2048], num_heads=[8, 16, 32, 64])
_FLORENCE = dict(window_size=12, down_kernel_size=3, channel_attn_v2=True, named_blocks=True)
# {architecture: (kind, its arguments)}, as the functions of these names in timm give them.
ARCHITECTURES = {
    'swin_tiny_patch4_window7_224': ('timm_swin', _SWIN),
    'swin_small_patch4_window7_224': ('timm_swin', _SWIN | _DEEP),
    'swin_base_patch4_window7_224': ('timm_swin', _BASE),
    'swin_base_patch4_window12_384': ('timm_swin', _BASE | dict(window_size=12)),
    'swin_large_patch4_window7_224': ('timm_swin', _LARGE),
    'swin_large_patch4_window12_384': ('timm_swin', _LARGE | dict(window_size=12)),
    'davit_tiny': ('timm_davit', _DAVIT),
    'davit_small': ('timm_davit', _DAVIT | dict(depths=[1, 1, 9, 1])),
    'davit_base': ('timm_davit', _WIDE),
    'davit_large': ('timm_davit', _WIDE | dict(embed_dims=[192, 384, 768, 1536], num_heads=[6, 12, 24, 48])),
    'davit_huge': ('timm_davit', _WIDE | _HUGE),
    'davit_giant': ('timm_davit', dict(depths=[1, 1, 12, 3], embed_dims=[384, 768, 1536, 3072], num_heads=[12, 24, 48, 96])),
    'davit_base_fl': ('timm_davit', _WIDE | _FLORENCE),
    'davit_huge_fl': ('timm_davit', _WIDE | _HUGE | _FLORENCE),
}
# What is written of each kind besides: the first architecture above, and these of its pretrained_cfg.
_WRITTEN = {'timm_swin': dict(first_conv='patch_embed.proj', fixed_input_size=True), 'timm_davit': dict(first_conv='stem.conv')}
ASIDE = (*preparation.TIMM, 'image_size', 'img_size', 'in_chans', 'num_channels', 'num_classes')


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
    given = dict(config.get('model_args') or {})
    own = config.get('pretrained_cfg', config) or {}  # which older versions wrote without a name
    channels, *sides = own.get('input_size', (3, 224, 224))
    sides = given.get('img_size') or sides
    count = given.get('num_classes', config.get('num_classes', own.get('num_classes', 1000)))
    names = (config.get('label_names') or own.get('label_names') or own.get('labels')  # its older name
             or [f'LABEL_{i}' for i in range(count)])
    if len(names) != count:
        raise ValueError(f'config.json has {len(names)} label_names for num_classes={count}; give one for each class.')
    channels = given.get('in_chans', channels)
    given_in = {name: name.removeprefix('image_') for name in preparation.TIMM}
    prepared = dict(zip(('image_mean', 'image_std'), _IMAGENET)) if channels == 3 else {}
    prepared |= {ours: own[name] for ours, name in given_in.items() if name in own}
    return {'model_type': kind, **usual, **given, 'image_size': sides, 'num_channels': channels, 'num_classes': count,
            'id2label': names if isinstance(names, Mapping) else dict(enumerate(names)), **prepared}


def nested(config: Mapping, prepared: Mapping, family: Family) -> dict:
    """The inverse of `flat`; prepared: the fields of pretrained_cfg on how images are prepared."""
    architecture = next(name for name, (kind, _) in ARCHITECTURES.items() if kind == family.kind)
    more, known = _WRITTEN[family.kind], {name for field in family.fields for name in field.names[0]}
    height, width = image_of(config)[1:3]
    names = labels(config) if 'id2label' in config else []
    args = {name: value for name, value in config.items() if name in known}
    args |= {'img_size': [height, width]} if more.get('fixed_input_size') else {}
    return {
        'architecture': architecture, 'num_classes': len(names), 'label_names': names,
        'model_args': args | {'in_chans': config['num_channels'], 'num_classes': len(names)},
        'pretrained_cfg': {
            'input_size': [config['num_channels'], height, width], 'num_classes': len(names), 'classifier': 'head.fc',
            **prepared, **more}}


def fused(ours: str, theirs: str) -> tuple[Row, ...]:
    """The rows of an attention with one matrix for queries, keys and values."""
    return (Row(f'{ours}/{{query,key,value}}/kernel', f'{theirs}.qkv.weight', 'K D N H -> (K N H) D'),
            Row(f'{ours}/{{query,key,value}}/bias', f'{theirs}.qkv.bias', 'K N H -> (K N H)'),
            Row(f'{ours}/output/kernel', f'{theirs}.proj.weight', 'N H D -> D (N H)'),
            Row(f'{ours}/output/bias', f'{theirs}.proj.bias'))


# Dropout acts in training alone, and is 0 in all that timm publishes.
FIELDS = (Field('global_pool', default='avg'), Field('drop_rate', default=0.0))


def both(family: Family) -> tuple[Family, Family]:
    """The family with classes, and without."""
    family = dataclasses.replace(family, inputs=lambda config: {'image': (image_of(config), 'float32')},
                                 limits=lambda model: {'pixel_values': None}, derived=pixels)
    return (dataclasses.replace(family, use='images', fields=(*family.fields, CLASSES), outputs={'pooled': ''},
                                rows=(*family.rows, *dense('head', 'head.fc'))),
            dataclasses.replace(family, use='hidden', implied=family.implied | {'classes': 0}))
