import types

import numpy as np
from absl.testing import absltest

from vit.evaluators import Mistakes


class MistakesTest(absltest.TestCase):
    def test_shows_the_images_with_the_least_probable_labels_and_no_padding(self):
        label = np.array([0, 1, 2, 0, 1, 2, 0, 0])
        right = np.array([4.0, -2.0, 3.0, 0.5, 2.0, -5.0, 1.0, -9.0])  # logit of the label; the last row is padding
        logits = np.zeros((8, 3))
        logits[np.arange(8), label] = right
        pictures = {}
        snapshot = types.SimpleNamespace(
            apply=lambda image: {'logits': logits}, picture=pictures.__setitem__,
            data=types.SimpleNamespace(classes=('cat', 'dog', 'fox')))
        batch = {'image': np.random.default_rng(0).random((8, 4, 4, 1)), 'label': label,
                 'example_weights': np.float32([1, 1, 1, 1, 1, 1, 1, 0])}
        self.assertEqual(Mistakes(rows=2)(snapshot, [batch]), {})
        axes = pictures['mistakes'].axes
        shown = [int(np.argmin([np.abs(image.squeeze(-1) - a.images[0].get_array()).max() for image in batch['image']]))
                 for a in axes]
        self.assertEqual(shown, [5, 1, 3, 6])
        self.assertRegex(axes[0].get_title(), r'fox → (cat|dog)  0\.00')


if __name__ == '__main__':
    absltest.main()
