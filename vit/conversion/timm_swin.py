"""The tables of Swin in timm's form: windows are decided for each side of the grid, which is rolled before it is padded."""

from transformer.attention.positions.base import NoPositions
from transformer.attention.positions.relative import SwinBias
from transformer.conversion.common import dense, norm
from transformer.conversion.fields import Field
from transformer.conversion.tables import Family, Row
from transformer.layers.norm import LayerNorm
from vit.conversion.stages import of_stages, shifted, windows_of
from vit.conversion.timm import ASIDE, FIELDS, both, fused
from vit.layers.stages import PatchMerging
from vit.layers.windows import Windows
from vit.models.hierarchical import Hierarchical


def _read(config, given):
    shrink = 'never' if given['always_partition'] else 'sides'
    return {'partition': shifted(Windows(size=given['window_size'], shrink=shrink, roll_first=True)), 'positions': SwinBias(),
            'norm': LayerNorm()}


def _check(model: Hierarchical, sides: tuple[int, int]) -> str:
    (height, width), patch = sides, model.stem.size
    return '' if not (height % patch or width % patch) else (
        f'SwinTransformer of timm takes whole patches of {patch}x{patch} alone, and images of {height}x{width} end within one; '
        'give images of whole patches')


_STAGES = of_stages(
    _read, lambda first: {'always_partition': windows_of(first.partition).shrink == 'never'}, embed_dim=96,
    depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=7, mlp_ratio=4.0, qkv_bias=True, always_partition=False)
_BLOCK, _THEIRS = 'stage_{s}/block_{i}', 'layers.{s}.blocks.{i}'

TIMM_SWIN = both(Family(
    kind='timm_swin',
    model='vit.models.hierarchical:Hierarchical',
    architecture='SwinTransformer',
    use='',
    fields=(Field('patch_size', 'stem.size', 4), Field('proj_drop_rate', default=0.0), Field('attn_drop_rate', default=0.0),
            Field('drop_path_rate', 'drop_path', 0.1), *FIELDS, _STAGES),
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
    limits=None,
    check=_check))
