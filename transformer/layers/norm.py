"""Norms: parts of a config (`model.norm`), pure functions of parameters and arrays; and batch normalization, whose running
moments are statistics: arrays of a model that no gradient trains, in the collection 'statistics' beside 'params'."""

import abc
import dataclasses
import math
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.layers.dense import Parameters
from transformer.layers.initial import zeros
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import Wanted, declare

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


def normalized(x: jax.Array, epsilon: float) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon) over the last axis."""
    return with_moments(x, epsilon, (-1,))[0]


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def with_moments(x: jax.Array, epsilon: float, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """((x - mean) / sqrt(variance + epsilon), mean, variance) over some axes, kept in the moments, which have no gradient."""
    return _with_moments(x, epsilon, axes)[0]


def _with_moments(x, epsilon, axes):
    mean = x.mean(axes, keepdims=True)
    centered = x - mean
    variance = jnp.square(centered).mean(axes, keepdims=True)
    rate = jax.lax.rsqrt(variance + epsilon)
    y = centered * rate
    return (y, mean, variance), (y, rate)


def _with_moments_backward(epsilon, axes, residuals, cotangents):
    # r (dy - mean(dy) - y mean(dy y)): half the reductions that automatic differentiation needs.
    (y, rate), dy = residuals, cotangents[0]
    return (rate * (dy - dy.mean(axes, keepdims=True) - y * (dy * y).mean(axes, keepdims=True)),)


with_moments.defvjp(_with_moments, _with_moments_backward)


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


@dataclasses.dataclass(frozen=True)
class BatchNorm:
    """y = (x - m) / sqrt(v + epsilon) · scale + bias for each channel (Ioffe and Szegedy 2015, algorithms 1 and 2).

    In training m and v are mean and variance over all positions of the batch, on all devices, and move the running ones:

        mean <- (1 - momentum)·mean + momentum·m          variance <- (1 - momentum)·variance + momentum·v·n / (n - 1)

    for n values of a channel: as in PyTorch the running variance is the unbiased one, and the batch is divided by the biased.
    Elsewhere m and v are the running ones. They begin at 0 and 1.

    Attributes:
      momentum: the weight of the newest batch, as PyTorch counts it; other libraries give 1 - momentum this name.
      frozen: in training too m and v are the running ones, and scale and bias are not trained: for a backbone that another
        model has pretrained.
    """
    momentum: float = 0.1
    epsilon: float = 1e-5
    frozen: bool = False

    def __post_init__(self):
        if not (0 <= self.momentum <= 1 and 0 < self.epsilon < math.inf):
            raise ValueError(f'{self}: expected a momentum in [0, 1] and an epsilon above 0.')


class BatchNormalized(nn.Module):
    """x [..., C] -> [..., C] by a `BatchNorm`.

    Where the collection 'statistics' is mutable, training changes it: apply(.., mutable=['statistics']).
    """
    norm: BatchNorm
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        norm, width, axes = self.norm, x.shape[-1:], tuple(range(x.ndim - 1))
        scale, bias = (declare(self, name, Wanted(start, width), self.numerics) for name, start in
                       (('scale', ones), ('bias', zeros)))
        mean, variance = self._running('mean', jnp.zeros, width), self._running('variance', jnp.ones, width)
        x = wide(x)
        if norm.frozen:
            scale, bias = jax.lax.stop_gradient((scale, bias))
        if norm.frozen or not train:
            rate = jax.lax.rsqrt(self.numerics.read(variance.value) + norm.epsilon) * scale
            return self.numerics.cast((x - self.numerics.read(mean.value)) * rate + bias)
        if (count := math.prod(x.shape[:-1])) < 2:
            raise ValueError(f'Batch normalization has one value of each channel in {x.shape}, and a single value has no '
                             'variance; train with a larger data.batch_size or fewer train.microbatches, or with larger '
                             'images.')
        y, of_batch, biased = with_moments(x, norm.epsilon, axes)
        if self.is_mutable_collection('statistics') and not self.is_initializing():
            for running, new in ((mean, of_batch), (variance, biased * (count / (count - 1)))):
                old = running.value
                running.value = (old + norm.momentum * (new.reshape(width) - old)).astype(old.dtype)
        return self.numerics.cast(y * scale + bias)

    def _running(self, name, start, shape):
        if not (self.is_initializing() or self.has_variable('statistics', name)):
            raise ValueError(f"{'/'.join(self.path)} has running statistics, which were not given; apply the model to "
                             "{'params': .., 'statistics': ..}, such as `variables` of a run.")
        return self.variable('statistics', name, start, shape, jnp.promote_types(self.numerics.parameter_dtype, jnp.float32))
