import dataclasses

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from data.images.fit import FILTERS, CentreCrop, RandomCrop, Stretch, boxes


class FitTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.pixels = np.random.default_rng(0).integers(0, 256, (30, 50)).astype(np.uint8)
        self.image = Image.fromarray(self.pixels)

    @parameterized.parameters(
        (Stretch(), 20, 10, (0, 0, 50, 30)),
        (Stretch(share=0.8), 16, 8, (5, 3, 45, 27)),  # of 20 x 10
        (CentreCrop(), 6, 6, (10, 0, 40, 30)),  # the shorter side, of 10 x 6
        (CentreCrop(), 20, 10, (0, 2.5, 50, 27.5)),  # of 20 x 12
        (CentreCrop(share=0.5), 12, 12, (17.5, 7.5, 32.5, 22.5)),  # of 40 x 24
        (RandomCrop(share=0.5), 12, 12, (17.5, 7.5, 32.5, 22.5)))  # in evaluation
    def test_parts(self, fit, width, height, want):
        self.assertEqual(fit.box((50, 30), (width, height), None), want)
        self.assertEqual(fit(self.image, width, height).size, (width, height))

    @parameterized.parameters(
        (CentreCrop(share=28 / 32), (53, 32), 12), (CentreCrop(share=0.9), (51, 31), 11), (CentreCrop(), (46, 28), 9),
        (Stretch(share=28 / 32), (32, 32), 2), (Stretch(share=0.9), (31, 31), 1))
    def test_is_that_of_resizing_and_cutting_out_the_centre(self, fit, resized, left):
        """Two steps, as of other libraries: both sides of the resized image are rounded down, and so is what is cut off."""
        top = (resized[1] - 28) // 2
        for filter in ('bilinear', 'bicubic', 'lanczos', 'hamming'):
            twice = self.image.resize(resized, Image.Resampling[filter.upper()])
            twice = np.asarray(twice)[top:top + 28, left:left + 28].astype(int)
            once = np.asarray(dataclasses.replace(fit, filter=filter)(self.image, 28, 28)).astype(int)
            self.assertLessEqual(np.abs(once - twice).max(), 1)

    @parameterized.parameters(
        (0.9, 384, ('bilinear', 'hamming'), 2), (0.875, 224, ('bilinear', 'hamming', 'bicubic', 'lanczos'), 1))
    def test_is_as_equal_for_photographs(self, share, side, filters, most):
        """In noise, of which bicubic and lanczos clip much, at sizes where Pillow may take the directions in another order."""
        noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (500, 375), np.uint8))
        for filter in filters:
            fit = CentreCrop(filter, share)
            width, height = fit.resized(noise.size, (fit.enlarged(side),) * 2)
            left, top = (width - side) // 2, (height - side) // 2
            twice = np.asarray(noise.resize((width, height), Image.Resampling[filter.upper()]), int)
            once = np.asarray(fit(noise, side, side), int)
            self.assertLessEqual(np.abs(once - twice[top:top + side, left:left + side]).max(), most)

    def test_filters(self):
        nearest = CentreCrop(filter='nearest')(self.image, 30, 30)
        np.testing.assert_array_equal(np.asarray(nearest), self.pixels[:, 10:40])
        found = {np.asarray(Stretch(filter)(self.image, 9, 9)).tobytes() for filter in FILTERS}
        self.assertLen(found, 6)
        self.assertEqual([Image.Resampling[filter.upper()] for filter in FILTERS], [0, 1, 2, 3, 4, 5])
        self.assertIs(Stretch()(self.image, 50, 30), self.image)

    def test_random_parts(self):
        fit, rng = RandomCrop(scale=(0.1, 0.5), ratio=(0.5, 2.0)), np.random.default_rng(0)
        found = np.array([fit.box((500, 300), (20, 10), rng) for _ in range(2000)])
        left, top, right, bottom = found.T
        share, ratio = (right - left) * (bottom - top) / 150_000, (right - left) / (bottom - top)
        self.assertTrue(((left >= 0) & (top >= 0) & (right <= 500) & (bottom <= 300)).all())
        self.assertBetween(share.min(), 0.095, 0.11)
        self.assertBetween(share.max(), 0.49, 0.51)
        self.assertBetween(ratio.min(), 0.97, 1.05)  # of a batch that is twice as wide as high
        self.assertBetween(ratio.max(), 3.8, 4.1)
        self.assertAlmostEqual(share.mean(), 0.3, delta=0.01)
        self.assertTrue(fit.drawn)
        self.assertFalse(CentreCrop().drawn)

    def test_boxes_are_those_of_scale_and_ratio(self):
        found = boxes(40, 40, 3, (1.0, 1.0), (1.0, 1.0), np.random.default_rng(0))
        np.testing.assert_array_equal(found, [[0, 40, 0, 40]] * 3)

    @parameterized.parameters(
        (lambda: Stretch(filter='area'), "filter='area'.*filter is one of nearest, lanczos, bilinear, bicubic, box"),
        (lambda: CentreCrop(share=0.0), 'share must be above 0 and at most 1'),
        (lambda: Stretch(share=1.5), 'share must be above 0 and at most 1'),
        (lambda: RandomCrop(share=1.1), 'share must be above 0 and at most 1'),
        (lambda: RandomCrop(scale=(0.5, 0.1)), r'RandomCrop\(scale=\(0.5, 0.1\)\) is no range'),
        (lambda: RandomCrop(ratio=(0.0, 0.1)), r'RandomCrop\(ratio=\(0.0, 0.1\)\) is no range'))
    def test_errors(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()


if __name__ == '__main__':
    absltest.main()
