"""vit/readers/images.py: what it finds in folders (the rest is in tests/predict_test.py)."""

import io
import os
import pathlib
import shutil
import tarfile
import tempfile
import types
import zipfile
from unittest import mock

import numpy as np
import pyarrow
from absl.testing import absltest
from PIL import Image, features

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

    def test_an_archive_is_refused(self):
        path = self.folder / 'photos.zip'
        with zipfile.ZipFile(path, 'w') as archive:
            archive.writestr('1.png', b'')
        with self.assertRaisesRegex(ValueError, 'photos.zip is an archive; unpack it, and give the folder of its images.$'):
            images.ImageClass().lines(path.read_bytes(), str(path))
        with self.assertRaisesRegex(ValueError, '^Stdin is an archive; unpack'):
            images.ImageClass().lines(path.read_bytes(), '-')
        for kind in ('', 'gz', 'bz2', 'xz'):
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode=f'w:{kind}') as archive:
                archive.add(path, '1.png')
            for name, said in (('-', 'Stdin'), ('photos', 'photos')):
                with self.assertRaisesRegex(ValueError, f'^{said} is an archive; unpack'):
                    images.ImageClass().lines(packed.getvalue(), name)
        with self.assertRaisesRegex(ValueError, '^Stdin is an archive; unpack'):
            images.ImageClass().lines(pyarrow.compress(b'x', 'zstd', asbytes=True), '-')

    def test_a_listed_file_that_is_missing_is_named_with_its_list(self):
        data = types.SimpleNamespace(seen=mock.Mock(side_effect=FileNotFoundError("'none.png' does not exist")))
        listed = self.folder / 'list.txt'
        listed.write_text('none.png')
        alone = "^'none.png' does"
        for name, message in (str(listed), "^Image 1 of .*list.txt: 'none.png' does"), *(
                (name, alone) for name in ('none.png', '-', 'the inputs')):
            with self.assertRaisesRegex(ValueError, message):
                next(images.ImageClass().read(data, ['none.png'], name))

    def test_images_in_the_home_folder(self):
        path = self.folder / 'x.png'
        path.write_bytes(b'\x89PNG\r\n\x1a\n')
        with mock.patch.dict(os.environ, HOME=str(self.folder)):
            for listed in (b'~/x.png', b'~/x*.png', b'~'):
                self.assertEqual(images.ImageClass().lines(listed, '-'), [str(path)])
            self.assertEqual(images.ImageClass().lines(path.read_bytes(), '~/x.png'), [str(path)])
            self.assertEqual(images.ImageClass().lines(b'~/none.png', '-'), ['~/none.png'])

    def test_a_list_whose_first_path_begins_like_an_image_is_a_list(self):
        for first in ('BMW_1.jpg', 'P1 me.jpg', 'DDS x.jpg', 'Pf', 'BM\t\u00e9 \u200d.png'):
            listed = f'{first}\nphotos/2.jpg\nphotos/3.jpg\n'.encode()
            self.assertEqual(images.ImageClass().lines(listed, 'list.txt'), [first, 'photos/2.jpg', 'photos/3.jpg'])
        for contents in (b'P1\n2 2\n0 1 1 0\n', *(b'BMW_1.jpg\nphotos/2.jpg\n' + end for end in (b'\0', b'\x01', b'\xff'))):
            self.assertEqual(images.ImageClass().lines(contents, 'photo'), ['photo'])

    def test_an_avif_of_a_broken_header_is_an_image(self):
        if not features.check('avif'):
            self.skipTest('this Pillow has no such codec')
        file = io.BytesIO()
        Image.new('RGB', (16, 16), (10, 200, 30)).save(file, 'AVIF')
        whole = file.getvalue()
        damaged = lambda place: whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1:]
        found = [images.is_image(damaged(place)) for place in range(len(whole))]
        self.assertGreater(sum(found), len(found) / 2)


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
