"""Convolutions over images."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.layers.initial import zeros
from transformer.layers.numerics import Numerics
from transformer.layers.roles import Wanted, declare, matrix

# Normal with a variance of 2 / (the size of the kernel times its outputs), for ReLU (He et al. 2015, eq. 14).
he = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')
# Uniform in ±1 / sqrt(rows), as in PyTorch.
uniform = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')


class Convolution2d(nn.Module):
    """y[i, j] = b + sum over m, n of x[s·i + m - p, s·j + n - p]·K[m, n] with p = (size - 1) / 2 zeros around the image:
    [B, height, width, C] -> [B, ceil(height / s), ceil(width / s), features].

    Attributes:
      size: the side of the kernel, odd.
      stride: s.
      bias: whether there is b.

    The gradient is JAX's: on two cores of an EPYC, at the shapes of configs/resnet_fashion_mnist.py, XLA convolves at 150 to
    180 GFLOP/s, back to the input as fast and to the kernel at 25 to 120; gathered or shifted products are slower
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
        cast, around = self.numerics.cast, 2 * [2 * [(self.size - 1) // 2]]
        y = jax.lax.conv_general_dilated(cast(x), cast(kernel), 2 * [self.stride], around,
                                         dimension_numbers=('NHWC', 'HWIO', 'NHWC'), precision=self.numerics.precision)
        return y + cast(declare(self, 'bias', Wanted(zeros, (self.features,)), self.numerics)) if self.bias else y


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
        return self.numerics.cast(bias) + sum(x[:, m:m + height, n:n + width] * kernel[m, n]
                                              for m in range(size) for n in range(size))
