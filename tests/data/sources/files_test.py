import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import sqlite3
import tarfile
import zipfile
from unittest import mock

import pyarrow
from absl.testing import absltest, parameterized
from PIL import Image

from data.sources import contents as kinds
from data.sources import files as sources


def collect(part):
    """The documents of a part as strings."""
    documents, held = [], ''
    for chunk, ends in part.chunks():
        held += chunk
        if ends:
            documents.append(held)
            held = ''
    return documents if not held else [*documents, held]


def zstandard(contents):
    packed = io.BytesIO()
    with pyarrow.CompressedOutputStream(pyarrow.PythonFile(packed), 'zstd') as stream:
        stream.write(contents)
        stream.flush()
        return packed.getvalue()


class SourcesTest(parameterized.TestCase):
    def write(self, **contents):
        for name, text in contents.items():
            path = self.folder / name.replace('__', '/').replace('_', '.')
            path.parent.mkdir(parents=True, exist_ok=True)
            data = text.encode() if isinstance(text, str) else text
            path.write_bytes(gzip.compress(data) if path.suffix == '.gz' else data)

    def part(self, expression='train', documents='file', path=None):
        return sources.Split.of(expression, sources.files(str(path or self.folder)), documents)

    def test_folder_is_sorted_recursive_and_reads_gz(self):
        self.write(b_txt='B', inner__c_txt_gz='C', a_txt='A', empty_txt='')
        (self.folder / '.hidden').write_text('no')
        self.assertEqual(collect(self.part()), ['A', 'B', 'C'])

    def test_documents_between_blank_lines(self):
        self.write(a_txt='one\n two\n\n \nthree\n', b_txt='\nfour')
        self.assertEqual(collect(self.part(documents='blank')), ['one\n two\n', 'three\n', 'four'])
        self.assertEqual(collect(self.part('all[1:]', documents='blank')), ['three\n', 'four'])
        self.assertEqual(collect(self.part('all[:34%]', documents='blank')), ['one\n two\n'])

    def test_documents_are_articles(self):
        self.write(a_txt=' \n = Homarus = \n \n A lobster . \n \n = = Life = = \n \n Eggs . \n \n = Al = \n \n A king .\n')
        homarus = ' = Homarus = \n A lobster . \n = = Life = = \n Eggs . \n'
        self.assertEqual(collect(self.part(documents='article')), [homarus, ' = Al = \n A king .\n'])

    def test_long_documents_come_in_pieces(self):
        self.write(a_txt='first\n' + f'{"x" * 99}\n' * 40_000 + '\nlast\n')
        part = self.part(documents='blank')
        self.assertGreater(len([end for _, end in part.chunks()]), 2)
        self.assertEqual([len(text) for text in collect(part)], [4_000_006, 5])

    @parameterized.parameters('b.txt', 'inner/*', 'c.txt.gz', '*.gz')
    def test_names_and_globs_in_a_split(self, name):
        self.write(a_txt='A', b_txt='B', inner__c_txt_gz='C')
        self.assertEqual(collect(self.part(name)), ['B' if name == 'b.txt' else 'C'])

    def test_glob_as_path(self):
        self.write(a_txt='A', b_md='B', inner__c_txt='C')
        self.assertEqual(collect(self.part(path=self.folder / '**/*.txt')), ['A', 'C'])
        self.assertEqual(collect(self.part('inner/c.txt', path=self.folder / '**/*.txt')), ['C'])

    def test_lines(self):
        self.write(a_txt='one\n\n  \ntwo \r\nthree', b_txt='four\n')
        self.assertEqual(collect(self.part(documents='line')), ['one', 'two ', 'three', 'four'])
        self.assertEqual(collect(self.part('train[50%:]', 'line')), ['three', 'four'])
        self.assertEqual(b''.join(self.part('train[1:3]', 'line').raw()), b'two \nthree\n')

    def test_stream_is_cut_between_characters(self):
        self.write(a_txt='aé', b_txt_gz='😀z', c_txt='ü')
        whole = 'aé😀zü'
        size = len(whole.encode())
        for cut in range(1, size):
            before = ''.join(collect(self.part(f'all[:{cut}]', 'stream')))
            self.assertTrue(whole.startswith(before))
            self.assertBetween(len(before.encode()), cut, cut + 3)
            if cut == size - 1:  # inside the last character
                with self.assertRaisesRegex(ValueError, 'is empty'):
                    collect(self.part(f'all[{cut}:]', 'stream'))
            else:
                self.assertEqual(before + ''.join(collect(self.part(f'all[{cut}:]', 'stream'))), whole)

    def test_lines_and_long_lines_survive_blocks(self):
        text = 'é' * (5 << 20) + '\n' + 'short\n' * 400_000
        self.write(a_txt=text)
        file = sources.files(str(self.folder))[0]
        chunks = list(file.texts())
        self.assertGreater(len(chunks), 2)
        self.assertEqual(''.join(chunks), text)
        self.assertTrue(all(chunk.endswith('\n') for chunk in chunks[2:]))

    def test_words_of_a_long_line_are_not_cut(self):
        words = [f'word{number}' for number in range(700_000)]
        self.write(a_txt=' '.join(words))
        chunks = list(sources.files(str(self.folder))[0].texts())
        self.assertGreater(len(chunks), 1)
        self.assertEqual([word for chunk in chunks for word in chunk.split()], words)

    @parameterized.parameters('file', 'line', 'stream')
    def test_invalid_utf8_names_file_and_byte(self, documents):
        self.write(a_txt=b'good\n' * 300_000 + b'ba\xffd')
        with self.assertRaisesRegex(ValueError, r'a\.txt is not UTF-8: byte 1500002 '):
            collect(self.part(documents=documents))

    def test_damaged_gz(self):
        (self.folder / 'a.txt.gz').write_bytes(gzip.compress(os.urandom(9999).hex().encode())[:5000])
        with self.assertRaisesRegex(ValueError, r'a\.txt\.gz is damaged'):
            collect(self.part())
        (self.folder / 'a.txt.gz').write_bytes(b'plain text')
        with self.assertRaisesRegex(ValueError, r'a\.txt\.gz is damaged'):
            collect(self.part())

    def test_what_grows_without_end_is_refused(self):
        (self.folder / 'a.txt.gz').write_bytes(gzip.compress(b'no\n' * (1 << 20)))
        (self.folder / 'b.txt.zst').write_bytes(zstandard(b'no\n' * (1 << 20)))
        with mock.patch.object(kinds, 'most', lambda path: 1 << 20):
            for name in ('a.txt.gz', 'b.txt.zst'):
                lines = sources.File(str(self.folder / name), name).lines()
                with self.assertRaisesRegex(ValueError, f'{name} has, unpacked, more than 100 times its own size; unpack it'):
                    list(lines)

    def test_missing_and_empty(self):
        with self.assertRaisesRegex(ValueError, 'data.path is empty'):
            sources.files('')
        for path in (self.folder / 'no', self.folder / '*.t'):
            with self.assertRaisesRegex(FileNotFoundError, 'data.path must'):
                sources.files(str(path))
        self.write(a_txt='')
        for path in (self.folder, self.folder / 'a.txt'):
            with self.assertRaisesRegex(ValueError, 'holds no text'):
                sources.files(str(path))

    def test_a_link_to_a_file_that_is_gone_is_left_out(self):
        self.write(a_txt='A')
        (self.folder / 'b.txt').symlink_to(self.folder / 'gone.txt')
        self.assertEqual([file.name for file in sources.files(str(self.folder))], ['a.txt'])

    def test_unknown_name_lists_files(self):
        self.write(a_txt='A')
        for name, message in (('more.md', r'known are train, all, a\.txt\.'), ('b.txt', r"did you mean 'a\.txt'\?"),
                              ('tset', r"did you mean 'test'\?"), ('valid', r'known are train, all, a\.txt\.')):
            with self.assertRaisesRegex(ValueError, message):
                self.part(name)
        self.write(**{f'{name}_txt': 'A' for name in 'abcdef'})
        with self.assertRaisesRegex(ValueError, r'known are train, all and its 6 files\.'):
            self.part('other')

    def test_names_of_splits_mean_the_files_with_these_words(self):
        self.write(train_00001_of_2_txt='A', my_dev_txt='B', test_txt='C', notes_txt='D')
        names = lambda split: [file.name for file in self.part(split).files]
        for split, wanted in (('train', 'train.00001.of.2.txt'), ('valid', 'my.dev.txt'), ('test', 'test.txt')):
            self.assertEqual(names(split), [wanted])
        self.assertLen(names('all'), 4)

    @parameterized.parameters(
        (['on the training of dogs.txt', 'of cats.txt'], {'train': [0, 1], 'valid': [], 'test': []}),
        (['on the training of dogs.txt', 'the test of time.txt', 'train-0.txt'], {'train': [2], 'valid': [], 'test': []}),
        (['x_train.csv', 'x_eval.csv'], {'train': [0], 'valid': []}),
        (['wiki.train.tokens', 'README.md'], {'train': [0]}),
        (['en-train/a.txt', 'en-heldout/a.txt'], {'train': [0]}),
        (['Train data.csv', 'my test.csv', 'Validation set.csv'], {'train': [0], 'test': [1], 'valid': [2]}),
        (['trains.txt', 'latest.txt', 'devil.txt'], {'train': [0, 1, 2], 'valid': [], 'test': []}))
    def test_which_names_have_the_word_of_a_part(self, names, wanted):
        found = [sources.File(name, name) for name in names]
        for part, numbers in wanted.items():
            self.assertEqual([file.name for file in sources.named(found, part)], [names[number] for number in numbers], part)

    @parameterized.parameters(
        ({'a_txt': ''.join(f'line {number}\n' for number in range(500))}, True),
        ({'a_txt': 'é' * 999}, False),  # one line
        ({'b_txt': 'few\n' * 9, 'a_txt': ''.join(f'line {number}\n' for number in range(900)), 'c_txt': 'last'}, True),
    )
    def test_percentages_of_few_files_are_shares_of_their_text(self, contents, lines):
        self.write(**contents)
        parts = [''.join(collect(self.part(f'train[{share}]'))) for share in (':90%', '90%:95%', '95%:')]
        whole = ''.join(text for _, text in sorted(contents.items()))
        self.assertEqual(''.join(parts), whole)
        for part, share in zip(parts, (0.9, 0.05, 0.05)):
            self.assertAlmostEqual(len(part) / len(whole), share, delta=0.011)
        self.assertEqual(all(part.endswith('\n') for part in parts[:2]), lines)

    def test_a_bound_is_found_without_reading_beyond_its_line(self):
        self.write(a_txt=('x' * 299 + '\n') * 100, b_txt='y' * 100_000)
        with mock.patch.object(sources, '_BLOCK', 64):
            part, sizes = self.part('train[:10%]'), []
            read = sources.File.read
            counted = lambda *given: (sizes.append(len(block)) or block for block in read(*given))
            with mock.patch.object(sources.File, 'read', counted):
                self.assertEqual(part.bounds, (0, 13_200))
        self.assertLess(sum(sizes), 300)

    def test_whole_numbers_and_many_files_count_files(self):
        self.write(**{f'{number:02}_txt': f'text {number}' for number in range(20)})
        self.assertEqual(collect(self.part('train[90%:95%]')), ['text 18'])
        (self.folder / '19.txt').unlink()
        self.assertEqual(collect(self.part('train[17:18]')), ['text 17'])
        self.assertNotEqual(collect(self.part('train[90%:95%]')), ['text 17'])
        self.assertLen(collect(self.part('train')), 19)

    def test_a_share_of_the_text_of_few_files_is_no_number_of_files(self):
        self.write(**{f'{number:02}_txt': 'text\n' * 99 for number in range(20)})
        self.assertLen(collect(self.part('train[50%:][:1]')), 1)
        (self.folder / '19.txt').unlink()
        for expression in ('train[50%:][:1]', 'train[:10%][-1:]', 'train[50%:][:1][:50%]'):
            with self.assertRaisesRegex(ValueError, f"{re.escape(expression)}' takes a number of files from a share of the "
                                                    'text of 19 files; write percentages alone, such as valid'):
                self.part(expression)
        self.assertEqual(collect(self.part('train[50%:][:]')), collect(self.part('train[50%:]')))
        self.assertLen(collect(self.part('train[9:][50%:]')), 5)
        self.assertLen(collect(self.part('train[50%:][:9]', 'line')), 9)

    def test_documents_of_a_share_are_the_parts_of_its_files(self):
        self.write(a_txt='A' * 100 + '\n', b_txt='B' * 100 + '\n')
        self.assertEqual(collect(self.part('train[:75%]')), ['A' * 100 + '\n', 'B' * 50])

    def test_slice_of_too_few_files_tells_what_to_do(self):
        self.write(a_txt='A\nB\n')
        with self.assertRaisesRegex(ValueError, "write percentages.*set data.documents to 'line' or 'stream', or name"):
            self.part('train[1:]')
        with self.assertRaisesRegex(ValueError, 'is empty: there are 4 bytes to slice; widen the slice, or give it more text'):
            collect(self.part('train[90%:95%]'))

    @parameterized.parameters('utf-8-sig', 'utf-16', 'utf-32')
    def test_byte_order_marks_are_recognised(self, encoding):
        text = ''.join(f'{number} à 😀\r\n' for number in range(999))
        (self.folder / 'a.txt').write_bytes(text.encode(encoding))
        self.write(b_txt_gz=text.encode(encoding))
        for name in ('a.txt', 'b.txt.gz'):
            self.assertEqual(collect(self.part(name)), [text])
            self.assertLen(collect(self.part(name, 'line')), 999)
        cut = ''.join(collect(self.part('a.txt[:50%]', 'stream')))
        self.assertEqual(cut + ''.join(collect(self.part('a.txt[50%:]', 'stream'))), text)
        self.assertAlmostEqual(len(cut) / len(text), 0.5, delta=0.01)

    @parameterized.parameters('utf-8-sig', 'utf-16', 'utf-32')
    def test_a_byte_order_mark_goes_before_the_encoding_that_is_given(self, encoding):
        self.write(a_txt='fünf 😀'.encode(encoding), b_txt='sechs'.encode('latin-1'))
        found = sources.files(str(self.folder), encoding='latin-1')
        self.assertEqual(collect(sources.Split.of('train', found, 'line')), ['fünf 😀', 'sechs'])
        self.assertEqual(sources.misread(found), '')

    @parameterized.parameters('utf-16-le', 'latin-1', 'cp1252', 'shift_jis')
    def test_encodings_by_name(self, encoding):
        text = 'fünf ' * 999 if encoding != 'shift_jis' else '日本語 ' * 999
        (self.folder / 'a.txt').write_bytes(text.encode(encoding))
        found = sources.files(str(self.folder), encoding=encoding)
        self.assertEqual(collect(sources.Split.of('train', found, 'stream')), [text])
        self.assertNotEqual(found[0].digest, sources.files(str(self.folder))[0].digest)

    def test_a_wrong_encoding_is_one_sentence_with_the_byte_and_the_flag(self):
        path = self.folder / 'a.txt'
        for contents, encoding, message in (
            (b'good\n' * 300_000 + b'ba\xffd', 'shift_jis', 'a.txt is not shift_jis: byte 1500002 .*set data.encoding'),
            ('x' * 2001 + '\u4e00', 'ascii', 'a.txt is not ascii: byte 2001 cannot be decoded; set data.encoding'),
            ('odd'.encode('utf-16-le')[:-1], 'utf-16-le', 'a.txt is not utf-16-le: byte 4 '),
            ('caf\xe9'.encode('latin-1'), 'utf-8', 'a.txt is not UTF-8: byte 3 .*set data.encoding.*latin-1'),
            ('plain English text'.encode('utf-16-le'), 'utf-8', 'looks like UTF-16-LE .*set data.encoding=utf-16-le'),
            ('plain English text'.encode('utf-16-be'), 'utf-8', 'set data.encoding=utf-16-be'),
            ('plain English text'.encode('utf-32-le'), 'utf-8', 'set data.encoding=utf-32-le'),
            ('plain English text'.encode('utf-16-le'), 'latin-1', 'looks like UTF-16-LE .*set data.encoding=utf-16-le'),
            (bytes(2000), 'utf-8', 'a.txt is no text: 512 of its first 512 bytes are NUL; give a file of text'),
            (bytes(2000), 'latin-1', 'a.txt is no text: 512 of its first 512 bytes are NUL'),
            (b'text', 'utf-17', "data.encoding='utf-17' is no text encoding that Python knows; it takes names such as"),
            (b'text', 'hex', "data.encoding='hex' is no text encoding"),
        ):
            path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
            with self.assertRaisesRegex(ValueError, message):
                collect(sources.Split.of('train', sources.files(str(path), encoding=encoding), 'file'))

    @parameterized.parameters(
        ('utf-8', 'latin-1', 'Ã©'), ('utf-8', 'cp1252', 'Ã©'), ('utf-8', 'gb18030', '茅'), ('utf-8', 'utf8', ''),
        ('latin-1', 'latin-1', ''), ('ascii', 'latin-1', ''), ('utf-16', 'utf-16', ''), ('utf-16-le', 'utf-16-le', ''))
    def test_utf_8_that_is_read_by_another_encoding_is_mentioned(self, written, encoding, wrong):
        path = self.folder / 'a.txt'
        path.write_bytes('a café, '.encode(written, 'ignore') * 400_000)  # letters lie across the ends of blocks
        found = sources.misread(sources.files(str(path), encoding=encoding))
        self.assertEqual(bool(found), bool(wrong))
        said = f" (CAUTION: {path} looks like UTF-8, of which data.encoding={encoding} makes {wrong!r} of 'é'; leave the"
        self.assertStartsWith(found, said if wrong else '')

    def test_what_is_no_text_is_called_what_it_is(self):
        packed, database = io.BytesIO(), self.folder / 'base.txt'
        with tarfile.open(fileobj=packed, mode='w') as archive:
            archive.add(os.path.dirname(__file__), 'x', recursive=False)
        with contextlib.closing(sqlite3.connect(database)) as opened:
            opened.execute('create table t (x)')
        zipped = io.BytesIO()
        with zipfile.ZipFile(zipped, 'w') as archive:
            archive.writestr('x', 'x')
        book = io.BytesIO()
        with zipfile.ZipFile(book, 'w') as archive:
            archive.writestr('[Content_Types].xml', '<Types/>')
            archive.writestr('xl/workbook.xml', '<workbook/>')
        image = lambda kind: (Image.new('L', (9, 9)).save(file := io.BytesIO(), kind), file.getvalue())[1]
        for name, contents, message in (
            ('a.txt', b'%PDF-1.7\n%\xe2\xe3', 'a.txt is a PDF, not text; extract its text first, e.g. with pdftotext'),
            ('a.txt', zipped.getvalue(), 'is a zip archive, not text; unpack it first'),
            ('a.csv', book.getvalue(), 'a.csv is a spreadsheet, not text; save it as CSV first'),
            ('a.xlsx', zipped.getvalue(), 'a.xlsx is a spreadsheet, not text; save it as CSV first'),
            ('a.txt', zipped.getvalue()[:-9], 'is a zip archive, not text; unpack it first'),
            ('a.docx', zipped.getvalue(), 'is a Word document, not text; save it as plain text'),
            ('a.txt', packed.getvalue(), 'is a tar archive, not text'),
            ('a.tar.gz', gzip.compress(packed.getvalue()), 'is a tar archive, not text; unpack it first, e.g. with tar'),
            ('a.txt', gzip.compress(b'text'), 'is compressed with gzip, not text; rename it to end in .gz'),
            ('a.txt', zstandard(b'text'), 'is compressed with Zstandard, not text; rename it to end in .zst'),
            ('a.txt', bz2.compress(b'text'), 'is compressed with bzip2'),
            ('a.txt', lzma.compress(b'text'), 'is compressed with xz'),
            ('a.txt', image('png'), 'is a PNG image, not text'),
            ('a.txt', image('jpeg'), 'is a JPEG image, not text'),
            ('a.txt', image('webp'), 'is a WebP image, not text'),
            ('a.txt', image('bmp'), 'is a BMP image, not text'),
            ('a.txt', image('tiff'), 'is a TIFF image, not text'),
            ('a.txt', database.read_bytes(), 'is an SQLite database, not text; export'),
        ):
            (self.folder / name).write_bytes(contents)
            with self.assertRaisesRegex(ValueError, message):
                collect(self.part(path=self.folder / name))
            (self.folder / name).unlink()
        for text in ('BM is short', 'BZh is not', 'II*'):
            self.write(b_txt=text)
            self.assertEqual(collect(self.part(path=self.folder / 'b.txt')), [text])

    def test_digest_follows_contents_not_names(self):
        self.write(a_txt='A', b_txt='B')
        first = self.part('train[:1]').digest
        self.assertNotEqual(first, self.part('train[1:]').digest)
        (self.folder / 'a.txt').rename(self.folder / 'aa.txt')
        self.assertEqual(first, self.part('train[:1]').digest)
        self.write(aa_txt='C')
        self.assertNotEqual(first, self.part('train[:1]').digest)
        self.assertNotEqual(self.part(documents='line').digest, self.part(documents='stream').digest)

    def test_stdlib(self):
        names = [file.name for file in sources.stdlib()]
        self.assertContainsSubset({'json/decoder.py', 'argparse.py'}, names)
        self.assertGreater(len(names), 300)
        for left_out in ('test', 'tests', 'idle_test', 'site-packages', '__pycache__'):
            self.assertEmpty([name for name in names if left_out in name.split('/')])
        self.assertNotEqual(names, sorted(names))
        self.assertEqual(names, [file.name for file in sources.stdlib()])


if __name__ == '__main__':
    absltest.main()
