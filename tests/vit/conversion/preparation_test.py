"""How images are prepared, against processors of transformers and transforms of timm (record_preparation.py)."""

import dataclasses
import json
import types

import numpy as np
from absl.testing import absltest, parameterized
from PIL import Image

from data.images.fit import FILTERS, Fit, RandomCrop
from data.images.steps import Step
from tests.recorded import REFERENCE
from training.config import resolve
from transformer.conversion import fields
from vit.conversion import preparation, timm

CASES = json.loads((REFERENCE / 'preparation.json').read_text())


def read(settings, kind='vit', size=8, channels=3):
    return preparation.read(settings, {'model_type': kind, 'image_size': size, 'num_channels': channels})


def of_case(name):
    if name.startswith('timm'):
        return preparation.read(None, timm.flat({'architecture': 'davit_tiny', 'pretrained_cfg': CASES[name]}))
    return read(CASES[name])


def parsed(found):
    """(the fit, the normalisation) of a preparation, as a run reads its config."""
    fields = found.fields()
    return resolve.parse(fields['fit'], Fit, 'data.fit'), resolve.parse(fields['steps'], Step, 'data.steps')


def run_of(found, channels=3):
    """What of a run's data says how images are prepared."""
    fit, normalize = parsed(found)
    return types.SimpleNamespace(fit=fit, shapes={'image': ((4, found.height, found.width, channels), np.float32)},
                                 normalization=(list(normalize.mean), list(normalize.std)))


# Of images that are not square timm rounds the longer side to the nearest pixel, and not down; these agree.
AGREE = {'timm_wide': [0, 2]}
# (The largest difference, the largest share of numbers that differ) in levels of 255. torchvision resizes with weights of 16
# bits; Pillow rounds between its two passes, and for a part of an image may take them in the other order.
BOUND = {'images': (2, 0.1), 'pillow': (1, 0.15)}


class PixelsTest(parameterized.TestCase):
    """A run rounds what it has resized to 8 bits, as they do, and takes the part before and not after that."""

    def pixels(self, name, recorded):
        """([image, height, width, channels] as a run prepares the recorded images, the standard deviations)."""
        found = of_case(name)
        fit, normalize = parsed(found)
        images = [Image.fromarray(recorded[f'image_{i}']) for i in range(4)]
        resized = np.stack([np.asarray(fit(one, found.width, found.height), np.float32) / 255 for one in images])
        return normalize({'image': resized})['image'], np.float32(normalize.std)

    @parameterized.parameters(*CASES)
    def test_are_those_of_the_original(self, name):
        with np.load(REFERENCE / 'preparation.npz') as recorded:
            ours, std = self.pixels(name, recorded)
            step, agree = max(1, ours.shape[2] // 10), AGREE.get(name, [0, 1, 2, 3])
            kinds = [kind for kind in BOUND if f'{name}/{kind}' in recorded]
            self.assertNotEmpty(kinds)
            for kind in kinds:
                theirs = recorded[f'{name}/{kind}'].transpose(0, 2, 3, 1)
                levels = (ours[:, ::step, ::step] - theirs)[agree] * std * 255
                largest, share = BOUND['pillow' if name.startswith('timm') else kind]
                np.testing.assert_allclose(levels, np.rint(levels), atol=1e-3)  # one normalisation
                self.assertLessEqual(np.abs(levels).max(), largest + 1e-3)
                self.assertLessEqual((np.abs(levels) > 0.5).mean(), share)


class PreparationTest(parameterized.TestCase):
    """What is read, what is refused, and what is written."""

    @parameterized.parameters(
        ('vit', "Stretch()", (20, 20)), ('vit_wide', "Stretch(filter='lanczos')", (13, 22)),
        ('swin', "Stretch(filter='bicubic')", (24, 24)), ('deit', "Stretch(filter='bicubic', share=0.8)", (20, 20)),
        ('deit_wide', "Stretch(filter='hamming', share=0.875)", (14, 21)),
        ('resnet', "CentreCrop(filter='bicubic', share=0.875)", (21, 21)),
        ('resnet_large', "Stretch(filter='bicubic')", (384, 384)),
        ('dinov2', "CentreCrop(filter='bicubic', share=0.88)", (22, 22)), ('bit', "CentreCrop(filter='nearest')", (19, 19)),
        ('timm', "CentreCrop(filter='bicubic', share=0.9)", (22, 22)),
        ('timm_squash', "Stretch(filter='bicubic', share=0.95)", (20, 26)))
    def test_fits(self, name, fit, sides):
        found = of_case(name)
        self.assertEqual((found.fit, (found.height, found.width)), (fit, sides))

    @parameterized.parameters(*(name for name in CASES if not name.startswith('timm')))
    def test_out_and_in_again(self, name):
        found = of_case(name)
        again = read(preparation.processor(run_of(found)))
        (fit, _), (fit_again, _) = map(parsed, (found, again))
        self.assertEqual(fit_again.enlarged(found.height), fit.enlarged(found.height))  # 17 / 24 for 0.7, of 17 pixels
        self.assertEqual(dataclasses.replace(fit_again, share=fit.share), fit)
        self.assertEqual(dataclasses.replace(again, fit=found.fit), found)

    @parameterized.parameters('timm', 'timm_wide', 'timm_squash')
    def test_out_and_in_again_of_timm(self, name):
        found, config = of_case(name), timm.flat({'architecture': 'davit_tiny', 'pretrained_cfg': CASES[name]})
        names = {'mean': 'image_mean', 'std': 'image_std'}
        given = {names.get(key, key): value for key, value in preparation.pretrained(run_of(found)).items()}
        self.assertEqual(preparation.read(None, config | given), found)

    def test_every_share_is_that_of_whole_pixels(self):
        """However size / resized is rounded: the resized image has as many pixels as the processor says."""
        for whole in range(1, 400):
            for part in {max(1, whole - 7), max(1, whole * 7 // 8), whole}:
                settings = dict(image_processor_type='BitImageProcessor', size={'shortest_edge': whole}, crop_size=part)
                fit, _ = parsed(read(settings))
                self.assertEqual(fit.enlarged(part), whole)
        self.assertNotEqual(int(23 / (23 / 30)), 30)  # there are such roundings

    def test_a_random_part_goes_out_as_that_of_evaluation(self):
        found = of_case('resnet')
        run = run_of(found)
        run.fit = RandomCrop(filter='bicubic', share=0.875)
        self.assertEqual(read(preparation.processor(run)), found)

    def test_grey_images(self):
        """A number for all channels, one for each, and nothing that makes them coloured again."""
        found = read({'size': 8, 'image_mean': 0.25, 'image_std': [0.5]}, channels=1)
        self.assertEqual((found.mean, found.std), ((0.25,), (0.5,)))
        self.assertIs(preparation.processor(run_of(found, channels=1))['do_convert_rgb'], False)

    @parameterized.parameters(('resnet', "CentreCrop(filter='bicubic', share=0.875)"), ('swin', 'Stretch()'),
                              ('deit', "Stretch(filter='bicubic', share=0.875)"), ('vit', 'Stretch()'),
                              ('dinov2_with_registers', "CentreCrop(filter='bicubic')"))
    def test_a_file_that_names_no_processor(self, kind, fit):
        """That of the model; what the file does not say is as its class has it."""
        self.assertEqual(read({} if kind != 'resnet' else {'size': 224}, kind).fit, fit)

    def test_a_folder_without_the_file(self):
        found = read(None, size=(6, 10))
        self.assertEqual((found.height, found.width, found.fit, found.mean), (6, 10, 'Stretch()', (0.5, 0.5, 0.5)))

    @parameterized.parameters(
        ({'image_processor_type': 'BeitImageProcessor'}, 'is of BeitImageProcessor, which is not supported; expected one of V'),
        ({'rescale_offset': True}, 'rescale_offset=True, which is not known for ViTImageProcessor; leave it out if'),
        ({'crop_pct': 0.9}, 'crop_pct=0.9, which is not known for ViTImageProcessor'),
        ({'do_resize': False}, 'do_resize=False, which is not supported; expected True'),
        ({'do_pad': True}, 'do_pad=True, .*; expected False'),
        ({'do_center_crop': 1.5}, 'do_center_crop=1.5, .*; expected True or False'),
        ({'resample': 6}, 'resample=6, .*; expected the number of a filter of Pillow, 0 to 5'),
        ({'rescale_factor': 0}, 'rescale_factor=0, .*; expected a number above 0'),
        ({'size': {'shortest_edge': 12}}, "size={'shortest_edge': 12}, .*; expected a height and a width, or also do_center"),
        ({'size': {'shortest_edge': 12, 'longest_edge': 40}}, "size={.*longest_edge.*}, .*; expected a height and a width, or"),
        ({'size': 0}, 'size=0, which is not supported'),
        ({'size': [8, 'x']}, r"size=\[8, 'x'\], which is not supported"),
        ({'size': 20, 'do_center_crop': True, 'crop_size': 24}, 'crop_size=24, .*; expected a height and a width of at most'),
        ({'size': 20, 'do_center_crop': True, 'crop_size': [10, 15]}, r'crop_size=\[10, 15\], .*; expected one with the prop'),
        ({'size': {'shortest_edge': 20}, 'do_center_crop': True, 'crop_size': [10, 15]},
         r'crop_size=\[10, 15\], .*; expected a square'),
        ({'size': 20, 'default_to_square': False}, 'default_to_square=False, which is not known'),
        ({'image_processor_type': 'ConvNextImageProcessor', 'size': [20, 20]}, 'expected that of the shorter side'),
        ({'image_processor_type': 'ConvNextImageProcessor', 'size': 20, 'do_center_crop': True, 'crop_size': 18},
         'crop_size=18, which is not supported; expected 20'),
        ({'image_processor_type': 'ConvNextImageProcessor', 'size': 20, 'crop_pct': 1.5}, 'crop_pct=1.5, .*; expected a numb'),
        ({'image_mean': [0.5]}, r'image_mean=\[0.5\], and they have 3 channels; give a number for each'))
    def test_what_cannot_be_expressed(self, settings, message):
        with self.assertRaisesRegex(ValueError, message):
            read(settings)

    @parameterized.parameters(
        {'label_names': {'1': 'dog', '0': 'cat'}, 'pretrained_cfg': {}}, {'pretrained_cfg': {'label_names': ['cat', 'dog']}},
        {'pretrained_cfg': {'labels': ['cat', 'dog']}}, {'labels': ['cat', 'dog']},
        {'label_names': ['cat', 'dog'], 'pretrained_cfg': {'label_names': ['a', 'b']}})
    def test_names_of_classes_in_timm(self, **config):
        self.assertEqual(fields.labels(timm.flat({'architecture': 'davit_tiny', 'num_classes': 2} | config)), ['cat', 'dog'])

    def test_a_folder_of_timm_without_pretrained_cfg(self):
        """As its older versions wrote them, with the same fields."""
        given = {'input_size': [3, 96, 128], 'interpolation': 'bilinear', 'crop_pct': 0.9, 'mean': [0.5, 0.4, 0.3],
                 'std': [0.5, 0.4, 0.6], 'num_classes': 3}
        old, new = (timm.flat({'architecture': 'davit_tiny', **more}) for more in (given, {'pretrained_cfg': given}))
        self.assertEqual(old, new)
        self.assertEqual((old['image_size'], preparation.read(None, old).mean), ([96, 128], (0.5, 0.4, 0.3)))

    @parameterized.parameters(
        ({'crop_mode': 'border'}, "crop_mode='border', which is not supported; expected one of center, squash"),
        ({'interpolation': 'random'}, "interpolation='random', which is not supported; expected one of nearest, lanczos"),
        ({'crop_pct': 2}, 'pretrained_cfg in config.json has crop_pct=2'))
    def test_what_cannot_be_expressed_of_timm(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            preparation.read(None, timm.flat({'architecture': 'davit_tiny', 'pretrained_cfg': changes}))

    def test_a_run_that_no_processor_prepares(self):
        run = run_of(of_case('timm_wide'))
        with self.assertRaisesRegex(ValueError, r"data.fit=CentreCrop\(.*\) makes images of 18x26 that keep their prop"):
            preparation.processor(run)
        self.assertEqual(preparation.FILTERS, FILTERS)


if __name__ == '__main__':
    absltest.main()
