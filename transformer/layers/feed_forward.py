"""The feed-forward of a block: a part of a config (`model.feed_forward`), which acts on every position separately."""

import abc
import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax

from transformer.layers.activations import Activation, Gelu, activated
from transformer.layers.dense import Dense
from transformer.layers.dropout import dropout, fold
from transformer.layers.initial import Scaled
from transformer.layers.numerics import Numerics
from transformer.layers.roles import matrix


@dataclasses.dataclass(frozen=True)
class FeedForward(abc.ABC):
    """Base of the feed-forwards, whose submodules belong to the module that calls them."""

    @abc.abstractmethod
    def __call__(self, x: jax.Array, initial: Mapping, numerics: Numerics, key: jax.Array | None = None) -> tuple:
        """x [B, T, D] -> ([B, T, D], aux).

        Args:
          initial: {'kernel_init', 'output_init'} of the matrices into and out of the inner width.
          key: random key of training; None switches dropout off.
        """


@dataclasses.dataclass(frozen=True)
class Mlp(FeedForward):
    """activation(x·W1 + b1)·W2 + b2 (Vaswani et al. 2017, section 3.3).

    Attributes:
      inner: inner width F; 0: 4·D.
      bias: whether there are b1 and b2.
      dropout: rate on the inner activations.
    """
    inner: int = 0
    activation: Activation = Gelu()
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self):
        if self.inner < 0:
            raise ValueError(f'{self}: inner is {self.inner}; expected a width, or 0 for four times that of the model.')

    def width(self, outer: int) -> int:
        """The inner width F in a model of width D."""
        return self.inner or 4 * outer

    def __call__(self, x: jax.Array, initial: Mapping, numerics: Numerics, key: jax.Array | None = None) -> tuple:
        inner = dropout(self._inner(x, initial, numerics), self.dropout, fold(key, 'inner'))
        return Dense(x.shape[-1], bias=self.bias, role=matrix(inner=0), kernel_init=initial['output_init'], numerics=numerics,
                     name='output')(inner), {}

    def _inner(self, x, initial, numerics):
        """The inner activations [B, T, F]."""
        return activated(self.activation, self._into(x, 'input', initial, numerics))

    def _into(self, x, name, initial, numerics):
        return Dense(self.width(x.shape[-1]), bias=self.bias, role=matrix(inner=1), kernel_init=initial['kernel_init'],
                     numerics=numerics, name=name)(x)


@dataclasses.dataclass(frozen=True)
class Gated(Mlp):
    """(activation(x·W + b) * (x·V + c))·W2 + b2 (Shazeer 2020, eq. 6): GEGLU with `Gelu()`, SwiGLU with `Silu()`."""

    def _inner(self, x, initial, numerics):
        gate = activated(self.activation, self._into(x, 'gate', initial, numerics))
        return gate * self._into(x, 'linear', initial, numerics)


class FeedForwardLayer(nn.Module):
    """A feed-forward as a module with its own parameters."""
    part: FeedForward = Mlp()
    initial: dict = dataclasses.field(default_factory=lambda: Scaled().feed_forward(1))
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> tuple:
        return self.part(x, self.initial, self.numerics, key)
