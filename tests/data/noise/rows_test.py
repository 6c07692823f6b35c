"""Rows of two parts: next sentences and sentence order, cut where sentences end or anywhere."""

import collections
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

from data.text.masked import Masked
from data.tokenizers.specs import Word
from tests.data import tiny_tokenizers

DRAW = np.random.default_rng(0)
WORDS = [f'{a}{b}' for a in 'bcdfghjk' for b in 'aeiou']


def sentence(size):
    return [*DRAW.choice(WORDS, size - 1).tolist(), '.']


# 30 documents of 1 to 8 sentences of 2 to 9 tokens, no two of which are equal.
DOCUMENTS = [[sentence(size) for size in DRAW.integers(2, 10, count)] for count in DRAW.integers(1, 9, 30)]
LENGTH, ROOM = 25, 22


def flat(sentences):
    return [token for one in sentences for token in one]


def pieces(documents):
    """The pieces of documents, each a list of whole sentences that fit in a row, by a loop."""
    found = []
    for document in documents:
        piece = []
        for one in document:
            if piece and len(flat(piece)) + len(one) > ROOM:
                found.append(piece)
                piece = []
            piece = [*piece, one]
        found.append(piece)
    return found


class RowsCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='heed-'))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def opened(self, texts=DOCUMENTS, **fields):
        path = self.folder / 'text.txt'
        path.write_text('\n'.join(' '.join(flat(document)) for document in texts) + '\n')
        given = dict(path=str(path), documents='line', train='all', packing='none', length=LENGTH, batch_size=50)
        return Masked(**given | dict(tokenizer=tiny_tokenizers.word_piece(self.folder, ' '.join(WORDS))) | fields).open(None)

    def rows(self, opened, batches=40):
        """(first words, second words, label) of rows of training."""
        iterator = opened.train(0)
        for _ in range(batches):
            batch = next(iterator)
            for row in range(len(batch['inputs'])):
                ids, used = batch['inputs'][row].copy(), batch['weights'][row] > 0
                ids[batch['masked'][row][used]] = batch['targets'][row][used]
                words = opened.pieces(ids[: batch['segments'][row].sum()])
                border = words.index('[SEP]')
                self.assertEqual((words[0], words[-1]), ('[CLS]', '[SEP]'))
                types = batch['types'][row][: len(words)]
                self.assertEqual(types.tolist(), [0] * (border + 1) + [1] * (len(words) - border - 1))
                yield words[1:border], words[border + 1 : -1], int(batch['label'][row])


class SentencesTest(RowsCase):
    def test_order(self):
        known = {tuple(flat(piece)): piece for piece in pieces(DOCUMENTS)}
        labels, cuts, seen = [], collections.Counter(), set()
        for first, second, label in self.rows(self.opened(pairs='order')):
            piece = known[tuple(second + first if label else first + second)]
            ends = np.cumsum([len(one) for one in piece])[:-1].tolist()
            cut = len(second if label else first)
            self.assertIn(cut, ends)
            labels.append(label)
            cuts[tuple(flat(piece)), ends.index(cut), len(ends)] += 1
            seen.add(tuple(flat(piece)))
        self.assertEqual(seen, {tuple(flat(piece)) for piece in known.values() if len(piece) > 1})  # others cannot be cut
        self.assertLess(abs(np.mean(labels) - 0.5), 4 * 0.5 / np.sqrt(len(labels)))
        places = collections.Counter()
        for (_, place, count), number in cuts.items():
            if count == 2:
                places[place] += number
        self.assertLess(abs(places[0] - places[1]), 4 * np.sqrt(places.total()))

    def test_next(self):
        known, whole = {tuple(flat(piece)) for piece in pieces(DOCUMENTS)}, [flat(document) for document in DOCUMENTS]
        starts = {tuple(flat(document[number:])[:12]) for document in DOCUMENTS for number in range(len(document))}
        labels, sizes = [], collections.defaultdict(list)
        for first, second, label in self.rows(self.opened(pairs='next'), 60):
            self.assertLessEqual(len(first + second), ROOM)
            self.assertEqual(first[-1], '.')
            if label:
                self.assertTrue(any(tuple(second) == one[: len(second)] or tuple(second)[:12] == one for one in starts))
                self.assertEqual(second[-1], '.')
                self.assertTrue(any(tuple(first) == piece[: len(first)] for piece in known))
                self.assertNotIn(tuple(first + second), known)
                home = [n for n, words in enumerate(whole) if ' '.join(first) in ' '.join(words)]
                other = [n for n, words in enumerate(whole) if ' '.join(second) in ' '.join(words)]
                self.assertNotEqual(home, other)
            else:
                self.assertIn(tuple(first + second), known)
            labels.append(label)
            sizes[label].append(len(first + second))
        self.assertLess(abs(np.mean(labels) - 0.5), 4 * 0.5 / np.sqrt(len(labels)))

    @parameterized.product(cut=('sentences', 'anywhere'), sentences=((300, 301), (1, 13), (1, 4), (1, 2, 12, 13)))
    def test_lengths_do_not_tell_the_label(self, cut, sentences):
        """The best threshold on the length of the second text, or of both, is hardly better than chance."""
        draw = np.random.default_rng(1)
        low, high, *more = sentences  # of half of the documents, and of the others
        count = 8 if low > 100 else 300
        ranges = [(low, high), (tuple(more) or (low, high))] * (count // 2)
        documents = [[sentence(size) for size in draw.integers(2, 10, draw.integers(*ends))] for ends in ranges]
        rows = list(self.rows(self.opened(documents, pairs='next', cut=cut), 80))
        label = np.array([row[2] for row in rows]) > 0
        learnt = np.arange(len(rows)) % 2 == 0
        for length in ([len(second) for _, second, _ in rows], [len(first + second) for first, second, _ in rows]):
            above = np.array(length) > np.arange(ROOM)[:, None]  # by every threshold
            right = np.concatenate([above == label, above != label])
            best = right[:, learnt].mean(1).argmax()
            self.assertLess(right[best, ~learnt].mean(), 0.55)

    def test_one_document_of_two_sentences(self):
        rows = list(self.rows(self.opened([[sentence(4), sentence(5)], [sentence(6)], [sentence(3)]], pairs='next'), 4))
        self.assertEqual({(len(first), len(second)) for first, second, label in rows if not label}, {(4, 5)})
        self.assertContainsSubset({len(second) for _, second, label in rows if label}, {3, 6})

    def test_evaluation_holds_every_piece_that_can_be_cut(self):
        opened = self.opened(pairs='order')
        wanted = sum(len(piece) > 1 for piece in pieces(DOCUMENTS))
        for size in (3, 64):
            evaluation = opened.evaluation('all', size)
            self.assertEqual(sum(batch['example_weights'].sum() for batch in evaluation), wanted)
            self.assertEqual(evaluation.facts, {'rows': wanted, 'documents': 30})

    def test_a_sentence_longer_than_a_row_is_cut(self):
        documents = [[sentence(60), sentence(5), sentence(4)], [sentence(5), sentence(6)]]
        sizes = {len(first + second) for first, second, _ in self.rows(self.opened(documents, pairs='order'), 4)}
        self.assertEqual(sizes, {16 + 5, 11})  # 60 is 22, 22, and 16 with the next sentence

    @parameterized.parameters('next', 'order')
    def test_texts_of_one_sentence(self, pairs):
        opened = self.opened([document[:1] for document in DOCUMENTS], pairs=pairs)
        message = (rf"The split 'all' holds no two sentences of one document .* data.pairs='{pairs}' needs with "
                   r"data.cut='sentences'; set data.cut='anywhere', a larger data.length, or another")
        for use in (lambda: opened.train(0), lambda: opened.evaluation('all', 2)):
            with self.assertRaisesRegex(ValueError, message):
                use()

    def test_a_stream_has_an_order_and_no_other_documents(self):
        rows = list(self.rows(self.opened(documents='stream', pairs='order'), 4))
        self.assertEqual({label for *_, label in rows}, {0, 1})
        with self.assertRaisesRegex(ValueError, "data.pairs='next' takes parts of other documents"):
            self.opened(documents='stream', pairs='next')


class AnywhereTest(RowsCase):
    def test_order(self):
        whole = [flat(document) for document in DOCUMENTS]
        known = {tuple(words[i : i + ROOM]) for words in whole for i in range(0, len(words), ROOM)}
        cuts = set()
        for first, second, label in self.rows(self.opened(pairs='order', cut='anywhere')):
            piece = tuple(second + first if label else first + second)
            self.assertIn(piece, known)
            if len(piece) == ROOM:
                cuts.add(len(second if label else first))
        self.assertEqual(cuts, set(range(1, ROOM)))

    @parameterized.parameters(dict(pairs='both'), dict(pairs='next', cut='words'), dict(copies=-1),
                              dict(pairs='order', packing='concat'))
    def test_fields_without_meaning(self, **fields):
        with self.assertRaisesRegex(ValueError, 'data.(pairs|cut|copies)='):
            self.opened(**fields)

    def test_words_that_do_not_say_where_they_begin(self):
        with self.assertRaisesRegex(ValueError, 'states no mask'):
            self.opened(tokenizer=Word()).train(0)


if __name__ == '__main__':
    absltest.main()
