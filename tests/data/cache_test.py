import os
import pathlib
import time
from unittest import mock

from absl.testing import absltest

from data import cache


def write_word(word, calls=None):
    def build(folder):
        (folder / 'word').write_text(word)
        if calls is not None:
            calls.append(word)

    return build


def has_word(folder):
    return (folder / 'word').exists()


class CacheTest(absltest.TestCase):
    def test_builds_once(self):
        calls = []
        for _ in range(2):
            entry = cache.entry('kind', 'key', write_word('a', calls), has_word)
        self.assertEqual(((entry / 'word').read_text(), calls), ('a', ['a']))

    def test_rebuilds_what_is_not_intact(self):
        (cache.entry('kind', 'key', write_word('a'), has_word) / 'word').unlink()
        self.assertEqual((cache.entry('kind', 'key', write_word('b'), has_word) / 'word').read_text(), 'b')

    def test_a_scratch_folder_is_used_and_gone(self):
        folders = []

        def use(folder):
            folders.append(folder)
            return (folder / 'word').read_text()

        self.assertEqual(cache.scratch(write_word('a'), use), 'a')
        with self.assertRaises(FileNotFoundError):
            cache.scratch(lambda folder: None, use)
        left = cache.root() / '.scratch.1.a'
        left.mkdir()
        os.utime(left, (0, 0))
        self.assertEqual(cache.scratch(write_word('b'), use), 'b')
        self.assertFalse(any(folder.exists() for folder in [left, *folders]))

    def test_failed_writer_leaves_nothing(self):
        def fails(folder):
            (folder / 'word').write_text('half')
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            cache.entry('kind', 'key', fails, has_word)
        self.assertEmpty(list((cache.root() / 'kind').iterdir()))

    def test_leftovers_of_a_killed_writer_are_not_used_and_removed_in_time(self):
        old, new = (cache.root() / 'kind' / f'.key.{name}' for name in ('1.old', '2.new'))
        for left in (old, new):
            left.mkdir(parents=True)
            (left / 'word').write_text('half')
        os.utime(old, (time.time() - 7 * 24 * 3600,) * 2)
        self.assertEqual((cache.entry('kind', 'key', write_word('a'), has_word) / 'word').read_text(), 'a')
        self.assertEqual((old.exists(), new.exists()), (False, True))

    def test_leftovers_that_another_process_has_just_removed(self):
        glob = pathlib.Path.glob
        with mock.patch.object(pathlib.Path, 'glob', lambda path, pattern: [*glob(path, pattern), path / '.key.1.gone']):
            self.assertEqual((cache.entry('kind', 'key', write_word('a'), has_word) / 'word').read_text(), 'a')
            self.assertEqual(cache.scratch(write_word('b'), lambda folder: (folder / 'word').read_text()), 'b')

    def test_concurrent_writer_wins(self):
        def beaten(folder):
            cache.entry('kind', 'key', write_word('first'), has_word)
            (folder / 'word').write_text('second')

        self.assertEqual((cache.entry('kind', 'key', beaten, has_word) / 'word').read_text(), 'first')

    def test_write_is_whole_or_nothing(self):
        path = self.folder / 'inner' / 'file'
        cache.write(path, b'one')
        with self.assertRaises(TypeError):
            cache.write(path, 'not bytes')
        self.assertEqual((path.read_bytes(), os.listdir(path.parent)), (b'one', ['file']))

    def test_contents_reach_the_disk_before_they_get_their_name(self):
        synced = []
        path = self.folder / 'file'
        with mock.patch.object(os, 'fsync', lambda file: synced.append((os.fstat(file).st_size, path.exists()))):
            cache.write(path, b'four')
        self.assertEqual(synced, [(4, False)])
        path, synced[:] = cache.root() / 'kind' / 'key', []
        with mock.patch.object(os, 'fsync', lambda file: synced.append((os.fstat(file).st_size, path.exists()))):
            cache.entry('kind', 'key', write_word('word!'), has_word)
        self.assertEqual(synced, [(5, False)])

    def test_unwritable_cache_is_said(self):
        cache.root().write_text('a file where the folder should be')
        with self.assertRaisesRegex(ValueError, 'set HEED_CACHE'):
            cache.entry('kind', 'key', write_word('a'), has_word)

    def test_digest_of_a_large_file_is_remembered_until_it_changes(self):
        path = self.folder / 'large'
        with open(path, 'wb') as file:
            file.truncate((64 << 20) + 1)
        cache.write(cache.root() / 'digests.json', b'[]')  # no object: as if it were empty
        first = cache.digest(path)
        stat = path.stat()
        with open(path, 'r+b') as file:
            file.write(b'y')
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        self.assertEqual(cache.digest(path), first)  # same size and time: not read again
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        self.assertNotEqual(cache.digest(path), first)


if __name__ == '__main__':
    absltest.main()
