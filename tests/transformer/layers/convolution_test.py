from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests import float64
from training import mesh as meshes
from transformer.layers import convolution
from transformer.layers.convolution import Convolution2d, Depthwise
from transformer.layers.numerics import Numerics
from transformer.layers.roles import matrix

DRAWN = np.random.default_rng(0)
X = DRAWN.normal(size=(2, 7, 6, 3))
FLOAT64 = Numerics('float64', parameter_dtype='float64')


def by_hand(x, kernel, stride):
    """Pixel by pixel, over an image with zeros around it."""
    size, around = len(kernel), len(kernel) // 2
    wide = np.pad(x, ((0, 0), (around, around), (around, around), (0, 0)))
    rows, columns = (range(0, side, stride) for side in x.shape[1:3])
    return np.array([[[sum(image[i + m, j + n] @ kernel[m, n] for m in range(size) for n in range(size))
                       for j in columns] for i in rows] for image in wide])


class ConvolutionTest(parameterized.TestCase):
    @parameterized.product(size=(1, 3, 5), stride=(1, 2, 3))
    def test_equals_a_loop_over_pixels(self, size, stride):
        kernel = DRAWN.normal(size=(size, size, 3, 4))
        with jax.enable_x64(True):
            y = Convolution2d(4, size, stride, numerics=FLOAT64).apply({'params': {'kernel': kernel}}, X)
        np.testing.assert_allclose(y, by_hand(X, kernel, stride), rtol=0, atol=1e-12)

    def test_gradients(self):
        module = Convolution2d(4, 3, 2, numerics=FLOAT64)
        loss = lambda given: (module.apply({'params': {'kernel': given['kernel']}}, given['x']) ** 2).sum()
        with jax.enable_x64(True):
            float64.require_exact(self, loss, {'kernel': DRAWN.normal(size=(3, 3, 3, 4)), 'x': X})

    @parameterized.parameters((1, 1, 500), (1, 3, 50), (3, 1, 3000), (3, 2, 1), (3, 2, 1000), (3, 2, 2 ** 19), (5, 3, 1000))
    def test_gradients_of_a_few_images_at_a_time(self, size, stride, most):
        """Are JAX's own; 6 images by themselves, in twos or threes, and all at once."""
        x, kernel = DRAWN.normal(size=(6, 7, 6, 3)), DRAWN.normal(size=(size, size, 3, 4))
        module = Convolution2d(4, size, stride, FLOAT64)
        with jax.enable_x64(True), mock.patch.object(convolution, 'GATHERED', most):
            y, found = jax.vjp(lambda kernel, x: module.apply({'params': {'kernel': kernel}}, x), kernel, x)
            _, wanted = jax.vjp(lambda kernel, x: convolution.convolve(x, kernel, stride, 'highest'), kernel, x)
            for one, other in zip(found(y), wanted(y)):
                np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-11)

    def test_several_devices_share_the_images(self):
        mesh, module = meshes.make(4), Convolution2d(4)
        x = jax.ShapeDtypeStruct((8, 7, 6, 3), 'float32', sharding=meshes.batch_sharding(mesh))
        kernel = jax.ShapeDtypeStruct((3, 3, 3, 4), 'float32', sharding=meshes.replicated(mesh))
        with jax.set_mesh(mesh):
            gradient = jax.jit(jax.grad(lambda kernel, x: (module.apply({'params': {'kernel': kernel}}, x) ** 2).sum()))
            self.assertNotIn('all-gather', gradient.lower(kernel, x).compile().as_text())

    def test_the_kernels_gradient_is_summed_in_float32(self):
        """Of bfloat16 too: 4,096 equal terms."""
        module, x = Convolution2d(1, 1, numerics=Numerics('bfloat16')), np.ones((4096, 1, 1, 1))
        with mock.patch.object(convolution, 'GATHERED', 1):
            found = jax.grad(lambda kernel: module.apply({'params': {'kernel': kernel}}, x).astype('float32').sum())(
                np.ones((1, 1, 1, 1), 'float32'))
        self.assertEqual(found.item(), 4096)

    def test_a_bias(self):
        kernel, bias = DRAWN.normal(size=(3, 3, 3, 4)), DRAWN.normal(size=4)
        with jax.enable_x64(True):
            y = Convolution2d(4, 3, 2, FLOAT64, bias=True).apply({'params': {'kernel': kernel, 'bias': bias}}, X)
        np.testing.assert_allclose(y, by_hand(X, kernel, 2) + bias, rtol=0, atol=1e-12)

    def test_a_kernel_is_a_matrix_drawn_for_relu(self):
        made = Convolution2d(64, 3).init(jax.random.key(0), np.zeros((1, 4, 4, 8)))
        self.assertEqual(made['roles']['kernel'], matrix((0, 1, 2), (3,)))
        self.assertAlmostEqual(float(made['params']['kernel'].std()), (2 / (9 * 64)) ** 0.5, places=2)


class DepthwiseTest(parameterized.TestCase):
    @parameterized.parameters(1, 3, 5)
    def test_equals_a_loop_over_pixels_of_each_channel(self, size):
        kernel, bias = DRAWN.normal(size=(size, size, 3)), DRAWN.normal(size=3)
        with jax.enable_x64(True):
            y = Depthwise(size, FLOAT64).apply({'params': {'kernel': kernel, 'bias': bias}}, X)
        wanted = np.concatenate([by_hand(X[..., c:c + 1], kernel[..., c, None, None], 1) for c in range(3)], -1)
        np.testing.assert_allclose(y, wanted + bias, rtol=0, atol=1e-12)

    def test_gradients(self):
        module = Depthwise(3, FLOAT64)
        params = lambda given: {'kernel': given['kernel'], 'bias': given['bias']}
        loss = lambda given: (module.apply({'params': params(given)}, given['x']) ** 2).sum()
        with jax.enable_x64(True):
            float64.require_exact(self, loss, {'kernel': DRAWN.normal(size=(3, 3, 3)), 'bias': DRAWN.normal(size=3), 'x': X})

    def test_each_channel_has_a_matrix_of_its_own(self):
        made = Depthwise(3).init(jax.random.key(0), np.zeros((1, 4, 4, 8)))
        self.assertEqual(made['roles']['kernel'], matrix((0, 1), ()))
        self.assertLess(np.abs(made['params']['kernel']).max(), 1 / 3)


if __name__ == '__main__':
    absltest.main()
