import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from tests import models
from tests.models import build, changed
from tests.recorded import REFERENCE, case, convert
from vit.models.mae import Mae
from vit.tasks.reconstruction import Reconstruction, seeds

SMALL = build(Mae, patch=2, layers=1, heads=2, width=8)
IMAGES = np.random.default_rng(0).normal(size=(4, 4, 8, 1)).astype(np.float32)
NOISE = np.random.default_rng(1).random((4, 8)).astype(np.float32)


def loss(batch, model=SMALL, task=Reconstruction(), **given):
    params = models.drawn(model, IMAGES)
    forward = lambda **inputs: model.apply({'params': params}, **inputs)
    return task.loss(forward, batch, step=0, **{'key': None, 'train': False} | given)['loss']


class ReconstructionTest(parameterized.TestCase):
    @parameterized.parameters('plain', 'standardised')
    def test_equals_the_loss_of_transformers_in_float64(self, pixels):
        recorded = case('vit_mae')
        with jax.enable_x64(True):
            model, params = convert.from_hf(REFERENCE / 'vit_mae', dtype='float64')
            model = changed(model, normalize=pixels == 'standardised')
            batch = {'image': recorded['input']['pixel_values'].transpose(0, 2, 3, 1), 'noise': recorded['input']['noise']}
            forward = lambda **inputs: model.apply({'params': params}, **inputs)
            total, weight = Reconstruction().loss(forward, batch, key=None, step=0, train=False)['loss']
        self.assertEqual(float(weight), 3.0)
        np.testing.assert_allclose(total / weight, recorded['loss'][pixels], rtol=0, atol=1e-10)

    def test_equals_a_loop_over_the_masked_patches(self):
        rng = np.random.default_rng(0)
        pixels, targets = rng.normal(size=(2, 2, 8, 4))
        mask = np.array([[1, 0, 1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 1, 0, 1, 1.0]])
        outputs = {'pixels': jnp.asarray(pixels), 'targets': jnp.asarray(targets), 'mask': jnp.asarray(mask)}
        found, weight = Reconstruction().terms(outputs, {'example_weights': np.array([1.0, 0.0])})['loss']
        squares = [np.mean([(pixels[0, t, i] - targets[0, t, i]) ** 2 for i in range(4)]) for t in range(8) if mask[0, t]]
        self.assertAlmostEqual(float(found), np.mean(squares), places=5)  # the second row pads the batch
        self.assertEqual(float(weight), 1.0)

    def test_a_batch_may_bring_noise(self):
        found = [float(loss({'image': IMAGES, 'noise': noise})[0]) for noise in (NOISE, NOISE, -NOISE)]
        self.assertEqual(found[0], found[1])
        self.assertNotAlmostEqual(found[0], found[2])
        trained = loss({'image': IMAGES, 'noise': NOISE}, key=jax.random.key(0), train=True)  # rather than what a key draws
        self.assertAlmostEqual(float(trained[0]), found[0], places=5)

    def test_a_model_that_masks_nothing_is_refused_whatever_the_batch_brings(self):
        for batch in ({'image': IMAGES}, {'image': IMAGES, 'noise': NOISE}):
            for given in (dict(key=None, train=False), dict(key=jax.random.key(0), train=True)):
                with self.assertRaisesRegex(ValueError, 'model.mask_ratio=0.0 masks none of 8 patches; raise it'):
                    loss(batch, changed(SMALL, mask_ratio=0.0), **given)

    def test_in_training_masks_are_drawn_by_the_key(self):
        found = {float(loss({'image': IMAGES}, key=jax.random.key(number), train=True)[0]) for number in (0, 1, 2, 2)}
        self.assertLen(found, 3)

    def test_in_evaluation_an_image_has_one_mask_in_any_batch(self):
        whole, weight = loss({'image': IMAGES})
        rows = [loss({'image': IMAGES[row:row + 1]}) for row in range(4)]
        self.assertAlmostEqual(float(whole), float(sum(one for one, _ in rows)), places=4)
        self.assertEqual(float(weight), 4.0)

    def test_seeds_of_other_images_differ(self):
        image = np.repeat(IMAGES[:1], 6, axis=0)
        image[1, 0, 0] += 1e-3
        image[2, -1, -1] += 1e-3
        image[3] = image[3][::-1]
        image[4] = image[4][:, ::-1]
        found = np.asarray(seeds(jnp.asarray(image))).tolist()
        self.assertLen(set(found), 5)
        self.assertEqual(found[0], found[5])
        binary = np.random.default_rng(0).integers(0, 2, (5000, 8, 8, 1)).astype(np.float32)
        for image in (binary, 2 * binary - 1, binary / 2):
            self.assertEqual(len(np.unique(seeds(jnp.asarray(image)))), 5000)

    def test_models_without_predictions_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'Reconstruction compares pixels, but the model gives hidden, pooled, mask, '
                                                'restore; choose vit.models.mae:Mae with decodes=True'):
            loss({'image': IMAGES}, changed(SMALL, decodes=False))
        with self.assertRaisesRegex(ValueError, 'Reconstruction compares pixels, but the model gives'):
            Reconstruction().terms({'logits': None}, {})


if __name__ == '__main__':
    absltest.main()
