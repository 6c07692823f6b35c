"""vit/readers/images.py: what it finds in folders (the rest is in tests/predict_test.py)."""

import os
import pathlib
import shutil
import tempfile
import types
from unittest import mock

import numpy as np
from absl.testing import absltest

from data.images import decoding
from data.sources import image_folders
from vit.readers import images


class FilesTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def test_a_folder_is_searched_for_every_kind_of_file_that_training_reads(self):
        self.assertEqual(images.SUFFIXES, decoding.SUFFIXES)

    def test_hidden_files_and_folders_are_skipped(self):
        for name in ('cat/1.png', '.thumbnails/1.png', 'cat/.cache/small/1.png', '__MACOSX/cat/1.png', 'cat/._1.png'):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).touch()
        self.assertEqual(images.ImageClass().lines(None, str(self.folder)), [str(self.folder / 'cat' / '1.png')])

    def test_links_to_folders_are_followed_each_folder_once(self):
        for name in ('all/cat/1.png', 'elsewhere/2.png'):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).touch()
        for name, of in (('dog', 'elsewhere'), ('dog_again', 'elsewhere'), ('cat/up', 'all')):
            (self.folder / 'all' / name).symlink_to(self.folder / of)
        found = images.ImageClass().lines(None, str(self.folder / 'all'))
        self.assertEqual(found, [str(self.folder / 'all' / name) for name in ('cat/1.png', 'dog/2.png')])
        wanted = image_folders.Tree.of(str(self.folder / 'all')).images.values()
        self.assertEqual(found, sorted(wanted))  # as in training

    def test_a_pattern_of_folders_is_refused(self):
        for name in 'cat', 'dog':
            (self.folder / name).mkdir()
        message = "The pattern '.*/[*]' matches only folders, such as '.*/cat'; give the path of a folder.$"
        with self.assertRaisesRegex(ValueError, message):
            images.ImageClass().lines(f'{self.folder}/*'.encode(), '-')

    def test_images_in_the_home_folder(self):
        path = self.folder / 'x.png'
        path.write_bytes(b'\x89PNG\r\n\x1a\n')
        with mock.patch.dict(os.environ, HOME=str(self.folder)):
            for listed in (b'~/x.png', b'~/x*.png', b'~'):
                self.assertEqual(images.ImageClass().lines(listed, '-'), [str(path)])
            self.assertEqual(images.ImageClass().lines(path.read_bytes(), '~/x.png'), [str(path)])
            self.assertEqual(images.ImageClass().lines(b'~/none.png', '-'), ['~/none.png'])


class ImageClassTest(absltest.TestCase):
    def test_the_likeliest_classes_are_shown(self):
        data = types.SimpleNamespace(classes=tuple('abcdefg'))
        for logits in (np.arange(7.0), np.arange(3.0)):
            text, details = images.ImageClass().answer(data, 'x.png', logits)
            shown = ''.join(reversed('abcdefg'[:len(logits)]))[:images.LIKELIEST]
            self.assertEqual(''.join(one['class'] for one in details['likeliest']), shown)
            self.assertEqual(text.split('\t')[::2], [*shown, 'x.png'])


if __name__ == '__main__':
    absltest.main()
