"""The tables of ResNet; `transformer.conversion.tables` explains how tables are read."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from transformer.conversion.common import ACTIVATIONS, bare, dense
from transformer.conversion.fields import Field, Fields
from transformer.conversion.tables import Family, Row
from vit.conversion.vit import CLASSES, image_of, pixels
from vit.models.resnet import Basic, Bottleneck


def _layer(ours: str, theirs: str) -> tuple[Row, ...]:
    """The rows of a convolution and of the norm on it."""
    return (Row(f'{ours}/convolution/kernel', f'{theirs}.convolution.weight', 'P Q C D -> D C P Q'),
            Row(f'{ours}/norm/scale', f'{theirs}.normalization.weight'),
            Row(f'{ours}/norm/bias', f'{theirs}.normalization.bias'),
            Row(f'{ours}/norm/mean', f'{theirs}.normalization.running_mean'),
            Row(f'{ours}/norm/variance', f'{theirs}.normalization.running_var'))


def _counts(weights: Mapping) -> dict:
    """A count of batches for every norm, which nothing reads: PyTorch needs it only without a momentum."""
    return {name.replace('.running_mean', '.num_batches_tracked'): np.zeros((), np.int64) for name in weights
            if name.endswith('.running_mean')}


def _block(config: Mapping) -> dict:
    kind, early = config.get('layer_type', 'bottleneck'), config.get('downsample_in_bottleneck', False)
    if kind not in ('basic', 'bottleneck') or not isinstance(early, bool):
        raise ValueError(f'config.json has layer_type={kind!r} and downsample_in_bottleneck={early!r}, which is not supported; '
                         "expected 'basic' or 'bottleneck', and true or false.")
    return {'block': Basic() if kind == 'basic' else Bottleneck(early=early)}


def _named_block(model: Mapping) -> dict:
    block = model['block']
    if block not in (Basic(), Bottleneck(), Bottleneck(early=True)):
        raise ValueError(f'model.block is {block!r}, which has no counterpart there; expected {Basic()!r} or {Bottleneck()!r}.')
    return {'layer_type': 'basic' if block == Basic() else 'bottleneck',
            'downsample_in_bottleneck': getattr(block, 'early', False)}


def _sizes(theirs: str, ours: str, default: tuple) -> Fields:
    """A list of a number for each stage."""
    def read(config):
        given = config.get(theirs, default)
        if not isinstance(given, list | tuple) or not all(type(one) is int for one in given):
            raise ValueError(f'config.json has {theirs}={given!r}, which is not supported; expected a list such as '
                             f'{list(default)}.')
        return {ours: tuple(given)}

    return Fields(((theirs,), (ours,)), read, lambda model: {theirs: list(model[ours])})


_RESNET = Family(
    kind='resnet',
    model='vit.models.resnet:Resnet',
    architecture='',
    use='',
    prefix='resnet.',
    fields=(
        Field('embedding_size', 'stem.width', 64),
        _sizes('hidden_sizes', 'widths', (256, 512, 1024, 2048)),
        _sizes('depths', 'depths', (3, 4, 6, 3)),
        Fields((('layer_type', 'downsample_in_bottleneck'), ('block',)), _block, _named_block),
        Field('hidden_act', 'activation', 'relu', ACTIVATIONS),
        Field('downsample_in_first_stage', 'downsample_first', False)),
    aside=('image_size', 'num_channels', 'out_features', 'out_indices', 'stage_names'),
    implied={},
    free=('norm.momentum', 'norm.frozen'),
    rows=(
        *_layer('stem', 'resnet.embedder.embedder'),
        *_layer('stage_{s}/block_{i}/shortcut', 'resnet.encoder.stages.{s}.layers.{i}.shortcut'),
        *_layer('stage_{s}/block_{i}/layer_{n}', 'resnet.encoder.stages.{s}.layers.{i}.layer.{n}')),
    inputs=lambda config: {'image': (image_of(config), 'float32')},
    limits=lambda model: {'pixel_values': None},
    derived=pixels,
    layouts={'hidden': 'B H W D -> B D H W', 'pooled': 'B D -> B D 1 1'},
    computed=r'.*\.num_batches_tracked',
    buffers=_counts)

RESNET = (
    dataclasses.replace(_RESNET, architecture='ResNetForImageClassification', use='images', fields=(*_RESNET.fields, CLASSES),
                        rows=(*_RESNET.rows, *dense('head', 'classifier.1')), outputs={'hidden': '', 'pooled': ''}),
    bare(dataclasses.replace(_RESNET, architecture='ResNetModel', use='hidden', implied={'classes': 0})))
