"""The tables of Swin in timm's form: windows are decided for each side of the grid, which is rolled before it is padded."""

from transformer.attention.positions.base import NoPositions
from transformer.conversion.common import dense, norm
from transformer.conversion.fields import Field, Fields
from transformer.conversion.tables import Family, Row
from transformer.layers.norm import LayerNorm
from vit.conversion.swin import listed, rate_of, ratio_of, swin_stages, windows_of, with_free
from vit.conversion.timm import ASIDE, FIELDS, both, fused, one_window
from vit.layers.stages import PatchMerging
from vit.layers.windows import Windows

_DEFAULTS = dict(embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=7, mlp_ratio=4.0, qkv_bias=True,
                 drop_path_rate=0.1, always_partition=False)


def _read(config):
    given = {name: config.get(name, usual) for name, usual in _DEFAULTS.items()}
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


_STAGES = Fields((tuple(_DEFAULTS), ('stages',)), _read, _write, lambda model: {
    'stages': with_free(_read(_write(model))['stages'], model['stages'])})
_BLOCK, _THEIRS = 'stage_{s}/block_{i}', 'layers.{s}.blocks.{i}'

TIMM_SWIN = both(Family(
    kind='timm_swin',
    model='vit.models.hierarchical:Hierarchical',
    architecture='SwinTransformer',
    use='',
    fields=(Field('patch_size', 'stem.size', 4), Field('proj_drop_rate', default=0.0), Field('attn_drop_rate', default=0.0),
            *FIELDS, _STAGES),
    aside=(*ASIDE, 'dynamic_img_size', 'strict_img_size'),
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
    inputs=None,
    limits=None))
