"""The tables of Swin in the form of transformers; vit/conversion/timm_swin.py has those of timm."""

import dataclasses

from transformer.attention.positions.absolute import Learned
from transformer.attention.positions.base import NoPositions
from transformer.attention.positions.relative import SwinBias
from transformer.conversion.common import ACTIVATIONS, attention, bare, dense, norm, require_learned
from transformer.conversion.fields import Field, Fields, dropouts
from transformer.conversion.tables import Family, Row
from transformer.layers.norm import LayerNorm
from vit.conversion.stages import of_stages, shifted, windows_of
from vit.conversion.vit import CLASSES, image_of, pixels
from vit.layers.stages import PatchMerging
from vit.layers.windows import Windows
from vit.models.hierarchical import Hierarchical


def _check(model: Hierarchical, sides: tuple[int, int]) -> str:
    size = windows_of(model.in_order['stage_0'].partition).size
    for i, grid in enumerate(model.grids(sides).values()):
        if min(grid) < size:
            return (f'The patches of stage {i} form a grid of {grid[0]}x{grid[1]}, smaller than the windows of {size}x{size}, '
                    'with which SwinModel of transformers cannot be called; give larger images, or windows of at most '
                    f'{min(grid)}')
    (height, width), patch = sides, model.stem.size
    if isinstance(model.positions, Learned) and (height % patch or width % patch):
        return (f'SwinModel of transformers has positions for whole patches alone, and images of {height}x{width} end within '
                f'one of {patch}x{patch}; give images of whole patches, or leave out model.positions')
    return ''


def _read(config, given):
    if given['hidden_act'] not in ACTIVATIONS:
        raise ValueError(f'config.json has hidden_act={given["hidden_act"]!r}, which is not supported; expected one of '
                         f'{", ".join(map(repr, ACTIVATIONS))}.')
    return {'partition': shifted(Windows(size=given['window_size'])), 'positions': SwinBias(),
            'norm': LayerNorm(given['layer_norm_eps']), 'activation': ACTIVATIONS[given['hidden_act']]}


def _write(first):
    known = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return dict(hidden_act=known.get(getattr(first.feed_forward, 'activation', None), 'gelu'),
                layer_norm_eps=getattr(first.norm, 'epsilon', 1e-5))


_STAGES = of_stages(
    _read, _write, embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24), window_size=7, mlp_ratio=4.0, qkv_bias=True,
    hidden_act='gelu', layer_norm_eps=1e-5)


def _absolute(model):
    if isinstance(model['positions'], NoPositions):
        return {'use_absolute_embeddings': False}
    return {'use_absolute_embeddings': True} | require_learned(model['positions'], 0)


_ABSOLUTE = Fields((('use_absolute_embeddings',), ('positions',)), lambda config: {
    'positions': Learned() if config.get('use_absolute_embeddings') else NoPositions()}, _absolute)
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
    # There the output of attention has the rate of the weights, and drop path acts on attention alone.
    fields=(Field('patch_size', 'stem.size', 4), dropouts('hidden_dropout_prob', 'attention_probs_dropout_prob', (0.0, 0.0)),
            Field('drop_path_rate', 'drop_path', 0.1), _STAGES, _ABSOLUTE),
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
    check=_check,
    derived=pixels)

SWIN = (
    dataclasses.replace(_SWIN, architecture='SwinForImageClassification', use='images', fields=(*_SWIN.fields, CLASSES),
                        rows=(*_SWIN.rows, *dense('head', 'classifier')), outputs={'pooled': ''}),
    bare(dataclasses.replace(_SWIN, architecture='SwinModel', use='hidden', implied=_SWIN.implied | {'classes': 0})))
