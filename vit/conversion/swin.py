"""The tables of Swin: those of transformers, and in vit/conversion/timm.py those of timm."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from transformer.attention.partition import Alternate, Partition
from transformer.attention.positions.absolute import Learned
from transformer.attention.positions.base import NoPositions
from transformer.attention.positions.relative import SwinBias
from transformer.conversion.common import ACTIVATIONS, attention, bare, dense, norm, require_learned
from transformer.conversion.fields import Field, Fields, labels
from transformer.conversion.tables import Family, Row
from transformer.layers.feed_forward import Mlp
from transformer.layers.norm import LayerNorm
from transformer.layers.stack import Stack
from vit.conversion.vit import image_of
from vit.layers.stages import PatchMerging
from vit.layers.windows import Windows

# Fields of a stack that do not change what given parameters compute.
_FREE = 'scan', 'remat', 'initial'


def pixels(model, inputs, start):
    """Transposes their images, [B, channels, height, width], to ours."""
    return inputs | {'image': inputs['image'].transpose(0, 2, 3, 1)}


def rates(layers: Sequence[int], rate: float) -> Iterable[dict]:
    """The fields for drop path of each of several stages, linear from 0 to `rate` over all blocks of all stages."""
    last = max(sum(layers) - 1, 1)
    for i, own in enumerate(layers):
        before = sum(layers[:i])
        yield {'first_drop_path': rate * (before / last), 'drop_path': rate * ((before + own - 1) / last)}


def rate_of(stacks: Sequence[Stack]) -> float:
    """The inverse of `rates`: the rate of the last block."""
    return stacks[-1].drop_path if stacks[-1].layers > 1 else stacks[-1].first_drop_path


def ratio_of(stack: Stack) -> float:
    """mlp_ratio, of which the inner width is int(mlp_ratio·width)."""
    inner = stack.feed_forward.width(stack.width) if isinstance(stack.feed_forward, Mlp) else 4 * stack.width
    ratio = inner / stack.width
    return ratio if int(ratio * stack.width) == inner else float(np.nextafter(ratio, np.inf))


def windows_of(partition: Partition) -> Windows:
    """The first windows in a partition, or the usual ones."""
    while isinstance(partition, Alternate):
        partition = partition.even
    return partition if isinstance(partition, Windows) else Windows()


def listed(stages: Mapping[str, Stack]) -> list[Stack]:
    return [stages[f'stage_{i}'] for i in range(len(stages))]


def with_free(made: Mapping[str, Stack], own: Mapping[str, Stack]) -> dict[str, Stack]:
    """Stages with those fields of others that do not change what they compute."""
    return {name: dataclasses.replace(stack, **{one: getattr(own[name], one) for one in _FREE})
            for name, stack in made.items()}


def swin_stages(widths: Sequence[int], layers: Sequence[int], heads: Sequence[int], *, windows: Windows, ratio: float,
                drop_path: float, **fields) -> dict[str, Stack]:
    """The stages of Swin, with shifts of size // 2 in every other block."""
    shifted = dataclasses.replace(windows, shift=windows.size // 2)
    return {f'stage_{i}': Stack(
        layers=count, heads=of, width=width, partition=Alternate(windows, shifted), positions=SwinBias(),
        feed_forward=Mlp(inner=0 if int(ratio * width) == 4 * width else int(ratio * width), **fields.get('inside', {})),
        **{name: value for name, value in fields.items() if name != 'inside'}, **rate)
        for i, (width, count, of, rate) in enumerate(zip(widths, layers, heads, rates(layers, drop_path)))}


def require_whole_windows(grid: tuple[int, int], stages: int, size: int) -> None:
    """Raises ValueError where the grid of a stage is smaller than a window, in which transformers cannot be called."""
    for i in range(stages):
        if min(grid) < size:
            raise ValueError(f'The patches of stage {i} form a grid of {grid[0]}x{grid[1]}, smaller than the windows of {size}x'
                             f'{size}, with which SwinModel of transformers cannot be called; give larger images, or windows '
                             f'of at most {min(grid)}.')
        grid = -(-grid[0] // 2), -(-grid[1] // 2)


_DEFAULTS = dict(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), window_size=7, mlp_ratio=4.0, qkv_bias=True,
                 hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, drop_path_rate=0.1, hidden_act='gelu',
                 layer_norm_eps=1e-5)


def _read(config):
    given = {name: config.get(name, usual) for name, usual in _DEFAULTS.items()}
    if given['hidden_act'] not in ACTIVATIONS:
        raise ValueError(f'config.json has hidden_act={given["hidden_act"]!r}, which is not supported; expected one of '
                         f'{", ".join(map(repr, ACTIVATIONS))}.')
    if len(given['depths']) != len(given['num_heads']):
        raise ValueError(f'config.json has depths={given["depths"]!r} and num_heads={given["num_heads"]!r}; expected one for '
                         'each stage.')
    _, height, width, _ = image_of(config)
    patch = config.get('patch_size', 4)
    require_whole_windows((-(-height // patch), -(-width // patch)), len(given['depths']), given['window_size'])
    dropout, inside = given['hidden_dropout_prob'], given['attention_probs_dropout_prob']
    return {'stages': swin_stages(
        [given['embed_dim'] * 2 ** i for i in range(len(given['depths']))], given['depths'], given['num_heads'],
        windows=Windows(size=given['window_size']), ratio=given['mlp_ratio'], drop_path=given['drop_path_rate'],
        projection_bias=given['qkv_bias'], norm=LayerNorm(given['layer_norm_eps']), dropout=dropout,
        attention_dropout=-1.0 if inside == dropout else inside, inside={'activation': ACTIVATIONS[given['hidden_act']]})}


def _write(model):
    stacks = listed(model['stages'])
    first, known = stacks[0], {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return dict(
        embed_dim=first.width, depths=[one.layers for one in stacks], num_heads=[one.heads for one in stacks],
        window_size=windows_of(first.partition).size, mlp_ratio=ratio_of(first), qkv_bias=first.projection_bias,
        hidden_dropout_prob=first.dropout, attention_probs_dropout_prob=first.rate(first.attention_dropout),
        drop_path_rate=rate_of(stacks), hidden_act=known.get(getattr(first.feed_forward, 'activation', None), 'gelu'),
        layer_norm_eps=getattr(first.norm, 'epsilon', 1e-5))


_STAGES = Fields((tuple(_DEFAULTS), ('stages',)), _read, _write, lambda model: {
    'stages': with_free(_read(_write(model) | {'image_size': 1 << 20})['stages'], model['stages'])})


def _absolute(model):
    if isinstance(model['positions'], NoPositions):
        return {'use_absolute_embeddings': False}
    return {'use_absolute_embeddings': True} | require_learned(model['positions'], 0)


_ABSOLUTE = Fields((('use_absolute_embeddings',), ('positions',)), lambda config: {
    'positions': Learned() if config.get('use_absolute_embeddings') else NoPositions()}, _absolute)


def _classes(model):
    if not model['classes']:
        raise ValueError('model.classes is 0, which is a model without a head.')
    return {}


CLASSES = Fields(((), ('classes',)), lambda config: {'classes': len(labels(config))}, _classes)
_BLOCK, _THEIRS = 'stage_{s}/block_{i}', 'swin.encoder.layers.{s}.blocks.{i}'

_SWIN = Family(
    kind='swin',
    model='vit.models.hierarchical:Hierarchical',
    architecture='',
    use='',
    prefix='swin.',
    renamed=(*((rf'\.attention\.{name[0]}_proj\.', f'.attention.self.{name}.') for name in ('query', 'key', 'value')),
             (r'\.attention\.relative_position_bias\.', '.attention.self.'),
             (r'\.attention\.o_proj\.', '.attention.output.dense.'), (r'\.mlp\.fc1\.', '.intermediate.dense.'),
             (r'\.mlp\.fc2\.', '.output.dense.')),
    fields=(Field('patch_size', 'stem.size', 4), _STAGES, _ABSOLUTE),
    aside=('encoder_stride', 'hidden_size', 'image_size', 'num_channels', 'num_layers', 'out_features', 'out_indices',
           'path_norm', 'stage_names'),
    implied={'merging': PatchMerging(), 'pool_first': False},
    computed=r'.*\.relative_position_index',
    rows=(
        Row('patches/kernel', 'swin.embeddings.patch_embeddings.projection.weight', '(P Q C) D -> D C P Q',
            sizes=(('P', 'stem.size'), ('Q', 'stem.size'))),
        Row('patches/bias', 'swin.embeddings.patch_embeddings.projection.bias'),
        *norm('patches_norm', 'swin.embeddings.norm'),
        Row('positions/embedding', 'swin.embeddings.position_embeddings', 'T D -> 1 T D'),
        *attention(f'{_BLOCK}/attention', f'{_THEIRS}.attention', 'self.query', 'self.key', 'self.value', 'output.dense'),
        # Their offsets are those of the query from the key, ours of the key from the query.
        Row(f'{_BLOCK}/attention/positions/bias', f'{_THEIRS}.attention.self.relative_position_bias_table',
            'I J N -> (I J) N', reversed_axis=0),
        *norm(f'{_BLOCK}/attention_norm', f'{_THEIRS}.layernorm_before'),
        *norm(f'{_BLOCK}/feed_forward_norm', f'{_THEIRS}.layernorm_after'),
        *dense(f'{_BLOCK}/feed_forward/input', f'{_THEIRS}.intermediate.dense'),
        *dense(f'{_BLOCK}/feed_forward/output', f'{_THEIRS}.output.dense'),
        *norm('stage_{s}/merging_norm', 'swin.encoder.layers.{s-1}.downsample.norm'),
        Row('stage_{s}/merging/kernel', 'swin.encoder.layers.{s-1}.downsample.reduction.weight', 'D F -> F D'),
        *norm('norm', 'swin.layernorm')),
    inputs=lambda config: {'image': (image_of(config), 'float32')},
    limits=lambda model: {'pixel_values': None},
    derived=pixels)

SWIN = (
    dataclasses.replace(_SWIN, architecture='SwinForImageClassification', use='images', fields=(*_SWIN.fields, CLASSES),
                        rows=(*_SWIN.rows, *dense('head', 'classifier')), outputs={'pooled': ''}),
    bare(dataclasses.replace(_SWIN, architecture='SwinModel', use='hidden', implied=_SWIN.implied | {'classes': 0})))
