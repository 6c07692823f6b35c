import math

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image, ImageEnhance, ImageOps

from data.images.steps import Crop, Erase, Flip, Jitter, Normalize, OneOf, RandAugment, ResizedCrop, Step
from training.config import resolve

HEIGHT, WIDTH = 16, 20  # Pillow equalizes from 256 pixels on
RANDOM = (Crop(), ResizedCrop(), Flip(), Jitter(), RandAugment(), Erase())


def batch(count=200, height=5, width=6, channels=2):
    image = np.random.default_rng(0).random((count, height, width, channels)).astype(np.float32) * 0.9 + 0.1
    return {'image': image, 'label': np.arange(count)}


def applied(step, before, seed=1):
    return step(before, np.random.default_rng(seed))['image']


class StepsTest(parameterized.TestCase):
    @parameterized.parameters(*RANDOM, Normalize())
    def test_contract(self, step):
        before = batch(50, HEIGHT, WIDTH, 3)
        copy = before['image'].copy()
        after = step(before, np.random.default_rng(1))
        self.assertEqual((after['image'].dtype, after['image'].shape), (np.float32, copy.shape))
        self.assertIs(after['label'], before['label'])
        np.testing.assert_array_equal(before['image'], copy)  # it belongs to somebody else
        if not isinstance(step, Normalize):
            self.assertBetween(after['image'].min(), 0, after['image'].max())
            self.assertLessEqual(after['image'].max(), 1)

    @parameterized.parameters(*RANDOM)
    def test_chance_comes_from_the_generator_for_every_example(self, step):
        before = {'image': np.repeat(batch(1, HEIGHT, WIDTH, 3)['image'], 60, axis=0)}
        first, again, other = (applied(step, before, seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(first, again)
        self.assertFalse(np.array_equal(first, other))
        expected = 2 if isinstance(step, Flip) else 12
        self.assertGreaterEqual(len({image.tobytes() for image in first}), expected)

    def test_crop(self):
        before = batch()
        after, seen = applied(Crop(padding=2), before), set()
        for old, new in zip(before['image'], after, strict=True):
            padded = np.pad(old, [(2, 2), (2, 2), (0, 0)])
            places = [(y, x) for y in range(5) for x in range(5) if np.array_equal(padded[y : y + 5, x : x + 6], new)]
            self.assertLen(places, 1)
            seen.add(places[0])
        self.assertLen(seen, 25)
        np.testing.assert_array_equal(applied(Crop(padding=0), before), before['image'])

    def test_flip(self):
        before = batch()
        after = applied(Flip(), before)
        same = (after == before['image']).all((1, 2, 3))
        mirrored = (after == before['image'][:, :, ::-1]).all((1, 2, 3))
        self.assertTrue(np.all(same ^ mirrored))
        self.assertBetween(same.mean(), 0.35, 0.65)

    def test_normalize(self):
        image = batch(4, HEIGHT, WIDTH, 3)['image']
        step = Normalize(mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3))
        expected = (np.float64(image) - [0.4, 0.5, 0.6]) / [0.1, 0.2, 0.3]
        after = step({'image': image})['image']
        np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(step.undone(after), image, atol=1e-6)
        one = Normalize(mean=(0.4,), std=(0.1,))({'image': image})['image']
        np.testing.assert_allclose(one, (np.float64(image) - 0.4) / 0.1, rtol=1e-5, atol=1e-6)
        with self.assertRaisesRegex(ValueError, r'is for 3 channels, but the images have 1; give one number'):
            step({'image': image[..., :1]})


class ResizedCropTest(parameterized.TestCase):
    def boxes(self, step, count=400, seed=1):
        """(height, width, top, left) of the boxes, read off images that hold the coordinates of their pixels."""
        ramps = np.stack(np.meshgrid(np.arange(HEIGHT), np.arange(WIDTH), indexing='ij'), -1).astype(np.float32)
        after = applied(step, {'image': np.repeat(ramps[None], count, axis=0)}, seed).astype(np.float64)
        found = []
        for axis, size in ((0, HEIGHT), (1, WIDTH)):
            line = after[:, :, 0, 0] if axis == 0 else after[:, 0, :, 1]
            middle = size // 2
            share = line[:, middle] - line[:, middle - 1]  # of the side: a pixel of the result is so many of the image
            found.append((share * size, line[:, middle] + 0.5 - (middle + 0.5) * share))
        (rows, top), (columns, left) = found
        return np.stack([rows, columns, top, left], 1)

    def test_equals_bilinear_interpolation_of_the_box(self):
        before = batch(12, HEIGHT, WIDTH)
        boxes = np.rint(self.boxes(ResizedCrop(scale=(0.1, 0.9)), 12)).astype(int)
        after = applied(ResizedCrop(scale=(0.1, 0.9)), before)
        for old, new, (rows, columns, top, left) in zip(before['image'], after, boxes, strict=True):
            part = old[top : top + rows, left : left + columns].astype(np.float64)
            for y in range(HEIGHT):
                for x in range(WIDTH):
                    down = np.clip((y + 0.5) * rows / HEIGHT - 0.5, 0, rows - 1)
                    along = np.clip((x + 0.5) * columns / WIDTH - 0.5, 0, columns - 1)
                    expected = 0
                    for row in {math.floor(down), math.ceil(down)}:
                        for column in {math.floor(along), math.ceil(along)}:
                            expected += (1 - abs(down - row)) * (1 - abs(along - column)) * part[row, column]
                    np.testing.assert_allclose(new[y, x], expected, atol=1e-5)

    @parameterized.parameters(((0.08, 1.0), (0.75, 4 / 3)), ((0.3, 0.5), (0.75, 1.5)), ((0.25, 0.25), (1.0, 1.0)))
    def test_boxes_are_in_the_ranges(self, scale, ratio):
        rows, columns, top, left = self.boxes(ResizedCrop(scale=scale, ratio=ratio)).T
        area, step = rows * columns / (HEIGHT * WIDTH), 0.51  # sides are rounded to pixels
        self.assertTrue(np.all((rows - step) * (columns - step) / (HEIGHT * WIDTH) <= scale[1] + 1e-6))
        self.assertTrue(np.all((rows + step) * (columns + step) / (HEIGHT * WIDTH) >= scale[0] - 1e-6))
        fits = rows < HEIGHT - 0.5  # the largest squares are cut
        self.assertTrue(np.all(((columns + step) / (rows - step) >= ratio[0])[fits]))
        self.assertTrue(np.all(((columns - step) / (rows + step) <= ratio[1])[fits]))
        self.assertAlmostEqual(area.mean(), sum(scale) / 2, delta=0.05)
        for start, size, most in ((top, rows, HEIGHT), (left, columns, WIDTH)):
            self.assertTrue(np.all((start > -0.01) & (start + size < most + 0.01)))
            free = most - size > 0.5
            self.assertAlmostEqual((start[free] / (most - size[free])).mean(), 0.5, delta=0.1)


class JitterTest(parameterized.TestCase):
    @parameterized.parameters(('brightness', ImageEnhance.Brightness), ('contrast', ImageEnhance.Contrast),
                              ('saturation', ImageEnhance.Color))
    def test_each_equals_pillow(self, name, kind):
        """Some factor of Pillow's enhancement, of 8 bits, gives every image; those are spread over their range."""
        pixels = np.random.default_rng(0).integers(0, 256, (40, 6, 7, 3)).astype(np.uint8)
        none = dict.fromkeys(('brightness', 'contrast', 'saturation'), 0.0)
        after = applied(Jitter(**none | {name: 0.5}), {'image': pixels.astype(np.float32) / 255}) * 255
        grid, found = np.linspace(0.5, 1.5, 401), []
        for before, got in zip(pixels, after):
            image = kind(Image.fromarray(before))
            apart = [np.abs(np.asarray(image.enhance(factor), float) - got).max() for factor in grid]
            self.assertLess(min(apart), 2.5)  # Pillow rounds the mean and its results
            found.append(grid[np.argmin(apart)])
        self.assertBetween(min(found), 0.5, 0.6)
        self.assertBetween(max(found), 1.4, 1.5)
        np.testing.assert_allclose(applied(Jitter(**none), {'image': pixels / np.float32(255)}) * 255, pixels, atol=1e-4)

    def test_grey(self):
        before = batch(20, channels=1)
        np.testing.assert_allclose(applied(Jitter(0.0, 0.0, 1.0), before), before['image'], atol=1e-6)
        self.assertTrue((applied(Jitter(0.5, 0.0, 0.0), before) != before['image']).any((1, 2, 3)).all())


class RandAugmentTest(parameterized.TestCase):
    def candidates(self, image, magnitude, fill):
        """{name: PIL image}, as the paper and AutoAugment's table 6 describe the operations."""
        def affine(*matrix):
            return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill)

        found, share = {
            'identity': image,
            'autocontrast': ImageOps.autocontrast(image),
            'equalize': ImageOps.equalize(image),
            'solarize': image.point([v if v < 256 - 25.6 * magnitude else 255 - v for v in range(256)] * len(image.getbands())),
            'posterize': image.point(
                [v - v % 2 ** min(7, round(0.4 * magnitude)) for v in range(256)] * len(image.getbands())),
        }, magnitude / 10
        for sign in (-1, 1):
            for kind in (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Brightness, ImageEnhance.Sharpness):
                found[f'{kind.__name__} {sign}'] = kind(image).enhance(max(0.1, 1 + sign * 0.9 * share))
            found[f'rotate {sign}'] = image.rotate(sign * 30 * share, Image.Resampling.BILINEAR, fillcolor=fill)
            found[f'shear_x {sign}'] = affine(1, sign * 0.3 * share, 0, 0, 1, 0)
            found[f'shear_y {sign}'] = affine(1, 0, 0, sign * 0.3 * share, 1, 0)
            found[f'translate_x {sign}'] = affine(1, 0, sign * share * 150 / 331 * image.width, 0, 1, 0)
            found[f'translate_y {sign}'] = affine(1, 0, 0, 0, 1, sign * share * 150 / 331 * image.height)
        return found

    def pixels(self, count, channels=3):
        return np.random.default_rng(3).integers(30, 200, (count, HEIGHT, WIDTH, channels), np.uint8)

    def picture(self, pixels):
        return Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)

    @parameterized.parameters((9, 0.5, 3), (4, 0.0, 3), (22, 1.0, 3), (9, 0.25, 1))
    def test_every_operation_equals_pillow(self, magnitude, fill, channels):
        pixels, seen = self.pixels(420, channels), {}
        step = RandAugment(count=1, magnitude=magnitude, fill=fill)
        after = applied(step, {'image': pixels.astype(np.float32) / 255})
        for old, new in zip(pixels, np.rint(after * 255).astype(np.uint8), strict=True):
            known = self.candidates(self.picture(old), magnitude, (round(fill * 255),) * channels)
            names = [name for name, image in known.items() if np.array_equal(np.asarray(image), new.squeeze())]
            self.assertNotEmpty(names)
            for name in names:
                seen[name] = seen.get(name, 0) + 1
        self.assertEqual(set(seen), set(known))
        if (magnitude, channels) == (9, 3):  # no two operations look alike: each is one of 14 draws, directions halve it
            for name, times in seen.items():
                self.assertBetween(times, *((4, 30) if name[-1] == '1' else (14, 50)), name)

    def test_several_operations_follow_each_other(self):
        pixels = self.pixels(10)
        after = applied(RandAugment(count=2, magnitude=5), {'image': pixels.astype(np.float32) / 255})
        for old, new in zip(pixels, np.rint(after * 255).astype(np.uint8), strict=True):
            known = {image.tobytes() for first in self.candidates(self.picture(old), 5, (128,) * 3).values()
                     for image in self.candidates(first, 5, (128,) * 3).values()}
            self.assertIn(new.tobytes(), known)

    def test_magnitude_zero_leaves_what_has_no_strength(self):
        pixels = self.pixels(300)
        after = np.rint(applied(RandAugment(count=1, magnitude=0), {'image': pixels.astype(np.float32) / 255}) * 255)
        changed = [not np.array_equal(old, new) for old, new in zip(pixels, after, strict=True)]
        self.assertAlmostEqual(np.mean(changed), 2 / 14, delta=0.06)  # autocontrast and equalize

    def test_two_channels_are_refused(self):
        with self.assertRaisesRegex(ValueError, 'RandAugment needs 1 or 3 channels, but the images have 2'):
            applied(RandAugment(), batch(2))


class EraseTest(parameterized.TestCase):
    def erased(self, step, count=600, height=40, width=60):
        """(whether, rows, columns, noise) of the boxes in images that are 2 everywhere."""
        after = applied(step, {'image': np.full((count, height, width, 3), 2, np.float32)})
        gone = (after != 2).all(-1)
        np.testing.assert_array_equal(gone, (after != 2).any(-1))
        rows, columns = gone.any(2), gone.any(1)
        np.testing.assert_array_equal(gone, rows[:, :, None] & columns[:, None, :])
        for side in (rows, columns):  # one box, without a gap
            self.assertLessEqual(np.abs(np.diff(side.astype(int), axis=1, prepend=0, append=0)).sum(1).max(), 2)
        return gone.any((1, 2)), rows, columns, after[gone]

    @parameterized.parameters(((0.02, 0.4), (0.3, 1 / 0.3)), ((0.2, 0.3), (0.5, 0.6)), ((0.9, 1.0), (0.3, 3.0)))
    def test_share_and_shape_are_in_the_ranges(self, scale, ratio):
        hit, rows, columns, _ = self.erased(Erase(probability=1.0, scale=scale, ratio=ratio))
        self.assertTrue(hit.all())
        height, width, step = rows.sum(1), columns.sum(1), 0.51
        self.assertTrue(np.all((height + step) * (width + step) / 2400 >= scale[0]))
        self.assertTrue(np.all((height - step) * (width - step) / 2400 <= scale[1]))
        self.assertAlmostEqual((height * width / 2400).mean(), sum(scale) / 2, delta=0.03)
        self.assertTrue(np.all((width + step) / (height - step) >= ratio[0]))
        self.assertTrue(np.all((width - step) / (height + step) <= ratio[1]))
        if scale[1] < 0.5:  # anywhere
            for start, free in ((rows.argmax(1), 40 - height), (columns.argmax(1), 60 - width)):
                self.assertAlmostEqual((start[free > 0] / free[free > 0]).mean(), 0.5, delta=0.05)

    @parameterized.parameters(0.0, 0.25, 1.0)
    def test_probability(self, probability):
        hit, *_ = self.erased(Erase(probability=probability))
        self.assertAlmostEqual(hit.mean(), probability, delta=0.06 if 0 < probability < 1 else 0)

    def test_noise_is_uniform(self):
        *_, noise = self.erased(Erase(), count=200)
        self.assertAlmostEqual(noise.mean(), 0.5, delta=0.01)
        self.assertAlmostEqual(noise.var(), 1 / 12, delta=0.01)
        self.assertBetween(noise.min(), 0, noise.max())
        self.assertLess(noise.max(), 1)


class JoinedTest(parameterized.TestCase):
    def test_one_after_the_other(self):
        before, rng = batch(30, HEIGHT, WIDTH, 3), np.random.default_rng(3)
        after = Flip()(Crop(2)(before, rng), rng)['image']
        np.testing.assert_array_equal(applied(Crop(2) >> Flip(), before, 3), after)
        self.assertFalse(np.array_equal(applied(Flip() >> Crop(2), before, 3), after))
        last = (after - np.float32(0.5)) / np.float32(0.5)
        np.testing.assert_array_equal(applied(Crop(2) >> Flip() >> Normalize(), before, 3), last)
        self.assertEqual((Crop() >> Flip()) >> Erase(), Crop() >> (Flip() >> Erase()))
        with self.assertRaises(TypeError):
            Crop() >> 3

    def test_one_of_several_for_every_example(self):
        before = batch(3000)
        step = OneOf(Crop(0), Flip() >> Crop(0), Erase(1.0, scale=(0.9, 0.9), ratio=(1.0, 1.0)))
        after = step(before, np.random.default_rng(0))
        self.assertIs(after['label'], before['label'])
        same = (after['image'] == before['image']).all((1, 2, 3))
        mirrored = (after['image'] == before['image'][:, :, ::-1]).all((1, 2, 3))
        self.assertAlmostEqual(same.mean(), 1 / 3 + 1 / 6, delta=0.03)  # half of what is flipped stays
        self.assertAlmostEqual(mirrored.mean(), 1 / 6, delta=0.03)
        np.testing.assert_array_equal(after['image'], applied(step, before, 0))
        self.assertLen(applied(OneOf(Crop(), Flip()), batch(1)), 1)  # nothing is left for the other

    def test_expressions(self):
        text = ('Crop(padding=3) >> OneOf(Flip(), ResizedCrop(scale=(0.5, 1)) >> Erase(probability=1)) >> '
                'RandAugment(count=1, magnitude=4) >> Normalize(mean=(0.1,), std=(0.3,))')
        parsed = resolve.parse(text, Step, 'steps')
        self.assertEqual(parsed, Crop(3) >> OneOf(Flip(), ResizedCrop(scale=(0.5, 1)) >> Erase(1.0)) >> RandAugment(1, 4)
                         >> Normalize((0.1,), (0.3,)))
        self.assertEqual(resolve.parse(repr(parsed), Step, 'steps'), parsed)
        self.assertEqual(resolve.describe('data.images.labelled:Images', steps=Crop(2) >> Flip()).steps,
                         'Crop(padding=2) >> Flip()')

    @parameterized.parameters(
        ('Jitter(contrast=1.5)', 'contrast and saturation must be from 0 to 1'),
        ('Shift()', "there is no 'Shift'; known: Crop, Erase, Flip, "),
        ('Crop(padding=-1)', r'Crop\(padding=-1\) is out of range; padding must be 0 or more'),
        ('Crop() >>', 'is not a call expression such as Crop'),
        ('Crop() | Flip()', r'Step has no \|; write a >> b or OneOf\(a, b\)[.]$'),
        ('OneOf(Flip())', r'OneOf\(Flip\(\)\) is no choice; give two steps or more'),
        ('OneOf(Flip(), Normalize())', 'put Normalize.. after it'),
        ('OneOf(Flip(), 3)', 'expected one of Crop, Erase'),
        ('OneOf(Flip(), steps=(Crop(),))', "OneOf has no field 'steps'"),
        ('ResizedCrop(scale=(0, 1))', r'ResizedCrop\(scale=\(0, 1\)\) is no range; expected .* above 0 and at most 1'),
        ('ResizedCrop(scale=(0.5, 2.0))', 'is no range'),
        ('ResizedCrop(scale=(0.5,))', 'is no range'),
        ('ResizedCrop(ratio=(2, 1))', r'ratio=\(2, 1\)\) is no range; expected \(least, largest\), above 0[.]'),
        ("ResizedCrop(ratio=('a', 'b'))", 'is no range'),
        ('ResizedCrop(scale=0.5)', 'scale of ResizedCrop is 0.5; expected tuple'),
        ('RandAugment(count=0)', 'count must be 1 or more'),
        ('RandAugment(magnitude=31)', 'magnitude from 0 to 30'),
        ('RandAugment(fill=2)', 'fill from 0 to 1'),
        ('Erase(probability=1.5)', r'Erase\(probability=1.5\) is out of range'),
        ('Erase(scale=(0.4, 0.02))', r'Erase\(scale=\(0.4, 0.02\)\) is no range'),
        ('Normalize(mean=(0.5, 0.5))', 'mean and std need as many numbers as each other'),
        ('Normalize(std=(0.0,))', 'those of std above 0'),
        ('Normalize(mean=(), std=())', 'mean and std need'),
        ('Normalize() >> Flip()', r'other steps need images in 0..1; put one Normalize\(\) at the end'),
    )
    def test_errors(self, expression, message):
        with self.assertRaisesRegex(ValueError, message):
            resolve.parse(expression, Step, 'steps')


if __name__ == '__main__':
    absltest.main()
