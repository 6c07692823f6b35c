import types

import numpy as np
from absl.testing import absltest, parameterized

from display import figures
from tests import models
from tests.models import build, changed
from vit.evaluators.reconstructions import Reconstructions
from vit.explain import filled
from vit.models.mae import Mae
from vit.models.vit import Vit
from vit.tasks.reconstruction import Reconstruction

SMALL = build(Mae, patch=2, layers=1, heads=2, width=8)
IMAGES = np.random.default_rng(0).random((5, 4, 8, 1)).astype(np.float32)


class Snapshot:
    """A model with drawn parameters on images with the mean 0.5 and the deviation 0.25."""
    step = 7

    def __init__(self, model):
        self.model, self.params, self.pictures, self.calls = model, models.drawn(model, IMAGES), {}, 0
        self.data = types.SimpleNamespace(visible=lambda x: 0.25 * x + 0.5)

    def apply(self, **inputs):
        self.calls += 1
        return models.apply(self.model, self.params, **inputs)

    def picture(self, name, figure):
        self.pictures[name] = figure


class ReconstructionsTest(parameterized.TestCase):
    @parameterized.parameters(False, True)
    def test_what_is_seen_stays_and_the_rest_is_predicted(self, normalize):
        model = changed(SMALL, normalize=normalize)
        snapshot, images = Snapshot(model), (IMAGES - 0.5) / 0.25
        found = filled.fill(snapshot, images)
        forward = lambda **inputs: models.apply(model, snapshot.params, **inputs)
        losses = [Reconstruction().loss(forward, {'image': images[row:row + 1]}, key=None, step=0, train=False)['loss'][0]
                  for row in range(5)]
        np.testing.assert_allclose([one.loss for one in found], losses, rtol=1e-5)
        for image, one in zip(images, found):
            np.testing.assert_allclose(one.original, 0.25 * image + 0.5, atol=1e-6)
            self.assertEqual(one.masked.mean(), 0.75)
            blocks = one.masked.reshape(2, 2, 4, 2).mean((1, 3))
            self.assertContainsSubset(set(blocks.reshape(-1)), {0.0, 1.0})  # whole patches
            np.testing.assert_array_equal(one.filled[~one.masked], one.original[~one.masked])
            self.assertGreater(np.abs(one.filled - one.original)[one.masked].max(), 0.05)
            self.assertTrue((one.filled >= 0).all() and (one.filled <= 1).all())

    def test_perfect_predictions_give_the_image_back(self):
        for normalize in (False, True):
            model = changed(SMALL, normalize=normalize)
            snapshot = Snapshot(model)
            targets = models.apply(model, snapshot.params, IMAGES, seed=np.arange(5))
            snapshot.apply = lambda found=targets, **inputs: found | {'pixels': found['targets']}
            for image, one in zip(IMAGES, filled.fill(snapshot, IMAGES)):
                self.assertEqual(one.loss, 0.0)
                np.testing.assert_allclose(one.filled, 0.25 * image + 0.5, atol=1e-5)

    def test_other_seeds_mask_other_patches(self):
        masks = [np.stack([one.masked for one in filled.fill(Snapshot(SMALL), IMAGES, seed)]) for seed in (0, 0, 1)]
        np.testing.assert_array_equal(masks[0], masks[1])
        self.assertTrue((masks[0] != masks[2]).any())

    def test_a_picture_of_the_first_images_without_padding(self):
        snapshot = Snapshot(SMALL)
        batch = lambda weights: {'image': IMAGES, 'label': np.zeros(5, int), 'example_weights': np.float32(weights)}
        batches = [batch([1, 1, 0, 1, 0]), batch([1, 1, 1, 1, 1]), batch([1, 1, 1, 1, 1])]
        self.assertEqual(Reconstructions(count=4)(snapshot, batches), {})
        self.assertEqual(snapshot.calls, 2)  # a third batch is not needed
        drawn = snapshot.pictures['reconstructions']
        self.assertLen(drawn.axes, 12)
        self.assertIn('75% of the pixels masked', figures.caption_of(drawn))
        shown = [axes.images[0].get_array() for axes in drawn.axes]
        for column, number in enumerate((0, 1, 3, 0)):
            np.testing.assert_allclose(shown[column][..., :1], 0.25 * IMAGES[number] + 0.5, atol=1e-6)
            seen, hidden = shown[4 + column], np.ptp(shown[4 + column], axis=-1) > 0  # the only colour
            self.assertEqual(hidden.mean(), 0.75)
            np.testing.assert_array_equal(seen[~hidden], shown[column][~hidden])
            np.testing.assert_array_equal(shown[8 + column][~hidden], shown[column][~hidden])

    @parameterized.parameters((0, SMALL, 'count=0; expected 1 to 64'), (65, SMALL, 'count=65; expected 1 to 64'),
                              (4, changed(SMALL, decodes=False), 'Reconstructions needs a model that reconstructs'),
                              (4, build(Vit, classes=3), 'needs a model that reconstructs masked patches, and Vit does not'))
    def test_refused(self, count, model, message):
        self.assertEqual(Reconstructions().check(types.SimpleNamespace(model=SMALL), None), ())
        with self.assertRaisesRegex(ValueError, message):
            Reconstructions(count=count).check(types.SimpleNamespace(model=model), None)


if __name__ == '__main__':
    absltest.main()
