import types

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import experiments
from training.config import cli, resolve
from vit.explain import filters
from vit.layers.patches import patches


def made(config):
    """The model of a config, for three classes."""
    return resolve.construct(config.model, extra={'dtype': 'float32', 'classes': 3})


def snapshot(model, params, channels):
    data = types.SimpleNamespace(shapes={'image': ((1, 8, 8, channels), np.float32)})
    return types.SimpleNamespace(model=model, params=params, data=data)


class FiltersTest(parameterized.TestCase):
    def test_components_are_those_of_the_filters(self):
        """Filters that are mixtures of two patterns, one of which varies more."""
        rng = np.random.default_rng(0)
        stripes, spot = np.tile([1.0, -1.0, 1.0, -1.0], (4, 1)) / 4, np.zeros((4, 4))
        spot[1, 2] = 1.0
        given = 3 * stripes[..., None] * rng.normal(size=20) + spot[..., None] * rng.normal(size=20) + 0.5
        found, shares = filters.components(given[:, :, None])
        self.assertEqual(found.shape[1:], (4, 4, 1))
        np.testing.assert_allclose(np.abs((found[0, ..., 0] * stripes).sum()), 1, atol=0.05)
        np.testing.assert_allclose(shares[2:], 0, atol=1e-20)
        np.testing.assert_allclose(shares.sum(), 1)
        covariance = np.cov(given.reshape(16, 20))
        values, vectors = np.linalg.eigh(covariance)
        np.testing.assert_allclose(shares[:2], values[::-1][:2] / values.sum(), atol=1e-10)
        for one, vector in zip(found[:2].reshape(2, 16), vectors.T[::-1]):
            self.assertAlmostEqual(abs(one @ vector), 1, places=8)
            self.assertGreater(one[np.abs(one).argmax()], 0)

    def test_filters_of_models(self):
        """Shown an image that is one filter, the model's first layer answers most with that filter."""
        model = made(experiments.tiny_images())
        params = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))['params']
        found = filters.of_run(snapshot(model, params, 3))
        self.assertEqual(found.shape, (4, 4, 3, 8))
        for number in range(8):
            image = np.zeros((1, 8, 8, 3), np.float32)
            image[0, 4:, :4] = found[..., number]
            answers = np.asarray(patches(jnp.asarray(image), 4) @ params['patches']['kernel'])[0]
            self.assertEqual(answers[2].argmax(), np.einsum('hwcd,hwc->d', found, found[..., number]).argmax())
            np.testing.assert_allclose(answers[2, number], (found[..., number] ** 2).sum(), rtol=1e-5)
        with self.assertRaisesRegex(ValueError, 'SimpleNamespace has no filters on pixels'):
            filters.of_run(snapshot(types.SimpleNamespace(), {}, 3))

    @parameterized.parameters(
        ('vit_fashion_mnist:small', (4, 4, 1, 112)), ('swin_fashion_mnist:', (2, 2, 1, 48)),
        ('davit_fashion_mnist:', (7, 7, 1, 48)), ('hybrid_fashion_mnist:', (3, 3, 1, 24)),
        ('mae_fashion_mnist:', (4, 4, 1, 112)), ('resnet_fashion_mnist:small', (3, 3, 1, 16)))
    def test_models_of_configs_say_where_their_filters_are(self, name, shape):
        config, _ = cli.load_config('configs/{}.py:{}'.format(*name.split(':')))
        model, image = made(config), jax.ShapeDtypeStruct((1, 28, 28, 1), jnp.float32)
        shapes = jax.eval_shape(lambda image: model.init(jax.random.key(0), image)['params'], image)
        params = jax.tree.map(lambda one: np.zeros(one.shape, np.float32), shapes)
        self.assertEqual(filters.of_run(snapshot(model, params, 1)).shape, shape)

    def test_figure(self):
        draw = np.random.default_rng(0).normal
        for shape, count in (((4, 4, 3, 64), 28), ((2, 2, 1, 8), 4), ((4, 4, 1, 8), 7), ((3, 3, 3, 1), 1)):
            figure = filters.figure(draw(size=shape))
            shown = [axes for axes in figure.axes if axes.get_images()]
            self.assertLen(shown, count)
            pixels = np.stack([axes.get_images()[0].get_array() for axes in shown])
            self.assertEqual(pixels.shape[1:], (*shape[:2], *([3] if shape[2] == 3 else [])))
            self.assertBetween(pixels.min(), -1 if shape[2] == 1 else 0, 1)
            self.assertLessEqual(pixels.max(), 1)


if __name__ == '__main__':
    absltest.main()
