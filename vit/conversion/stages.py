"""What the tables of models with stages share: Swin of transformers, and Swin and DaViT of timm."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from transformer.attention.partition import AlternatePartition, Partition
from transformer.conversion.fields import Fields
from transformer.layers.feed_forward import Mlp
from transformer.layers.stack import Blocks
from vit.layers.windows import Windows

# Fields of blocks that do not change what given parameters compute.
_FREE = 'scan', 'remat', 'initial'


def of_stages(read: Callable, write: Callable, *, each: int = 1, **usual: Any) -> Fields:
    """The fields of the stages.

    Args:
      read: (their config, {their field: value}) -> the fields of `Blocks` that are the same in all stages; of the feed-forward
        'activation' alone.
      write: the blocks of the first stage -> {their field: value} of those that only `read` reads.
      each: how many of our layers one of their blocks is.
      usual: {their field: value if a config does not name it}: depths, num_heads, embed_dim of the first stage or embed_dims,
        window_size, mlp_ratio, qkv_bias, and those that `read` reads.
    """
    whole = 'embed_dims' in usual

    def made(config):
        given = {name: config.get(name, value) for name, value in usual.items()}
        depths, heads = given['depths'], given['num_heads']
        if not whole and type(given['embed_dim']) is not int:
            raise ValueError(f'config.json has embed_dim={given["embed_dim"]!r}; expected the width of the first stage, a '
                             'number.')
        widths = given['embed_dims'] if whole else [given['embed_dim'] * 2 ** i for i in range(len(depths))]
        if not len(depths) == len(heads) == len(widths):
            said = [f'{name}={given[name]!r}' for name in ('depths', 'num_heads', *(['embed_dims'] if whole else []))]
            raise ValueError(f'config.json has {" and ".join(said)}; expected one for each stage.')
        shared = read(config, given | {'window_size': _one_window(given['window_size'])})
        activation = shared.pop('activation', Mlp().activation)
        return {'stages': {f'stage_{i}': Blocks(
            layers=each * depth, heads=count, width=width, projection_bias=given['qkv_bias'],
            feed_forward=Mlp(inner=_inner(width, given['mlp_ratio']), activation=activation), **shared)
            for i, (depth, count, width) in enumerate(zip(depths, heads, widths))}}

    def written(model):
        stages = [model['stages'][f'stage_{i}'] for i in range(len(model['stages']))]
        first = stages[0]
        widths = {'embed_dims': [one.width for one in stages]} if whole else {'embed_dim': first.width}
        return widths | dict(
            depths=[-(-one.layers // each) for one in stages], num_heads=[one.heads for one in stages],
            window_size=windows_of(first.partition).size, mlp_ratio=_ratio(first), qkv_bias=first.projection_bias,
            **write(first))

    def nearest(model):
        found = made(written(model))['stages']
        return {'stages': {name: dataclasses.replace(blocks, **{one: getattr(model['stages'][name], one) for one in _FREE})
                           for name, blocks in found.items()}}

    return Fields((tuple(usual), ('stages',)), made, written, nearest)


def shifted(windows: Windows) -> Partition:
    """Windows that every other layer of Swin shifts by size // 2."""
    return AlternatePartition(windows, dataclasses.replace(windows, shift=windows.size // 2))


def windows_of(partition: Partition) -> Windows:
    """The first windows in a partition, or the usual ones."""
    while isinstance(partition, AlternatePartition):
        partition = partition.even
    return partition if isinstance(partition, Windows) else Windows()


def _inner(width: int, ratio: float) -> int:
    """The inner width of a feed-forward, as a field of ours."""
    inner = int(width * ratio)
    return 0 if inner == 4 * width else inner


def _ratio(blocks: Blocks) -> float:
    """The inverse: mlp_ratio, of which the inner width is int(mlp_ratio·width)."""
    inner = blocks.feed_forward.width(blocks.width) if isinstance(blocks.feed_forward, Mlp) else 4 * blocks.width
    ratio = inner / blocks.width
    return ratio if int(ratio * blocks.width) == inner else float(np.nextafter(ratio, np.inf))


def _one_window(given: Any) -> int:
    """The size of all windows. Raises ValueError for windows of several sizes, or that are not square."""
    sizes = {side for size in (given if isinstance(given, list | tuple) else [given])
             for side in (size if isinstance(size, list | tuple) else [size])}
    if len(sizes) != 1:
        raise ValueError(f'config.json has window_size={given!r}; expected one size of square windows for all stages.')
    return sizes.pop()
