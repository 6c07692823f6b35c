"""How the branches of a block join the residual stream x, and where norms are applied.

A residual is a part of a config (`model.residual`). Its arguments are all branches of a block, functions [B, T, D] ->
[B, T, D] by name and in order, and `norm(x, name)`, a norm with its own parameters; module names begin with that of the branch.
`drop(x, name)` is drop path, applied to what a branch adds to the stream.
"""

import abc
import copy
import dataclasses
import math
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax

from transformer.layers.activations import Activation
from transformer.layers.convolution import Depthwise
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import Wanted, declare


@dataclasses.dataclass(frozen=True)
class Residual(abc.ABC):
    """Base of the residuals.

    Attributes:
      final_norm: whether a norm is needed at the end of the stack.
    """
    final_norm = False

    def of_layer(self, number: int) -> 'Residual':
        """The residual of one layer: the same but for `Admin`, whose first parameters depend on the layer."""
        return self

    @abc.abstractmethod
    def __call__(self, x: jax.Array, branches: Mapping[str, Callable], norm: Callable, numerics: Numerics,
                 drop: Callable, grid: tuple | None = None) -> jax.Array:
        """The stream [B, T, D] after all branches; grid: (rows, columns) of patches, None for other tokens."""


@dataclasses.dataclass(frozen=True)
class _OneByOne(Residual):
    """Base of the residuals that apply the branches in sequence."""

    def __call__(self, x: jax.Array, branches: Mapping[str, Callable], norm: Callable, numerics: Numerics,
                 drop: Callable, grid: tuple | None = None) -> jax.Array:
        for name, branch in branches.items():
            x = self.join(name, x, branch, norm, numerics, drop)
        return x

    @abc.abstractmethod
    def join(self, name: str, x: jax.Array, branch: Callable, norm: Callable, numerics: Numerics, drop: Callable) -> jax.Array:
        """The stream after one branch."""


@dataclasses.dataclass(frozen=True)
class PreNorm(_OneByOne):
    """x + f(norm(x)), and a norm at the end of the stack (Radford et al. 2019, section 2.3; Xiong et al. 2020, table 1)."""

    final_norm = True

    def join(self, name: str, x: jax.Array, branch: Callable, norm: Callable, numerics: Numerics, drop: Callable) -> jax.Array:
        return x + drop(branch(norm(x, f'{name}_norm')), name)


@dataclasses.dataclass(frozen=True)
class PostNorm(_OneByOne):
    """norm(x + f(x)) (Vaswani et al. 2017, section 3.1)."""

    def join(self, name: str, x: jax.Array, branch: Callable, norm: Callable, numerics: Numerics, drop: Callable) -> jax.Array:
        return norm(x + drop(branch(x), name), f'{name}_norm')


@dataclasses.dataclass(frozen=True)
class Admin(Residual):
    """norm(ω_i·x + f_i(x)) with a learnt ω_i for each feature in branch i = 1, 2, .., counted from the bottom, which starts at

        ω_i = sqrt(1 + Var f_1 + .. + Var f_{i-1}) = sqrt(1 + (i - 1)·variance)

    so that at the start each branch is as small a part of the stream as with PreNorm, and a deep PostNorm trains without
    warm-up (Liu et al. 2020, section 4.1). The paper measures each variance in a forward pass; as the inputs of branches are
    normed they differ little, and here they are one number.

    Attributes:
      variance: that of what a branch adds at the start, the mean over branches. In 12 layers of width 64 with Xavier's matrices
        an attention adds 0.2 to 0.6, more in higher layers, and a feed-forward 0.2.
    """
    variance: float = 0.3
    layer: int = dataclasses.field(default=0, init=False, repr=False)  # by `of_layer`

    def __post_init__(self):
        if not 0 <= self.variance < math.inf:
            raise ValueError(f'{self}: expected a variance of 0 or more.')

    def of_layer(self, number: int) -> 'Admin':
        made = copy.copy(self)
        object.__setattr__(made, 'layer', number)
        return made

    def __call__(self, x: jax.Array, branches: Mapping[str, Callable], norm: Callable, numerics: Numerics,
                 drop: Callable, grid: tuple | None = None) -> jax.Array:
        for number, (name, branch) in enumerate(branches.items(), self.layer * len(branches)):
            scale = Scale(numerics, x.shape[-1:], math.sqrt(1 + number * self.variance), name=f'{name}_residual')
            x = norm(scale(x) + drop(branch(x), name), f'{name}_norm')
        return x


@dataclasses.dataclass(frozen=True)
class Sandwich(_OneByOne):
    """x + norm'(f(norm(x))), and a norm at the end of the stack (Ding et al. 2021, section 2.4; Gemma 2)."""

    final_norm = True

    def join(self, name: str, x: jax.Array, branch: Callable, norm: Callable, numerics: Numerics, drop: Callable) -> jax.Array:
        return x + drop(norm(branch(norm(x, f'{name}_norm')), f'{name}_last_norm'), name)


@dataclasses.dataclass(frozen=True)
class ParallelBranches(Residual):
    """x + f(norm(x)) + g(norm(x)) + .., all branches from the same x, and a norm at the end of the stack (Wang and Komatsuzaki
    2021; Chowdhery et al. 2022, section 2).

    Attributes:
      norms: 1, the branches share one norm (GPT-J, PaLM); 2, each has its own (GPT-NeoX).
    """
    norms: int = 1

    final_norm = True

    def __post_init__(self):
        if self.norms not in (1, 2):
            raise ValueError(f'{self}: norms is {self.norms}; expected 1, one for all branches, or 2, one for each.')

    def __call__(self, x: jax.Array, branches: Mapping[str, Callable], norm: Callable, numerics: Numerics,
                 drop: Callable, grid: tuple | None = None) -> jax.Array:
        shared = norm(x, 'norm') if self.norms == 1 else None
        return x + sum(drop(branch(norm(x, f'{name}_norm') if shared is None else shared), name)
                       for name, branch in branches.items())


@dataclasses.dataclass(frozen=True)
class ReZero(_OneByOne):
    """x + a·f(x) with a learnt number a that starts at 0, and no norm (Bachlechner et al. 2020, eq. 1); every branch has
    its own, while in the paper's Transformer both branches of a layer share one."""

    def join(self, name: str, x: jax.Array, branch: Callable, norm: Callable, numerics: Numerics, drop: Callable) -> jax.Array:
        return x + drop(Scale(numerics, name=f'{name}_residual')(branch(x)), name)


@dataclasses.dataclass(frozen=True)
class NoNorm(_OneByOne):
    """x + f(x), as in T-Fixup and DT-Fixup: only the initialisation keeps it stable (see `transformer.layers.initial`)."""

    def join(self, name: str, x: jax.Array, branch: Callable, norm: Callable, numerics: Numerics, drop: Callable) -> jax.Array:
        return x + drop(branch(x), name)


@dataclasses.dataclass(frozen=True)
class LayerScale(_OneByOne):
    """x + γ·f(norm(x)) with a learnt number γ for each feature, and a norm at the end of the stack (Touvron et al. 2021, Going
    deeper with image Transformers, section 2).

    Attributes:
      initial: γ at the start, 1e-4 to 1e-6 in deep models.
    """
    initial: float = 1e-5

    final_norm = True

    def join(self, name: str, x: jax.Array, branch: Callable, norm: Callable, numerics: Numerics, drop: Callable) -> jax.Array:
        scale = Scale(numerics, x.shape[-1:], self.initial, name=f'{name}_scale')
        return x + drop(scale(branch(norm(x, f'{name}_norm'))), name)


class Scale(nn.Module):
    """a·x with a learnt number a, or with one for each feature."""
    numerics: Numerics = Numerics()
    shape: tuple = ()
    initial: float = 0.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        wanted = Wanted(nn.initializers.constant(self.initial), self.shape)
        return self.numerics.times(x, declare(self, 'scale', wanted, self.numerics))


@dataclasses.dataclass(frozen=True)
class Convolved(Residual):
    """In images x + g(conv(x)) before every branch, with a depthwise convolution over the neighbours of each patch, which tells
    patches where they are (conditional position encoding, Chu et al. 2021, section 3.2; twice in each block of DaViT, Ding et
    al. 2022).

    Attributes:
      inner: how the branches join.
      size: the side of the kernel, odd.
      activation: g; None: there is none.
    """
    inner: _OneByOne = PreNorm()
    size: int = 3
    activation: Activation | None = None

    def __post_init__(self):
        if self.size < 1 or self.size % 2 == 0:
            raise ValueError(f'{self}: size is {self.size}; expected an odd number.')

    @property
    def final_norm(self) -> bool:
        return self.inner.final_norm

    def __call__(self, x: jax.Array, branches: Mapping[str, Callable], norm: Callable, numerics: Numerics,
                 drop: Callable, grid: tuple | None = None) -> jax.Array:
        if grid is None or x.shape[1] != grid[0] * grid[1]:
            raise ValueError(f'residual={self} is for all patches of an image, without a class token; use {self.inner}.')
        for name, branch in branches.items():
            near = Depthwise(self.size, numerics, name=f'{name}_convolution')(x.reshape(x.shape[0], *grid, -1))
            near = near if self.activation is None else numerics.cast(self.activation(wide(near)))
            x = self.inner(x + near.reshape(x.shape), {name: branch}, norm, numerics, drop)
        return x
