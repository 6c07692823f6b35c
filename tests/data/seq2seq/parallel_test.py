import collections
import copy
import dataclasses
import itertools
import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from data import cache
from data.seq2seq import pairs
from data.seq2seq.parallel import Parallel
from data.tokenizers.specs import Byte, Char, Ids, SentencePiece, Word, WordPiece
from transformer.tasks.language_model import NextToken

RNG = np.random.default_rng(0)
SIZES = RNG.integers(1, 16, (300, 2))
PAIRS = [tuple(f'{i:03}'[:size] + 'x' * (size - 3) for size in row) for i, row in enumerate(np.maximum(SIZES, 3))]
PACKINGS = ('first_fit', 'buckets', 'none')
END = 256  # of Byte()


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


def rows_of(batch):
    """The pairs of every row, as [(source ids, decoder inputs, targets)]."""
    for row in range(len(batch['inputs'])):
        here = {name: array[row] for name, array in batch.items()}
        yield [
            (
                here['inputs'][here['segments'] == k].tolist(),
                here['decoder_inputs'][here['decoder_segments'] == k].tolist(),
                here['targets'][here['decoder_segments'] == k].tolist(),
            )
            for k in range(1, here['segments'].max() + 1)
        ]


def texts_of(batch):
    return [tuple(bytes(ids[:-1]).decode() for ids in (source, target)) for row in rows_of(batch) for source, _, target in row]


class ParallelCase(parameterized.TestCase):
    def config(self, lines=PAIRS, **fields):
        path = self.folder / 'pairs.tsv'
        path.write_text(''.join(f'{source}\t{target}\n' for source, target in lines))
        fields = {'tokenizer': Byte(), 'train': 'all[:280]', 'valid': 'all[280:]', 'test': '', 'batch_size': 4} | fields
        return Parallel(**{'source': 'table', 'path': str(path), 'source_length': 24, 'length': 20, **fields})

    def opened(self, lines=PAIRS, folder=None, **fields):
        return self.config(lines, **fields).open(folder)


class TrainTest(ParallelCase):
    @parameterized.parameters(*PACKINGS)
    def test_a_decoder_may_begin_with_another_token(self, packing):
        """As in T5, whose decoder is given its padding first."""
        usual, other = (self.opened(packing=packing, **fields) for fields in ({}, {'start': 7}))
        self.assertEqual((usual.start, usual.end, other.start, other.end), (END, END, 7, END))
        batches = (usual.train(seed=0), usual.evaluation('valid', 4)), (other.train(seed=0), other.evaluation('valid', 4))
        for first, second in zip(*(tuple(next(iter(source)) for source in sources) for sources in batches)):
            for row, changed in zip(rows_of(first), rows_of(second), strict=True):
                for (_, told, wanted), (_, told_now, wanted_now) in zip(row, changed, strict=True):
                    self.assertEqual((told[0], told_now), (END, [7, *told[1:]]))
                    self.assertEqual(wanted, wanted_now)
            rest = {'decoder_inputs': None}
            self.assertTrue(equal(first | rest, second | rest))

    @parameterized.product(packing=PACKINGS, framing=('roberta', 'begin a separator | begin a separator b separator'))
    def test_both_sides_may_begin_with_a_token_and_end_with_another_one(self, packing, framing):
        """As in BART, and with a tokenizer of another family."""
        tokenizer = Ids(50, begin=3, cls=3, separator=5, end=5 if framing == 'roberta' else 4)
        lines = [(' '.join(map(str, range(10, 10 + size))), f'{size} 7') for size in range(6, 26)]
        opened = self.opened(lines, tokenizer=tokenizer, framing=framing, packing=packing, start=2, train='all[:18]',
                             valid='all[18:]', long='truncate')
        self.assertEqual((opened.start, opened.end), (2, 5))
        batches = [*opened.evaluation('valid', 4), *itertools.islice(opened.train(0), 3)]
        for source, told, wanted in (pair for batch in batches for row in rows_of(batch) for pair in row):
            self.assertEqual((source[0], source[-1], source[1:-1]), (3, 5, [*range(10, 8 + len(source))]))
            self.assertEqual((told, wanted), ([2, 3, wanted[1], 7], [3, wanted[1], 7, 5]))
        self.assertEqual(opened.encode('8').tolist(), [3, 8, 5])
        self.assertEqual((opened.encode_target('8').tolist(), opened.decode([3, 8, 9, 5])), ([3, 8, 5], '8 9'))
        opened.save(self.folder)
        self.assertEqual(opened.config.open(self.folder).tokenizer, opened.tokenizer)

    @parameterized.parameters(('plain', 'needs exactly one token after a text'),
                              ('cls a end separator | cls a b', 'needs exactly one token'),
                              ('bart', 'is no template'), ('a mask | a b mask', "needs a token with the role 'mask'"))
    def test_framings_that_are_not_of_pairs(self, framing, message):
        with self.assertRaisesRegex(ValueError, f'data.framing={re.escape(repr(framing))} {message}'):
            self.opened(tokenizer=Ids(50, begin=3, end=4), framing=framing)

    def test_a_start_that_is_no_token_is_refused(self):
        for start in (-2, 257):
            with self.assertRaisesRegex(ValueError, f'data.start={start} is no id of the tokenizer, which has 257'):
                self.opened(start=start)

    @parameterized.parameters(*PACKINGS)
    def test_batches_keep_the_contract(self, packing):
        opened, known = self.opened(packing=packing), set(PAIRS[:280])
        iterator, seen = opened.train(0), set()
        for _ in range(60):
            batch = next(iterator)
            shapes = {name: (array.shape, array.dtype.type) for name, array in batch.items()}
            self.assertIn(shapes, opened.buckets)
            seen.add(shapes['targets'])
            np.testing.assert_array_equal(batch['weights'], batch['decoder_segments'] > 0)
            self.assertEqual(opened.count(batch), batch['weights'].sum())
            self.assertFalse(batch['inputs'][batch['segments'] == 0].any() or batch['targets'][batch['weights'] == 0].any())
            for side in ('', 'decoder_'):
                segments, positions = batch[f'{side}segments'], batch[f'{side}positions']
                for row, place in zip(segments, positions, strict=True):
                    counts = np.bincount(row)[1:]
                    self.assertEqual(place[row > 0].tolist(), [i for count in counts for i in range(count)])
                    self.assertEqual(row[row > 0].tolist(), sorted(row[row > 0]))  # segments are in order, padding is last
            for row in rows_of(batch):
                for source, inputs, targets in row:
                    self.assertEqual((source[-1], inputs[0], targets[-1]), (END, END, END))
                    self.assertEqual(inputs[1:], targets[:-1])
            self.assertLessEqual(set(texts_of(batch)), known)
        self.assertEqual(opened.shapes, opened.buckets[-1])
        self.assertLen(seen, 3 if packing == 'buckets' else 1)
        if packing != 'first_fit':
            self.assertEqual(batch['segments'].max(), 1)

    def test_none_and_buckets_hold_every_pair_once_an_epoch(self):
        for packing in ('none', 'buckets'):
            opened, seen = self.opened(packing=packing), collections.Counter()
            iterator = opened.train(0)
            for _ in range(round(12 * opened.batches_per_epoch)):
                seen.update(texts_of(next(iterator)))
            self.assertEqual(set(seen), set(PAIRS[:280]))
            self.assertBetween(min(seen.values()), 10, 12)
            self.assertBetween(max(seen.values()), 12, 14)

    def test_packed_rows_hold_every_pair_once_an_epoch_and_are_fuller(self):
        opened, seen, places = self.opened(), collections.Counter(), 0
        iterator = opened.train(0)
        for _ in range(round(12 * opened.batches_per_epoch)):
            batch = next(iterator)
            seen.update(texts_of(batch))
            places += batch['weights'].size
        self.assertEqual(set(seen), set(PAIRS[:280]))
        self.assertBetween(sum(seen.values()), 11 * 280, 13 * 280)
        tokens = sum(len(target) + 1 for _, target in seen.elements())
        self.assertGreater(tokens / places, 1.4 * np.mean([len(target) + 1 for _, target in PAIRS]) / 20)

    def test_a_row_has_room_for_both_sides_of_its_pairs(self):
        """Long sources with short targets and the reverse: one of each fills a row of both."""
        lines = [('s' * 19, 't' * 3), ('s' * 3, 't' * 15)] * 20
        batches = zip(range(20), self.opened(lines, train='all', valid='').train(0))
        sizes = [len(row) for _, batch in batches for row in rows_of(batch)]
        self.assertEqual(max(sizes), 2)  # a pair more would not fit: the tests above see what is cut
        self.assertGreater(np.mean(sizes), 1.7)

    def test_buckets_have_as_many_batches_as_their_pairs_fill(self):
        """floor(x (e + 1)) - floor(x e) batches in epoch e, x = pairs / rows; the shortest rows that a pair fits in."""
        opened = self.opened(packing='buckets')
        lengths = [(6, 5), (12, 10), (24, 20)]
        fits = lambda pair, size: len(pair[0]) < size[0] and len(pair[1]) < size[1]
        bucket = {pair: next(i for i, size in enumerate(lengths) if fits(pair, size)) for pair in PAIRS[:280]}
        counts = [list(bucket.values()).count(i) for i in range(3)]
        self.assertGreater(min(counts), 0)
        rows = [16, 8, 4]
        self.assertEqual(opened.batches_per_epoch, sum(n / r for n, r in zip(counts, rows, strict=True)))
        iterator, orders = opened.train(1), []
        for epoch in range(5):
            expected = [n * (epoch + 1) // r - n * epoch // r for n, r in zip(counts, rows, strict=True)]
            order = []
            for _ in range(sum(expected)):
                batch = next(iterator)
                order.append([shape['targets'][0][1] for shape in opened.buckets].index(batch['targets'].shape[1]))
                self.assertEqual({bucket[pair] for pair in texts_of(batch)}, {order[-1]})
                self.assertEqual(len(batch['targets']), rows[order[-1]])
            self.assertEqual([order.count(i) for i in range(3)], expected)
            orders.append(tuple(order))
        self.assertLen(set(orders), 5)

    @parameterized.parameters(*PACKINGS)
    def test_seed_decides_and_epochs_differ(self, packing):
        opened = self.opened(packing=packing)
        run = lambda seed: [batch for _, batch in zip(range(80), opened.train(seed))]
        first, again, other = run(0), run(0), run(1)
        self.assertTrue(all(map(equal, first, again)))
        self.assertFalse(any(equal(one, two) for one in first for two in other))
        self.assertFalse(any(equal(one, two) for i, one in enumerate(first) for two in first[:i]))

    @parameterized.parameters(*PACKINGS)
    def test_resumes_exactly(self, packing):
        opened = self.opened(packing=packing)
        iterator, states, batches = opened.train(0), [], []
        for _ in range(50):
            states.append(copy.deepcopy(iterator.get_state()))
            batches.append(next(iterator))
        for place in (0, 1, 20, 47):
            again = opened.train(0)
            next(again)
            again.set_state(json.loads(json.dumps(states[place])))
            self.assertTrue(all(equal(batch, next(again)) for batch in batches[place:]), place)

    def test_too_long_pairs(self):
        lines = [('a' * 24, 'b'), ('a', 'b' * 20), *PAIRS[:6]]  # one too many on each side, with the end
        opened = self.opened(lines, train='all', valid='', packing='none', batch_size=6)
        self.assertCountEqual(texts_of(next(opened.train(0))), PAIRS[:6])
        self.assertRegex(opened.describe(), '6 pairs, .* without 2 pairs longer than 24 and 20 tokens')
        message = (r"2 of the 8 pairs of 'all' are longer than data.source_length=24 or data.length=20, the first of them "
                   rf"\S+:1 with 25 and 2, '{'a' * 24}'; raise these to 25 and 21")
        with self.assertRaisesRegex(ValueError, message):
            opened.evaluation('train', 4)
        with self.assertRaisesRegex(ValueError, message):
            self.opened(lines, train='all', valid='', long='refuse').train(0)
        with self.assertRaisesRegex(ValueError, r"the first of them \S+:8 with 25 and 2, 'A{24}'; raise"):
            # As prepared, in another order.
            self.opened([*PAIRS[:7], ('A' * 24, 'b')], train='all[:90%]', valid='', order='hash', long='refuse').train(0)
        with self.assertRaisesRegex(ValueError, r'the first of them \S+:8 with 25 and 2'):  # of its slice, not line 1
            self.opened([lines[0], *PAIRS[:6], lines[0]], train='all[:7]', valid='all[7:]').evaluation('valid', 4)
        with self.assertRaisesRegex(ValueError, 'No pair of the training part is within'):
            self.opened(lines[:2], train='all', valid='').train(0)

    @parameterized.parameters(*PACKINGS)
    def test_truncated_pairs_keep_their_end(self, packing):
        lines = [('a' * 40, 'b' * 40), ('c', 'd' * 19)]
        opened = self.opened(lines, train='all', valid='', long='truncate', packing=packing, batch_size=2)
        iterator, seen = opened.train(0), set()
        for _ in range(4):
            seen |= {tuple(map(tuple, pair)) for row in rows_of(next(iterator)) for pair in row}
        cut = (*b'a' * 23, END), (END, *b'b' * 19), (*b'b' * 19, END)
        self.assertEqual(seen, {cut, ((*b'c', END), (END, *b'd' * 19), (*b'd' * 19, END))})
        evaluation = opened.evaluation('train', 2)
        self.assertEqual(next(iter(evaluation))['inputs'][0].tolist(), list(cut[0]))
        self.assertEqual(evaluation.pairs(), lines)  # whole
        self.assertEqual(evaluation.facts, {'pairs': 2, 'tokens': 40})  # no bytes: bits per byte would be too few
        self.assertNotIn('bits_per_byte', NextToken().derived({'loss': 1.0}, evaluation.facts))
        whole = opened.evaluation('all[1:]', 2)
        self.assertEqual(whole.facts, {'pairs': 1, 'tokens': 20, 'bytes': 20})
        self.assertIn('bits_per_byte', NextToken().derived({'loss': 1.0}, whole.facts))


class EvaluationTest(ParallelCase):
    @parameterized.product(packing=PACKINGS, batch_size=[1, 7])
    def test_every_pair_once_in_order(self, packing, batch_size):
        evaluation = self.opened(packing=packing).evaluation('valid', batch_size)
        batches = list(evaluation)
        self.assertLen(batches, len(evaluation))
        self.assertEqual({batch[name].shape for batch in batches for name in ('inputs',)}, {(batch_size, 24)})
        rows = [row for batch in batches for row in rows_of(batch)]
        self.assertEqual({len(row) for row in rows}, {1} if batch_size == 1 else {0, 1})
        self.assertEqual([pair for batch in batches for pair in texts_of(batch)], PAIRS[280:])
        self.assertEqual(evaluation.pairs(), PAIRS[280:])
        self.assertEqual(evaluation.text().decode().splitlines(), [target for _, target in PAIRS[280:]])
        tokens = sum(len(target) + 1 for _, target in PAIRS[280:])
        self.assertEqual(evaluation.facts, {'pairs': 20, 'tokens': tokens, 'bytes': tokens})
        self.assertEqual(np.concatenate([batch['example_weights'] for batch in batches]).sum(), 20)
        self.assertEqual(sum(batch['weights'].sum() for batch in batches), tokens)
        self.assertTrue(all(map(equal, batches, evaluation)))  # a second pass is the same

    def test_splits(self):
        opened = self.opened(train='all[:50%]', valid='pairs.tsv[-10:]')
        self.assertEqual(opened.evaluation('train', 4).pairs(), PAIRS[:150])
        self.assertEqual(opened.evaluation('valid', 4).pairs(), PAIRS[-10:])
        self.assertEqual(opened.evaluation('all[:2]', 4).pairs(), PAIRS[:2])
        self.assertLen({opened.digest(split) for split in ('train', 'valid', 'all[:2]')}, 3)
        for split, message in (('test', 'data.test is empty'), ('dev', "'dev' names no file"), ('all[5:5]', 'holds no pairs')):
            with self.assertRaisesRegex(ValueError, message):
                opened.evaluation(split, 4)
        with self.assertRaisesRegex(ValueError, 'takes no context in evaluation'):
            opened.evaluation('valid', 4, context=8)

    def test_a_part_is_read_once(self):
        for order in ('file', 'hash'):
            opened = self.opened(order=order)
            with mock.patch.object(pairs.Pairs, '_prepared', autospec=True, side_effect=pairs.Pairs._prepared) as prepared:
                first = [opened.evaluation(split, 4).pairs() for split in ('valid', 'all[:2]')]
                made = prepared.call_count
                self.assertEqual([opened.evaluation(split, 4).pairs() for split in ('valid', 'all[:2]')], first)
                self.assertEqual(prepared.call_count, made)

    def test_score_of_other_files(self):
        (self.folder / 'other.tsv').write_text('eins \t one\nzwei\ttwo\n')
        evaluation = self.opened().score([str(self.folder / 'other.tsv')], 2)
        self.assertEqual(evaluation.pairs(), [('eins', 'one'), ('zwei', 'two')])
        self.assertEqual(texts_of(next(iter(evaluation))), evaluation.pairs())
        with self.assertRaisesRegex(FileNotFoundError, 'missing.tsv'):
            self.opened().score([str(self.folder / 'missing.tsv')], 2)

    def test_score_of_two_aligned_files(self):
        for name, contents in (('train.de', 'eins\n'), ('train.en', 'one\n'), ('new.de', 'zwei\n'), ('new.en', 'two\n')):
            (self.folder / name).write_text(contents)
        opened = Parallel(
            'files', str(self.folder), languages='de,en', train='train', valid='', test='', tokenizer=Byte()
        ).open(None)
        self.assertEqual(opened.evaluation('train', 1).pairs(), [('eins', 'one')])
        evaluation = opened.score([str(self.folder / name) for name in ('new.de', 'new.en')], 1)
        self.assertEqual(evaluation.pairs(), [('zwei', 'two')])


class OrderTest(ParallelCase):
    def test_held_out_sides_are_not_trained_on(self):
        sources = ['Go.', 'go !', 'Hi', 'Ｈｉ?', 'Run', 'Stop'] + [f'source {i}' for i in range(200)]
        targets = ['Va !', 'Vas-y', 'Salut', 'Bonjour', 'Cours', 'Arrête'] + [f'cible {i // 2}' for i in range(200)]
        lines = list(zip(sources, targets, strict=True))
        fields = {'order': 'hash', 'train': 'all[20%:]', 'valid': 'all[:10%]', 'test': 'all[10%:20%]', 'length': 99}
        opened = self.opened(lines, **fields)
        parts = {split: opened.evaluation(split, 8).pairs() for split in ('train', 'valid', 'test')}
        held = parts['valid'] + parts['test']
        keys = [{self.key(pair[side]) for pair in held} for side in (0, 1)]
        rest = [pair for pair in lines if pair not in held]
        clean = [pair for pair in rest if self.key(pair[0]) not in keys[0] and self.key(pair[1]) not in keys[1]]
        self.assertLen(held, 206 * 20 // 100)
        self.assertLess(len(clean), len(rest))
        self.assertCountEqual(parts['train'], clean)
        for _ in range(2):  # the second time from the cache
            left_out = f'without {len(rest) - len(clean)} pairs that share a side with held-out ones'
            self.assertIn(left_out, self.opened(lines, **fields).describe())
        self.assertNotEqual(opened.digest('train'), self.opened(lines, **fields | {'test': ''}).digest('train'))
        whole = self.opened(lines, **fields | {'train': 'all', 'valid': '', 'test': ''})
        self.assertNotIn('without', whole.describe())
        order = [self.key(source) for source, _ in whole.evaluation('train', 8).pairs()]
        for key in ('go', 'hi'):  # pairs with one source side stay together
            self.assertEqual(order.index(key) + 1, len(order) - 1 - order[::-1].index(key))
        self.assertNotEqual(order, [self.key(source) for source, _ in lines])
        self.assertBetween(np.mean([lines.index(pair) for pair in held]), 60, 146)  # a random sample

    def key(self, text):
        """The rule in words: NFKC, case folded, without punctuation and spaces."""
        text = unicodedata.normalize('NFKC', text).casefold()
        return ''.join(c for c in text if not c.isspace() and not unicodedata.category(c).startswith('P'))

    def test_other_parts_are_as_they_are(self):
        lines = [('a', f'b{i}') for i in range(20)]
        opened = self.opened(lines, order='file', train='all[4:]', valid='all[:4]')
        self.assertEqual(opened.evaluation('train', 4).pairs(), lines[4:])
        with self.assertRaisesRegex(ValueError, 'All 16 pairs of .* share a side with one of data.valid or data.test'):
            self.opened(lines, order='hash', train='all[4:]', valid='all[:4]').evaluation('train', 4)


class SharedFilesTest(ParallelCase):
    def setUp(self):
        super().setUp()
        for name in ('train.tsv', 'valid.tsv', 'test.tsv'):
            (self.folder / name).write_text(''.join(f'{name} {i}\t{i}\n' for i in range(10)))

    def folder_of_files(self, train, valid, test='', **fields):
        return Parallel('table', str(self.folder), train=train, valid=valid, test=test, tokenizer=Byte(), **fields)

    @parameterized.parameters(
        ('all', 'valid', '', "data.train='all' names valid.tsv, and so does data.valid='valid'; give each its own"),
        ('train', 'train[:2]', '', "names train.tsv, and so does data.valid='train\\[:2\\]'; .* train\\[90%:\\]"),
        ('train', 'all', '', "and so does data.valid='all'"),
        ('train[:9]', '', '*.tsv', "data.train='train\\[:9\\]' names .*, and so does data.test='\\*.tsv'"),
        ('all', '', 'test.tsv', "data.train='all' names test.tsv, and so does data.test='test.tsv'"),
        ('all[:90%]', 'valid.tsv[:5]', '', "data.train='all\\[:90%\\]' names valid.tsv"),
        ('[tv]*.tsv', '*.tsv', '', "names test.tsv, train.tsv, valid.tsv, and so does data.valid='\\*.tsv'"),
        ('train[:90%]', 'train[:10%]', '', 'names train.tsv, and so does .* slices of one that do not overlap, such as'),
        ('train[0:]', '', 'all[90%:]', r"and so does data.test='all\[90%:\]'"),
        ('train.tsv', 'train', '', "data.train='train.tsv' names train.tsv, and so does data.valid='train'"),
    )
    def test_what_is_measured_with_is_not_trained_on(self, train, valid, test, message):
        config = self.folder_of_files(train, valid, test)
        with self.assertRaisesRegex(ValueError, message):
            config.open(None)
        self.folder_of_files('train.tsv', 'valid.tsv').open(None).save(self.folder / '.run')
        opened = config.open(self.folder / '.run')  # the text is not looked at before it is read
        with self.assertRaisesRegex(ValueError, message):
            opened.train(0)

    @parameterized.parameters(
        ('train.tsv', 'valid.tsv', 'test.tsv'),
        ('train.tsv', '', ''),
        ('all[:80%]', '*.tsv[80%:]', ''),
        ('train', 'valid', 'test'),
        ('all[:20]', '*.tsv[20:]', ''),
        ('t*.tsv', 'valid.tsv', 'dev'),
    )
    def test_other_files_and_slices_of_the_same(self, train, valid, test):
        self.assertNotEmpty(self.folder_of_files(train, valid, test).open(None).evaluation('train', 4).pairs())

    def test_the_same_files_by_other_names_are_one_part(self):
        parts = [self.folder_of_files(train, valid, order='hash').part('train') for train in ('*[50%:]', 'all[50%:]')
                 for valid in ('all[:50%]', '*.tsv[:50%]')]
        self.assertLen({part.digest for part in parts}, 1)
        self.assertGreater(parts[0].left_out, 0)  # targets that validation has, too

    def test_hashing_keeps_apart_what_has_no_slice(self):
        part = self.folder_of_files('train', 'train[:5]', order='hash').part('train')
        self.assertEmpty({*part} & {*self.folder_of_files('train', 'train[:5]', order='hash').part('valid')})

    def test_aligned_files_too(self):
        for language in ('en', 'fr'):
            (self.folder / f'a.{language}').write_text('x\ny\nz\n')
        fields = dict(source='files', path=str(self.folder), tokenizer=Byte(), test='')
        message = r"data.train='a' names the part 'a', and so does data.valid='a\[2:\]'; .* a\[90%:\]"
        with self.assertRaisesRegex(ValueError, message):
            Parallel(**fields, train='a', valid='a[2:]').open(None)
        self.assertEqual(Parallel(**fields, train='a[:2]', valid='a[2:]').open(None).evaluation('train', 4).facts['pairs'], 2)


class TextsTest(ParallelCase):
    @parameterized.parameters(
        ('nfc', 'Va\u202f!', 'Va !'),
        ('nfc', ' 1\u00a0234,5\u2009 % ', '1 234,5 %'),
        ('nfc', 'e\u0301te\u0301 ½', 'été ½'),  # composed, but not NFKC
        ('textbook', "He's calm.", "he's calm ."),
        ('textbook', 'Va\u202f! Non, si...', 'va ! non , si . . .'),
        ('textbook', '!Ay, 1.5?', '!ay , 1 .5 ?'),
        ('raw', ' Va\u202f!', ' Va\u202f!'),
    )
    def test_prepare(self, text, given, expected):
        self.assertEqual(pairs.prepare(given, text), expected)
        self.assertEqual(pairs.prepare(expected, text), expected)
        opened = self.opened([(given, given)], text=text, train='all', valid='', length=24)
        self.assertEqual(opened.prepare(given), expected)
        self.assertEqual(opened.evaluation('train', 1).pairs(), [(expected, expected)])
        self.assertEqual(bytes(opened.encode(given)[:-1].tolist()).decode(), expected)

    def test_columns_swap_the_sides(self):
        opened = self.opened(columns=(2, 1), valid='all[280:]')
        self.assertIn('no header; source from 2, target from 1; ', opened.describe())
        with self.assertRaisesRegex(ValueError, "data.languages='fr,en' name no columns"):
            self.opened(languages='fr,en')
        self.assertEqual(opened.evaluation('valid', 4).pairs(), [(target, source) for source, target in PAIRS[280:]])


class OpenTest(ParallelCase):
    LINES = [('a b c', 'x y'), ('a b', 'y z'), ('held', 'out')]

    def test_one_vocabulary_is_learnt_from_both_sides_of_training_alone(self):
        opened = self.opened(self.LINES, tokenizer=Word(), train='all[:2]', valid='all[2:]')
        self.assertCountEqual(opened.tokenizer.words, 'abcxyz')
        self.assertEqual(opened.facts, {'vocab': 8, 'source_vocab': 0})
        self.assertEqual(opened.pieces(opened.encode('a x held')), ['a', 'x', '<unk>', '<eos>'])
        self.assertEqual(opened.decode(opened.encode_target('y x')), 'y x')

    def test_too_large_a_vocabulary_is_said_of_its_own_field(self):
        for name, other in (('tokenizer', 'target_tokenizer'), ('target_tokenizer', 'tokenizer')):
            with self.assertRaisesRegex(ValueError, rf"take --config\.data\.{name}='WordPiece\(vocab=\d+\)'\.$"):
                self.opened(self.LINES, **{name: WordPiece(vocab=5000), other: Word()})

    def test_each_side_has_its_own_vocabulary(self):
        fields = {'tokenizer': Word(), 'target_tokenizer': Char(), 'train': 'all[:2]', 'valid': 'all[2:]'}
        opened = self.opened(self.LINES, **fields)
        self.assertCountEqual(opened.source_tokenizer.words, 'abc')
        self.assertEqual(opened.tokenizer.characters, ' xyz')
        self.assertEqual(opened.facts, {'vocab': 6, 'source_vocab': 5})
        self.assertEqual(opened.pieces(opened.encode('a x')), ['a', '<unk>', '<eos>'])
        self.assertEqual(opened.target_pieces(opened.encode_target('y x')), ['y', ' ', 'x', '<end>'])
        self.assertEqual((opened.start, opened.end), (opened.tokenizer.end, opened.tokenizer.end))
        opened.save(self.folder / 'run')
        (self.folder / 'pairs.tsv').rename(self.folder / 'gone')
        config = Parallel(source='table', path=str(self.folder / 'pairs.tsv'), **fields)
        for again in (config.open(self.folder / 'run'), config.open(None, self.folder / 'run')):  # needs no text
            self.assertEqual((again.facts, again.source_tokenizer, again.tokenizer),
                             (opened.facts, opened.source_tokenizer, opened.tokenizer))
        for own, message in ((None, "has a tokenizer of the targets alone, and data.target_tokenizer is ''; set it"),
                             (Word(), r"^data.target_tokenizer='Word\(\)' is not .*; set data.target_tokenizer to that")):
            with self.assertRaisesRegex(ValueError, message):
                dataclasses.replace(config, target_tokenizer=own).open(None, self.folder / 'run')
        (self.folder / 'run/source/tokenizer.json').unlink()
        with self.assertRaisesRegex(ValueError, 'run/source has no tokenizer.model or tokenizer.json any more'):
            config.open(self.folder / 'run')

    def test_saved_tokenizer(self):
        self.opened(self.LINES, tokenizer=Word(), train='all[:2]').save(self.folder / 'run')
        again = self.opened(PAIRS, self.folder / 'run', tokenizer=Word())
        self.assertCountEqual(again.tokenizer.words, 'abcxyz')
        self.assertIs(again.tokenizer, again.source_tokenizer)
        with self.assertRaisesRegex(ValueError, 'is not the tokenizer of'):
            self.opened(PAIRS, self.folder / 'run', tokenizer=Char())
        with self.assertRaisesRegex(ValueError, r"one tokenizer for both sides, and data.target_tokenizer is 'Word\(\)'; le"):
            self.opened(PAIRS, self.folder / 'run', tokenizer=Word(), target_tokenizer=Word())

    @parameterized.parameters('drop', 'truncate', 'refuse')
    def test_an_input_is_never_cut(self, long):
        opened = self.opened(long=long)
        for encode in (opened.encode, opened.encode_target):
            self.assertEqual(encode('a' * 40).tolist(), [97] * 40 + [END])
            self.assertEqual(encode('').dtype, np.int32)

    def test_the_language_of_the_targets(self):
        for name in ('train.de', 'train.en'):
            (self.folder / name).write_text('one\n')
        files = {'source': 'files', 'path': str(self.folder), 'train': 'train', 'valid': ''}
        for fields, language in (({}, ''), ({'languages': 'zh,en', 'columns': '2,1'}, 'en'),
                                 (files | {'languages': 'de, en'}, 'en'),
                                 ({'source': 'cldr', 'path': '', 'languages': 'en,zh_Hant', 'train': 'test'}, 'zh_Hant')):
            self.assertEqual(self.opened(**fields).target_language, language)

    def test_second_start_reads_only_the_cache(self):
        fields = {'tokenizer': SentencePiece(vocab=270), 'order': 'hash'}
        batch = next(self.opened(**fields).train(0))
        before = {path: path.stat().st_mtime_ns for path in cache.root().rglob('*')}
        self.assertTrue(equal(batch, next(self.opened(**fields).train(0))))
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in cache.root().rglob('*')})
        self.assertFalse(equal(batch, next(self.opened(PAIRS[::-1], **fields | {'order': 'file'}).train(0))))

    @pytest.mark.slow
    def test_embedded_corpus(self):
        opened = Parallel(tokenizer=Byte(), source_length=99, length=99).open(None)
        self.assertEqual(opened.evaluation('valid', 50).facts['pairs'], 1000)
        self.assertRegex(opened.describe(), r'^cldr, en to fr; \d\d,\d{3} pairs')
        self.assertNotRegex(''.join(source + target for source, target in opened.evaluation('test', 50).pairs()),
                            re.compile('[\u00a0\u202f]'))

    @parameterized.parameters(
        ({'source': 'web'}, "data.source='web'.*'cldr', 'table', 'files', 'tfds'"),
        ({'order': 'random'}, "data.order='random'"),
        ({'text': 'nfkc'}, "data.text='nfkc'"),
        ({'long': 'cut'}, "data.long='cut'"),
        ({'packing': 'concat'}, "data.packing='concat'.*'first_fit', 'buckets', 'none'"),
        ({'length': 0}, 'data.length=0'),
        ({'source_length': 0}, 'data.source_length=0'),
        ({'batch_size': 0}, 'data.batch_size=0'),
        ({'languages': 'en'}, "data.languages='en' are not two languages"),
        ({'languages': 'en,en'}, "data.languages='en,en' are not two languages"),
        ({'columns': (1, 1)}, r'data.columns=\(1, 1\) are not two columns'),
        ({'columns': (0, 1)}, r'data.columns=0,1 names no column'),
        ({'source': 'tfds', 'path': ''}, "data.name is empty and data.source is 'tfds'"),
        ({'name': 'wmt14_translate/de-en'}, "data.name='wmt14_translate/de-en' is not read with data.source='table'"),
        ({'source': 'cldr'}, "data.path='.*' is not read with data.source='cldr'"),
        ({'path': ''}, "data.path is empty and data.source is 'table'; set it to a table, a folder"),
        ({'source': 'files', 'path': ''}, "data.path is empty and data.source is 'files'; set it to the folder"),
        ({'train': ''}, 'data.train is empty'),
    )
    def test_errors(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            self.opened(**{'tokenizer': Char(), **fields})

    def test_imports_neither_jax_nor_grain_before_training(self):
        code = 'import sys, data.seq2seq.parallel; print({"jax", "grain", "babel", "tensorflow_datasets"} & set(sys.modules))'
        out = subprocess.run(
            [sys.executable, '-c', code], cwd=Path(__file__).parents[3], capture_output=True, check=True
        )
        self.assertEqual(out.stdout.strip(), b'set()')


if __name__ == '__main__':
    absltest.main()
