"""Activations: parts of a config, such as `model.feed_forward='Mlp(activation=Relu())'`."""

import abc
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from transformer.layers.numerics import wide
from transformer.layers.sharding import platform


@dataclasses.dataclass(frozen=True)
class Activation(abc.ABC):
    """Base of the activations, which are elementwise functions."""

    @abc.abstractmethod
    def __call__(self, x: jax.Array) -> jax.Array:
        """x in at least float32 -> the same shape and type."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def activated(activation: Activation, x: jax.Array) -> jax.Array:
    """activation(x), computed in at least float32, in the type of x. Its gradient computes the activation again from x, so that
    nothing else is stored."""
    return activation(wide(x)).astype(x.dtype)


def _activated_backward(activation, x, dy):
    if platform() == 'gpu':  # whose compiler else stores what both passes compute from x, in float32
        x = jax.lax.optimization_barrier(x)
    return jax.vjp(lambda x: activation(wide(x)).astype(x.dtype), x)[1](dy)


activated.defvjp(lambda activation, x: (activated(activation, x), x), _activated_backward)


def normal_distribution(x: jax.Array) -> jax.Array:
    """Φ(x) = (1 + erf(x / sqrt 2)) / 2."""
    return 0.5 + 0.5 * jax.lax.erf(x * 0.5 ** 0.5)


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """x Φ(x) (Hendrycks and Gimpel 2016).

    jax.nn.gelu uses erfc, which XLA on CPU computes in branches with an exponential: twice the time."""
    return x * normal_distribution(x)


def _gelu_backward(x, dy):
    # Φ(x) + x φ(x), from x only: computing Φ again is cheaper than storing it.
    return (dy * (normal_distribution(x) + x * jnp.exp(-0.5 * x * x) * (2.0 * math.pi) ** -0.5),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)


@dataclasses.dataclass(frozen=True)
class Gelu(Activation):
    """x Φ(x) with the normal distribution Φ (Hendrycks and Gimpel 2016)."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return gelu(x)


@dataclasses.dataclass(frozen=True)
class GeluTanh(Activation):
    """x (1 + tanh(sqrt(2 / π) (x + 0.044715 x³))) / 2, the approximation of `Gelu` in the code of GPT-2."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.gelu(x, approximate=True)


@dataclasses.dataclass(frozen=True)
class Relu(Activation):
    """max(0, x)."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x)


@dataclasses.dataclass(frozen=True)
class Silu(Activation):
    """x·sigmoid(x), Swish (Ramachandran et al. 2017); in `Gated` it makes SwiGLU (Shazeer 2020, eq. 6)."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.silu(x)


@dataclasses.dataclass(frozen=True)
class QuickGelu(Activation):
    """x·sigmoid(1.702·x), an approximation of `Gelu` (Hendrycks and Gimpel 2016, section 2), as in CLIP."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * jax.nn.sigmoid(1.702 * x)


@dataclasses.dataclass(frozen=True)
class LeakyRelu(Activation):
    """max(0, x) + slope·min(0, x) (Maas et al. 2013); 0.2 is the slope of discriminators (Radford et al. 2016, section 3)."""
    slope: float = 0.2

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.leaky_relu(x, self.slope)


@dataclasses.dataclass(frozen=True)
class Tanh(Activation):
    """tanh x."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x)
