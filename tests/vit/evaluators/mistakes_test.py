import types

import numpy as np
from absl.testing import absltest

from display import figures
from tests import experiments
from training import run as runs
from vit.evaluators.mistakes import Mistakes


class MistakesTest(absltest.TestCase):
    def test_shows_the_images_with_the_least_probable_labels_and_no_padding(self):
        label = np.array([0, 1, 2, 0, 1, 2, 0, 0])
        right = np.array([4.0, -2.0, 3.0, 0.5, 2.0, -5.0, 1.0, -9.0])  # logit of the label; the last row is padding
        logits = np.zeros((8, 3))
        logits[np.arange(8), label] = right
        pictures = {}
        snapshot = types.SimpleNamespace(
            apply=lambda image: {'logits': logits}, picture=pictures.__setitem__,
            data=types.SimpleNamespace(classes=('cat', 'dog', 'fox'), visible=lambda image: image))
        batch = {'image': np.random.default_rng(0).random((8, 4, 4, 1)), 'label': label,
                 'example_weights': np.float32([1, 1, 1, 1, 1, 1, 1, 0])}
        self.assertEqual(Mistakes(rows=2)(snapshot, [batch]), {})
        axes = pictures['mistakes'].axes
        shown = [int(np.argmin([np.abs(image.squeeze(-1) - a.images[0].get_array()).max() for image in batch['image']]))
                 for a in axes]
        self.assertEqual(shown, [5, 1, 3, 6])
        self.assertRegex(axes[0].get_title(), r'true: fox \(0\.00\)\npredicted: (cat|dog) \(0\.50\)')
        self.assertEqual(axes[3].get_title(), 'true: cat (0.58)\npredicted: cat (0.58)')
        self.assertLen({a.title.get_color() for a in axes[1:]}, 2)  # the wrong ones stand out
        self.assertIn('the titles of the 2 wrong predictions', figures.caption_of(pictures['mistakes']))
        Mistakes(rows=1)(snapshot, [batch])
        self.assertLen(pictures['mistakes'].axes, 1)
        Mistakes(rows=4)(snapshot, [batch])
        self.assertLen(pictures['mistakes'].axes, 8)  # two rows for seven images

    def test_classes_that_the_data_lacks_are_left_out(self):
        pictures, logits = {}, np.array([[0.0, -1.0, 9.0]])  # a model with more classes than its data
        snapshot = types.SimpleNamespace(apply=lambda image: {'logits': logits}, picture=pictures.__setitem__,
                                         data=types.SimpleNamespace(classes=('cat', 'dog'), visible=lambda image: image - 3))
        batch = {'image': np.zeros((1, 4, 4, 1)), 'label': np.array([1]), 'example_weights': np.ones(1)}
        Mistakes(rows=1)(snapshot, [batch])
        axes = pictures['mistakes'].axes[0]
        self.assertEqual(axes.get_title(), 'true: dog (0.27)\npredicted: cat (0.73)')
        np.testing.assert_array_equal(axes.images[0].get_array(), np.full((4, 4), -3))  # shown as it is seen

    def test_grey_is_as_bright_as_it_is(self):
        pictures = {}
        snapshot = types.SimpleNamespace(apply=lambda image: {'logits': np.zeros((2, 2))}, picture=pictures.__setitem__,
                                         data=types.SimpleNamespace(classes=('cat', 'dog'), visible=lambda image: image))
        batch = {'image': np.full((2, 4, 4, 1), 0.5), 'label': np.array([0, 1]), 'example_weights': np.ones(2)}
        batch['image'][1, 0] = 0.25
        Mistakes(rows=2)(snapshot, [batch])
        self.assertEqual([axes.images[0].get_clim() for axes in pictures['mistakes'].axes[:2]], [(0, 1)] * 2)

    def test_numbers_of_rows_without_a_meaning_are_refused(self):
        for rows in (0, 33):
            with self.assertRaisesRegex(ValueError, f'Mistakes has rows={rows}; expected 1 to 32'):
                Mistakes(rows=rows).check(None, None)

    def test_runs_without_classes_or_logits_are_refused(self):
        run = runs.build(experiments.tiny_images(), runs.meshes.make(1, 1, 1))
        batches = run.data.evaluation('valid', 8)
        self.assertEqual(Mistakes().check(run, batches), ())
        with self.assertRaisesRegex(ValueError, 'Mistakes needs a class for each example, and data.images.labelled:Images has'):
            Mistakes().check(run, [{'image': np.zeros((2, 8, 8, 1))}])
        run = runs.build(experiments.tiny_autoencoder(), runs.meshes.make(1, 1, 1))
        with self.assertRaisesRegex(ValueError, 'Mistakes needs images and logits of classes, and this run has image, label, '
                                                'example_weights and its model gives .*hidden.*; leave it out'):
            Mistakes().check(run, batches)


if __name__ == '__main__':
    absltest.main()
