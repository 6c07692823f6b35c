"""The command line that shows how tokenizers work."""

import contextlib
import io
import math
import os
import pathlib
import subprocess
import sys

from absl.testing import absltest, parameterized
from PIL import Image

from data.tokenizers import lattice, merges, trace
from tests.data.tokenizers.lattice_test import MODEL, usual
from tests.data.tokenizers.merges_test import RHYME

ROOT = pathlib.Path(__file__).parents[3]


def printed(*arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        trace.main([str(one) for one in arguments])
    return out.getvalue().splitlines()


class MergesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.create_tempdir().full_path)

    def file(self, content, name='rhyme.txt'):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def test_the_rhyme(self):
        path = self.file(RHYME)
        lines = printed(path, '--merges=22')
        self.assertEqual(lines[:2], ['33 words, 18 different', '19 tokens:'])
        self.assertStartsWith(lines[2], '_ 33  e 28  s 15  a 12  t 11  o 8  h 6  l 6  u 4  ')
        start = lines.index(' merge    count   tokens      text  pair')
        self.assertEqual(lines[start + 1: start + 4], [
            '     0                19       140',
            '     1       13       20       127  s + e = se',
            '     2       12       21       115  e + _ = e_'])
        self.assertEqual(lines[start + 23], '    22        1       27        61  sailo + r = sailor')
        self.assertEqual(lines[start + 25], '27 tokens:')
        self.assertStartsWith(lines[start + 26], 'see_ 7  _ 6  sea_ 6  b 3  e 3')
        everything = printed(path)
        end = everything.index('18 tokens:')
        self.assertEqual(everything[end - 2], '    50        1       18        33  blu + e_ = blue_')
        self.assertEndsWith(everything[-1], 'was_ 1  went_ 1  what_ 1')
        self.assertEqual(printed(path, '--merges=0')[-2:], lines[1:3])

    @parameterized.parameters((['--merges=many'], '--merges: invalid int value'), (['--merge=3'], 'unrecognized arguments'),
                              (['--outt=a.png'], 'unrecognized arguments: --outt=a.png; see --help'))
    def test_a_typing_mistake_is_one_sentence(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            printed(self.file(RHYME), *arguments)

    def test_the_same_in_another_process_and_with_a_picture(self):
        path = self.file(' '.join(f'{a}{b}' for a in 'abcdefg' for b in 'hijklmn'))  # ties: 7 of 7, then 49 of 1
        found = []
        for seed in '12':
            made = subprocess.run([sys.executable, '-m', 'data.tokenizers.trace', str(path), f'--out={self.folder}/{seed}.png'],
                                  cwd=ROOT, env=os.environ | {'PYTHONHASHSEED': seed}, capture_output=True, text=True)
            self.assertEqual((made.returncode, made.stderr), (0, ''))
            found.append(made.stdout.splitlines())
        self.assertEqual(found[0][:-1], found[1][:-1])
        self.assertEndsWith(found[0][-1], '/1.png is drawn')
        with Image.open(self.folder / '1.png') as image:
            self.assertGreater(min(image.size), 400)

    def test_signs(self):
        lines = printed(self.file('a_b \\ ﬁ中\u0301\ue000 é'), '--merges=0')
        self.assertEqual(lines[2].split('  '), [
            '_ 4', r'\\ 1', r'\_ 1', 'a 1', 'b 1', 'é 1', '\u0301 1', '中 1', '<U+E000> 1', 'ﬁ 1'])
        self.assertEqual(printed(self.file('aé'.encode('latin-1')), '--encoding=latin-1', '--merges=0')[-1], '_ 1  a 1  é 1')

    def test_long_vocabularies_are_cut_and_wrapped(self):
        text = trace.table({chr(0x4E00 + i): 1 for i in range(500)}, most=200)
        self.assertEndsWith(text, '  and 300 more')
        self.assertLessEqual(max(map(len, text.splitlines())), 220)
        self.assertLen(text.split(), 400 + 3)

    @parameterized.parameters(
        ('', (), 'holds no text; FILE must name at least one file that is not empty'),
        (' \n ', (), 'has no words; give a text'),
        (b'\xff\xfe\x80', (), 'cannot be decoded|truncated'), (b'a\0b', (), 'is no text: 1 of its first 3 bytes are NUL'),
        (b'\x89PNG\r\n\x1a\n', (), 'is a PNG image, not text'), ('x' * 10_001, (), 'has 10,001 characters, .* set --merges'),
        ('a', ('--merges=-1',), '--merges=-1 is out of range'), ('a', ('--out=a.jpg',), 'expected one that ends in .png'),
        ('a', ('--out=no/a.png',), 'names a folder that does not exist'), ('a', ('--encoding=u9',), 'no text encoding'))
    def test_refusals(self, content, more, sentence):
        with self.assertRaisesRegex(ValueError, sentence):
            printed(self.file(content, 'given'), *more)

    def test_a_long_word_has_some_merges(self):
        self.assertEndsWith(printed(self.file('xy' * 6000), '--merges=2')[-4], '  xy + xy = xyxy')

    def test_errors_are_a_sentence_and_no_file_is_written(self):
        made = subprocess.run([sys.executable, '-m', 'data.tokenizers.trace', str(self.file(b'\x80\x81a')), '--out=a.png'],
                              cwd=ROOT, capture_output=True, text=True)
        self.assertEqual((made.returncode, made.stdout), (1, ''))
        self.assertRegex(made.stderr, r'^trace.py: .* is not UTF-8: byte 0 cannot be decoded; set --encoding to .*\n$')
        self.assertFalse((ROOT / 'a.png').exists())

    def test_the_picture_has_every_step(self):
        steps = [*merges.Learner(merges.words([RHYME]))]
        used, counts = (axes.lines[0].get_data() for axes in trace.picture('rhyme', 19, steps).axes)
        self.assertEqual([*used[0]], [*range(19, 70)])
        self.assertEqual([*used[1]], [19, *(one.tokens for one in steps)])
        self.assertEqual([*counts[0]], [*range(20, 70)])
        self.assertEqual([*counts[1]], [one.count for one in steps])


class SegmentationsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.run = pathlib.Path(self.create_tempdir().full_path)
        MODEL.save(self.run)

    def test_probabilities(self):
        found = lattice.of(MODEL, 'the sea')
        for source in (f'--workdir={self.run}', f'--model={self.run}/tokenizer.model'):
            lines = printed(source, '--text=the sea', '--count=2')
            self.assertEqual(
                lines[0], f'{found.count} segmentations of 7 characters, log probability of the text {found.total:.4f}')
            self.assertEqual(lines[2], 'probability     log P  segmentation')
            for line, (score, edges) in zip(lines[3:5], found.best(2)):
                pieces = [edge.piece for edge in edges]
                self.assertEqual(line.split(), [f'{math.exp(score - found.total):.4f}', f'{score:.4f}', *pieces])
            self.assertEqual(lines[5:7], ['', 'probability     place  piece'])
        listed = sorted((edge.start, f'{p:.4f}', f'{edge.start}-{edge.stop}', edge.piece)
                        for edge, p in zip(found.edges, found.marginals()) if p >= 0.001)
        self.assertCountEqual([line.split() for line in lines[7:7 + len(listed)]], [list(one[1:]) for one in listed])
        flat = lattice.of(MODEL, 'the sea', 0.5)
        self.assertEndsWith(printed(source, '--text=the sea', '--alpha=0.5')[0], f'{flat.total:.4f}')

    def test_picture(self):
        lines = printed(f'--workdir={self.run}', '--text=the sea\n中', f'--out={self.run}/lattice.png')
        self.assertEqual(lines[-1], f'{self.run}/lattice.png is drawn')
        with Image.open(self.run / 'lattice.png') as image:
            self.assertGreater(min(image.size), 300)
        figure = trace.lattice_picture(lattice.of(MODEL, 'sea'), 'sea')
        shown = [text.get_text() for text in figure.axes[0].texts]
        edges = zip(lattice.of(MODEL, 'sea').edges, lattice.of(MODEL, 'sea').marginals())
        self.assertEqual(shown, [f'{edge.piece}\n{p:.2f}' for edge, p in edges if p >= 0.01])

    def test_a_model_that_normalises(self):
        usual().save(self.run)
        lines = printed(f'--workdir={self.run}', '--text=the  sea', f'--out={self.run}/lattice.png')
        self.assertIn(' segmentations of 8 characters', lines[0])
        self.assertStartsWith(lines[3].split()[2], '\u2581')
        self.assertTrue((self.run / 'lattice.png').exists())

    @parameterized.parameters(
        (('--text=a',), 'Give either FILE, for its merges, or a --workdir'), ((), 'Give either FILE'),
        (('--workdir={run}',), 'Give either FILE'), (('x.txt', '--text=a'), 'Give either FILE'),
        (('--workdir={run}/no', '--text=a'), "There is no '.*/no'; give a run, or a file"),
        (('--workdir={run}', '--text='), 'The text is empty'), (('--model={run}/other', '--text=a'), 'is damaged'),
        (('--workdir={run}', '--text=a', '--count=0'), '--count=0 and --alpha=1.0 do not fit'),
        (('--workdir={run}', '--text=a', '--alpha=nan'), '--alpha=nan do not fit'),
        (('--workdir={run}', '--text=' + 'a' * 61, '--out={run}/a.png'), 'has 61 characters, and a picture shows 60'))
    def test_refusals(self, arguments, sentence):
        (self.run / 'other').write_text('no model')
        with self.assertRaisesRegex((ValueError, FileNotFoundError), sentence):
            printed(*(one.format(run=self.run) for one in arguments))
        self.assertFalse((self.run / 'a.png').exists())


if __name__ == '__main__':
    absltest.main()
