"""Hierarchical models: stages of blocks, each with sizes of its own, and merging of patches between them; Swin (Liu et al.
2021) and relatives are configurations of one (configs/swin_fashion_mnist.py)."""

import dataclasses
import re
from collections.abc import Mapping

import flax.linen as nn
import jax
from flax.core import FrozenDict

from transformer.attention.positions.base import Encoding, NoPositions, Positions
from transformer.layers.dense import Dense
from transformer.layers.dropout import dropout, fold, path_rates
from transformer.layers.initial import MuP, zeros
from transformer.layers.numerics import Numerics
from transformer.layers.roles import table
from transformer.layers.stack import Blocks, Heads, Rates
from vit.layers import windows  # noqa: F401  so that a config finds its partitions by name
from vit.layers.stages import Merging, Patches, PatchMerging, Stage, Stem, encoding_on


class Hierarchical(nn.Module):
    """logits = W·mean(norm(stages(stem(image) + P))); the head starts at zero.

    Images of any height and width can be given: sides are padded where patches, windows or merging need it.

    Attributes:
      classes: number of classes; by default that of the data. 0: no head.
      stem: how an image becomes the patches of the first stage.
      positions: an encoding of the patches at the input of the first stage, such as 'Learned(scale=0.02)'; those inside of
        the blocks, such as 'SwinBias()', are fields of each stage, and refused here.
      stages: the blocks of stage_0, stage_1, .., each with sizes, windows (`partition`) and positions of their own. The norm at
        the end is of the kind of the last ones.
      merging: what stands between two stages.
      pool_first: whether the norm at the end is applied to the mean of the patches, as in DaViT, not to each patch.
      dropout: rate on the patches at the input of the first stage and on the residual branches of all.
      attention_dropout: rate on the attention weights of all stages; -1: as `dropout`.
      drop_path: the probability with which the last block leaves out each of its branches, for every example by itself; 0: no
        drop path (Huang et al. 2016, section 3). It increases linearly over all blocks of all stages, from 0, which a single
        block has.
      dense_gradient: the gradient of dense layers as in `transformer.layers.numerics`, instead of JAX's rule.
    """
    classes: int
    stem: Stem = Patches()
    positions: Positions = NoPositions()
    stages: Mapping[str, Blocks] = FrozenDict({'stage_0': Blocks(positions=NoPositions())})
    merging: Merging = PatchMerging()
    pool_first: bool = False
    dropout: float = 0.0
    attention_dropout: float = -1.0
    drop_path: float = 0.0
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    def __post_init__(self):
        self.stages = FrozenDict(self.stages)  # so that the module is hashable
        path_rates(self.drop_path, 1)  # refuses what is no rate
        inside = type(self.positions).at_input is Positions.at_input or getattr(self.positions, 'at', 'input') != 'input'
        if inside and not isinstance(self.positions, NoPositions):
            raise ValueError(f'model.positions is {self.positions}, which does not act at the input; leave it out, and give '
                             'each stage its own, model.stages.stage_0.positions and so on.')
        super().__post_init__()

    @property
    def in_order(self) -> dict[str, Blocks]:
        """The stages in their order. Raises ValueError for other names."""
        names = [f'stage_{i}' for i in range(len(self.stages))]
        if not names or {*names} != {*self.stages}:
            raise ValueError(f'stages are named {", ".join(self.stages) or "nothing"}; expected stage_0, stage_1, ..')
        return {name: self.stages[name] for name in names}

    @property
    def attentions(self) -> dict:
        """{name: `Heads`} of the attentions whose heads `head_mask` can switch off."""
        return {f'{name}/attention': Heads(blocks, f'stages.{name}') for name, blocks in self.in_order.items()}

    @property
    def filters(self) -> str:
        """The name of the filters on the pixels (`vit.contracts.Filtering`)."""
        return self.stem.filters

    @property
    def rates(self) -> dict[str, Rates]:
        """What the blocks of each stage leave out in training."""
        stages, attention = self.in_order, self.dropout if self.attention_dropout < 0 else self.attention_dropout
        paths, found = path_rates(self.drop_path, sum(blocks.layers for blocks in stages.values())), {}
        for name, blocks in stages.items():
            found[name], paths = Rates(self.dropout, attention, paths[:blocks.layers]), paths[blocks.layers:]
        return found

    def grids(self, sides: tuple[int, int]) -> dict[str, tuple[int, int]]:
        """(rows, columns) of the patches in each stage, for images of (height, width)."""
        found, grid = {}, self.stem.grid(sides)
        for name in self.in_order:
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
        stage as 'stage_0/..'.

        Args:
          key: random key of training; None switches dropout off.
          head_mask: {'stage_0/attention': factors}, as in `Context`.
          capture: as in `Context`.
        """
        numerics, stages, aux = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype), self.in_order, {}
        if any(isinstance(blocks.initial, MuP) for blocks in stages.values()):
            raise ValueError('initial=MuP(..) is for Transformers with one width, and this one has stages; use Scaled().')
        first, last, rates = stages['stage_0'], [*stages.values()][-1], self.rates
        x = self.stem(image, first.width, numerics)  # [B, rows, columns, D]
        encoding = encoding_on(self.positions, first, x.shape[1:3], numerics)
        x = dropout(encoding.at_input(x.reshape(x.shape[0], -1, first.width)).reshape(x.shape), self.dropout,
                    fold(key, 'embedding'))
        for number, (name, blocks) in enumerate(stages.items()):
            front = f'{name}/'
            factors = {of.removeprefix(front): one for of, one in (head_mask or {}).items() if of.startswith(front)}
            x, more = Stage(blocks, self.merging if number else None, numerics, name=name)(
                x, rates[name], key=fold(key, name), head_mask=factors, capture=capture)
            aux |= {f'{name}/{what}': one for what, one in more.items()}
        x = x.reshape(x.shape[0], -1, last.width)
        x = x if self.pool_first else last.last_norm(x, numerics, key is not None)
        pooled = x.mean(1)  # [B, D]
        pooled = last.last_norm(pooled, numerics, key is not None) if self.pool_first else pooled
        outputs = {'hidden': x, 'pooled': pooled} | aux
        if self.classes:
            outputs['logits'] = Dense(self.classes, role=table(1), kernel_init=zeros, numerics=numerics, name='head')(pooled)
        return outputs

    def fitted(self, path: str, parameter: jax.Array, before: Mapping, image: jax.Array) -> jax.Array:
        """Fits a parameter of this model for images of another size to images like this one: position tables are resized."""
        *parents, name = path.split('/')
        if 'image' not in before or parents[-1:] != ['positions']:
            return parameter
        (kind, blocks, grid), (*_, other) = (self._positions(parents, one.shape[1:3]) for one in (image, before['image']))
        if grid == other:
            return parameter
        sizes = dataclasses.replace(blocks.sizes(grid[0] * grid[1], grid=grid), trained=other)
        return Encoding(kind, sizes=sizes).fit(name, parameter)

    def _positions(self, parents, sides):
        """(the position encoding, its blocks, its grid) of parameters below these modules, for images of (height, width)."""
        stage, *inside = parents
        grids = self.grids(sides)
        blocks, grid = self.stages.get(stage, self.stages['stage_0']), grids.get(stage)
        if grid is None:
            return self.positions, blocks, grids['stage_0']
        if block := re.match(r'block_(\d+)', inside[0]) if inside else None:
            grid = blocks.partition.of_layer(int(block[1])).grid(grid)
        return blocks.positions, blocks, grid
