"""The tables of ViT and of I-JEPA, a ViT that averages its patches and has no class token; `transformer.conversion.tables`
explains how tables are read."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from transformer.conversion.common import ABSOLUTE, ACTIVATIONS, attention, bare, dense, norm
from transformer.conversion.fields import Field, Fields, dropouts, inner, labels
from transformer.conversion.forms import Biases, Heads, Table
from transformer.conversion.tables import Family, Row


def image_of(config: Mapping) -> tuple[int, int, int, int]:
    """[1, height, width, channels] of the images of their config."""
    size = config.get('image_size', 224)
    sides = size if isinstance(size, (list, tuple)) else (size, size)
    if len(sides) != 2:
        raise ValueError(f'config.json has image_size={size!r}; expected the side of images, or their height and width.')
    height, width = sides
    return 1, height, width, config.get('num_channels', 3)


def pixels(model: Any, inputs: Mapping, start: int) -> dict:
    """Transposes their images, [B, channels, height, width], to ours."""
    return inputs | {'image': inputs['image'].transpose(0, 2, 3, 1)}


def squares(architecture: str) -> Callable:
    """The `check` of a family of transformers for square images alone."""
    def check(model: Any, sides: tuple[int, int]) -> str:
        height, width = sides
        return '' if height == width else (
            f'{architecture} of transformers is made for square images, not for {height}x{width}; give square images')

    return check


_VIT = Family(
    kind='vit',
    model='vit.models.vit:Vit',
    architecture='',
    use='',
    prefix='vit.',
    fields=(
        Field('hidden_size', 'width', 768),
        Field('num_hidden_layers', 'layers', 12),
        Field('num_attention_heads', 'heads', 12),
        inner('intermediate_size', 3072),
        Field('hidden_act', 'feed_forward.activation', 'gelu', ACTIVATIONS),
        dropouts('hidden_dropout_prob', 'attention_probs_dropout_prob', (0.0, 0.0)),
        Field('layer_norm_eps', 'norm.epsilon', 1e-12),
        Field('patch_size', 'patch', 16),
        Field('qkv_bias', 'projection_bias', True),
        ABSOLUTE),
    aside=('encoder_stride', 'image_size', 'num_channels', 'pooler_act', 'pooler_output_size'),
    implied={},
    rows=(
        Row('class_token', 'vit.embeddings.cls_token', 'D -> 1 1 D'),
        Row('positions/embedding', 'vit.embeddings.position_embeddings', 'T D -> 1 T D'),
        Row('patches/kernel', 'vit.embeddings.patch_embeddings.projection.weight', '(P Q C) D -> D C P Q',
            sizes=(('P', 'patch'), ('Q', 'patch'))),
        Row('patches/bias', 'vit.embeddings.patch_embeddings.projection.bias'),
        *attention('block_{i}/attention', 'vit.encoder.layer.{i}.attention', 'attention.query', 'attention.key',
                   'attention.value', 'output.dense'),
        *norm('block_{i}/attention_norm', 'vit.encoder.layer.{i}.layernorm_before'),
        *norm('block_{i}/feed_forward_norm', 'vit.encoder.layer.{i}.layernorm_after'),
        *dense('block_{i}/feed_forward/input', 'vit.encoder.layer.{i}.intermediate.dense'),
        *dense('block_{i}/feed_forward/output', 'vit.encoder.layer.{i}.output.dense'),
        *norm('norm', 'vit.layernorm')),
    inputs=lambda config: {'image': (image_of(config), 'float32')},
    limits=lambda model: {'pixel_values': None},
    derived=pixels,
    forms=(Heads(), Biases(projections=False), Table((('', ''),))))


def _classes(model):
    if not model['classes']:
        raise ValueError('model.classes is 0, which is a model without a head.')
    return {}


CLASSES = Fields(((), ('classes',)), lambda config: {'classes': len(labels(config))}, _classes)


def _pooled(config):
    width = config.get('hidden_size', 768)
    for name, wanted in (('pooler_act', 'tanh'), ('pooler_output_size', width)):
        if config.get(name) not in (None, wanted):
            raise ValueError(f'config.json has {name}={config[name]!r}, which is not supported; expected {wanted!r}.')
    return {'pooler': True}


_POOLER = Fields((('pooler_act', 'pooler_output_size'), ('pooler',)), _pooled, lambda model: {
    'pooler_act': 'tanh', 'pooler_output_size': model['width']})


def _of(architecture, use, *rows, fields, **changes):
    return dataclasses.replace(_VIT, architecture=architecture, use=use, rows=(*_VIT.rows, *rows),
                               fields=(*_VIT.fields, *fields), **changes)


# With a head, with a pooler, and without either.
WHOLE = (
    _of('ViTForImageClassification', 'images', *dense('head', 'classifier'), fields=(CLASSES,),
        outputs={'pooled': ''}),
    _of('ViTModel', 'hidden', *dense('pooler', 'vit.pooler.dense'), fields=(_POOLER,), implied={'classes': 0}),
    _of('ViTModel', 'hidden', fields=(), implied={'classes': 0}, outputs={'pooled': ''}))
VIT = WHOLE[0], *map(bare, WHOLE[1:])

# transformers has no ViT that averages the patches; an I-JEPA with classes is the same model.
IJEPA = dataclasses.replace(
    VIT[0], kind='ijepa', architecture='IJepaForImageClassification', prefix='ijepa.', implied={'pool': 'mean'},
    rows=tuple(dataclasses.replace(row, theirs=row.theirs.replace('vit.', 'ijepa.', 1)) for row in VIT[0].rows
               if row.ours != 'class_token'))
VIT = *VIT, IJEPA
