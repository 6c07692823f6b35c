import errno
import os
import pathlib
import sys
import tempfile
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from tests import storage_server
from training import storage

OF_SERVICE = type('HttpError', (Exception,), {'__module__': 'gcsfs.retry'})


class PathTest(absltest.TestCase):
    def test_local_paths_are_those_of_pathlib(self):
        with mock.patch.dict(sys.modules, {'gcsfs': None, 'fsspec': None}):  # importing them would fail
            self.assertEqual(storage.path('~/run'), pathlib.Path.home() / 'run')
            self.assertIs(type(storage.path('runs/a')), type(pathlib.Path()))
            with self.assertRaisesRegex(ValueError, '~nobody_here/run is in the home folder of a user who is not known here; '):
                storage.path('~nobody_here/run')
        self.assertFalse(storage.remote(pathlib.Path('gs', 'run')))

    def test_a_full_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder, 'config.json')
            place.write_text('old')
            with (mock.patch.object(os, 'fsync', side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
                  self.assertRaisesRegex(ValueError, 'config.json cannot be written .No space left on device.: make sure')):
                storage.write(place, 'new')
            self.assertEqual({one.name: one.read_text() for one in place.parent.iterdir()}, {'config.json': 'old'})

    def test_a_bucket_that_is_away(self):
        place = mock.Mock(__str__=lambda self: 'gs://bucket/config.json')
        for error, words in ((OF_SERVICE('503'), '503'), (PermissionError(errno.EACCES, 'Forbidden'), 'Forbidden')):
            place.write_text.side_effect = error
            with self.assertRaisesRegex(ValueError, f'^gs://bucket/config.json cannot be written .{words}.: make sure that '
                                                    'there is a network and permission, then give the same command again.$'):
                storage.write(place, 'new')
        place.write_text.side_effect = KeyError('ours')
        with self.assertRaises(KeyError):
            storage.write(place, 'new')

    def test_lines_in_a_bucket_are_not_written_one_by_one(self):
        place = mock.Mock(exists=mock.Mock(return_value=False), __str__=lambda self: 'gs://bucket/log')
        with storage.appending(place) as file:
            for number in range(5):
                print(number, file=file, flush=True)
            self.assertEqual([one.args for one in place.write_text.call_args_list], [('0\n',)])
            storage.flush(file)
            self.assertEqual(place.write_text.call_args.args, ('0\n1\n2\n3\n4\n',))
            with mock.patch.object(storage, '_BETWEEN', -1):
                print(5, file=file, flush=True)
            self.assertEqual(place.write_text.call_count, 3)
            print(6, file=file)
        self.assertEqual((place.write_text.call_count, place.write_text.call_args.args[0][-4:]), (4, '5\n6\n'))

    def test_lines_wait_while_the_bucket_is_away(self):
        place = mock.Mock(exists=mock.Mock(return_value=False), __str__=lambda self: 'gs://bucket/log')
        away = 'gs://bucket/log cannot be written .503.: make sure that there is a network'
        with storage.appending(place) as file, mock.patch.object(storage, 'time') as clock:
            clock.monotonic.return_value = 100.0
            place.write_text.side_effect = OF_SERVICE('503')
            for number in range(3):
                print(number, file=file, flush=True)
            self.assertEqual(place.write_text.call_count, 1)  # each try takes a minute
            with self.assertRaisesRegex(ValueError, away):
                storage.flush(file)
            place.write_text.side_effect = None
            clock.monotonic.return_value += 31
            print(3, file=file, flush=True)
            self.assertEqual(place.write_text.call_args.args, ('0\n1\n2\n3\n',))
            place.write_text.side_effect = PermissionError(errno.EACCES, 'Forbidden')
            clock.monotonic.return_value += 31
            with self.assertRaisesRegex(ValueError, 'gs://bucket/log cannot be written .Forbidden.: make sure'):
                print(4, file=file, flush=True)
            place.write_text.side_effect = None
        self.assertEqual(place.write_text.call_args.args, ('0\n1\n2\n3\n4\n',))
        place.write_text.side_effect = OF_SERVICE('503')
        file = storage.appending(place)
        print(5, file=file)
        with self.assertRaisesRegex(ValueError, away):
            file.close()
        self.assertTrue(file.closed)
        place.exists.side_effect = OF_SERVICE('503')
        with self.assertRaisesRegex(ValueError, away):
            storage.appending(place)

    def test_other_remote_paths_are_refused(self):
        for given in ('s3://bucket/run', 'gs://', pathlib.Path('s3://bucket/run')):  # which pathlib writes s3:/bucket/run
            with self.assertRaisesRegex(ValueError, f'{given} is a remote path, of which only gs://BUCKET/FOLDER is known'):
                storage.path(given)

    def test_a_bucket_without_gcsfs(self):
        with mock.patch.dict(sys.modules, {'gcsfs': None}), self.assertRaisesRegex(
                ValueError, r'gs://bucket/run is in Google Cloud Storage, .*"pip install -r requirements-gs.txt"\.$'):
            storage.path(pathlib.Path('gs://bucket/run'))


class UnreachableTest(absltest.TestCase):
    def test_errors_of_a_network_are_told_from_others(self):
        for error in (ConnectionError(), TimeoutError(), OF_SERVICE('Service Unavailable, 503')):
            self.assertTrue(storage.unreachable(error), error)
        for error in (FileNotFoundError(), ValueError('checksum'), KeyError('state')):
            self.assertFalse(storage.unreachable(error), error)


class Files:
    """What holds in a folder, wherever it is; `self.folder` is one that is not there yet."""

    def test_written_whole(self):
        self.folder.mkdir()
        for text in ('a', 'b'):
            storage.write(self.folder / 'file', text)
        self.assertEqual([(p.name, p.read_text()) for p in self.folder.iterdir()], [('file', 'b')])

    def test_appended(self):
        self.folder.mkdir()
        for text in ('a\n', 'é\n'):
            file = storage.appending(self.folder / 'rows')
            file.write(text)
            storage.flush(file)
            self.assertEndsWith((self.folder / 'rows').read_text(), text)
            file.close()
        with storage.appending(self.folder / 'rows') as file:  # its end writes the rest
            file.write('b\n')
        self.assertEqual((self.folder / 'rows').read_bytes().decode(), 'a\né\nb\n')

    def test_moved(self):
        (self.folder / 'a' / 'inner').mkdir(parents=True)
        storage.write(self.folder / 'a' / 'inner' / 'file', 'x')
        storage.move(self.folder / 'a', self.folder / 'aside' / 'b')
        self.assertEqual((self.folder / 'aside' / 'b' / 'inner' / 'file').read_text(), 'x')
        self.assertFalse((self.folder / 'a').exists())

    def test_filled_and_copied(self):
        self.folder.mkdir()
        with storage.filled(self.folder) as place:
            self.assertIs(type(place), type(pathlib.Path()))
            (place / 'inner').mkdir()
            for name in ('one', 'two', 'inner/three'):
                (place / name).write_bytes(name.encode())
        self.assertEqual((self.folder / 'inner' / 'three').read_bytes(), b'inner/three')
        copy = storage.copied(self.folder, {'two'}.__contains__)
        self.assertIs(type(copy), type(pathlib.Path()))
        self.assertEqual([(copy / name).read_text() for name in ('one', 'inner/three')], ['one', 'inner/three'])
        return copy


class LocalFilesTest(Files, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = storage.path(folder.name) / 'run'

    def test_a_local_folder_is_no_copy(self):
        self.assertEqual(self.test_filled_and_copied(), self.folder)


@storage_server.needed
@pytest.mark.slow
class BucketFilesTest(Files, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = storage.path(storage_server.bucket()) / 'run'

    def test_a_copy_leaves_out_what_it_is_told_to(self):
        copy = self.test_filled_and_copied()
        self.assertFalse((copy / 'two').exists())

    @parameterized.parameters(({}, []), ({'after_errors': True}, ['half']))
    def test_filled_until_an_error(self, asked, there):
        with self.assertRaisesRegex(ValueError, 'not all'), storage.filled(self.folder, **asked) as place:
            (place / 'half').write_text('a')
            raise ValueError('not all')
        self.assertEqual([path.name for path in self.folder.iterdir()] if self.folder.exists() else [], there)


if __name__ == '__main__':
    absltest.main()
