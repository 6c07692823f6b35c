import gzip
import os

from absl.testing import absltest, parameterized

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

    def test_slice_of_one_file_tells_what_to_do(self):
        self.write(a_txt='A\nB\n')
        with self.assertRaisesRegex(ValueError, "set data.documents to 'line' or 'stream', or name a file for each"):
            self.part('train[:90%]')

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
