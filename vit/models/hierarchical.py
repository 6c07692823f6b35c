"""Hierarchical models: stages of blocks, each a stack of its own, with merging of patches between; Swin (Liu et al. 2021) and
relatives are configurations of one (configs/swin_fashion_mnist.py)."""

import dataclasses
import re
from collections.abc import Mapping

import flax.linen as nn
import jax
from flax.core import FrozenDict

from transformer.attention.positions.base import Encoding, NoPositions, Positions
from transformer.layers.dense import Dense
from transformer.layers.dropout import fold
from transformer.layers.initial import zeros
from transformer.layers.norm import normed
from transformer.layers.numerics import Numerics
from transformer.layers.roles import table
from transformer.layers.stack import Heads, Stack
from vit.layers import windows  # noqa: F401  so that a config finds its partitions by name
from vit.layers.stages import Merging, Patches, PatchMerging, Stage, Stem, encoding_on


class Hierarchical(nn.Module):
    """logits = W·mean(norm(stages(stem(image) + P))); the head starts at zero.

    Images of any height and width can be given: sides are padded where patches, windows or merging need it.

    Attributes:
      classes: number of classes; by default that of the data. 0: no head.
      stem: how an image becomes the patches of the first stage.
      positions: an encoding of the patches at the input of the first stage, such as 'Learned(scale=0.02)'; those inside of
        the blocks, such as 'SwinBias()', are fields of each stage.
      stages: the stacks stage_0, stage_1, .., each with sizes, windows (`partition`) and positions of its own. The norm at the
        end is that of the last one.
      merging: what stands between two stages.
      pool_first: whether the norm at the end is applied to the mean of the patches, as in DaViT, not to each patch.
      dense_gradient: the gradient of dense layers as in `transformer.layers.numerics`, instead of JAX's rule.
    """
    classes: int
    stem: Stem = Patches()
    positions: Positions = NoPositions()
    stages: Mapping[str, Stack] = FrozenDict({'stage_0': Stack(positions=NoPositions())})
    merging: Merging = PatchMerging()
    pool_first: bool = False
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    def __post_init__(self):
        self.stages = FrozenDict(self.stages)  # so that the module is hashable
        super().__post_init__()

    @property
    def stacks(self) -> dict[str, Stack]:
        """The stages in their order. Raises ValueError for other names."""
        names = [f'stage_{i}' for i in range(len(self.stages))]
        if not names or {*names} != {*self.stages}:
            raise ValueError(f'stages are named {", ".join(self.stages) or "nothing"}; expected stage_0, stage_1, ..')
        return {name: self.stages[name] for name in names}

    @property
    def attentions(self) -> dict:
        """{name: `Heads`} of the attentions whose heads `head_mask` can switch off."""
        return {f'{name}/attention': Heads(stack) for name, stack in self.stacks.items()}

    def grids(self, sides: tuple[int, int]) -> dict[str, tuple[int, int]]:
        """(rows, columns) of the patches in each stage, for images of (height, width)."""
        found, grid = {}, self.stem.grid(sides)
        for name in self.stacks:
            found[name] = grid
            grid = self.merging.grid(grid)
        return found

    def cells(self, sides: tuple[int, int]) -> dict[str, tuple[int, int, int]]:
        """{stage: (rows, columns, pixels along a side of a patch)} for images of (height, width)."""
        return {name: (*grid, self.stem.side * 2 ** i) for i, (name, grid) in enumerate(self.grids(sides).items())}

    @nn.compact
    def __call__(self, image: jax.Array, *, key: jax.Array | None = None, head_mask: Mapping | None = None,
                 capture: tuple = ()) -> dict:
        """image [B, height, width, C] -> {'hidden' [B, T, D], 'pooled' [B, D], 'logits' [B, classes]}, and the aux of each
        stack as 'stage_0/..'.

        Args:
          key: random key of training; None switches dropout off.
          head_mask: {'stage_0/attention': factors}, as in `Context`.
          capture: as in `Context`.
        """
        numerics, stacks, aux = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype), self.stacks, {}
        first, last = stacks['stage_0'], [*stacks.values()][-1]
        x = self.stem(image, first.width, numerics)  # [B, rows, columns, D]
        encoding = encoding_on(self.positions, first, x.shape[1:3], numerics)
        x = encoding.at_input(x.reshape(x.shape[0], -1, first.width)).reshape(x.shape)
        for name, stack in stacks.items():
            front = f'{name}/'
            factors = {of.removeprefix(front): one for of, one in (head_mask or {}).items() if of.startswith(front)}
            x, more = Stage(stack, None if name == 'stage_0' else self.merging, numerics, name=name)(
                x, key=fold(key, name), head_mask=factors, capture=capture)
            aux |= {f'{name}/{what}': one for what, one in more.items()}
        x = x.reshape(x.shape[0], -1, last.width)
        norm = lambda x: normed(last.norm, x, 'norm', numerics) if last.residual.final_norm else x
        x = x if self.pool_first else norm(x)
        pooled = x.mean(1)  # [B, D]
        pooled = norm(pooled) if self.pool_first else pooled
        outputs = {'hidden': x, 'pooled': pooled} | aux
        if self.classes:
            outputs['logits'] = Dense(self.classes, role=table(1), kernel_init=zeros, numerics=numerics, name='head')(pooled)
        return outputs

    def fitted(self, path: str, parameter: jax.Array, before: Mapping, image: jax.Array) -> jax.Array:
        """Fits a parameter of this model for images of another size to images like this one: position tables are resized."""
        *parents, name = path.split('/')
        if 'image' not in before or parents[-1:] != ['positions']:
            return parameter
        (kind, stack, grid), (*_, other) = (self._positions(parents, one.shape[1:3]) for one in (image, before['image']))
        if grid == other:
            return parameter
        sizes = dataclasses.replace(stack.sizes(grid[0] * grid[1], grid=grid), trained=other)
        return Encoding(kind, sizes=sizes).fit(name, parameter)

    def _positions(self, parents, sides):
        """(the position encoding, its stack, its grid) of parameters below these modules, for images of (height, width)."""
        stage, *inside = parents
        grids = self.grids(sides)
        stack, grid = self.stacks.get(stage, self.stacks['stage_0']), grids.get(stage)
        if grid is None:
            return self.positions, stack, grids['stage_0']
        if block := re.match(r'block_(\d+)', inside[0]) if inside else None:
            grid = stack.partition.of_layer(int(block[1])).grid(grid)
        return stack.positions, stack, grid
