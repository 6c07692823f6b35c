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
    """Base of the norms of the stream: over the last axis, but for `OverBatch`. They are computed in at least float32."""

    def parameters(self, width: int) -> dict:
        """{name: `Wanted`} of the learnt parameters."""
        return {'scale': Wanted(ones, (width,))}

    @abc.abstractmethod
    def __call__(self, parameters: dict, x: jax.Array) -> jax.Array:
        """x [.., D] -> [.., D] in at least float32."""

    def within(self, x: jax.Array, name: str, numerics: Numerics, train: bool) -> jax.Array:
        """norm(x) with parameters of the calling module, under `name`."""
        parameters = Parameters(self.parameters(x.shape[-1]), numerics=numerics, name=name)()
        return numerics.cast(self(parameters, x))


def normed(norm: Norm, x: jax.Array, name: str, numerics: Numerics = Numerics(), train: bool = False) -> jax.Array:
    """norm(x) with parameters of the calling module, under `name`; train: whether this is training, which `OverBatch` must
    know."""
    return norm.within(x, name, numerics, train)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def standardized(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float,
                 axes: tuple[int, ...] = (-1,)) -> tuple[jax.Array, jax.Array, jax.Array]:
    """((x - mean) / sqrt(variance + epsilon) · scale + bias, mean, variance), with the moments over some axes, and scale and
    bias over the last one; in at least float32. The moments have no gradient."""
    return _standardized(x, scale, bias, epsilon, axes)[0]


def _standardized(x, scale, bias, epsilon, axes):
    mean = wide(x).mean(axes, keepdims=True)
    centered = wide(x) - mean
    variance = jnp.square(centered).mean(axes, keepdims=True)
    rate = jax.lax.rsqrt(variance + epsilon)
    y = centered * rate * scale
    return (y if bias is None else y + bias, mean, variance), (x, scale, bias, mean, rate)  # x in its own, narrow type


def _standardized_backward(epsilon, axes, residuals, cotangents):
    # r (dy - mean(dy) - y mean(dy y)): half the reductions that automatic differentiation needs.
    (x, scale, bias, mean, rate), do = residuals, cotangents[0]
    y, dy = (wide(x) - mean) * rate, do * scale
    dx = rate * (dy - dy.mean(axes, keepdims=True) - y * (dy * y).mean(axes, keepdims=True))
    return dx.astype(x.dtype), _over_rows(do * y), None if bias is None else _over_rows(do)


standardized.defvjp(_standardized, _standardized_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def over_root(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """x / sqrt(mean(x²) + epsilon) · scale over the last axis, in at least float32."""
    return _over_root(x, scale, epsilon)[0]


def _over_root(x, scale, epsilon):
    rate = jax.lax.rsqrt(jnp.square(wide(x)).mean(-1, keepdims=True) + epsilon)
    return wide(x) * rate * scale, (x, scale, rate)


def _over_root_backward(epsilon, residuals, do):
    x, scale, rate = residuals
    y, dy = wide(x) * rate, do * scale
    return (rate * (dy - y * (dy * y).mean(-1, keepdims=True))).astype(x.dtype), _over_rows(do * y)


over_root.defvjp(_over_root, _over_root_backward)


def _over_rows(x):
    return x.sum(range(x.ndim - 1))


@dataclasses.dataclass(frozen=True)
class LayerNorm(Norm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias (Ba et al. 2016, eq. 4)."""
    epsilon: float = 1e-5
    bias: bool = True

    def parameters(self, width: int) -> dict:
        return super().parameters(width) | ({'bias': Wanted(zeros, (width,))} if self.bias else {})

    def __call__(self, parameters: dict, x: jax.Array) -> jax.Array:
        return standardized(x, parameters['scale'], parameters.get('bias'), self.epsilon)[0]


@dataclasses.dataclass(frozen=True)
class RMSNorm(Norm):
    """x / sqrt(mean(x²) + epsilon) * scale (Zhang and Sennrich 2019, eq. 4)."""
    epsilon: float = 1e-6

    def __call__(self, parameters: dict, x: jax.Array) -> jax.Array:
        return over_root(x, parameters['scale'], self.epsilon)


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
        if norm.frozen:
            scale, bias = jax.lax.stop_gradient((scale, bias))
        if norm.frozen or not train:
            rate = jax.lax.rsqrt(self.numerics.read(variance.value) + norm.epsilon) * scale
            return self.numerics.cast((wide(x) - self.numerics.read(mean.value)) * rate + bias)
        if (count := math.prod(x.shape[:-1])) < 2:
            raise ValueError(f'Batch normalization has one value of each channel in {x.shape}, and a single value has no '
                             'variance; train with a larger data.batch_size or fewer train.microbatches, or with larger '
                             'images.')
        y, of_batch, biased = standardized(x, scale, bias, norm.epsilon, axes)
        if self.is_mutable_collection('statistics') and not self.is_initializing():
            for running, new in ((mean, of_batch), (variance, biased * (count / (count - 1)))):
                old = running.value
                running.value = (old + norm.momentum * (new.reshape(width) - old)).astype(old.dtype)
        return self.numerics.cast(y)

    def _running(self, name, start, shape):
        if not (self.is_initializing() or self.has_variable('statistics', name)):
            raise ValueError(f"{'/'.join(self.path)} has running statistics, which were not given; apply the model to "
                             "{'params': .., 'statistics': ..}, such as `variables` of a run.")
        return self.variable('statistics', name, start, shape, jnp.promote_types(self.numerics.parameter_dtype, jnp.float32))


@dataclasses.dataclass(frozen=True)
class OverBatch(Norm):
    """`BatchNorm` in place of the norms of a Transformer, to compare them: in training the moments are those of all positions
    of the batch, padding and later positions included, elsewhere the running ones. Where the lengths or the topics of batches
    differ, so do their moments, which is why Transformers have layer norm (Shen et al. 2020, PowerNorm, section 3)."""
    momentum: float = 0.1
    epsilon: float = 1e-5

    def __post_init__(self):
        BatchNorm(self.momentum, self.epsilon)

    def parameters(self, width: int) -> dict:
        return super().parameters(width) | {'bias': Wanted(zeros, (width,))}

    def __call__(self, parameters: dict, x: jax.Array) -> jax.Array:
        """As in training, by the moments of x."""
        return standardized(x, parameters['scale'], parameters['bias'], self.epsilon, tuple(range(x.ndim - 1)))[0]

    def within(self, x: jax.Array, name: str, numerics: Numerics, train: bool) -> jax.Array:
        return BatchNormalized(BatchNorm(self.momentum, self.epsilon), numerics, name=name)(x, train)
