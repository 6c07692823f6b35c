"""Norms: parts of a config (`model.norm`), pure functions of parameters and arrays."""

import abc
import dataclasses
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.layers.dense import Parameters
from transformer.layers.initial import zeros
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import Wanted

ones = nn.initializers.ones_init()


@dataclasses.dataclass(frozen=True)
class Norm(abc.ABC):
    """Base of the norms over the last axis. They are computed in at least float32."""

    def parameters(self, width: int) -> dict:
        """{name: `Wanted`} of the learnt parameters."""
        return {'scale': Wanted(ones, (width,))}

    @abc.abstractmethod
    def __call__(self, parameters: dict, x: jax.Array) -> jax.Array:
        """x [.., D] in at least float32 -> [.., D]."""


def normed(norm: Norm, x: jax.Array, name: str, numerics: Numerics = Numerics()) -> jax.Array:
    """norm(x) with parameters of the calling module, under `name`."""
    parameters = Parameters(norm.parameters(x.shape[-1]), numerics=numerics, name=name)()
    return numerics.cast(norm(parameters, wide(x)))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def normalized(x: jax.Array, epsilon: float, axes: tuple[int, ...] = (-1,)) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon) over some axes."""
    return _normalized(x, epsilon, axes)[0]


def _normalized(x, epsilon, axes):
    centered = x - x.mean(axes, keepdims=True)
    rate = jax.lax.rsqrt(jnp.square(centered).mean(axes, keepdims=True) + epsilon)
    y = centered * rate
    return y, (y, rate)


def _normalized_backward(epsilon, axes, residuals, dy):
    # r (dy - mean(dy) - y mean(dy y)): half the reductions that automatic differentiation needs.
    y, rate = residuals
    return (rate * (dy - dy.mean(axes, keepdims=True) - y * (dy * y).mean(axes, keepdims=True)),)


normalized.defvjp(_normalized, _normalized_backward)


@dataclasses.dataclass(frozen=True)
class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias (Ba et al. 2016, eq. 4)."""
    epsilon: float = 1e-5
    bias: bool = True

    def parameters(self, width: int) -> dict:
        return super().parameters(width) | ({'bias': Wanted(zeros, (width,))} if self.bias else {})

    def __call__(self, parameters: dict, x: jax.Array) -> jax.Array:
        y = normalized(x, self.epsilon) * parameters['scale']
        return y + parameters['bias'] if self.bias else y


@dataclasses.dataclass(frozen=True)
class RMSNorm(Norm):
    """x / sqrt(mean(x²) + epsilon) * scale (Zhang and Sennrich 2019, eq. 4)."""
    epsilon: float = 1e-6

    def __call__(self, parameters: dict, x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + self.epsilon) * parameters['scale']
