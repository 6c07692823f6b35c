"""ResNet: residual networks of convolutions with batch normalization (He et al. 2016)."""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.layers.activations import Activation, Relu
from transformer.layers.convolution import Convolution2d
from transformer.layers.dense import Dense
from transformer.layers.initial import zeros
from transformer.layers.norm import BatchNorm, BatchNormalized
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import table


@dataclasses.dataclass(frozen=True)
class ResnetStem:
    """The convolution on the pixels, with a norm and the activation.

    The default is that of ImageNet; width=16, size=3, stride=1, pool=False leave small images their resolution (He et al. 2016,
    section 4.2).

    Attributes:
      width: the number of its channels.
      size: the side of the kernel.
      pool: a maximum over 3x3 positions with stride 2 follows.
    """
    width: int = 64
    size: int = 7
    stride: int = 2
    pool: bool = True

    def __post_init__(self):
        if min(self.width, self.size, self.stride) < 1 or self.size % 2 == 0:
            raise ValueError(f'{self}: expected a width and a stride of at least 1, and a kernel with an odd side.')


@dataclasses.dataclass(frozen=True)
class Branch(abc.ABC):
    """Base of the branches of a block."""

    @abc.abstractmethod
    def convolutions(self, width: int, stride: int) -> list[tuple[int, int, int]]:
        """(channels, side of the kernel, stride) of each convolution of a block whose output has `width` channels."""


@dataclasses.dataclass(frozen=True)
class Basic(Branch):
    """Two convolutions of 3x3 (He et al. 2016, figure 5, left)."""

    def convolutions(self, width: int, stride: int) -> list[tuple[int, int, int]]:
        return [(width, 3, stride), (width, 3, 1)]


@dataclasses.dataclass(frozen=True)
class Bottleneck(Branch):
    """Convolutions of 1x1, 3x3 and 1x1, the first two with width / reduction channels (He et al. 2016, figure 5, right).

    Attributes:
      early: the stride is in the first convolution, as in the paper and in Caffe; else in the second, as in PyTorch.
    """
    reduction: int = 4
    early: bool = False

    def convolutions(self, width: int, stride: int) -> list[tuple[int, int, int]]:
        if self.reduction < 1 or width % self.reduction:
            raise ValueError(f'{self} cannot reduce a width of {width}; choose a reduction that divides every one of '
                             'model.widths.')
        inner = width // self.reduction
        return [(inner, 1, stride if self.early else 1), (inner, 3, 1 if self.early else stride), (width, 1, 1)]


class ConvolutionNorm(nn.Module):
    """activation(norm(x ∗ K)); None: no activation."""
    features: int
    size: int
    stride: int
    norm: BatchNorm
    activation: Callable | None
    numerics: Numerics

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = Convolution2d(self.features, self.size, self.stride, numerics=self.numerics, name='convolution')(x)
        x = BatchNormalized(self.norm, self.numerics, name='norm')(x, train)
        return x if self.activation is None else self.numerics.cast(self.activation(wide(x)))


class ResnetBlock(nn.Module):
    """activation(x + branch(x)), with a 1x1 convolution and a norm on x where width or resolution change (eq. 1 and 2);
    `inside` is the activation in the branch."""
    width: int
    stride: int
    branch: Branch
    norm: BatchNorm
    activation: Activation
    inside: Activation
    numerics: Numerics

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        made = lambda features, size, stride, activation, name: ConvolutionNorm(
            features, size, stride, self.norm, activation, self.numerics, name=name)
        added, convolutions = x, self.branch.convolutions(self.width, self.stride)
        for i, (features, size, stride) in enumerate(convolutions):
            last = i == len(convolutions) - 1
            added = made(features, size, stride, None if last else self.inside, f'layer_{i}')(added, train)
        if x.shape[-1] != self.width or self.stride != 1:
            x = made(self.width, 1, self.stride, None, 'shortcut')(x, train)
        return self.numerics.cast(self.activation(wide(x + added)))


class ResnetStage(nn.Module):
    """`depth` blocks, of which the first has the stride."""
    depth: int
    width: int
    stride: int
    branch: Branch
    norm: BatchNorm
    activation: Activation
    inside: Activation
    numerics: Numerics

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        for i in range(self.depth):
            x = ResnetBlock(self.width, 1 if i else self.stride, self.branch, self.norm, self.activation, self.inside,
                            self.numerics, name=f'block_{i}')(x, train)
        return x


class Resnet(nn.Module):
    """logits = W·mean(stages(stem(image))) + b: a stem, then stages of blocks, of which the first halves the resolution; the
    head starts at zero.

    The defaults are those of ResNet-50; ResNet-18 is widths=(64, 128, 256, 512), depths=(2, 2, 2, 2), block='Basic()'. Images
    may have another size than in training.

    Attributes:
      classes: number of classes; by default that of the data. 0: no head.
      widths: the number of channels of each stage.
      depths: the number of blocks of each stage.
      downsample_first: the first stage halves the resolution too.
      activation: after the stem and after every sum.
      branch_activation: inside the branches; in transformers it is ReLU, whatever `hidden_act` says.
      dense_gradient: the gradient of dense layers as in `transformer.layers.numerics`, instead of JAX's rule.
    """
    classes: int
    stem: ResnetStem = ResnetStem()
    block: Branch = Bottleneck()
    widths: tuple = (256, 512, 1024, 2048)
    depths: tuple = (3, 4, 6, 3)
    downsample_first: bool = False
    activation: Activation = Relu()
    branch_activation: Activation = Relu()
    norm: BatchNorm = BatchNorm()
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    @property
    def attentions(self) -> dict:
        """{}: it has no attention."""
        return {}

    @property
    def filters(self) -> str:
        """The name of the filters on the pixels (`vit.contracts.Filtering`)."""
        return 'stem/convolution/kernel'

    @nn.compact
    def __call__(self, image: jax.Array, *, key: jax.Array | None = None, capture: tuple = ()) -> dict:
        """image [B, height, width, C] -> {'hidden' [B, rows, columns, D], 'pooled' [B, D], 'logits' [B, classes]}.

        Args:
          key: given in training, in which the norms use the moments of the batch; nothing is drawn with it. None: the norms
            use the running moments.
          capture: as in other models; it has no attention to show.
        """
        if len(self.widths) != len(self.depths) or not self.depths or not all(
                type(number) is int and number > 0 for number in (*self.widths, *self.depths)):
            raise ValueError(f'model.widths is {self.widths} and model.depths {self.depths}; expected a width and a number of '
                             'blocks, 1 or more, for each stage.')
        numerics, train = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype), key is not None
        strides = [2 if stage or self.downsample_first else 1 for stage in range(len(self.widths))]
        self._require_large(image.shape[1:3], strides)
        stem = self.stem
        x = ConvolutionNorm(stem.width, stem.size, stem.stride, self.norm, self.activation, numerics, name='stem')(image, train)
        x = max_pool(x) if stem.pool else x  # [B, rows, columns, D]
        for i, (depth, width, stride) in enumerate(zip(self.depths, self.widths, strides)):
            x = ResnetStage(depth, width, stride, self.block, self.norm, self.activation, self.branch_activation, numerics,
                            name=f'stage_{i}')(x, train)
        mean = numerics.cast(wide(x).mean((1, 2)))  # [B, D]
        outputs = {'hidden': x, 'pooled': mean}
        if self.classes:
            head = Dense(self.classes, role=table(1), kernel_init=zeros, numerics=numerics, name='head')
            outputs['logits'] = head(mean)
        return outputs

    def _require_large(self, sides: Sequence[int], strides: Sequence[int]):
        """Raises ValueError for images of which a single row or column would be halved."""
        steps = [self.stem.stride, 2 if self.stem.pool else 1, *strides]
        whole, last = math.prod(steps), next((step for step in reversed(steps) if step > 1), 1)
        if min(sides) <= whole // last and last > 1:
            least = whole // last + 1
            other = ('set model.stem.stride=1 and model.stem.pool=False' if self.stem.stride > 1 or self.stem.pool else
                     'use fewer stages, model.widths and model.depths')
            raise ValueError(f'Images of {sides[0]}x{sides[1]} are too small for strides of {whole} in all; give images of '
                             f'{least}x{least} or more with data.size, or {other}.')


def max_pool(x: jax.Array) -> jax.Array:
    """The maximum over 3x3 positions with stride 2, nothing around the image: [B, h, w, C] -> [B, ceil(h / 2), ceil(w / 2),
    C]."""
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
