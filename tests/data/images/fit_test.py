import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from data.images.fit import CentreCrop, RandomCrop, Stretch, boxes


class FitTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.pixels = np.random.default_rng(0).integers(0, 256, (30, 50)).astype(np.uint8)
        self.image = Image.fromarray(self.pixels)

    @parameterized.parameters(
        (Stretch(), 20, 10, (0, 0, 50, 30)),
        (CentreCrop(), 20, 20, (10, 0, 40, 30)),  # the shorter side
        (CentreCrop(), 20, 10, (0, 2.5, 50, 27.5)),
        (CentreCrop(share=0.5), 20, 20, (17.5, 7.5, 32.5, 22.5)),
        (RandomCrop(share=0.5), 20, 20, (17.5, 7.5, 32.5, 22.5)))  # in evaluation
    def test_parts(self, fit, width, height, want):
        self.assertEqual(fit.box(50, 30, width / height, None), want)
        self.assertEqual(fit(self.image, width, height).size, (width, height))

    def test_shorter_side_and_centre_crop(self):
        """256 / 224 of the usual preparation: the same part as of resizing to 32 and cutting out the centre of 28."""
        smooth = Image.fromarray(np.add.outer(np.arange(64), np.arange(96)).astype(np.uint8))
        twice = np.asarray(smooth.resize((48, 32), Image.Resampling.BILINEAR))[2:30, 10:38].astype(int)
        once = np.asarray(CentreCrop(share=28 / 32)(smooth, 28, 28)).astype(int)
        self.assertLessEqual(np.abs(once - twice).max(), 1)

    def test_filters(self):
        nearest = CentreCrop(filter='nearest')(self.image, 30, 30)
        np.testing.assert_array_equal(np.asarray(nearest), self.pixels[:, 10:40])
        found = {np.asarray(Stretch(filter)(self.image, 9, 9)).tobytes() for filter in
                 ('nearest', 'bilinear', 'bicubic', 'lanczos')}
        self.assertLen(found, 4)
        self.assertIs(Stretch()(self.image, 50, 30), self.image)

    def test_random_parts(self):
        fit, rng = RandomCrop(scale=(0.1, 0.5), ratio=(0.5, 2.0)), np.random.default_rng(0)
        found = np.array([fit.box(500, 300, 2.0, rng) for _ in range(2000)])
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
        (lambda: Stretch(filter='box'), "filter='box'.*filter is one of nearest, bilinear, bicubic, lanczos"),
        (lambda: CentreCrop(share=0.0), 'share must be above 0 and at most 1'),
        (lambda: RandomCrop(share=1.1), 'share must be above 0 and at most 1'),
        (lambda: RandomCrop(scale=(0.5, 0.1)), r'RandomCrop\(scale=\(0.5, 0.1\)\) is no range'),
        (lambda: RandomCrop(ratio=(0.0, 0.1)), r'RandomCrop\(ratio=\(0.0, 0.1\)\) is no range'))
    def test_errors(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()


if __name__ == '__main__':
    absltest.main()
