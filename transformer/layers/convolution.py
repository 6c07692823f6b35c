"""Convolutions over images."""

import flax.linen as nn
import jax

from transformer.layers.numerics import Numerics
from transformer.layers.roles import Wanted, declare, matrix

# Normal with a variance of 2 / (the size of the kernel times its outputs), for ReLU (He et al. 2015, eq. 14).
he = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')


class Convolution(nn.Module):
    """y[i, j] = sum over m, n of x[s·i + m - p, s·j + n - p]·K[m, n] with p = (size - 1) / 2 zeros around the image, without a
    bias: [B, height, width, C] -> [B, ceil(height / s), ceil(width / s), features].

    Attributes:
      size: the side of the kernel, odd.
      stride: s.
    """
    features: int
    size: int = 3
    stride: int = 1
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = self.size, self.size, x.shape[-1], self.features
        kernel = declare(self, 'kernel', Wanted(he, shape, matrix((0, 1, 2), (3,))), self.numerics)
        cast, around = self.numerics.cast, 2 * [2 * [(self.size - 1) // 2]]
        return jax.lax.conv_general_dilated(cast(x), cast(kernel), 2 * [self.stride], around,
                                            dimension_numbers=('NHWC', 'HWIO', 'NHWC'), precision=self.numerics.precision)
