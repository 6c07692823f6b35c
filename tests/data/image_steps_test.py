import numpy as np
from absl.testing import absltest, parameterized

from data import image_steps


def batch(count=200):
    image = np.random.default_rng(0).random((count, 5, 6, 2)).astype(np.float32) + 0.1
    return {'image': image, 'label': np.arange(count)}


class ImageStepsTest(parameterized.TestCase):
    def test_shift(self):
        before = batch()
        after = image_steps.Shift(pixels=2)(before, np.random.default_rng(1))
        seen = set()
        for old, new in zip(before['image'], after['image'], strict=True):
            padded = np.pad(old, [(2, 2), (2, 2), (0, 0)])
            places = [(y, x) for y in range(5) for x in range(5) if np.array_equal(padded[y : y + 5, x : x + 6], new)]
            self.assertLen(places, 1)
            seen.add(places[0])
        self.assertLen(seen, 25)
        self.assertEqual((after['image'].dtype, after['label'] is before['label']), (np.float32, True))

    def test_flip(self):
        before = batch()
        after = image_steps.Flip()(before, np.random.default_rng(1))
        same = (after['image'] == before['image']).all((1, 2, 3))
        mirrored = (after['image'] == before['image'][:, :, ::-1]).all((1, 2, 3))
        self.assertTrue(np.all(same ^ mirrored))
        self.assertBetween(same.mean(), 0.35, 0.65)

    def test_chance_comes_from_the_generator(self):
        for step in (image_steps.Shift(), image_steps.Flip()):
            first, again, other = (step(batch(), np.random.default_rng(seed))['image'] for seed in (1, 1, 2))
            np.testing.assert_array_equal(first, again)
            self.assertFalse(np.array_equal(first, other))

    def test_parse(self):
        self.assertEqual(image_steps.parse(''), ())
        expected = image_steps.Shift(pixels=3), image_steps.Flip()
        self.assertEqual(image_steps.parse('Shift(pixels=3) | Flip()'), expected)

    @parameterized.parameters('Crop()', 'Shift(pixels=-1)', 'Shift() |', 'Flip')
    def test_errors(self, expression):
        with self.assertRaisesRegex(ValueError, 'Shift|data.steps'):
            image_steps.parse(expression)


if __name__ == '__main__':
    absltest.main()
