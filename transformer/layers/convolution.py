"""Convolutions over images."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from transformer.layers.initial import zeros
from transformer.layers.numerics import Numerics
from transformer.layers.roles import Wanted, declare, matrix
from transformer.layers.sharding import platform, several

# Normal with a variance of 2 / (the size of the kernel times its outputs), for ReLU (He et al. 2015, eq. 14).
he = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')
# Uniform in ±1 / sqrt(rows), as in PyTorch.
uniform = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
GATHERED = 2 ** 19  # numbers of `_gathered` at a time, so that they stay in the cache


class Convolution2d(nn.Module):
    """y[i, j] = b + sum over m, n of x[s·i + m - p, s·j + n - p]·K[m, n] with p = (size - 1) / 2 zeros around the image:
    [B, height, width, C] -> [B, ceil(height / s), ceil(width / s), features].

    Attributes:
      size: the side of the kernel, odd.
      stride: s.
      bias: whether there is b.

    On one CPU device the gradient of the kernel is one of our own, in 1/28 to 3/4 of the time of XLA's on a core of an EPYC; a
    3x3 convolution with all gradients takes 0.27 to 0.86 at shapes of configs/resnet_fashion_mnist.py
    (benchmarks/convolution.py).
    """
    features: int
    size: int = 3
    stride: int = 1
    numerics: Numerics = Numerics()
    bias: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = self.size, self.size, x.shape[-1], self.features
        kernel = declare(self, 'kernel', Wanted(he, shape, matrix((0, 1, 2), (3,))), self.numerics)
        cast, alone = self.numerics.cast, platform() == 'cpu' and not several()  # several share the batch
        function = _convolve_on_cpu if alone else convolve
        y = function(cast(x), cast(kernel), self.stride, self.numerics.precision)
        return self.numerics.plus(y, declare(self, 'bias', Wanted(zeros, (self.features,)), self.numerics)) if self.bias else y


def convolve(x: jax.Array, kernel: jax.Array, stride: int, precision: str | None) -> jax.Array:
    """`Convolution2d` without its bias, [B, height, width, C] and [size, size, C, features]."""
    return lax.conv_general_dilated(x, kernel, 2 * [stride], 2 * [2 * [(len(kernel) - 1) // 2]],
                                    dimension_numbers=('NHWC', 'HWIO', 'NHWC'), precision=precision)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve_on_cpu(x, kernel, stride, precision):
    return convolve(x, kernel, stride, precision)


def _forward(x, kernel, stride, precision):
    return convolve(x, kernel, stride, precision), (x, kernel)


def _backward(stride, precision, residuals, dy):
    """dK[m, n] = sum over i, j of x[s·i + m - p, s·j + n - p]ᵀ·dy[i, j], for a few images at a time one product of dyᵀ and the
    pixels of all m, n side by side. XLA convolves x with dy, a kernel as large as the image."""
    (x, kernel), (batch, height, width, features) = residuals, dy.shape
    size, _, channels, _ = kernel.shape
    most = max(1, GATHERED // (height * width * size * size * channels))
    images = max(n for n in range(1, batch + 1) if n <= most and batch % n == 0)

    def add(total, given):
        gathered, dy = _gathered(given[0], height, width, size, stride), given[1].reshape(-1, features)
        return total + lax.dot_general(dy, gathered, (((0,), (0,)), ((), ())), precision=precision,
                                       preferred_element_type=total.dtype), None

    zero = jnp.zeros((features, size * size * channels), jnp.promote_types(dy.dtype, jnp.float32))
    total, _ = lax.scan(add, zero, jax.tree.map(lambda one: one.reshape(-1, images, *one.shape[1:]), (x, dy)))
    (dx,) = jax.linear_transpose(lambda x: convolve(x, kernel, stride, precision), x)(dy)
    return dx, total.T.reshape(kernel.shape).astype(kernel.dtype)


_convolve_on_cpu.defvjp(_forward, _backward)


def _gathered(x, height, width, size, stride):
    """[B·height·width, size·size·C]: the pixels of each window of x [B, .., .., C]."""
    around = ((size - 1) // 2,) * 2
    x = jnp.pad(x, ((0, 0), around, around, (0, 0)))
    ends = stride * (height - 1) + 1, stride * (width - 1) + 1
    windows = [x[:, m:m + ends[0]:stride, n:n + ends[1]:stride] for m in range(size) for n in range(size)]
    return jnp.concatenate(windows, -1).reshape(-1, size * size * x.shape[-1])


class Depthwise(nn.Module):
    """y[i, j, c] = b[c] + sum over m, n of x[i + m - p, j + n - p, c]·K[m, n, c], each channel by itself, with
    p = (size - 1) / 2 zeros around the image: [B, height, width, C] -> the same.

    A sum of size·size shifted products: on two cores of a CPU, for 32 images of 14x14x64, it takes 0.2 ms and with its gradient
    2.8, where XLA's grouped convolution takes 7.8 and 22.6 (benchmarks/convolution.py).

    Attributes:
      size: the side of the kernel, odd.
    """
    size: int = 3
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        size, (height, width, channels) = self.size, x.shape[1:]
        flat = lambda key, shape, dtype: uniform(key, (size * size, channels), dtype).reshape(shape)
        kernel = declare(self, 'kernel', Wanted(flat, (size, size, channels), matrix((0, 1), ())), self.numerics)
        bias = declare(self, 'bias', Wanted(zeros, (channels,)), self.numerics)
        kernel, around = self.numerics.cast(kernel), ((size - 1) // 2,) * 2
        x = jnp.pad(self.numerics.cast(x), [(0, 0), around, around, (0, 0)])
        taps = (x[:, m:m + height, n:n + width] * kernel[m, n] for m in range(size) for n in range(size))
        return self.numerics.plus(sum(taps), bias)
