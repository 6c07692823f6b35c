import os
import pathlib
import re
import sys
import tempfile
from unittest import mock

import pytest
from absl.testing import absltest

from data import remote
from data.sources import files
from tests import storage_server


class LocalTest(absltest.TestCase):
    def test_local_paths(self):
        self.assertEqual(remote.local('~/text/*.txt'), f'{pathlib.Path.home()}/text/*.txt')
        self.assertEqual(remote.local('text/'), 'text/')

    def test_a_bucket_without_gcsfs(self):
        with mock.patch.dict(sys.modules, {'gcsfs': None}), self.assertRaisesRegex(
                ValueError, r'gs://bucket/text is in Google Cloud Storage, .*"pip install -r requirements-gs.txt"\.$'):
            files.files('gs://bucket/text')

    def test_names_that_lead_out_of_the_copy(self):
        bucket = mock.Mock()
        bucket.find.return_value = {'bucket/a/../../b': {'type': 'file', 'generation': 1, 'size': 1}}
        with (mock.patch.dict(os.environ, HEED_CACHE=self.create_tempdir().full_path),
              mock.patch.dict(sys.modules, gcsfs=mock.Mock(GCSFileSystem=lambda **_: bucket)),
              self.assertRaisesRegex(ValueError, r'^gs://bucket/a/\.\./\.\./b has \.\. in its name, .*; rename it\.$')):
            remote.local('gs://bucket/a')
        bucket.get.assert_not_called()


@storage_server.needed
@pytest.mark.slow
class BucketTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.bucket = storage_server.bucket()
        self.enter_context(mock.patch.dict(os.environ, HEED_CACHE=self.enter_context(tempfile.TemporaryDirectory())))
        for name in ('text/a.txt', 'text/b.txt', 'text/more/c.txt', 'text2/d.txt'):
            storage_server.write(f'{self.bucket}/{name}', name.encode())

    def read(self, path):
        return {file.name: b''.join(file.read()).decode() for file in files.files(f'{self.bucket}/{path}')}

    def test_files_folders_and_globs(self):
        self.assertEqual(self.read('text/*.txt'), {'a.txt': 'text/a.txt', 'b.txt': 'text/b.txt'})
        self.assertEqual(self.read('text/b.txt'), {'b.txt': 'text/b.txt'})
        for folder in ('text', 'text/'):
            self.assertEqual(self.read(folder), {name: f'text/{name}' for name in ('a.txt', 'b.txt', 'more/c.txt')})
        self.assertLen(self.read('*/*.txt'), 3)
        for nothing in ('none', 'tex', 'text/*.json'):
            with self.assertRaisesRegex(FileNotFoundError, re.escape(f"'{self.bucket}/{nothing}' does not exist")):
                self.read(nothing)

    def test_it_is_copied_again_if_it_has_changed(self):
        one = remote.local(f'{self.bucket}/text')
        self.assertEqual(remote.local(f'{self.bucket}/text'), one)
        self.assertEqual(remote.shown(f'in {one}/a.txt'), f'in {self.bucket}/text/a.txt')
        storage_server.write(f'{self.bucket}/text/a.txt', b'other')
        self.assertEqual(self.read('text')['a.txt'], 'other')
        self.assertNotEqual(remote.local(f'{self.bucket}/text'), one)
        storage_server.delete(f'{self.bucket}/text/b.txt')
        self.assertNotIn('b.txt', self.read('text'))

    def test_what_changes_while_it_is_copied_is_not_used(self):
        import gcsfs

        get = gcsfs.GCSFileSystem._get_file

        def overwritten(system, *arguments, **named):
            storage_server.write(f'{self.bucket}/text/a.txt', b'other')
            return get(system, *arguments, **named)

        with mock.patch.object(gcsfs.GCSFileSystem, '_get_file', overwritten), self.assertRaisesRegex(
                ValueError, f'^{self.bucket}/text has changed while it was copied; start again '):
            remote.local(f'{self.bucket}/text')
        self.assertEqual(self.read('text')['a.txt'], 'other')

    def test_a_damaged_copy_is_made_again(self):
        pathlib.Path(remote.local(f'{self.bucket}/text'), 'a.txt').write_text('')
        self.assertEqual(self.read('text')['a.txt'], 'text/a.txt')


if __name__ == '__main__':
    absltest.main()
