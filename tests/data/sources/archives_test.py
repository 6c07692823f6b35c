import bz2
import gzip
import io
import os
import pathlib
import stat
import tarfile
import zipfile
from unittest import mock

import pyarrow
from absl.testing import absltest, parameterized

from data import cache
from data.sources import archives

FILES = {'cat/1.jpg': b'one', 'dog/2.JPG': b'two' * 999, 'labels.csv': b'file,label\n', 'notes.md': b'no'}


class ArchivesTest(parameterized.TestCase):
    def zipped(self, files=FILES, name='a.zip', **options):
        path = self.folder / name
        with zipfile.ZipFile(path, 'w', **options) as archive:
            for inner, contents in files.items():
                archive.writestr(inner, contents)
        return str(path)

    def tarred(self, files=FILES, name='a.tar', change=lambda member: None):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode='w') as archive:
            for inner, contents in files.items():
                member = tarfile.TarInfo(inner)
                member.size = len(contents)
                change(member)
                archive.addfile(member, io.BytesIO(contents) if member.isfile() else None)
        contents, path = packed.getvalue(), self.folder / name
        if name.endswith('zst'):
            with pyarrow.CompressedOutputStream(str(path), 'zstd') as stream:
                stream.write(contents)
        else:
            pack = gzip.compress if name.endswith('gz') else bz2.compress if name.endswith('bz2') else bytes
            path.write_bytes(pack(contents))
        return str(path)

    def unpacked(self, path):
        return archives.unpacked(path, ('.jpg',), ('.csv', '.csv.gz'))

    def assert_refused(self, path, message, kept=0):
        with self.assertRaisesRegex(ValueError, message):
            self.unpacked(path)
        self.assertLen([*cache.root().glob('archives/*')], kept)

    @parameterized.parameters('a.zip', 'b.ZIP', 'a.tar', 'a.tar.gz', 'a.tgz', 'a.tar.bz2', 'a.tar.zst')
    def test_reads_from_the_cache_alone(self, name):
        path = (self.zipped if 'zip' in name.lower() else self.tarred)(name=name)
        self.assertTrue(archives.is_archive(path))
        before = {*os.listdir(self.folder)}
        found = self.unpacked(path)
        self.assertEqual({inner: member.read() for inner, member in found.images.items()},
                         {'cat/1.jpg': b'one', 'dog/2.JPG': b'two' * 999})
        self.assertEqual(str(found.images['cat/1.jpg']), f'{path}/cat/1.jpg')
        with open(found.tables['labels.csv'], 'rb') as table:
            self.assertEqual(table.read(), b'file,label\n')
        self.assertEqual(found.others, ['notes.md'])
        self.assertEqual({*os.listdir(self.folder)} - {'cache'}, before - {'cache'})
        for file in (file for file in cache.root().rglob('*') if file.is_file()):
            self.assertNotRegex(file.name, r'cat|dog|labels')
        os.utime(path)
        with mock.patch.object(archives, '_unpack', side_effect=AssertionError):
            self.assertEqual(self.unpacked(path), found)

    def test_folders_and_hidden_files(self):
        path = self.zipped({'fox/': b'', './cat/1.jpg': b'1', '__MACOSX/cat/._1.jpg': b'', '.DS_Store': b'', 'a\\b.jpg': b'2'})
        found = self.unpacked(path)
        self.assertEqual((list(found.images), found.folders, found.others), (['cat/1.jpg', 'a/b.jpg'], {'fox'}, []))

    def test_names_in_utf_8_without_the_flag_that_says_so(self):
        class Unflagged(zipfile.ZipInfo):  # as Info-ZIP writes it
            def _encodeFilenameFlags(self):
                return self.filename.encode(), self.flag_bits & ~0x800

        path = self.folder / 'unflagged.zip'
        with zipfile.ZipFile(path, 'w') as archive:
            archive.writestr(Unflagged('größe/犬 é.jpg'), b'1')
        with zipfile.ZipFile(path) as archive:
            self.assertNotIn('größe/犬 é.jpg', archive.namelist())
        self.assertEqual(list(self.unpacked(str(path)).images), ['größe/犬 é.jpg'])
        old = self.folder / 'old.zip'
        with zipfile.ZipFile(old, 'w') as archive:
            archive.writestr('gr__e/1.jpg', b'1')
        old.write_bytes(old.read_bytes().replace(b'gr__e', b'gr\x94\xe1e'))  # CP437, which is no UTF-8
        self.assertEqual(list(self.unpacked(str(old)).images), ['größe/1.jpg'])

    @parameterized.parameters('../x.jpg', 'a/../../x.jpg', '/x.jpg', '\\x.jpg', 'c:\\x.jpg', 'a\\..\\x.jpg')
    def test_names_outside_are_refused(self, name):
        for path in (self.zipped({name: b'x'}), self.tarred({name: b'x'})):
            self.assert_refused(path, 'a name outside of the archive; pack it again')

    def test_links_and_devices_are_refused(self):
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            def link(member, kind=kind):
                member.type, member.linkname, member.size = kind, '/etc/passwd', 0
            self.assert_refused(self.tarred({'x.jpg': b''}, change=link), "holds 'x.jpg', which is a link or a device")
        info = zipfile.ZipInfo('x.jpg')
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(self.folder / 'a.zip', 'w') as archive:
            archive.writestr(info, '/etc/passwd')
        self.assert_refused(str(self.folder / 'a.zip'), 'which is a link')

    @parameterized.parameters(
        ('_MEMBERS', 2, 'holds more than 2 files'),
        ('_LARGEST', 2048, 'dog/2.JPG has more than 0 MB; leave it out|a header asks for'),
        ('_TOTAL', 2048, 'has, unpacked, more than 0 GB'),
        ('most', lambda path: 1024, 'more than 100 times the size of its archive'),
    )
    def test_limits(self, name, value, message):
        with mock.patch.object(archives.contents if name == 'most' else archives, name, value):
            for path in (self.zipped(compression=zipfile.ZIP_DEFLATED), self.tarred(name='a.tar.gz')):
                self.assert_refused(path, message)

    def test_files_that_are_left_out_count(self):
        with mock.patch.object(archives.contents, 'most', lambda path: 1 << 20):
            for name in ('a.tar.gz', 'a.tar.bz2', 'a.tar.zst'):
                self.assert_refused(self.tarred({'a/junk.bin': bytes(2 << 20)}, name), f'{name} has, unpacked, more than')

    def test_an_ending_says_what_an_archive_is(self):
        path = pathlib.Path(self.tarred(name='a.tgz'))
        self.unpacked(str(path))
        self.assert_refused(str(path.rename(path.with_name('a.zip'))), 'a.zip cannot be unpacked', kept=1)

    def test_a_header_that_asks_for_much_memory(self):
        member = tarfile.TarInfo('long')
        member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
        (self.folder / 'b.tar').write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(9999))
        self.assert_refused(str(self.folder / 'b.tar'), 'a header asks for 8,589,934,592 bytes')

    def test_damaged_and_encrypted(self):
        for path in (self.zipped(), self.tarred(), self.tarred(name='a.tar.gz'), self.tarred(name='a.tar.zst')):
            with open(path, 'rb') as file:
                whole = file.read()
            for contents in (whole[:len(whole) // 2 - 100], b'', b'plain text'):
                with open(path, 'wb') as file:
                    file.write(contents)
                self.assert_refused(path, 'a.(zip|tar|tar.gz|tar.zst) cannot be unpacked')
        path = self.zipped()
        with open(path, 'rb') as file:
            contents = bytearray(file.read())
        contents[contents.index(b'PK\1\2') + 8] |= 1  # encrypted
        contents[6] |= 1
        (self.folder / 'b.zip').write_bytes(contents)
        self.assert_refused(str(self.folder / 'b.zip'), 'is encrypted.*without a password')

    def test_a_name_twice(self):
        with self.assertWarns(UserWarning):
            path = self.folder / 'a.zip'
            with zipfile.ZipFile(path, 'w') as archive:
                for contents in ('1', '2'):
                    archive.writestr('x.jpg', contents)
        self.assert_refused(str(path), "holds 'x.jpg' twice")


if __name__ == '__main__':
    absltest.main()
