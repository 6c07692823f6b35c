"""The parts of hierarchical models: how an image becomes patches, how patches are merged, and a stage of blocks between."""

import abc
import dataclasses
import math
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.context import Context
from transformer.attention.positions.base import Encoding, Positions
from transformer.layers.activations import Activation, Relu
from transformer.layers.convolution import Convolution2d
from transformer.layers.dense import Dense, Parameters
from transformer.layers.norm import LayerNorm, normed
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import table
from transformer.layers.stack import Blocks, Rates
from vit.layers.patches import space_to_depth


class Stem(abc.ABC):
    """Base of the parts that turn images into patches; their submodules belong to the module that calls them.

    Attributes:
      filters: the name of the filters on the pixels, as of `vit.contracts.Filtering`.
    """
    filters = ''

    @property
    @abc.abstractmethod
    def side(self) -> int:
        """How many pixels further down or right the next patch is."""

    def grid(self, sides: tuple) -> tuple:
        """(rows, columns) of the patches of an image of (height, width)."""
        return tuple(-(-side // self.side) for side in sides)

    @abc.abstractmethod
    def __call__(self, image: jax.Array, width: int, numerics: Numerics) -> jax.Array:
        """[B, height, width, C] -> [B, rows, columns, width]."""


class Merging(abc.ABC):
    """Base of the parts that turn the patches of a stage into fewer and wider ones; submodules as in `Stem`."""

    def grid(self, sides: tuple) -> tuple:
        """(rows', columns') after (rows, columns)."""
        return tuple(-(-side // 2) for side in sides)

    @abc.abstractmethod
    def __call__(self, x: jax.Array, width: int, numerics: Numerics) -> jax.Array:
        """[B, rows, columns, D] -> [B, rows', columns', width]."""


def padded(x: jax.Array, multiple: int) -> jax.Array:
    """[B, height, width, C] with zeros at the bottom and on the right, so that both sides are multiples."""
    more = [(0, -side % multiple) for side in x.shape[1:3]]
    return jnp.pad(x, [(0, 0), *more, (0, 0)]) if any(after for _, after in more) else x


@dataclasses.dataclass(frozen=True)
class Patches(Stem):
    """norm(patch·E + b) for squares of size·size pixels, with zeros where the image ends within one (Liu et al. 2021, section
    3.1). The norm has an epsilon of 1e-5, that of the blocks notwithstanding, as in transformers.

    Attributes:
      size: the side of a patch.
      norm: whether there is a norm.
    """
    size: int = 4
    norm: bool = True

    filters = 'patches/kernel'

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f'{self}: size is {self.size}; expected at least 1.')

    @property
    def side(self) -> int:
        return self.size

    def __call__(self, image: jax.Array, width: int, numerics: Numerics) -> jax.Array:
        x = space_to_depth(padded(image, self.size), self.size)  # [B, rows, columns, size·size·C]
        # LeCun's scale makes the variance of the embedding independent of the patch.
        x = Dense(width, role=table(), kernel_init=nn.initializers.lecun_normal(), numerics=numerics, name='patches')(x)
        return normed(LayerNorm(), x, 'patches_norm', numerics) if self.norm else x


@dataclasses.dataclass(frozen=True)
class Convolutions(Stem):
    """Convolutions with a norm after each and an activation between them: DaViT's is a single one (Ding et al. 2022), several
    small ones are the early convolutions of Xiao et al. 2021, there with batch norm. The width doubles from one to the next.
    The image is padded with zeros, at the bottom and on the right to a multiple of the strides, as in timm, then all around.

    Attributes:
      size: the side of the kernels, odd.
      strides: of each convolution.
      activation: between them.
    """
    size: int = 7
    strides: tuple = (4,)
    activation: Activation = Relu()

    filters = 'stem_0/kernel'

    def __post_init__(self):
        if self.size < 1 or self.size % 2 == 0:
            raise ValueError(f'{self}: size is {self.size}; expected an odd number.')
        if not self.strides or not all(type(stride) is int and stride > 0 for stride in self.strides):
            raise ValueError(f'{self}: strides is {self.strides!r}; expected a number for each convolution, such as (2, 2).')

    @property
    def side(self) -> int:
        return math.prod(self.strides)

    def __call__(self, image: jax.Array, width: int, numerics: Numerics) -> jax.Array:
        x, last = padded(image, self.side), len(self.strides) - 1
        for i, stride in enumerate(self.strides):
            features = -(-width // 2 ** (last - i))
            x = Convolution2d(features, self.size, stride, bias=True, numerics=numerics, name=f'stem_{i}')(x)
            x = normed(LayerNorm(), x, f'stem_{i}_norm', numerics)
            x = x if i == last else numerics.cast(self.activation(wide(x)))
        return x


@dataclasses.dataclass(frozen=True)
class PatchMerging(Merging):
    """norm(squares of 2·2 patches)·W, of 4·D numbers each, in the order of the code of Swin: row 0 column 0, row 1 column 0,
    row 0 column 1, row 1 column 1 (Liu et al. 2021, section 3.1). Odd sides are padded with zeros. The norm has an epsilon of
    1e-5, that of the blocks notwithstanding, as in transformers."""

    def __call__(self, x: jax.Array, width: int, numerics: Numerics) -> jax.Array:
        x = space_to_depth(padded(x.swapaxes(1, 2), 2), 2).swapaxes(1, 2)
        x = normed(LayerNorm(), x, 'merging_norm', numerics)
        return Dense(width, bias=False, numerics=numerics, name='merging')(x)


@dataclasses.dataclass(frozen=True)
class Downsampling(Merging):
    """A convolution of stride 2 over norm(x), with zeros where squares go beyond the patches, as in timm's DaViT: for size 2 at
    the bottom and on the right, else all around.

    Attributes:
      size: the side of the kernel, 2 or odd.
    """
    size: int = 2

    def __post_init__(self):
        if self.size != 2 and (self.size < 3 or self.size % 2 == 0):
            raise ValueError(f'{self}: size is {self.size}; expected 2, or an odd number from 3 on.')

    def __call__(self, x: jax.Array, width: int, numerics: Numerics) -> jax.Array:
        x = normed(LayerNorm(), x, 'merging_norm', numerics)
        if self.size == 2:
            x = space_to_depth(padded(x, 2), 2)
            return Dense(width, axes=3, kernel_init=nn.initializers.lecun_normal(), numerics=numerics, name='merging')(
                x.reshape(*x.shape[:-1], 2, 2, -1))
        return Convolution2d(width, self.size, 2, bias=True, numerics=numerics, name='merging')(x)


def encoding_on(positions: Positions, blocks: Blocks, grid: tuple[int, int], numerics: Numerics) -> Encoding:
    """A position encoding of the patches of a grid, for the widths of a stage, with the parameters that all its layers share;
    they belong to the calling module, as 'positions'."""
    sizes, row = blocks.sizes(grid[0] * grid[1], grid=grid), jnp.arange(grid[0] * grid[1])
    encoding = Encoding(positions, {}, row, row, sizes)
    shared = Parameters(positions.parameters(sizes), encoding.fit, numerics, name='positions')()
    return dataclasses.replace(encoding, parameters=shared)


class Stage(nn.Module):
    """blocks(merging(x)).

    Attributes:
      blocks: their position encoding is that of the patches of this stage.
      merging: what comes before them; None: nothing.
    """
    blocks: Blocks
    merging: Merging | None = None
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x: jax.Array, rates: Rates = Rates(), *, key: jax.Array | None = None,
                 head_mask: Mapping | None = None, capture: tuple = ()) -> tuple:
        """x [B, rows, columns, D] -> ([B, rows', columns', D'], aux of the blocks); arguments as in `Context`."""
        blocks = self.blocks
        if self.merging is not None:
            x = self.merging(x, blocks.width, self.numerics)
        batch, *grid, width = x.shape
        encoding = encoding_on(blocks.positions, blocks, tuple(grid), self.numerics)
        context = Context(blocks.mask, encoding, head_mask=head_mask or {}, capture=capture)
        x = encoding.at_input(x.reshape(batch, -1, width))
        x, _, aux = blocks.through(x, context, rates, numerics=self.numerics, key=key)
        return x.reshape(batch, *grid, width), aux
