import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import tensorflow_datasets as tfds
from absl.testing import absltest, parameterized
from PIL import Image

from data import prepare
from data.images.decoding import Wanted
from data.images.fit import CentreCrop
from data.images.labelled import Images
from data.images.steps import Flip
from data.sources import tfds as tfds_sources
from data.text.documents import Text
from data.tokenizers.specs import Byte
from tests.data import tfds_builders as builders

NAMES = ('heed_text', 'heed_pages', 'heed_pages/long', 'heed_bytes', 'heed_images', 'heed_photos', 'heed_planes')


class TfdsCase(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.home = Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.home)
        for name in NAMES:
            prepare.prepare(name, str(cls.home))

    def copied(self, name):
        """Another folder of prepared sets, that may be damaged; and the folder of this one."""
        home = self.folder / 'home'
        return home, Path(shutil.copytree(self.home / name, home / name)) / '1.0.0'

    def text(self, name='heed_text', **fields):
        fields = {'path': str(self.home), 'train': 'train', 'tokenizer': Byte(), 'length': 16, 'batch_size': 4, **fields}
        return Text(source='tfds', name=name, **fields).open(None)

    def images(self, name='heed_images', folder=None, **fields):
        fields = {'path': str(self.home), 'train': 'train', 'batch_size': 4, **fields}
        return Images(source='tfds', name=name, **fields).open(folder)

    def everything(self, evaluation):
        batches = list(evaluation)
        rows = [batch['example_weights'] > 0 for batch in batches]
        return (np.concatenate([b[k][r] for b, r in zip(batches, rows, strict=True)]) for k in ('image', 'label'))


class TextTest(TfdsCase):
    @parameterized.parameters(('train', 0, 72), ('test', 72, 80), ('all', 0, 80), ('train[75%:]', 54, 72), ('all[-3:]', 77, 80))
    def test_splits_hold_the_texts_in_order(self, expression, start, stop):
        expected = [text for i, text in enumerate(builders.TEXTS) if i != 7][start - (start > 7) : stop - 1]
        evaluation = self.text(test='test').evaluation(expression, 4)
        self.assertEqual(evaluation.text().decode(), ''.join(expected))
        self.assertEqual(evaluation.facts['documents'], len(expected))  # but the one of white space
        self.assertEqual(evaluation.facts['bytes'], len(''.join(expected).encode()))

    def test_every_example_is_a_document(self):
        opened, seen = self.text(packing='none', length=64, batch_size=71), []
        batch = next(opened.train(0))
        for inputs, weights in zip(batch['inputs'], batch['weights'], strict=True):
            seen.append(opened.decode(inputs[weights > 0]))
        self.assertCountEqual(seen, [text for i, text in enumerate(builders.TEXTS[:72]) if i != 7])
        self.assertRegex(opened.describe(), r'^tfds heed_text, 71 documents')

    def test_features_and_configurations(self):
        self.assertEqual(self.text(features='title').evaluation('train[:2]', 4).text(), 'tïtle😀 0tïtle😀 1'.encode())
        self.assertEqual(self.text('heed_pages', features='summary').evaluation('train[:1]', 4).text(), b'summary 0')
        for name, start in (('heed_pages', b'short'), ('heed_pages/long', b'long'), ('heed_pages/long:1.0.0', b'long')):
            self.assertStartsWith(self.text(name, features='article').evaluation('train', 4).text(), start)
        self.assertEqual(self.text('heed_bytes').evaluation('train[:1]', 4).text(), b'good')  # the only one
        with self.assertRaisesRegex(ValueError, 'text of heed_pages can be article, summary; set data.features to one'):
            self.text('heed_pages').evaluation('train', 4)
        with self.assertRaisesRegex(ValueError, r"'length' is no feature of heed_text that can be used \(text: text, title\)"):
            self.text(features='length').evaluation('train', 4)
        with self.assertRaisesRegex(ValueError, 'heed_images has no text among its features'):
            self.text('heed_images').evaluation('train', 4)

    def test_digest_names_split_feature_and_contents(self):
        digests = {self.text(features=f).digest(s) for f in ('text', 'title') for s in ('train', 'train[:9]', 'all')}
        self.assertLen(digests, 6)
        home, folder = self.copied('heed_text')
        self.assertIn(self.text(path=str(home)).digest('train'), digests)
        prepare.prepare('heed_text', str(self.folder))
        self.assertIn(self.text(path=str(self.folder)).digest('train'), digests)
        shutil.copy(*(folder / f'heed_text-{split}.array_record-00000-of-00001' for split in ('test', 'train')))
        self.assertNotIn(self.text(path=str(home)).digest('train'), digests)

    def test_held_out_examples_are_not_trained_on(self):
        for train, valid, refused in (('train', 'train[90%:]', True), ('all', 'test', True), ('train', 'test', False),
                                      ('all[:20]', 'train[20:]', False)):
            opened = self.text(train=train, valid=valid)
            if refused:
                with self.assertRaisesRegex(ValueError, f"data.valid='.*' overlap in the split '{valid[:4]}"):
                    opened.evaluation('valid', 4)
            else:
                opened.evaluation('valid', 4)

    def test_bytes_that_are_no_text(self):
        with self.assertRaisesRegex(ValueError, "Example 1 of 'train' in .*heed_bytes/1.0.0 is not UTF-8"):
            self.text('heed_bytes').train(0)

    @parameterized.parameters(
        ({'name': ''}, "data.name is empty and data.source is 'tfds'"),
        ({'documents': 'line'}, "data.documents='line' does not go with data.source='tfds'.*set it to 'file'"),
        ({'source': 'stdlib'}, "data.name='heed_text' is not read with data.source='stdlib'"),
        ({'source': 'files', 'name': '', 'features': 'a'}, "data.features='a' is not read with data.source='files'"),
    )
    def test_fields_that_do_not_fit(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            Text(**{'source': 'tfds', 'name': 'heed_text', **fields}).open(None)

    def test_unknown_split(self):
        with self.assertRaisesRegex(ValueError, "'dev' names no part of this data; known are all, test, train"):
            self.text().evaluation('dev', 4)


class ImagesTest(TfdsCase):
    def test_splits_hold_the_images_in_order(self):
        opened = self.images(valid='test[:5]', test='test')
        self.assertEqual((opened.classes, opened.shapes['image'][0]), (tuple('abcdefghij'), (4, 6, 5, 3)))
        for split, part in {'train': slice(0, 30), 'valid': slice(30, 35), 'all[:38]': slice(0, 38)}.items():
            image, label = self.everything(opened.evaluation(split, 7))
            np.testing.assert_allclose(image, builders.PIXELS[part] / np.float32(255), rtol=1e-6)
            np.testing.assert_array_equal(label, np.arange(40)[part] % 10)
        with self.assertRaisesRegex(ValueError, "Example 9 of 'test' in .* has no label; choose another split"):
            list(opened.evaluation('test', 4))
        self.assertRegex(opened.describe(), 'tfds heed_images, 30 images of 6x5x3 to train on; 10 classes')

    def test_agrees_with_what_tfds_decodes(self):
        source = tfds.data_source('heed_images', split='train', data_dir=self.home)
        image, label = self.everything(self.images().evaluation('train', 8))
        np.testing.assert_allclose(image, np.stack([e['image'] for e in source]) / np.float32(255), rtol=1e-6)
        np.testing.assert_array_equal(label, [e['label'] for e in source])

    @parameterized.parameters('', 'png', 'deep')
    def test_grey_images_of_every_kind(self, features):
        opened = self.images('heed_planes', features=features or 'image')
        image, _ = self.everything(opened.evaluation('train', 4))
        np.testing.assert_allclose(image, builders.PIXELS[:4, ..., :1] / np.float32(255), rtol=1e-6)

    def test_arrays_become_jpeg_where_the_builder_says_so(self):
        opened = self.images('heed_planes', features='jpeg')
        image, _ = self.everything(opened.evaluation('train', 4))
        expected = np.broadcast_to(np.arange(0, 128, 8)[:, None, None], (16, 16, 3)) / 255
        np.testing.assert_allclose(image[0], expected, atol=3 / 255)
        stored = tfds_sources.TfdsExamples(str(self.home / 'heed_planes' / '1.0.0'), ('train',)).take([0])[0]
        self.assertStartsWith(stored['jpeg'], b'\xff\xd8')
        self.assertStartsWith(stored['png'], b'\x89PNG')

    def test_size_channels_and_features(self):
        with self.assertRaisesRegex(ValueError, "Example . of 'train' in .*heed_photos.* has .* pixels .*set data.size"):
            list(self.images('heed_photos').evaluation('train', 8))
        image, label = self.everything(self.images('heed_photos', size=4).evaluation('train', 8))
        self.assertEqual((image.shape, label.tolist()), ((8, 4, 4, 3), [0, 1] * 4))
        expected = Image.fromarray(builders.PIXELS[1, :4, :, 0]).convert('RGB').resize((4, 4), Image.Resampling.BILINEAR)
        np.testing.assert_allclose(image[1], np.asarray(expected) / np.float32(255), rtol=1e-6)
        self.assertEqual(self.images('heed_photos', size=4, channels=1).shapes['image'][0], (4, 4, 4, 1))
        self.assertEqual(self.images(size=8, channels=1).shapes['image'][0], (4, 8, 8, 1))
        self.assertEqual(self.images(features='half').classes, ('0', '1'))
        self.assertEqual(self.images('heed_planes', features='png, label').classes, ('0', '1'))
        with self.assertRaisesRegex(ValueError, "'colour' is no feature of heed_images that can be .*label: half, label"):
            self.images(features='colour')
        with self.assertRaisesRegex(ValueError, 'heed_text has no image among its features length, text, title'):
            self.images('heed_text')

    def test_some_classes_and_as_many_images_of_each(self):
        image, label = self.everything(self.images().evaluation('train', 8))
        some = self.images(classes='d,e,f', per_class=2)
        found, numbers = self.everything(some.evaluation('train', 4))
        self.assertEqual((some.classes, np.bincount(numbers).tolist()), (('d', 'e', 'f'), [2, 2, 2]))
        known = {one.tobytes(): number for one, number in zip(image, label)}
        self.assertEqual([known[one.tobytes()] for one in found], (numbers + 3).tolist())
        part = tfds_sources.images('heed_images', str(self.home), '', Wanted()).part('train')
        np.testing.assert_array_equal(part.labels, part.take(np.arange(len(part)))[1])

    def test_photographs_of_any_size_are_cropped(self):
        image, _ = self.everything(self.images('heed_photos', size=4, fit=CentreCrop()).evaluation('train', 8))
        expected = CentreCrop()(Image.fromarray(builders.PIXELS[1, :4, :, 0]).convert('RGB'), 4, 4)
        np.testing.assert_allclose(image[1], np.asarray(expected) / np.float32(255), rtol=1e-6)

    def test_digest_names_feature_and_split(self):
        self.assertLen({self.images(features=f).digest(s) for f in ('label', 'half') for s in ('train', 'train[:9]', 'all')}, 6)

    def test_workers_give_the_same_batches(self):
        alone, others = self.images(steps=Flip()).train(0), self.images(steps=Flip(), workers=1).train(0)
        for _ in range(9):
            first, second = next(alone), next(others)
            self.assertTrue(all(np.array_equal(first[name], second[name]) for name in first))
        others.close()

    def test_only_names_are_pickled(self):
        part = tfds_sources.images('heed_images', str(self.home), '', Wanted()).part('train')
        before = part.take(np.arange(3))
        self.assertLess(len(pickle.dumps(part)), 1000)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(part)).take(np.arange(3))[0], before[0])

    @parameterized.parameters(
        ({'name': ''}, "data.name is empty and data.source is 'tfds'"),
        ({'source': 'digits', 'path': ''}, "data.name='heed_images' is not read with data.source='digits'"),
        ({'source': 'idx', 'name': '', 'features': 'label'}, "data.features='label' is not read with data.source='idx'"),
    )
    def test_fields_that_do_not_fit(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            Images(**{'source': 'tfds', 'name': 'heed_images', 'path': str(self.home), **fields}).open(None)


class FindTest(TfdsCase):
    def test_where_prepared_sets_are(self):
        with mock.patch.dict(os.environ, {'TFDS_DATA_DIR': str(self.home), 'HOME': '/h'}):
            self.assertEqual(tfds_sources.find('heed_text'), str(self.home / 'heed_text' / '1.0.0'))
            self.assertEqual(tfds_sources.home('~/sets'), '/h/sets')
        with mock.patch.dict(os.environ, {'HOME': '/h'}):
            os.environ.pop('TFDS_DATA_DIR', None)
            self.assertEqual(tfds_sources.home(), '/h/tensorflow_datasets')

    @parameterized.parameters(
        ('mnist', r'mnist is not prepared in /.*; run python -m data.prepare mnist --data_dir=/.*\.$'),
        ('glue/mrpc:2.0.0', 'run python -m data.prepare glue/mrpc:2.0.0 '),
        ('heed_text:2.0.0', 'heed_text:2.0.0 is not prepared'),
        ('mnits', "TFDS knows no data set 'mnits'; did you mean mnist"),
        ('qqqqqq', "TFDS knows no data set 'qqqqqq'; see tensorflow.org"),
        ('../mnist', "'../mnist' is no name of a data set; write NAME"),
        ('huggingface:mnist', 'is no name of a data set'),
    )
    def test_what_is_not_there(self, name, message):
        with self.assertRaisesRegex(ValueError, message):
            tfds_sources.find(name, str(self.home))

    def test_half_a_set_is_none(self):
        home, folder = self.copied('heed_text')
        folder.rename(folder.with_name('incomplete.ABCDEF_1.0.0'))  # what a killed preparation leaves
        with self.assertRaisesRegex(ValueError, 'heed_text is not prepared'):
            tfds_sources.find('heed_text', str(home))

    def test_files_that_are_not_whole(self):
        home, folder = self.copied('heed_text')
        file = folder / 'heed_text-train.array_record-00000-of-00001'
        file.write_bytes(file.read_bytes()[:70000])
        with self.assertRaisesRegex(ValueError, 'train.array_record-.* should hold 72 examples and does not; copy it again'):
            self.text(path=str(home)).train(0)
        file.unlink()
        with self.assertRaisesRegex(ValueError, 'train.array_record-.* is missing, so the data set is not whole'):
            self.text(path=str(home)).digest('train')
        (folder / 'dataset_info.json').write_text('{"name": ')
        with self.assertRaisesRegex(ValueError, r'heed_text in .* cannot be opened \(.*\); move its folder away and run'):
            self.text(path=str(home)).digest('train')

    def test_other_formats(self):
        home, folder = self.copied('heed_images')
        info = folder / 'dataset_info.json'
        info.write_text(info.read_text().replace('"array_record"', '"tfrecord"'))
        message = r'heed_images/1.0.0 is in the format tfrecord, which needs TensorFlow.*; move .*/1.0.0 away and run python -m'
        with self.assertRaisesRegex(ValueError, message):
            self.images(path=str(home))
        with self.assertRaisesRegex(ValueError, message):
            prepare.prepare('heed_images', str(home))

    def test_without_the_packages(self):
        message = "data.source='tfds' needs tensorflow-datasets and array_record"
        with mock.patch.dict(sys.modules, {'tensorflow_datasets': None}), self.assertRaisesRegex(ValueError, message):
            tfds_sources.find('mnist')


if __name__ == '__main__':
    absltest.main()
