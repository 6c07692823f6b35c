import copy
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from data import cache
from data.sources import files as sources
from data.text.documents import Text
from data.tokenizers.specs import Byte, Char, Ids, SentencePiece, Word

RNG = np.random.default_rng(0)
LINES = [''.join(RNG.choice(list('abcdefgh '), size)).strip() or 'x' for size in RNG.integers(1, 40, 300)]
MODES = [
    {'documents': 'line', 'packing': 'first_fit'},
    {'documents': 'line', 'packing': 'concat'},
    {'documents': 'line', 'packing': 'none'},
    {'documents': 'file', 'train': 'all', 'packing': 'first_fit'},
    {'documents': 'stream'},
]


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


def segments(batch):
    """The pieces in a batch, each as (inputs, targets, positions)."""
    for row in range(len(batch['inputs'])):
        for number in range(1, batch['segments'][row].max() + 1):
            here = batch['segments'][row] == number
            yield tuple(batch[name][row][here].tolist() for name in ('inputs', 'targets', 'positions'))


class TextCase(parameterized.TestCase):
    def opened(self, folder=None, **fields):
        path = self.folder / 'text.txt'
        if not path.exists():
            path.write_text('\n'.join(LINES) + '\n')
        return Text(**{'path': str(path), 'tokenizer': Byte(), 'length': 16, 'batch_size': 4, **fields}).open(folder)


class TrainTest(TextCase):
    @parameterized.parameters(*MODES)
    def test_batches_keep_the_contract(self, **mode):
        opened = self.opened(**mode)
        iterator = opened.train(0)
        for _ in range(30):
            batch = next(iterator)
            self.assertEqual({k: (v.shape, v.dtype.type) for k, v in batch.items()}, opened.shapes)
            np.testing.assert_array_equal(batch['weights'] > 0, batch['segments'] > 0)
            self.assertEqual(opened.count(batch), (batch['segments'] > 0).sum())
            for inputs, targets, positions in segments(batch):
                self.assertEqual(inputs[1:], targets[:-1])
                self.assertEqual(positions, list(range(len(inputs))))

    @parameterized.parameters('first_fit', 'none')
    def test_an_epoch_holds_every_piece_once_and_never_mixes_documents(self, packing):
        opened = self.opened(documents='line', packing=packing)
        expected = []
        for line in LINES[:270]:
            ids = [256, *line.encode(), 256]
            expected += [(ids[i : i + 17][:-1], ids[i : i + 17][1:]) for i in range(0, len(ids) - 1, 16)]
        seen, iterator = [], opened.train(0)
        while len(seen) < 2 * len(expected):
            seen += [(inputs, targets) for inputs, targets, _ in segments(next(iterator))]
        extra = len(seen) - 2 * len(expected)
        missing = [piece for piece in expected if seen.count(piece) < 2 * expected.count(piece)]
        self.assertTrue(all(piece in expected for piece in seen))
        self.assertLess(extra, 20)
        # rows are packed a block of pieces at a time, so the end of an epoch is a block wide
        self.assertLess(len(missing), 64 if packing == 'first_fit' else 1)

    def test_concat_leaves_no_gap_and_no_token_out(self):
        opened = self.opened(documents='line', packing='concat')
        iterator, seen = opened.train(0), []
        total = sum(len(line) + 1 for line in LINES[:270])
        while sum(map(len, seen)) < total:
            batch = next(iterator)
            self.assertEqual(batch['weights'].min(), 1)
            seen += [targets for _, targets, _ in segments(batch)]
        expected = np.bincount(np.frombuffer(('\n'.join(LINES[:270])).encode(), np.uint8), minlength=257)
        found = np.bincount(np.concatenate(seen), minlength=257)
        self.assertLess(np.abs(found[97:105] - expected[97:105]).max(), 64)  # one batch at most beyond the epoch

    def test_concat_goes_on_in_the_next_row_where_a_row_is_full(self):
        """Also from one block of pieces to the next, and when resumed there: laid end to end, rows are whole documents."""
        opened = self.opened(documents='line', packing='concat', length=48, batch_size=1)
        iterator, rows, states = opened.train(0), [], []
        for _ in range(80):  # of 7 or so to a block
            states.append(iterator.get_state())
            rows.append(next(iterator))
        ids = [int(i) for row in rows for i in row['targets'][0]]
        ends = [-1, *(i for i, token in enumerate(ids) if token == 256)]
        found = [bytes(ids[a + 1 : b]).decode() for a, b in itertools.pairwise(ends)]
        self.assertEqual([one for one in found if one not in LINES[:270]], [])
        self.assertGreater(len(found), 100)
        for place in range(20, 30):  # wherever a block ends
            again = opened.train(0)
            again.set_state(json.loads(json.dumps(states[place])))
            self.assertTrue(all(equal(row, next(again)) for row in rows[place : place + 12]), place)

    def test_stream_rows_start_at_stratified_places_and_cover_the_text(self):
        text = bytes(RNG.integers(0, 2**7, 64 * 16).astype(np.uint8)).decode()
        path = self.folder / 'random.txt'
        path.write_bytes(text.encode())
        opened = self.opened(path=str(path), documents='stream', train='all', batch_size=9)
        iterator, starts = opened.train(3), []
        for _ in range(2 * 7):  # 63 rows an epoch
            batch = next(iterator)
            for inputs, targets in zip(batch['inputs'], batch['targets'], strict=True):
                start = text.encode().index(bytes(inputs.tolist()))
                self.assertEqual(bytes(targets.tolist()), text.encode()[start + 1 : start + 17])
                starts.append(start)
        first, second = sorted(starts[:63]), sorted(starts[63:])
        self.assertEqual([start // 16 for start in first], list(range(63)))
        self.assertEqual([start // 16 for start in second], list(range(63)))
        self.assertNotEqual(first, second)
        self.assertNotEqual(starts[:63], first)

    @parameterized.parameters(17, 20, 32)
    def test_a_stream_of_hardly_more_than_a_row(self, size):
        path, text = self.folder / 'short.txt', bytes(range(65, 65 + size))
        path.write_bytes(text)
        iterator = self.opened(path=str(path), documents='stream', train='all', batch_size=8).train(0)
        found = {int(row[0]) - 65 for _ in range(20) for row in next(iterator)['inputs']}
        self.assertEqual(found, set(range(size - 16)))  # wherever a row and its targets have room

    @parameterized.parameters(*MODES)
    def test_seed_decides_and_epochs_differ(self, **mode):
        opened = self.opened(**mode)
        steps = int(opened.batches_per_epoch) + 1

        def run(seed):
            iterator = opened.train(seed)
            return [next(iterator) for _ in range(2 * steps)]

        first, again, other = run(0), run(0), run(1)
        self.assertTrue(all(map(equal, first, again)))
        self.assertFalse(equal(first[0], other[0]))
        self.assertFalse(equal(first[0], first[steps - 1]))
        shifted = [any(equal(a, b) for b in first) for a in other]
        self.assertLess(np.mean(shifted), 0.1)  # seed 1 is not seed 0 one epoch on

    @parameterized.parameters(*MODES)
    def test_resumes_exactly(self, **mode):
        opened = self.opened(**mode)
        iterator = opened.train(0)
        states, batches = [], []
        for _ in range(40):
            states.append(copy.deepcopy(iterator.get_state()))
            batches.append(next(iterator))
        for place in (0, 1, 7, 23):
            again = opened.train(0)
            next(again)
            again.set_state(json.loads(json.dumps(states[place])))
            self.assertTrue(all(equal(batch, next(again)) for batch in batches[place:]), place)

    def test_batches_per_epoch(self):
        for mode in MODES:
            opened = self.opened(**mode)
            tokens = opened.evaluation('train', 4).facts['tokens']
            iterator = opened.train(0)
            batches = [next(iterator) for _ in range(40)]
            full = np.mean([opened.count(batch) for batch in batches])
            near = 0.02 if mode.get('packing') == 'first_fit' else 0.2
            self.assertAlmostEqual(opened.batches_per_epoch, tokens / full, delta=near * opened.batches_per_epoch)


class EvaluationTest(TextCase):
    @parameterized.product(
        mode=[MODES[0], MODES[2], MODES[4]], view=[(None, None), (16, 5), (40, 40), (7, 1)], batch_size=[4, 7]
    )
    def test_every_token_counts_once(self, mode, view, batch_size):
        evaluation = self.opened(**mode).evaluation('valid', batch_size, context=view[0], stride=view[1])
        batches = list(evaluation)
        self.assertLen(batches, len(evaluation))
        self.assertEqual({len(array) for batch in batches for array in batch.values()}, {batch_size})
        self.assertEqual({batch['inputs'].shape[1] for batch in batches}, {view[0] or 16})
        targets = np.concatenate([batch['targets'][batch['weights'] > 0] for batch in batches])
        text = evaluation.text()
        ends = text.count(b'\n') if mode['documents'] == 'line' else 0
        expected = text.replace(b'\n', b'') if ends else text[1:]  # the first token of a stream has no context
        self.assertCountEqual(targets.tolist(), list(expected) + [256] * ends)
        self.assertEqual(evaluation.facts['tokens'], len(targets))
        self.assertEqual(evaluation.facts['bytes'], len(text) - (mode['documents'] == 'stream'))
        self.assertEqual(evaluation.facts['documents'], ends or 1)
        self.assertEqual(
            (evaluation.facts['context'], evaluation.facts['stride']), (view[0] or 16, view[1] or view[0] or 16)
        )
        for batch in batches:
            padding = ~batch['segments'].any(1)
            np.testing.assert_array_equal(batch['example_weights'], 1 - padding)
            self.assertFalse(batch['weights'][batch['segments'] == 0].any())
        self.assertTrue(all(map(equal, batches, evaluation)))  # a second pass is the same

    def test_stride_gives_context(self):
        evaluation = self.opened(documents='stream').evaluation('valid', 4, context=16, stride=4)
        positions = np.concatenate([b['positions'][b['weights'] > 0] for b in evaluation])
        self.assertEqual(np.sum(positions < 12), 12)  # only the first window scores without context

    def test_splits(self):
        opened = self.opened(documents='line', train='train[:50%]', valid='all[-10:]', test='')
        self.assertEqual(opened.evaluation('train', 4).facts['documents'], 150)
        self.assertEqual(opened.evaluation('valid', 4).text().decode().splitlines(), LINES[-10:])
        self.assertEqual(opened.evaluation('train[:2]', 4).text().decode().splitlines(), LINES[:2])
        self.assertEqual(opened.evaluation('all', 4).facts['documents'], 300)
        with self.assertRaisesRegex(ValueError, 'data.test is empty'):
            opened.evaluation('test', 4)
        with self.assertRaisesRegex(ValueError, "'dev' names no file.*text.txt"):
            opened.evaluation('dev', 4)

    def test_score_of_other_files(self):
        opened = self.opened(documents='line')
        (self.folder / 'other.txt').write_text('abc\n\nde\n')
        evaluation = opened.score([str(self.folder / 'other.txt')], 2)
        (batch,) = list(evaluation)
        self.assertEqual(evaluation.facts['bytes'], 7)
        self.assertCountEqual(batch['targets'][batch['weights'] > 0].tolist(), [*b'abc', 256, *b'de', 256])
        with self.assertRaisesRegex(FileNotFoundError, 'missing.txt'):
            opened.score([str(self.folder / 'missing.txt')], 2)

    def test_bad_views(self):
        for view in ({'stride': 17}, {'stride': 0}, {'context': 0}):
            with self.assertRaisesRegex(ValueError, '1 <= stride <= context'):
                self.opened(documents='line').evaluation('valid', 4, **view)
        with self.assertRaisesRegex(ValueError, 'batch size is 0'):
            self.opened(documents='line').evaluation('valid', 0)


class OpenTest(TextCase):
    def test_tokenizer_is_learnt_from_training_alone(self):
        path = self.folder / 'parts.txt'
        path.write_text('abc\n' * 90 + 'xyz\n' * 10)
        opened = self.opened(path=str(path), documents='line', tokenizer=Char())
        self.assertEqual((opened.tokenizer.characters, opened.facts), ('abc', {'vocab': 5}))
        self.assertEqual(opened.decode(opened.encode('abx')), 'ab\ufffd')

    def test_saved_tokenizer_is_used_and_needs_no_text(self):
        workdir = self.folder / 'workdir'
        first = self.opened(documents='line', tokenizer=Char())
        first.save(workdir)
        os.remove(self.folder / 'text.txt')
        again = Text(path=str(self.folder / 'text.txt'), tokenizer=Char()).open(workdir)
        self.assertEqual((again.facts, again.end), (first.facts, 1))
        self.assertEqual(again.decode(again.encode('abc')), 'abc')
        with self.assertRaisesRegex(FileNotFoundError, 'text.txt'):
            again.train(0)

    @parameterized.parameters(
        (Byte(), Char(), r"data.tokenizer='Char\(\)' is not the tokenizer of .*: Byte\(\) with 257 ids"),
        (SentencePiece(vocab=270), SentencePiece(vocab=280), "SentencePiece.vocab=270, kind='bpe'. with 270 ids"))
    def test_another_tokenizer_than_the_saved_one_is_refused(self, saved, given, message):
        self.opened(documents='line', tokenizer=saved).save(self.folder / 'workdir')
        with self.assertRaisesRegex(ValueError, message):
            self.opened(self.folder / 'workdir', tokenizer=given)

    def test_a_run_without_its_tokenizer_is_refused(self):
        (self.folder / 'workdir').mkdir()
        with self.assertRaisesRegex(ValueError, 'has no tokenizer.model or tokenizer.json any more; restore it'):
            self.opened(self.folder / 'workdir')

    def test_digest_names_the_contents(self):
        digest = lambda split: self.opened(documents='line').digest(split)
        before = {split: digest(split) for split in ('train', 'valid', 'train[:1%]')}
        self.assertLen(set(before.values()), 3)
        self.assertEqual(before, {split: digest(split) for split in before})
        (self.folder / 'text.txt').write_text('\n'.join(LINES[:-1]) + '\n')
        self.assertTrue(all(digest(split) != before[split] for split in before))

    def test_second_start_reads_only_the_cache(self):
        fields = {'documents': 'line', 'tokenizer': SentencePiece(vocab=270)}
        first = self.opened(**fields)
        batch = next(first.train(0))
        before = {path: path.stat().st_mtime_ns for path in cache.root().rglob('*')}
        again = self.opened(**fields)
        self.assertTrue(equal(batch, next(again.train(0))))
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in cache.root().rglob('*')})
        (self.folder / 'text.txt').write_text('\n'.join(reversed(LINES)))
        self.assertFalse(equal(batch, next(self.opened(**fields).train(0))))

    def test_damaged_cache_is_rebuilt(self):
        batch = next(self.opened(documents='line').train(0))
        (ids,) = cache.root().rglob('ids.bin')
        for name, damaged in (('ids.bin', ids.read_bytes()[:100]), ('offsets.npy', b''), ('meta.json', b'[]'),
                              ('meta.json', b'{"ids": "x", "width": 2}'), ('meta.json', b'')):
            (ids.parent / name).write_bytes(damaged)
            self.assertTrue(equal(batch, next(self.opened(documents='line').train(0))), name)

    def test_prompt(self):
        self.assertEqual(self.opened(documents='line').prompt('ab').tolist(), [256, 97, 98])
        stream = self.opened(documents='stream')
        self.assertEqual(stream.prompt('ab').tolist(), [97, 98])
        self.assertEqual((self.opened(documents='line').end, stream.end), (256, -1))  # a stream has no end to stop at

    @parameterized.parameters(*MODES)
    def test_a_document_may_begin_with_a_token_of_its_own(self, **mode):
        """In place of the end of the one before; everything else is the same."""
        fields = mode | {'length': 7, 'path': str(self.folder / 'ids.txt')}
        lines = [' '.join(map(str, RNG.integers(2, 50, size))) for size in range(1, 40)]
        (self.folder / 'ids.txt').write_text('\n'.join(lines))
        usual, other = (self.opened(tokenizer=Ids(50, begin=begin, end=1), **fields) for begin in (-1, 0))
        begun = 0
        for one, two in ((usual.train(3), other.train(3)), (usual.evaluation('all', 4), other.evaluation('all', 4))):
            for first, second in zip(itertools.islice(one, 30), itertools.islice(two, 30), strict=True):
                starts = (first['positions'] == 0) & (first['segments'] > 0) & (first['inputs'] == 1)
                np.testing.assert_array_equal(second['inputs'], np.where(starts, 0, first['inputs']))
                self.assertTrue(equal(first | {'inputs': None}, second | {'inputs': None}))
                begun += starts.sum()
        stream = mode['documents'] == 'stream'
        self.assertEqual(begun > 0, not stream)
        self.assertEqual([one.prompt('7').tolist() for one in (usual, other)], [[7], [7]] if stream else [[1, 7], [0, 7]])
        self.assertEqual((usual.begin, other.begin, other.end), (-1, -1, -1) if stream else (1, 0, 1))

    def test_documents_need_an_end(self):
        with self.assertRaisesRegex(ValueError, r"data.tokenizer='Ids\(vocab=9, begin=3\)' has no token that ends a document"):
            self.opened(tokenizer=Ids(9, begin=3), documents='line')
        self.assertEqual(self.opened(tokenizer=Ids(9, begin=3), documents='stream').prompt('5 6').tolist(), [5, 6])

    def test_penn_treebank(self):
        """A word list and an <eos> a line, as one stream: every token but the first is predicted once."""
        path = self.folder / 'ptb.txt'
        path.write_text(' no it was n\'t \n black <unk> monday \n \n but N years \n')
        opened = self.opened(path=str(path), documents='stream', tokenizer=Word(), train='all', length=5)
        rows = list(opened.evaluation('all', 4))
        pairs = [(i, t) for row in rows for i, t, w in zip(*(row[k].ravel() for k in ('inputs', 'targets', 'weights'))) if w]
        ids = opened.encode(path.read_text())
        self.assertEqual(pairs, list(itertools.pairwise(ids)))
        self.assertEqual((len(ids), opened.facts['vocab']), (14, 11))
        self.assertEqual(opened.decode(ids), path.read_text())

    def test_describe(self):
        self.assertRegex(self.opened(documents='line').describe(), r'text.txt, 270 documents, .* vocabulary of 257')

    @parameterized.parameters(
        ({'source': 'stdlib'}, "text.txt' is not read with data.source='stdlib'; set data.source='files'"),
        ({'source': 'web'}, "data.source='web'.*'files', 'stdlib'"),
        ({'documents': 'word'}, "data.documents='word'.*'file', 'line', 'blank', 'article', 'stream'"),
        ({'packing': 'best'}, "data.packing='best'.*'first_fit', 'concat', 'none'"),
        ({'length': 0}, 'data.length=0'),
        ({'batch_size': 0}, 'data.batch_size=0'),
        ({'tokenizer': Char(), 'path': ''}, 'data.path is empty'),
        ({'encoding': 'utf-17'}, "data.encoding='utf-17' is no text encoding"),
    )
    def test_errors(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            self.opened(**fields)

    def test_too_little_text(self):
        with self.assertRaisesRegex(ValueError, 'data.length=99999'):
            self.opened(documents='stream', length=99999).train(0)
        with self.assertRaisesRegex(ValueError, 'needs one more than that; lower data.length or give it more text'):
            self.opened(length=99999).train(0)
        (self.folder / 'few.txt').write_text('a few')
        with self.assertRaisesRegex(ValueError, 'has 7 tokens .* needs one more than that; give it more text'):
            self.opened(path=str(self.folder / 'few.txt'), train='all').train(0)
        (self.folder / 'blank.txt').write_text('\n \n')
        with self.assertRaisesRegex(ValueError, 'no text to predict'):
            self.opened(path=str(self.folder / 'blank.txt'), documents='line', train='all').train(0)

    def test_one_file_has_disjoint_parts(self):
        opened = self.opened()
        parts = [b''.join(opened.config.part(split).raw()) for split in ('train', 'valid', 'test')]
        self.assertEqual(b''.join(parts).decode(), '\n'.join(LINES) + '\n')
        self.assertTrue(all(parts))
        self.assertLen({opened.digest(split) for split in ('train', 'valid', 'test')}, 3)
        self.assertRegex(opened.describe(), 'text.txt, 1 document, ')

    @parameterized.parameters(
        ('file', 'train[:90%]', 'train[80%:95%]', True),
        ('file', 'all', 'text.txt', True),
        ('stream', 'all', 'all[-500:]', True),
        ('line', 'all[:90%]', 'train[50%:95%]', True),
        ('line', 'all[:10]', 'all[9:-5]', True),
        ('line', 'all[10:]', 'all[:11]', True),
        ('line', 'all[:10]', 'all[10:-5]', False),
        ('line', 'text.txt[:10]', 'all[11:]', True),
        ('line', 'text.txt[:10]', 'all[12:]', False),
        ('line', 'other.txt', 'text.txt', False),
        ('line', 'all[-300:]', 'all[:2]', False),  # the two lines of other.txt
        ('stream', 'train[:50%]', 'all[50%:]', False))
    def test_held_out_text_is_not_trained_on(self, documents, train, valid, refused):
        (self.folder / 'other.txt').write_text('one\ntwo\n')
        (self.folder / 'text.txt').write_text('\n'.join(LINES) + '\n')
        opened = self.opened(path=str(self.folder), documents=documents, train=train, valid=valid)
        for split in ('valid', 'valid[:90%]') if refused else ():
            with self.assertRaisesRegex(ValueError, "data.train='.* and data.valid='.* overlap in .*(text|other).txt; give"):
                opened.evaluation(split, 4)
        if not refused:
            opened.evaluation('valid', 4)
        opened.evaluation('all', 4)  # what is named so may be measured

    def test_source_follows_from_what_is_given(self):
        self.assertEqual(self.opened(source='auto').describe(), self.opened(source='files').describe())
        with mock.patch.object(sources, 'stdlib', return_value=sources.files(str(self.folder / 'text.txt'))):
            self.assertRegex(self.opened(source='auto', path='').describe(), '^stdlib, ')
        with self.assertRaisesRegex(ValueError, 'no_such_set'):
            self.opened(source='auto', path=str(self.folder), name='no_such_set').describe()

    def test_encoding(self):
        path = self.folder / 'other.txt'
        path.write_bytes(('\n'.join(LINES) + '\n').encode('utf-16-le'))
        other, plain = self.opened(path=str(path), encoding='utf-16-le'), self.opened()
        self.assertTrue(equal(next(other.train(0)), next(plain.train(0))))
        first, second = (next(iter(opened.score([file], 4))) for opened, file in (
            (other, str(path)), (plain, str(self.folder / 'text.txt'))))
        self.assertTrue(equal(first, second))

    def test_imports_neither_jax_nor_grain_before_training(self):
        code = ('import sys, data.text.documents, data.images.labelled; '
                'print({"jax", "grain", "PIL", "sklearn"} & set(sys.modules))')
        out = subprocess.run(
            [sys.executable, '-c', code], cwd=Path(__file__).parents[3], capture_output=True, check=True
        )
        self.assertEqual(out.stdout.strip(), b'set()')


if __name__ == '__main__':
    absltest.main()
