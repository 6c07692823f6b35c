import dataclasses
import gzip
import json
import os
import shutil
import struct
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from data.images.fit import CentreCrop, RandomCrop, Stretch
from data.images.labelled import Images
from data.images.steps import Crop, Erase, Flip, Normalize, OneOf, RandAugment, ResizedCrop

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (40, 6, 5), np.uint8)
LABELS = np.concatenate([np.arange(4), RNG.integers(0, 4, 36)]).astype(np.uint8)


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


class ImageCase(parameterized.TestCase):
    def write_idx(self, name, array, pack=False):
        contents = struct.pack(f'>HBB{array.ndim}I', 0, 8, array.ndim, *array.shape) + array.tobytes()
        (self.folder / f'{name}{".gz" * pack}').write_bytes(gzip.compress(contents) if pack else contents)

    def write_mnist(self, pack=True):
        self.write_idx('train-images-idx3-ubyte', PIXELS[:30], pack)
        self.write_idx('train-labels-idx1-ubyte', LABELS[:30], pack)
        self.write_idx('t10k-images-idx3-ubyte', PIXELS[30:], pack)
        self.write_idx('t10k-labels-idx1-ubyte', LABELS[30:], pack)

    def write_classes(self, base, count=5, mode='RGB', size=(5, 6)):
        for number, name in enumerate(('cat', 'dog')):
            (base / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                Image.new(mode, size, (40 * number + i) if mode == 'L' else (40 * number + i, 0, 255)).save(
                    base / name / f'{i}.png'
                )

    def opened(self, folder=None, **fields):
        return Images(**{'path': str(self.folder), 'batch_size': 4, **fields}).open(folder)

    def everything(self, evaluation):
        batches = list(evaluation)
        kept = [batch['example_weights'] > 0 for batch in batches]
        return tuple(
            np.concatenate([b[k][rows] for b, rows in zip(batches, kept, strict=True)]) for k in ('image', 'label')
        )


class IdxTest(ImageCase):
    @parameterized.parameters(('train[:20]', 'train[19:]', 'train'), ('train', 'all', 'train'), ('all', 'test', 'test'),
                              ('all[:31]', 'test', 'test'), ('train', 'all[20:]', 'train'),
                              ('train[:20]', 'train[20:]', ''), ('train', 'test', ''), ('all[:30]', 'test', ''))
    def test_held_out_images_are_not_trained_on(self, train, valid, shared):
        self.write_mnist(True)
        opened = self.opened(source='idx', train=train, valid=valid, test='')
        if shared:
            with self.assertRaisesRegex(ValueError, f"data.valid='.*' overlap in the part '?{shared}"):
                opened.evaluation('valid', 4)
        else:
            opened.evaluation('valid', 4)

    @parameterized.parameters(True, False)
    def test_parts(self, pack):
        self.write_mnist(pack)
        opened = self.opened(source='idx', train='train[:20]', valid='train[20:]', test='test')
        self.assertEqual(opened.facts, {'classes': 4})
        self.assertEqual(opened.shapes['image'][0][1:], (6, 5, 1))
        self.assertEqual(opened.classes, ('0', '1', '2', '3'))
        expected = {'train': slice(0, 20), 'valid': slice(20, 30), 'test': slice(30, 40), 'all': slice(0, 40)}
        for split, part in expected.items():
            evaluation = opened.evaluation(split, 7)
            image, label = self.everything(evaluation)
            np.testing.assert_allclose(image, PIXELS[part, ..., None] / np.float32(255), rtol=1e-6)
            np.testing.assert_array_equal(label, LABELS[part])
            self.assertEqual(evaluation.facts, {'images': len(LABELS[part])})
            self.assertEqual({len(array) for batch in evaluation for array in batch.values()}, {7})

    def test_the_test_part_of_idx_files_needs_no_field(self):
        self.write_mnist()
        opened = self.opened(source='idx', train='train[:20]', valid='train[20:]', test='')
        self.assertIn(f"; {len(PIXELS) - 30} in 'test', for eval.py --split=test", opened.describe())
        self.assertEqual(sum(batch['example_weights'].sum() for batch in opened.evaluation('test', 4)), len(PIXELS) - 30)

    def test_parts_of_several_sizes(self):
        self.write_mnist(pack=False)
        self.write_idx('t10k-images-idx3-ubyte', PIXELS[30:, :4])
        with self.assertRaisesRegex(ValueError, 'different shapes, train of 6x5x1 and test of 4x5x1; set data.size to'):
            self.opened(source='idx')
        opened = self.opened(source='idx', size=8, train='all', valid='')
        self.assertEqual(next(opened.train(0))['image'].shape[1:], (8, 8, 1))
        other = self.opened(source='idx', size=9, train='all', valid='')
        self.assertEqual(opened.digest('all'), other.digest('all'))
        images, _ = self.everything(opened.score([str(self.folder)], 4))  # of both sizes
        self.assertLen(images, len(PIXELS))
        self.write_idx('t10k-images-idx3-ubyte', np.stack([PIXELS[30:]] * 3, -1))
        with self.assertRaisesRegex(ValueError, 'train of 6x5x1 and test of 6x5x3; set data.channels to 1 or 3'):
            self.opened(source='idx')
        opened = self.opened(source='idx', channels=1, train='all', valid='')
        self.assertEqual(next(opened.train(0))['image'].shape[1:], (6, 5, 1))

    @parameterized.parameters('', 't10k-images-idx3-ubyte.gz', 'other')
    def test_score_takes_idx_files(self, name):
        self.write_mnist()
        opened = self.opened(source='idx', train='train')
        for kind, count in (('images', 3), ('labels', 1)):
            packed = (self.folder / f't10k-{kind}-idx{count}-ubyte.gz').read_bytes()
            (self.folder / ('other' if kind == 'images' else 'other.labels')).write_bytes(gzip.decompress(packed))
        path = self.folder / name
        if name == 'other':  # any name that has "images" in it, beside one that has "labels"
            path = (self.folder / 'other').rename(self.folder / 'my-images')
            (self.folder / 'other.labels').rename(self.folder / 'my-labels')
        evaluation = opened.score([str(path)], 4)
        part = slice(0 if name == '' else 30, 40)
        image, label = self.everything(evaluation)
        np.testing.assert_allclose(image, PIXELS[part, ..., None] / np.float32(255), rtol=1e-6)
        np.testing.assert_array_equal(label, LABELS[part])

    def test_score_refuses_other_idx_files(self):
        self.write_mnist()
        opened, other = self.opened(source='idx', train='train'), self.folder / 'other'
        other.mkdir()
        self.folder, kept = other, self.folder
        self.write_idx('my-images', PIXELS[:2, :3])
        self.write_idx('my-labels', LABELS[:2])
        self.assertEqual(self.everything(opened.score([str(other / 'my-images')], 4))[0].shape, (2, 6, 5, 1))  # resized
        self.write_idx('my-images', PIXELS[:2])
        self.write_idx('my-labels', LABELS[:2] + np.uint8(4))
        with self.assertRaisesRegex(ValueError, r'my-images has the label \d, and this run has 4 classes, counted from 0'):
            opened.score([str(other / 'my-images')], 4)
        with self.assertRaisesRegex(ValueError, '--path names .*my-images, which is IDX, and others that are not'):
            opened.score([str(other / 'my-images'), str(kept)[:-1]], 4)

    def test_score_takes_idx_files_in_a_run_that_draws_parts(self):
        self.write_mnist()
        self.write_classes(self.folder / 'folders', mode='L')
        for name in ('2', '3'):
            shutil.copytree(self.folder / 'folders' / 'cat', self.folder / 'folders' / name)
        drawn, centre = (
            self.opened(source='folder', path=str(self.folder / 'folders'), size=4, fit=fit).score([str(self.folder)], 40)
            for fit in (RandomCrop(), CentreCrop(share=0.875)))
        np.testing.assert_array_equal(self.everything(drawn)[0], self.everything(centre)[0])

    def test_one_file(self):
        self.write_mnist()
        opened = self.opened(
            source='idx', path=str(self.folder / 't10k-images-idx3-ubyte.gz'), train='test', valid=''
        )
        np.testing.assert_array_equal(self.everything(opened.evaluation('all', 3))[1], LABELS[30:])

    def test_size_and_channels(self):
        self.write_mnist()
        opened = self.opened(source='idx', size=8, channels=3)
        image, _ = self.everything(opened.evaluation('train', 7))
        self.assertEqual(image.shape, (24, 8, 8, 3))
        np.testing.assert_array_equal(image[..., 0], image[..., 2])
        resized = np.asarray(Image.fromarray(PIXELS[0]).resize((8, 8), Image.Resampling.BILINEAR)) / 255
        np.testing.assert_allclose(image[0, ..., 1], resized, rtol=1e-6)

    def test_damage(self):
        self.write_mnist(pack=False)
        images = self.folder / 'train-images-idx3-ubyte'
        whole = images.read_bytes()
        for contents, message in (
            (whole[:-1], 'cut short'),
            (b'\0\0\x09\3' + whole[4:], 'no IDX file of images: it has the magic number 2307, and expected is 2051'),
            (b'\0\0\x08\1' + whole[4:], 'no IDX file of images: it has the magic number 2049, and expected is 2051'),
            (b'\0\0\x08\4\0\1' + whole[6:],
             r'has the magic number 2052, where that of images is 2051 \(2052 with channels\), and the sizes 65.* x 6 x 5 x '),
            (b'', 'no IDX file of images: it has 0 bytes'),
            (whole[:4] + b'\xff' * 12, 'which makes [0-9,]+ bytes, and at most 1024 MB are read'),
        ):
            images.write_bytes(contents)
            with self.assertRaisesRegex(ValueError, f'train-images-idx3-ubyte .*{message}'):
                self.opened(source='idx')
        images.write_bytes(whole)
        (self.folder / 'train-labels-idx1-ubyte').write_bytes(whole)
        with self.assertRaisesRegex(ValueError, 'no IDX file of labels: it has the magic number 205., and expected is 2049'):
            self.opened(source='idx')
        images.unlink()
        (self.folder / 'train-images-idx3-ubyte.gz').write_bytes(gzip.compress(whole)[:-20])
        with self.assertRaisesRegex(ValueError, r'ubyte\.gz is damaged'):
            self.opened(source='idx')

    @parameterized.parameters((6, 5, 2), (6, 5, 4), (6, 5, 0), (0, 5, 1), (6, 0, 3), (0, 5))
    def test_forms_that_are_no_images(self, *shape):
        self.write_idx('train-images-idx3-ubyte', np.zeros((4, *shape), np.uint8))
        self.write_idx('train-labels-idx1-ubyte', LABELS[:4])
        with self.assertRaisesRegex(ValueError, f'ubyte has images of {" x ".join(map(str, shape))}.*; expected sides of 1 or '
                                                'more and 1 or 3 channels'):
            self.opened(source='idx', channels=3)

    def test_more_than_the_header_promises_is_not_read(self):
        self.write_mnist(pack=False)
        whole = (self.folder / 'train-images-idx3-ubyte').read_bytes()
        (self.folder / 'train-images-idx3-ubyte').unlink()
        path = self.folder / 'train-images-idx3-ubyte.gz'
        path.write_bytes(gzip.compress(whole) + gzip.compress(bytes(1 << 20)) * 200)
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        with self.assertRaisesRegex(ValueError, 'cut short or too long: its header, magic number 205. with the sizes'):
            self.opened(source='idx')
        self.assertLess(tracemalloc.get_traced_memory()[1], 50 << 20)

    def test_labels_missing_or_of_another_number(self):
        self.write_mnist(pack=False)
        self.write_idx('train-labels-idx1-ubyte', LABELS[:29])
        with self.assertRaisesRegex(ValueError, '30 images for 29 labels'):
            self.opened(source='idx')
        (self.folder / 'train-labels-idx1-ubyte').unlink()
        with self.assertRaisesRegex(FileNotFoundError, 'train-labels-idx1-ubyte'):
            self.opened(source='idx')


class FolderTest(ImageCase):
    def test_classes_and_order(self):
        self.write_classes(self.folder, count=20)
        opened = self.opened(source='folder')
        self.assertEqual(opened.classes, ('cat', 'dog'))
        self.assertEqual(opened.facts, {'classes': 2})
        self.assertEqual(opened.shapes['image'][0][1:], (6, 5, 3))
        image, label = self.everything(opened.evaluation('all', 7))
        np.testing.assert_array_equal((image[:, 0, 0, 0] * 255).round().astype(int) // 40, label)
        for split in ('train', 'valid'):  # a slice mixes classes
            self.assertEqual(set(self.everything(opened.evaluation(split, 7))[1]), {0, 1})

    def test_parts(self):
        self.write_classes(self.folder / 'train', count=6)
        self.write_classes(self.folder / 'test', count=3)
        opened = self.opened(source='folder', train='train', valid='test[:2]', test='test[2:]')
        sizes = {name: opened.evaluation(name, 4).facts['images'] for name in ('train', 'valid', 'test', 'all')}
        self.assertEqual(sizes, {'train': 12, 'valid': 2, 'test': 4, 'all': 18})
        (self.folder / 'test' / 'fox').mkdir()
        shutil.copy(self.folder / 'test' / 'cat' / '0.png', self.folder / 'test' / 'fox')
        with self.assertRaisesRegex(ValueError, "'fox', which is no class of training, cat, dog; take"):
            self.opened(source='folder')

    def test_different_sizes_and_colours(self):
        self.write_classes(self.folder, mode='L')
        self.assertEqual(self.opened(source='folder').shapes['image'][0][-1], 1)
        Image.new('L', (9, 9), 3).save(self.folder / 'cat' / 'large.png')
        Image.new('RGB', (5, 6), (255, 0, 0)).save(self.folder / 'cat' / 'red.png')
        with self.assertRaisesRegex(ValueError, r'own has images of different sizes, 5x6 \(11\), 9x9 \(1\); set data.size to'):
            self.opened(source='folder')
        self.assertEqual(self.opened(source='folder', size=4).shapes['image'][0], (4, 4, 4, 3))  # one is coloured
        opened = self.opened(source='folder', size=4, channels=3)
        self.assertEqual(self.everything(opened.evaluation('all', 5))[0].shape, (12, 4, 4, 3))
        self.assertEqual(next(opened.train(0))['image'].shape, (4, 4, 4, 3))

    @parameterized.parameters(Stretch(share=0.5), CentreCrop(share=0.5))
    def test_a_part_of_images_that_have_the_size_already(self, fit):
        """The centre of 4 x 4 of the digits of 8 x 8."""
        whole, part = (self.everything(self.opened(source='digits', path='', size=8, **fields).evaluation('valid', 50))[0]
                       for fields in ({}, {'fit': dataclasses.replace(fit, filter='nearest')}))
        np.testing.assert_array_equal(part, np.repeat(np.repeat(whole[:, 2:6, 2:6], 2, axis=1), 2, axis=2))

    def test_different_sizes_become_one(self):
        (self.folder / 'cat').mkdir()
        wide = np.tile(np.arange(12, dtype=np.uint8), (6, 1))
        for name, pixels in (('wide', wide), ('high', wide.T)):
            Image.fromarray(np.ascontiguousarray(pixels)).save(self.folder / 'cat' / f'{name}.png')
        for fit, least, most in ((Stretch(), 0, 11), (CentreCrop(), 2, 9)):
            opened = self.opened(source='folder', size=3, width=4, fit=fit, channels=1)
            self.assertEqual(opened.shapes['image'][0][1:], (3, 4, 1))
            image, _ = self.everything(opened.evaluation('all', 2))
            self.assertEqual(image.shape, (2, 3, 4, 1))
            image = image[image[:, 0, 0, 0] != image[:, 0, -1, 0]] * 255  # the wide one
            self.assertBetween(image.min(), least, least + 2)
            self.assertBetween(image.max(), most - 2, most)
            opened.save(self.folder / 'run')
            again = self.opened(self.folder / 'run', source='folder', size=3, width=4, fit=fit, channels=1)
            np.testing.assert_array_equal(again.read(self.folder / 'cat' / 'wide.png')[None] * 255, image)

    def test_random_parts_of_files_in_training(self):
        (self.folder / 'cat').mkdir()
        (self.folder / 'dog').mkdir()
        pixels = np.arange(64 * 64).reshape(64, 64) // 16
        for name in ('cat/0.png', 'dog/1.png'):
            Image.fromarray(pixels.astype(np.uint8)).save(self.folder / name)
        opened = self.opened(source='folder', size=4, fit=RandomCrop(scale=(0.1, 0.1)), train='all', valid='', batch_size=2)
        batches = opened.train(0)
        found = np.concatenate([next(batches)['image'] for _ in range(4)])
        self.assertLen({image.tobytes() for image in found}, 8)
        again = opened.train(0)
        np.testing.assert_array_equal(found, np.concatenate([next(again)['image'] for _ in range(4)]))
        image, _ = self.everything(opened.evaluation('all', 2))
        np.testing.assert_array_equal(image[0], image[1])  # the centre

    def test_notes_on_files(self):
        self.write_classes(self.folder)
        opened, sized = (self.opened(source='folder', size=size) for size in (0, 6))
        first, second = Image.new('RGB', (5, 6)), Image.new('RGB', (5, 6), 'red')
        first.save(self.folder / 'moving.gif', save_all=True, append_images=[second])
        second.resize((9, 9)).save(self.folder / 'large.png')
        note = lambda opened, name: opened.seen(self.folder / name)[1].removeprefix(str(self.folder))
        self.assertEqual(note(opened, 'large.png'), '/large.png is resized from 9x9 to 5x6, the size of all images of training')
        self.assertEqual(note(sized, 'large.png'), '')
        self.assertEqual(note(opened, 'moving.gif'), '/moving.gif is one of 2 pictures in its file, the first')
        loads, load = [], PngImageFile.load_end
        with mock.patch.object(PngImageFile, 'load_end', lambda self: (loads.append(self), load(self))[1]):
            image, _ = opened.seen(self.folder / 'large.png')
        self.assertLen(loads, 1)  # decoded once, although a PNG may have its EXIF behind the pixels
        np.testing.assert_array_equal(image, opened.read(self.folder / 'large.png'))

    def test_corrupt_image_is_named(self):
        self.write_classes(self.folder)
        path = self.folder / 'dog' / '3.png'
        path.write_bytes(path.read_bytes()[:45])
        opened = self.opened(source='folder', size=6)
        with self.assertRaisesRegex(ValueError, 'dog/3.png cannot be decoded'):
            self.everything(opened.evaluation('all', 4))
        with self.assertRaisesRegex(ValueError, 'dog/3.png cannot be decoded'):
            opened.read(path)
        with self.assertRaisesRegex(FileNotFoundError, 'none.png'):
            opened.read(self.folder / 'none.png')

    @parameterized.parameters('deep.png', 'deep.tif', 'deep.pgm')
    def test_sixteen_bits_of_grey(self, name):
        pixels = np.array([[0, 255, 256], [30000, 65534, 65535]], np.uint16)
        (self.folder / 'cat').mkdir()
        Image.fromarray(pixels).save(self.folder / 'cat' / name, 'ppm' if name.endswith('pgm') else None)
        image, _ = self.everything(self.opened(source='folder').evaluation('all', 1))
        np.testing.assert_allclose(image[0, ..., 0], pixels / 65535, atol=1e-7)
        image, _ = self.everything(self.opened(source='folder', size=1, channels=3).evaluation('all', 1))
        np.testing.assert_allclose(image.ravel(), [pixels.mean() / 65535] * 3, rtol=0.2)

    @parameterized.parameters(np.int32, np.float32)
    def test_thirty_two_bits_are_refused(self, dtype):
        (self.folder / 'cat').mkdir()
        Image.fromarray(np.ones((2, 3), dtype)).save(self.folder / 'cat' / 'deep.tif')
        with self.assertRaisesRegex(ValueError, 'deep.tif has 32 bits a pixel'):
            self.everything(self.opened(source='folder').evaluation('all', 1))

    def test_upright(self):
        (self.folder / 'cat').mkdir()
        lying, exif = Image.fromarray(PIXELS[0]), Image.Exif()
        exif[0x0112] = 6  # show it turned by 90 degrees clockwise
        lying.save(self.folder / 'cat' / 'lying.png', exif=exif)
        image, _ = self.everything(self.opened(source='folder').evaluation('all', 1))
        np.testing.assert_allclose(image[0, ..., 0], np.rot90(PIXELS[0], -1) / np.float32(255), rtol=1e-6)

    def test_score(self):
        self.write_classes(self.folder / 'a')
        self.write_classes(self.folder / 'b', count=2, size=(9, 9))
        opened = self.opened(source='folder', path=str(self.folder / 'a'))
        evaluation = opened.score([str(self.folder / 'b'), str(self.folder / 'a' / 'dog' / '0.png')], 4)
        image, label = self.everything(evaluation)
        self.assertEqual((image.shape, sorted(label)), ((5, 6, 5, 3), [0, 0, 1, 1, 1]))
        shutil.move(self.folder / 'b' / 'dog', self.folder / 'b' / 'fox')
        with self.assertRaisesRegex(ValueError, "'fox', which is no class of training"):
            opened.score([str(self.folder / 'b')], 4)
        with self.assertRaisesRegex(FileNotFoundError, 'none'):
            opened.score([str(self.folder / 'none')], 4)

    @parameterized.parameters('folder', 'unlabelled')
    def test_score_in_the_home_folder(self, source):
        self.write_classes(self.folder)
        with mock.patch.dict(os.environ, HOME=str(self.folder)):
            evaluation = self.opened(source=source).score(['~/dog', '~/cat/0.png'][source == 'folder':], 4)
        self.assertEqual(evaluation.facts, {'images': 1 if source == 'folder' else 6})


class TrainTest(ImageCase):
    @parameterized.parameters(None, Crop(padding=1) >> Flip(), ResizedCrop() >> RandAugment() >> Erase())
    def test_contract_epochs_and_seed(self, steps):
        self.write_mnist()
        opened = self.opened(source='idx', train='train', steps=steps, batch_size=6)
        self.assertEqual(opened.batches_per_epoch, 5)
        runs = []
        for seed in (0, 0, 1):
            iterator = opened.train(seed)
            runs.append([next(iterator) for _ in range(10)])
        self.assertTrue(all(map(equal, runs[0], runs[1])))
        self.assertFalse(any(map(equal, runs[0], runs[2])))
        self.assertEqual({k: (v.shape, v.dtype.type) for k, v in runs[0][0].items()}, opened.shapes)
        for epoch in (runs[0][:5], runs[0][5:]):
            self.assertCountEqual(np.concatenate([batch['label'] for batch in epoch]).tolist(), LABELS[:30].tolist())
        self.assertFalse(equal(runs[0][0], runs[0][5]))
        plain = {image.tobytes() for image in (PIXELS[:30, ..., None].astype(np.float32) / 255)}
        untouched = [image.tobytes() in plain for batch in runs[0] for image in batch['image']]
        self.assertEqual(all(untouched), not steps)
        self.assertEqual(opened.count(runs[0][0]), 6)

    def test_every_batch_has_draws_of_its_own(self):
        self.write_mnist()
        plain, flipped = (self.opened(source='idx', steps=steps, batch_size=10).train(0) for steps in (None, Flip()))
        turned = {(next(plain)['image'] != next(flipped)['image']).any((1, 2, 3)).tobytes() for _ in range(5)}
        self.assertGreater(len(turned), 2)

    def test_resumes_exactly(self):
        self.write_mnist()
        opened = self.opened(source='idx', steps=Crop() >> RandAugment() >> Erase(), batch_size=7)
        iterator = opened.train(0)
        for _ in range(5):
            next(iterator)
        state = json.loads(json.dumps(iterator.get_state()))
        rest = [next(iterator) for _ in range(9)]
        again = opened.train(0)
        again.set_state(state)
        self.assertTrue(all(equal(batch, next(again)) for batch in rest))

    def test_evaluation_and_files_are_normalised_and_nothing_else(self):
        self.write_classes(self.folder)
        plain, path = self.opened(source='folder'), self.folder / 'dog' / '3.png'
        steps = Flip() >> Erase(probability=1) >> Normalize(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.125))
        normalised = self.opened(source='folder', steps=steps)
        expected = lambda image: (image - np.array([0.1, 0.2, 0.3])) / [0.5, 0.25, 0.125]
        before, after = (opened.evaluation('valid', 4) for opened in (plain, normalised))
        np.testing.assert_allclose(self.everything(after)[0], expected(self.everything(before)[0]), atol=1e-5)
        np.testing.assert_allclose(normalised.read(path), expected(plain.read(path)), atol=1e-5)
        self.assertEqual(normalised.read(path).dtype, np.float32)
        scored = normalised.score([str(path)], 1)
        np.testing.assert_allclose(self.everything(scored)[0][0], expected(plain.read(path)), atol=1e-5)
        np.testing.assert_allclose(normalised.visible(normalised.read(path)), plain.read(path), atol=1e-6)
        self.assertIs(plain.visible(scored), scored)
        image = next(normalised.train(0))['image']
        self.assertEqual(image.dtype, np.float32)
        self.assertLess(image[..., 2].min(), -1)
        self.assertGreater(image[..., 2].max(), 4)
        visible = normalised.visible(image)
        self.assertBetween(visible.min(), -1e-6, visible.max())
        self.assertLess(visible.max(), 1 + 1e-6)

    @pytest.mark.slow
    def test_workers_give_the_same_batches_and_resume(self):
        self.write_classes(self.folder)
        steps = ResizedCrop() >> OneOf(Flip(), RandAugment()) >> Erase() >> Normalize()
        alone = self.opened(source='folder', steps=steps).train(0)
        expected = [next(alone) for _ in range(8)]
        opened = self.opened(source='folder', steps=steps, workers=2)
        iterator = opened.train(0)
        self.assertTrue(all(equal(batch, next(iterator)) for batch in expected[:3]))
        state = iterator.get_state()
        iterator.close()
        for workers in (2, 1, 0):  # a run may go on with another number of them
            again = self.opened(source='folder', steps=steps, workers=workers).train(0)
            again.set_state(state)
            self.assertTrue(all(equal(batch, next(again)) for batch in expected[3:]), workers)
            again.close()


class OpenTest(ImageCase):
    def test_saved_classes_need_no_images(self):
        self.write_classes(self.folder / 'data')
        first = self.opened(source='folder', path=str(self.folder / 'data'))
        first.save(self.folder / 'workdir')
        picture = shutil.copy(self.folder / 'data' / 'dog' / '0.png', self.folder)
        shutil.rmtree(self.folder / 'data')
        again = self.opened(self.folder / 'workdir', source='folder', path=str(self.folder / 'data'))
        self.assertEqual((again.facts, again.classes), (first.facts, first.classes))
        image = again.read(picture)
        self.assertEqual((image.shape, image.dtype), ((6, 5, 3), np.float32))
        np.testing.assert_allclose(image[0, 0], [40 / 255, 0, 1], rtol=1e-6)
        with self.assertRaisesRegex(FileNotFoundError, 'data'):
            again.train(0)

    @parameterized.parameters('idx', 'folder')
    def test_digest_names_the_images(self, source):
        self.write_mnist() if source == 'idx' else self.write_classes(self.folder)
        digest = lambda split: self.opened(source=source, train='train[:5]', valid='train[5:]').digest(split)
        before = {split: digest(split) for split in ('train', 'valid', 'all')}
        self.assertLen(set(before.values()), 3)
        self.assertEqual(before, {split: digest(split) for split in before})
        if source == 'idx':
            self.write_idx('train-labels-idx1-ubyte', np.roll(LABELS[:30], 1), pack=True)
        else:  # another picture of the same name and size
            first, second = (self.folder / 'dog' / name for name in ('0.png', '1.png'))
            self.assertEqual(first.stat().st_size, second.stat().st_size)
            shutil.copy(second, first)
        self.assertTrue(all(digest(split) != before[split] for split in before))

    @parameterized.parameters({'size': 7}, {'channels': 3})
    def test_digest_is_that_of_the_images_as_given(self, **form):
        """So runs of several sizes are compared on the same examples."""
        self.write_mnist()
        for source in ('idx', 'digits'):
            path = str(self.folder) if source == 'idx' else ''
            given, formed = (self.opened(source=source, path=path, train='all', **fields) for fields in ({}, form))
            self.assertNotEqual(given.shapes['image'], formed.shapes['image'])
            self.assertEqual(given.digest('all'), formed.digest('all'))

    def test_classes_are_those_of_the_data_in_a_run_that_starts_from_another(self):
        self.write_classes(self.folder / 'data')
        (self.folder / 'source').mkdir()
        (self.folder / 'source' / 'classes.json').write_text('{"classes": ["x"], "height": 1, "width": 1, "channels": 1}')
        opened = Images(source='folder', path=str(self.folder / 'data')).open(None, self.folder / 'source')
        self.assertEqual(opened.classes, ('cat', 'dog'))

    def test_other_classes_than_the_run(self):
        self.write_classes(self.folder / 'data')
        self.opened(source='folder', path=str(self.folder / 'data')).save(self.folder / 'workdir')
        (self.folder / 'data' / 'cat').rename(self.folder / 'data' / 'fox')
        again = self.opened(self.folder / 'workdir', source='folder', path=str(self.folder / 'data'))
        with self.assertRaisesRegex(ValueError, 'the data that the run was trained on'):
            again.evaluation('valid', 4)

    def test_damaged_classes(self):
        (self.folder / 'classes.json').write_text('{}')
        with self.assertRaisesRegex(ValueError, 'classes.json does not describe'):
            self.opened(self.folder, source='folder')

    def test_digits(self):
        opened = Images(steps=Crop(padding=1), batch_size=32).open(None)
        self.assertEqual(opened.facts, {'classes': 10})
        self.assertEqual(opened.shapes['image'][0][1:], (8, 8, 1))
        batch = next(opened.train(0))
        self.assertEqual((batch['image'].min(), batch['image'].max()), (0, 1))
        self.assertEqual(opened.evaluation('valid', 100).facts, {'images': 360})
        self.assertEqual(opened.evaluation('train', 100).facts, {'images': 1437})
        self.assertRegex(opened.describe(), 'digits, 1,437 images of 8x8x1 to train on; 10 classes')

    @parameterized.parameters('bicubic', 'lanczos')
    def test_resized_digits_stay_between_black_and_white(self, filter):
        image, _ = self.everything(Images(size=24, fit=Stretch(filter)).open(None).evaluation('all', 600))
        self.assertEqual((image.min(), image.max()), (0, 1))

    @parameterized.parameters(
        ({'source': 'web'}, ValueError, "data.source='web'.*'digits', 'idx', 'folder'"),
        ({'source': 'idx', 'path': ''}, ValueError, 'data.path is empty'),
        ({'source': 'idx', 'path': 'no/where'}, FileNotFoundError, "'no/where' does not exist"),
        ({'source': 'idx'}, FileNotFoundError, 'holds no IDX images'),
        ({'source': 'folder', 'path': 'no/where'}, FileNotFoundError, "'no/where' is no folder"),
        ({'source': 'folder'}, FileNotFoundError, 'holds no images'),
        ({'source': 'unlabelled', 'path': ''}, ValueError, 'data.path is empty'),
        ({'source': 'unlabelled', 'classes': '[:2]'}, ValueError, "'unlabelled' has none; leave them out"),
        ({'source': 'unlabelled', 'per_class': 2}, ValueError, "'unlabelled' has none; leave them out"),
        ({'source': 'unlabelled', 'pattern': 'a'}, ValueError, "data.pattern='a' is for the labels of data.source='folder'"),
        ({'source': 'unlabelled', 'features': 'a,b'}, ValueError, "data.features='a,b' is not read with"),
        ({'channels': 2}, ValueError, 'data.channels=2'),
        ({'size': -1}, ValueError, 'data.size=-1'),
        ({'width': 4}, ValueError, 'data.width=4 and .* do not fit data.size=0; set data.size to the height'),
        ({'fit': CentreCrop()}, ValueError, r'data.fit=CentreCrop\(.*\) do not fit data.size=0; set data.size'),
        ({'source': 'digits', 'path': '', 'size': 4, 'fit': RandomCrop()}, ValueError, "give data.steps='ResizedCrop"),
        ({'source': 'idx', 'size': 4, 'fit': RandomCrop()}, ValueError, "data.fit=RandomCrop.* leave data.fit out"),
        ({'per_class': -1}, ValueError, 'data.per_class=-1 and data.draw=0 do not fit; both are 0 or more'),
        ({'source': 'idx', 'pattern': 'a'}, ValueError, "data.pattern='a' is for the labels of data.source='folder'"),
        ({'source': 'folder', 'pattern': '('}, ValueError, r"data.pattern='\(' is no regular expression"),
        ({'batch_size': 0}, ValueError, 'data.batch_size=0'),
        ({'source': 'digits'}, ValueError, "is not read with data.source='digits'"),
        (
            {'source': 'digits', 'path': '', 'steps': OneOf(Crop(), Flip() >> Flip()) >> Normalize((0, 0, 0), (1, 1, 1))},
            ValueError,
            'is for 3 channels, but the images have 1',
        ),
    )
    def test_errors(self, fields, error, message):
        with self.assertRaisesRegex(error, message):
            self.opened(**fields)

    def test_split_errors(self):
        self.write_mnist()
        opened = self.opened(source='idx', train='all', valid='')
        with self.assertRaisesRegex(ValueError, 'data.test is empty'):
            opened.evaluation('test', 4)
        with self.assertRaisesRegex(ValueError, 'known are all, test, train'):
            opened.evaluation('dev', 4)
        opened = self.opened(source='idx')
        with self.assertRaisesRegex(ValueError, 'Images takes no stride'):
            opened.evaluation('valid', 4, stride=3)


if __name__ == '__main__':
    absltest.main()
