import collections
import itertools
import json
import math
import pathlib

import numpy as np
import tokenizers as library
from absl.testing import absltest, parameterized

from data.noise.masking import NGrams, Spans, Tokens, WholeWords, WithReplacement
from data.text.masked import Masked
from data.tokenizers.specs import Ids, Json, SentencePiece, WordPiece
from tests.data import tiny_tokenizers

RNG = np.random.default_rng(0)
WORDS = [f'w{i}' for i in range(300)]
LINES = [' '.join(RNG.choice(WORDS, size)) for size in [1, 1, 2, *RNG.integers(1, 60, 97)]]
SIGNS = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
PAD, UNK, CLS, SEP, MASK = range(5)
IDS = dict(tokenizer=Ids(vocab=50, end=1, cls=2, separator=3, mask=4), framing='bert')
PAIRS = dict(packing='none', cut='anywhere')
TASKS = dict(concat={}, none={'packing': 'none'}, next=dict(pairs='next', **PAIRS), order=dict(pairs='order', **PAIRS),
             again={'noise': WithReplacement()}, words={'noise': WholeWords()}, ngrams={'noise': NGrams()},
             spans={'noise': Spans(), 'boundary_targets': 20}, static={'copies': 2})


def equal(first, second):
    return first.keys() == second.keys() and all(np.array_equal(first[k], second[k]) for k in first)


def restored(batch):
    """The rows as they were before tokens were hidden, without padding."""
    inputs = batch['inputs'].copy()
    for row, masked, targets, weights in zip(inputs, batch['masked'], batch['targets'], batch['weights']):
        row[masked[weights > 0]] = targets[weights > 0]
    return [row[there > 0].tolist() for row, there in zip(inputs, batch['segments'])]


def words_of(line):
    """Token ids of a line, by the test's own count."""
    return [len(SIGNS) + WORDS.index(word) for word in line.split()]


def inside(piece, document):
    return any(document[i : i + len(piece)] == piece for i in range(len(document) - len(piece) + 1))


class MaskedCase(parameterized.TestCase):
    def vocabulary(self, signs=SIGNS, added=True):
        """The path of a small tokenizer.json of whole words."""
        model = library.models.WordLevel({word: i for i, word in enumerate([*signs, *WORDS])}, unk_token=signs[1])
        made = library.Tokenizer(model)
        made.pre_tokenizer = library.pre_tokenizers.Whitespace()
        if added:
            made.add_special_tokens(list(signs))
        path = self.folder / f'{signs[-1][1:-1]}{added}.json'
        made.save(str(path))
        return Json(str(path))

    def opened(self, text=None, folder=None, **fields):
        path = self.folder / 'text.txt'
        path.write_text('\n'.join(LINES if text is None else text) + '\n')
        given = dict(path=str(path), documents='line', train='all', length=24, batch_size=8)
        if 'tokenizer' not in fields:
            fields['tokenizer'] = self.vocabulary()
        return Masked(**given | fields).open(folder)

    def rows(self, evaluation):
        """All arrays of an evaluation, without padding rows."""
        batches = [{k: v[batch['example_weights'] > 0] for k, v in batch.items()} for batch in evaluation]
        return {k: np.concatenate([batch[k] for batch in batches]) for k in batches[0]}


class RowsTest(MaskedCase):
    @parameterized.product(packing=('concat', 'none'), documents=('line', 'file', 'stream'), length=(24, 7, 3))
    def test_evaluation_holds_every_token_once_and_in_order(self, packing, documents, length):
        opened = self.opened(packing=packing, documents=documents, length=length)
        rows = restored(self.rows(opened.evaluation('all', 70)))
        for row in rows:
            self.assertEqual((row[0], row[-1]), (CLS, SEP))
            self.assertLessEqual(len(row), length)
        joined = packing == 'concat' and documents == 'line'
        found = [token for row in rows for token in row[1:-1] if not joined or token != SEP]
        self.assertEqual(found, [token for line in LINES for token in words_of(line)])
        if documents != 'line':
            self.assertEqual({len(row) for row in rows[:-1]}, {length})

    def test_pieces_of_one_document_do_not_share_rows(self):
        rows = restored(self.rows(self.opened(packing='none').evaluation('all', 5)))
        expected = [ids[i : i + 22] for ids in map(words_of, LINES) for i in range(0, len(ids), 22)]
        self.assertEqual([row[1:-1] for row in rows], expected)

    def test_documents_that_share_a_row_are_told_apart(self):
        rows = restored(self.rows(self.opened(length=24).evaluation('all', 5)))
        text = [token for line in LINES for token in (*words_of(line), SEP)][:-1]
        for row in rows:
            self.assertTrue(inside(row[1:-1], text))
            self.assertNotIn(SEP, (row[1], row[-2]))
        self.assertEqual(len(rows), -(-len(text) // 22))

    def test_the_token_between_documents_is_that_of_the_frame_and_not_of_the_tokenizer(self):
        rows = restored(self.rows(self.opened(['10 1 12', '13', '14 15'], **IDS, length=20).evaluation('all', 5)))
        self.assertEqual(rows, [[2, 10, 1, 12, 3, 13, 3, 14, 15, 3]])

    def test_a_frame_of_the_mask_alone(self):
        opened = self.opened(['10 11 12', '13'], tokenizer=Ids(vocab=50, mask=4), framing='plain', packing='none', length=2)
        self.assertEqual(restored(self.rows(opened.evaluation('all', 5))), [[10, 11], [12], [13]])

    def test_special_tokens_of_the_text_are_never_predicted(self):
        text = ['w1 [SEP] w2 [MASK] w3 [CLS]', '[SEP] [MASK]', 'w4 [UNK] zzz']
        rows = self.rows(self.opened(text, packing='none', noise=Tokens(share=1.0)).evaluation('all', 2))
        asked = [targets[weights > 0].tolist() for targets, weights in zip(rows['targets'], rows['weights'])]
        self.assertEqual(asked, [[6, 7, 8], [9]])  # the second line has nothing to predict
        self.assertEqual(rows['masked'].tolist()[0][:4], [1, 3, 5, 0])

    @parameterized.parameters(*TASKS)
    def test_batches_keep_the_contract(self, task):
        opened = self.opened(**TASKS[task])
        iterator = opened.train(0)
        for _ in range(20):
            batch = next(iterator)
            self.assertEqual({k: (v.shape, v.dtype.type) for k, v in batch.items()}, opened.shapes)
            there = np.arange(24) < batch['segments'].sum(1)[:, None]
            np.testing.assert_array_equal(batch['segments'], there)
            np.testing.assert_array_equal(batch['positions'], np.arange(24) * there)
            self.assertFalse(batch['inputs'][~there].any())
            self.assertEqual(opened.count(batch), (batch['weights'] > 0).sum())
            for name in ('masked', 'targets'):
                self.assertFalse(batch[name][batch['weights'] == 0].any())
            if task not in ('next', 'order'):
                self.assertFalse(batch['types'].any())
            for row, whole in enumerate(restored(batch)):
                used = batch['weights'][row] > 0
                ordinary = np.flatnonzero(np.array(whole) > MASK)
                budget = len(whole) if task == 'again' else len(ordinary)
                self.assertEqual(batch['weights'][row].sum(), max(1, (math.ceil if task == 'spans' else round)(0.15 * budget)))
                self.assertTrue(used[: used.sum()].all())
                self.assertContainsSubset(batch['masked'][row][used].tolist(), ordinary.tolist())
                self.assertTrue((np.diff(batch['masked'][row][used]) > 0).all())
                hidden = np.isin(np.arange(len(whole)), batch['masked'][row][used])
                np.testing.assert_array_equal(batch['inputs'][row][: len(whole)][~hidden], np.array(whole)[~hidden])

    def test_an_epoch_holds_every_piece_once(self):
        opened = self.opened(packing='none', batch_size=1)
        iterator = opened.train(0)
        rows = [tuple(restored(next(iterator))[0][1:-1]) for _ in range(int(opened.batches_per_epoch))]
        expected = [tuple(ids[i : i + 22]) for ids in map(words_of, LINES) for i in range(0, len(ids), 22)]
        self.assertEqual(collections.Counter(rows), collections.Counter(expected))
        self.assertNotEqual(rows, expected)

    @parameterized.parameters(0.01, 0.15, 0.5, 1.0)
    def test_the_share_is_that_of_the_field_and_rows_have_room_for_it(self, share):
        rows = self.rows(self.opened(packing='none', noise=Tokens(share=share)).evaluation('all', 64))
        for row, weights in zip(restored(rows), rows['weights']):
            self.assertEqual(weights.sum(), max(1, round(share * (len(row) - 2))))

    def test_roberta(self):
        signs = ['<pad>', '<unk>', '<s>', '</s>', '<mask>']
        fields = dict(tokenizer=self.vocabulary(signs), framing='roberta')
        rows = self.rows(self.opened(**fields, packing='none', pairs='next', cut='anywhere').evaluation('all', 7))
        self.assertFalse(rows['types'].any())
        for row in restored(rows):
            self.assertEqual([i for i, token in enumerate(row[:-1]) if token == SEP][1:], [row.index(SEP) + 1])
        self.assertEqual(self.opened(**fields).read_masked('w0 <mask>')[0].tolist(), [CLS, 5, MASK, SEP])


class MaskingTest(MaskedCase):
    def test_shares_of_what_hidden_tokens_become(self):
        """50 ids, 4 of them special: a token of 46 is drawn for 10 %, once in 46 times the one that it replaces."""
        lines = [' '.join(map(str, RNG.choice([0, *range(5, 50)], 40))) for _ in range(200)]
        opened = self.opened(lines, **IDS, packing='none', length=42, batch_size=100)
        iterator, told, targets, places = opened.train(7), [], [], []
        for _ in range(60):
            batch = next(iterator)
            used = batch['weights'] > 0
            told.append(np.take_along_axis(batch['inputs'], batch['masked'], 1)[used])
            targets.append(batch['targets'][used])
            places.append(batch['masked'][used])
        told, targets, places = map(np.concatenate, (told, targets, places))
        n = len(told)
        self.assertEqual(n, 60 * 100 * 6)
        kept, random = told == targets, (told != targets) & (told != 4)
        for found, expected in ((told == 4, 0.8), (kept, 0.1 + 0.1 / 46), (random, 0.1 * 45 / 46)):
            self.assertLess(abs(found.mean() - expected), 4 * np.sqrt(expected * (1 - expected) / n))
        counts = np.bincount(told[random], minlength=50)
        self.assertEqual(counts[[1, 2, 3, 4]].tolist(), [0, 0, 0, 0])
        counts = np.delete(counts, [1, 2, 3, 4])
        self.assertLess(((counts - counts.mean()) ** 2 / counts.mean()).sum(), 45 + 4 * np.sqrt(2 * 45))  # chi-square
        counts = np.bincount(places, minlength=42)[1:41]
        self.assertEqual(counts.sum(), n)
        self.assertLess(((counts - counts.mean()) ** 2 / counts.mean()).sum(), 39 + 4 * np.sqrt(2 * 39))

    @parameterized.parameters(*TASKS)
    def test_seed_decides(self, task):
        opened = self.opened(**TASKS[task])
        runs = [[next(iterator) for _ in range(6)] for iterator in (opened.train(0), opened.train(0), opened.train(1))]
        self.assertTrue(all(map(equal, runs[0], runs[1])))
        self.assertFalse(any(map(equal, runs[0], runs[2])))

    def test_every_epoch_has_other_masks(self):
        opened = self.opened([' '.join(WORDS)], batch_size=14)  # all rows in one batch
        iterator = opened.train(0)
        self.assertEqual(opened.batches_per_epoch, 1)
        seen = [set(), set()]
        for epoch in seen:
            batch = next(iterator)
            epoch.update(zip(map(tuple, restored(batch)), map(tuple, batch['masked'])))
        self.assertEqual({row for row, _ in seen[0]}, {row for row, _ in seen[1]})
        self.assertLess(len(seen[0] & seen[1]), 3)

    @parameterized.parameters(*TASKS)
    def test_training_resumes(self, task):
        opened = self.opened(**TASKS[task])
        iterator = opened.train(3)
        for _ in range(5):
            next(iterator)
        state = iterator.get_state()
        expected = [next(iterator) for _ in range(30)]
        again = self.opened(**TASKS[task]).train(3)
        again.set_state(state)
        self.assertTrue(all(equal(batch, next(again)) for batch in expected))

    @parameterized.parameters(*TASKS)
    def test_evaluation_is_always_the_same(self, task):
        opened = self.opened(**TASKS[task])
        evaluation = opened.evaluation('all', 5)
        first = self.rows(evaluation)
        self.assertTrue(equal(first, self.rows(evaluation)))
        self.assertTrue(equal(first, self.rows(self.opened(**TASKS[task]).evaluation('all', 32))))
        self.assertTrue(equal(first, self.rows(opened.score([opened.config.path], 1))))
        self.assertEqual(evaluation.facts, {'rows': len(first['weights']), 'documents': len(LINES)})
        self.assertGreater(len({tuple(row) for row in first['masked'].tolist()}), len(first['masked']) / 2)


    @parameterized.parameters(*TASKS)
    def test_training_resumes_in_the_middle_of_any_epoch(self, task):
        opened = self.opened(batch_size=3, **TASKS[task])
        self.assertGreater(opened.batches_per_epoch, 20)
        state = {'next': int(2.4 * opened.batches_per_epoch)}
        iterator, again = opened.train(3), self.opened(batch_size=3, **TASKS[task]).train(3)
        for _ in range(state['next']):
            next(iterator)
        self.assertEqual(iterator.get_state(), state)
        again.set_state(state)
        self.assertTrue(all(equal(next(iterator), next(again)) for _ in range(5)))

    @parameterized.parameters({}, TASKS['order'], {'noise': Spans()})
    def test_static_masks_are_those_of_so_many_copies(self, **fields):
        opened = self.opened([' '.join(WORDS[:294])], batch_size=7, copies=3, **fields)  # 14 rows
        iterator, seen = opened.train(0), collections.defaultdict(list)
        self.assertEqual(opened.batches_per_epoch, 2)
        for number in range(14):
            batch = next(iterator)
            for row in range(7):
                whole = {name: values[row].tolist() for name, values in batch.items()}
                seen[frozenset(restored(batch)[row])].append((number // 2, whole))
        self.assertLen(seen, 14)
        for found in seen.values():
            self.assertEqual([epoch for epoch, _ in found], list(range(7)))
            rows = [row for _, row in found]
            self.assertEqual(rows[:4], rows[3:7])  # every third epoch is the same
            self.assertNotEqual(rows[0], rows[1])
        other = next(opened.train(1))
        self.assertFalse(np.array_equal(np.sort(other['masked']), np.sort(next(opened.train(0))['masked'])))

    def test_no_row_begins_or_ends_with_documents_without_tokens(self):
        text = ['the cat sat on', *['\u200b'] * 40, 'the mat', *['\ufeff'] * 3] * 9
        opened = self.opened(text, tokenizer=WordPiece(vocab=21), length=12)
        rows = [row[1:-1] for row in restored(self.rows(opened.evaluation('all', 3)))]
        end = opened.frame.end
        self.assertNotIn(end, [one for row in rows for one in (row[0], row[-1])])
        words = lambda lines: [one for line in lines for one in opened.encode(line).tolist()]
        self.assertEqual([one for row in rows for one in row if one != end], words(text))

    def test_entropy_of_the_words(self):
        lines = ['w1 w1 w2 zzz', 'w3 w1']
        opened = self.opened(lines)
        counts = np.array([3, 1, 1]) / 5  # unknown words are never predicted
        self.assertAlmostEqual(opened.unigram_entropy, -(counts * np.log(counts)).sum(), places=12)
        self.assertRegex(opened.describe(), '; unigram entropy 0.95, 0.[89][0-9] with the words that the noise leaves$')

    def test_the_plateau_is_the_loss_of_a_model_of_frequencies_that_copies(self):
        lines = ['w1 w1 w2 zzz', 'w3 w1']
        again = WithReplacement(share=0.5, random=0.1)  # 4 draws of 5 words, in a row of 9 tokens
        for noise in Tokens(), Tokens(mask=1.0, random=0.0), Tokens(mask=0.1, random=0.6), again:
            opened = self.opened(lines, noise=noise)
            size = len(opened._vocabulary.ordinary)
            drawn = itertools.product(range(5), repeat=4 if noise is again else 1)
            chances = np.array([one.count(0) for one in drawn if one[0] == 0])  # of the word that is drawn first
            mask, kept = 1 - ((1 - noise.mask) ** chances).mean(), ((1 - noise.mask - noise.random) ** chances).mean()
            shares = dict.fromkeys(range(size), 0.0) | {0: 3 / 5, 1: 1 / 5, 2: 1 / 5}
            seen, loss = collections.defaultdict(dict), 0.0  # {what is seen: {word: probability of both}}
            for word, p in shares.items():
                seen['mask'][word] = p * mask
                for other in shares:
                    seen[other][word] = p * ((1 - mask - kept) / size + (other == word) * kept)
            for both in seen.values():
                loss -= sum(p * math.log(p / sum(both.values())) for p in both.values() if p > 1e-12)
            self.assertAlmostEqual(opened.plateau, loss, places=12, msg=str(noise))
            if noise.mask == 1:
                self.assertEqual(opened.plateau, opened.unigram_entropy)

    def test_unknown_words_of_a_text(self):
        text = ['the cat <unk> on the <unk> mat', '<unk> <unk> <unk>', 'the mat <unk>'] * 9
        opened = self.opened(text, tokenizer=WordPiece(vocab=21), noise=WholeWords(share=1.0), packing='none')
        rows = self.rows(opened.evaluation('all', 3))
        unknown = opened.tokenizer.roles.unknown
        self.assertLen(rows['inputs'], 18)  # a line of nothing else has no row
        self.assertEqual([row.count(unknown) for row in restored(rows)[:2]], [2, 1])
        self.assertNotIn(unknown, rows['targets'][rows['weights'] > 0])
        self.assertEqual((rows['inputs'] == unknown).sum(), 27)  # none is hidden, none is put in
        self.assertFalse({'u', '##k', '<', '>'} & set(opened.pieces(range(21))))  # nothing of it was learnt
        self.assertIn(unknown, opened.read_masked('the <unk> [MASK]')[0])

    @parameterized.parameters(('UNK', 54), ('', 0), ('<oov>', 0))
    def test_the_sign_of_unknown_words_is_a_field(self, sign, count):
        text = ['the cat UNK on the UNK mat', 'UNK the UNK UNK', 'the mat UNK'] * 9
        opened = self.opened(text, tokenizer=WordPiece(vocab=24 if sign == 'UNK' else 28), packing='none', unknown=sign)
        rows = self.rows(opened.evaluation('all', 3))
        number = opened.tokenizer.roles.unknown
        self.assertEqual(sum(row.count(number) for row in restored(rows)), count)
        self.assertEqual(opened.encode('the UNK').tolist().count(number), sign == 'UNK')
        with self.assertRaisesRegex(ValueError, "data.unknown=' UNK' has white space; it is the word that stands for unknown"):
            self.opened(text, unknown=' UNK')


class NextSentenceTest(MaskedCase):
    TEXT = [' '.join(WORDS[start : start + size]) for start, size in zip(range(0, 300, 30), RNG.integers(2, 31, 10))]

    def test_labels_are_those_of_the_documents(self):
        opened = self.opened(self.TEXT, packing='none', pairs='next', cut='anywhere', length=17, batch_size=50)
        documents, iterator = [words_of(line) for line in self.TEXT], opened.train(0)
        labels, cuts, asked = [], set(), []
        windows = [ids[i : i + 14] for ids in documents for i in range(0, len(ids), 14)]
        for _ in range(40):
            batch = next(iterator)
            for row, types, label, masked in zip(restored(batch), batch['types'], batch['label'], batch['masked']):
                border = row.index(SEP)
                first, second = row[1:border], row[border + 1 : -1]
                self.assertEqual(types.tolist(), [0] * (border + 1) + [1] * (len(second) + 1) + [0] * (17 - len(row)))
                self.assertTrue(first and second and SEP not in second)
                home, = [i for i, ids in enumerate(documents) if first[0] in ids]  # no word is in two documents
                window, = [window for window in windows if window[: len(first)] == first]
                follows = window[len(first) :] == second
                self.assertEqual(follows, label == 0)
                if not follows:
                    other, = [i for i, ids in enumerate(documents) if inside(second, ids)]
                    self.assertNotEqual(other, home)
                    self.assertEqual(len(second), min(len(window) - len(first), len(documents[other])))
                labels.append(label)
                cuts.add((len(first), len(window)))
                if len(window) == 14:
                    asked.append((len(first), label, 1 in masked))
        self.assertLess(abs(np.mean(labels) - 0.5), 4 * 0.5 / np.sqrt(len(labels)))
        self.assertEqual({first for first, size in cuts if size == 14}, set(range(1, 14)))
        related = np.corrcoef(np.transpose(asked))[2, :2]  # where words are hidden tells nothing of cut and label
        self.assertLess(np.abs(related).max(), 4 / np.sqrt(len(asked)))

    def test_other_documents_and_all_places_in_them_are_as_likely(self):
        opened = self.opened(['w0 w1 w2', 'w3 w4 w5', 'w6 w7 w8'], packing='none', pairs='next', cut='anywhere', batch_size=100)
        iterator, seen = opened.train(0), collections.Counter()
        for _ in range(30):
            batch = next(iterator)
            for row in np.array(restored(batch))[batch['label'] == 1]:
                if row[1] == 5 and row[2] != SEP:  # w0 w1, then any of six
                    seen[row[4]] += 1
        counts = np.array([seen[token] for token in range(8, 14)])
        self.assertEqual(counts.sum(), seen.total())
        self.assertLess(((counts - counts.mean()) ** 2 / counts.mean()).sum(), 5 + 4 * np.sqrt(10))

    def test_evaluation_holds_every_piece_once(self):
        rows = self.rows(self.opened(packing='none', pairs='next', cut='anywhere', length=25).evaluation('all', 5))
        windows = [ids[i : i + 22] for ids in map(words_of, LINES) for i in range(0, len(ids), 22)]
        windows = [window for window in windows if len(window) > 1]
        self.assertLen(rows['label'], len(windows))
        for row, label, window in zip(restored(rows), rows['label'], windows):
            border = row.index(SEP)
            own = row[1:border] + (row[border + 1 : -1] if label == 0 else [])
            self.assertEqual(own, window if label == 0 else window[: border - 1])

    def test_what_cannot_be_cut_in_two_is_said(self):
        opened = self.opened(['w1 w2', 'w3', 'w4 w5 w6', 'w7'], packing='none', pairs='next', cut='anywhere')
        self.assertIn("5 tokens in 2 rows to train on (without 2 tokens that data.cut='anywhere' cannot cut in two); ",
                      opened.describe())
        self.assertNotIn('without', self.opened(packing='none').describe())

    @parameterized.parameters((['w1 w2 w3'], 'has 1 document'), (['w1', 'w2'], 'no document of two tokens'))
    def test_too_little_text(self, text, message):
        opened = self.opened(text, packing='none', pairs='next', cut='anywhere')
        for use in (lambda: opened.train(0), lambda: opened.evaluation('all', 2)):
            with self.assertRaisesRegex(ValueError, message):
                use()


class ReadTest(MaskedCase):
    def test_masks_of_a_text(self):
        ids, types, places = self.opened().read_masked(' w0 [MASK] w2 [MASK]\n')
        self.assertEqual(ids.tolist(), [CLS, 5, MASK, 7, MASK, SEP])
        self.assertEqual((types.tolist(), places.tolist()), ([0] * 6, [2, 4]))
        self.assertEqual([array.dtype for array in (ids, types, places)], [np.int32] * 3)

    def test_masks_of_bare_ids(self):
        ids, _, places = self.opened(['10 11'], **IDS).read_masked('10 4 14')
        self.assertEqual((ids.tolist(), places.tolist()), ([2, 10, 4, 14, 3], [2]))

    def test_learnt_word_pieces(self):
        text = ['the cat sat on the mat', 'the dog sat on the log'] * 4
        opened = self.opened(text, tokenizer=WordPiece(vocab=32))
        ids, _, places = opened.read_masked('The cat [MASK] on the mat')
        self.assertEqual(ids[places].tolist(), [opened.frame.mask])
        self.assertEqual(opened.decode(ids[1:-1]).replace(' [MASK]', ''), 'the cat on the mat')
        rows = restored(self.rows(opened.evaluation('all', 4)))
        self.assertEqual(opened.decode([token for row in rows for token in row[1:-1]]), ' '.join(text))

    @parameterized.parameters(
        ('w0 w1', r"'w0 w1' has no \[MASK\]; write it where a word is to be found"),
        ('', r"'' has no \[MASK\]"),
        ('[MASK] ' + 'w0 ' * 22, 'has 25 tokens with the special ones, and a row of this run 24; shorten it'),
    )
    def test_what_cannot_be_read(self, text, message):
        with self.assertRaisesRegex(ValueError, message):
            self.opened().read_masked(text)

    def test_a_word_in_place_of_a_mask(self):
        opened = self.opened()
        self.assertEqual(opened.in_place('w0 [MASK] w2', 0, 'w7').tolist(), opened.encode('w7').tolist())
        path = pathlib.Path(tiny_tokenizers.byte_level(pathlib.Path(self.folder), 'train peanut').path)
        saved = json.loads(path.read_text())
        for token in saved['added_tokens']:
            token['lstrip'] = token['content'] == '<mask>'  # RoBERTa's takes the space before it
        path.write_text(json.dumps(saved))
        framed = self.opened(tokenizer=Json(str(path), mask='<mask>', cls='<s>', separator='</s>', end='</s>'))
        for text, mask, wanted in (('a <mask>, <mask>', 1, ' train'), ('<mask> a', 0, 'train'), ('a<mask>', 0, 'train')):
            self.assertEqual(framed.in_place(text, mask, 'train').tolist(), framed.encode(wanted).tolist(), text)
        self.assertEqual(self.opened(['10 11'], **IDS).in_place('14 4', 0, '1 13').tolist(), [1, 13])
        pieces = self.opened(['the cat sat on the mat'] * 9, framing='roberta',
                             tokenizer=SentencePiece(vocab=280, special=('begin', 'mask')))
        for text, word in (('the <mask> sat', ' cat'), ('<mask> sat', 'the'), ('the <mask> <mask> on', ' cat')):
            self.assertEqual(pieces.in_place(text, 0, word.strip()).tolist(), pieces.encode(word).tolist(), text)
        for word, message in (('', "'' has no tokens; give a word"),
                              ('[SEP]', r"'\[SEP\]' has the token \[SEP\], which is no")):
            with self.assertRaisesRegex(ValueError, message):
                opened.in_place('w0 [MASK]', 0, word)

    def test_a_mask_stands_for_a_piece_with_the_space_before_it(self):
        opened = self.opened(['the cat sat on the mat'] * 9, framing='roberta',
                             tokenizer=SentencePiece(vocab=280, special=('begin', 'mask')))
        wanted = [*opened.encode('the'), opened.frame.mask, *opened.encode(' sat on')]
        self.assertEqual(opened.encode('the <mask> sat on').tolist(), wanted)
        self.assertEqual(opened.read_masked('the <mask> sat on')[0][1:-1].tolist(), wanted)
        self.assertEqual(opened.filled('the <mask> sat on', opened.encode(' cat')[:1]), 'the cat sat on')

    def test_a_mask_that_no_text_can_hold(self):
        opened = self.opened(tokenizer=self.vocabulary(added=False))
        with self.assertRaisesRegex(ValueError, r'does not read \[MASK\] as its token 4'):
            opened.read_masked('w0 [MASK]')

    def test_a_saved_run_needs_no_text(self):
        opened = self.opened()
        opened.save(self.folder)
        path = self.folder / 'tokenizer.json'
        self.assertTrue(path.is_file())
        again = Masked(tokenizer=opened.config.tokenizer, length=24, batch_size=8, path='gone').open(self.folder)
        facts = {'vocab': 305, 'types': 2, 'boundary_targets': 0}
        self.assertEqual((again.shapes, again.facts, again.frame), (opened.shapes, facts, opened.frame))
        self.assertEqual(again.pieces([MASK, 5]), ['[MASK]', 'w0'])
        self.assertEqual(again.decode([5, 6]), 'w0 w1')
        self.assertEqual(opened.unit, 'tokens')
        self.assertRegex(opened.describe(), rf'100 documents, .* {sum(map(len, map(words_of, LINES))):,} tokens in \d+ rows')
        self.assertNotEqual(opened.digest('all[:50%]'), opened.digest('all'))


class RefusalTest(MaskedCase):
    @parameterized.parameters(
        (dict(framing='gpt3'), "data.framing='gpt3' is no template; it takes 'bert', 'roberta', 't5', 'plain', 'gpt', or a"),
        (dict(tokenizer=Ids(vocab=50, end=1), framing='bert'), "needs a token with the role 'cls'"),
        (dict(packing='first_fit'), "data.packing='first_fit' is not for masked text; set it to 'concat'"),
        (dict(packing='rows'), "data.packing='rows' is not known"),
        (dict(pairs='next'), "data.packing='concat' joins documents; set data.packing='none'"),
        (dict(pairs='next', packing='none', documents='stream'), "data.documents='stream' has one"),
        (dict(length=2), 'no room for a text and 2 special tokens; it must be 3 or more'),
        (dict(length=4, packing='none', pairs='next'), 'no room for two texts and 3 special tokens; it must be 5'),
    )
    def test_fields(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            self.opened(**fields)

    @parameterized.parameters(
        (Ids(vocab=50, cls=2, separator=3), dict(framing='bert'), r"='Ids\(vocab=50, cls=2, .*states no mask of its own"),
        (Ids(vocab=50, cls=2, separator=3, mask=3), dict(framing='bert'), 'states no mask of its own'),
        (Ids(vocab=50, mask=3), dict(framing='plain'), "no token behind a text, which data.packing='concat' puts between two"),
        (Ids(vocab=50, mask=3), dict(framing='a | a b', packing='none', pairs='next'), 'does not tell two texts apart'))
    def test_a_run_of_others_that_lacks_tokens_is_refused_where_they_are_needed(self, tokenizer, fields, message):
        opened = self.opened(['7 8 9', '10 11'], tokenizer=tokenizer, **fields)
        for use in (lambda: opened.train(0), lambda: opened.evaluation('all', 2), lambda: opened.read_masked('7 8')):
            with self.assertRaisesRegex(ValueError, message):
                use()

    def test_views(self):
        with self.assertRaisesRegex(ValueError, 'Masked takes no context in evaluation; leave it out'):
            self.opened().evaluation('all', 2, context=8)

    def test_no_token_to_predict(self):
        with self.assertRaisesRegex(ValueError, "The split 'all' holds no token to predict; give it more text"):
            self.opened(['[SEP] [CLS]']).evaluation('all', 2)


if __name__ == '__main__':
    absltest.main()
