"""The lattice of a unigram model against all segmentations one by one, and against SentencePiece."""

import collections
import functools
import io
import math

import numpy as np
import sentencepiece
from absl.testing import absltest, parameterized

from data.tokenizers import lattice
from data.tokenizers.specs import SentencePiece
from data.tokenizers.tokenizer import SentencePieceTokenizer

TEXT = ['the sea and the sailor see the deep blue sea', 'seas and sailors are deep', 'a theory of the others'] * 20
MODEL = SentencePiece(vocab=285, kind='unigram').learn(TEXT)


@functools.cache
def usual(**fields):
    """A model with the library's defaults, which normalise a text and put a space before it."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=made, minloglevel=2,
                                                hard_vocab_limit=False, **fields)
    return SentencePieceTokenizer(made.getvalue())


def scores():
    """{piece: log probability}."""
    return {sign: score for sign, score, kind in MODEL.pieces() if kind == 'normal'}


def segmentations(text, known):
    """Every one, by trying each piece at the beginning."""
    if not text:
        yield []
    for stop in range(1, len(text) + 1):
        if text[:stop] in known:
            yield from ([text[:stop], *rest] for rest in segmentations(text[stop:], known))


class LatticeTest(parameterized.TestCase):
    @parameterized.product(text=('the sea', 'sailors see', 'a', ' deep  a'), alpha=(1.0, 0.3))
    def test_equals_all_segmentations(self, text, alpha):
        known = scores()
        every = [[one.replace('_', '\u2581') for one in way] for way in segmentations(
            text.replace(' ', '_'), {sign.replace('\u2581', '_') for sign in known})]
        logs = np.array([alpha * sum(known[sign] for sign in way) for way in every])
        z, chances = np.logaddexp.reduce(logs), np.exp(logs - np.logaddexp.reduce(logs))
        found = lattice.of(MODEL, text, alpha)
        self.assertEqual(found.count, len(every))
        self.assertAlmostEqual(found.total, z, delta=1e-10)
        best = found.best(len(every) + 3)
        self.assertLen(best, len(every))
        self.assertEqual({tuple(edge.piece for edge in edges) for _, edges in best}, {*map(tuple, every)})
        np.testing.assert_allclose([score for score, _ in best], np.sort(logs)[::-1], atol=1e-10, rtol=0)
        for score, edges in best:
            self.assertAlmostEqual(score, logs[every.index([edge.piece for edge in edges])], delta=1e-10)
        wanted = collections.Counter()
        for way, p in zip(every, chances):
            place = 0
            for sign in way:
                wanted[place, place + len(sign), sign] += p
                place += len(sign)
        marginals = {(edge.start, edge.stop, edge.piece): p for edge, p in zip(found.edges, found.marginals())}
        self.assertEqual(marginals.keys(), wanted.keys())
        for key, p in wanted.items():
            self.assertAlmostEqual(marginals[key], p, delta=1e-10)
        for place in range(len(text)):  # each character is in one piece
            self.assertAlmostEqual(sum(p for (start, stop, _), p in marginals.items() if start <= place < stop), 1, delta=1e-10)

    @parameterized.parameters('the sea', 'sailors and sea', 'the\nsea é 中', 'a')
    def test_equals_sentencepiece(self, text):
        found = lattice.of(MODEL, text).best(6)
        wanted = MODEL._processor.nbest_encode(text, nbest_size=6, return_type='proto').nbests
        self.assertLen(found, len(wanted))
        for (score, edges), one in zip(found, wanted):
            self.assertAlmostEqual(score, one.score, delta=1e-4)  # which is a float32
            joined = [piece.piece for piece in one.pieces]
            self.assertEqual(''.join(edge.piece for edge in edges if edge.id), ''.join(
                sign for sign in joined if not sign.startswith('<0x')))
            self.assertEqual([edge.id for edge in edges if edge.id], [piece.id for piece in one.pieces
                                                                      if not piece.piece.startswith('<0x')])
        chosen = [i for i in MODEL.encode(text).tolist() if not MODEL._processor.is_byte(i)]
        self.assertEqual([edge.id for edge in found[0][1] if edge.id], chosen)

    @parameterized.product(
        text=('Hello the model', 'the  deep sea', ' the sea\n and ', '\ufb01the \u2460 sea', 'blue\u2581sea'),
        fields=({}, {'treat_whitespace_as_suffix': True}, {'byte_fallback': True}))
    def test_equals_sentencepiece_with_its_defaults(self, text, fields):
        model = usual(**fields)
        encoded = model.encode(text).tolist()
        (_, found), = lattice.of(model, text).best(1)
        unknown, is_byte = model.roles.unknown, model._processor.is_byte
        self.assertEqual([edge.id for edge in found if edge.id != unknown],
                         [one for one in encoded if one != unknown and not is_byte(one)])
        self.assertEqual(''.join(edge.piece for edge in found), lattice.normalized(model, text).replace(' ', '\u2581'))

    def test_signs_of_a_space_and_unknown_characters_are_pieces_of_their_own(self):
        found = lattice.of(MODEL, 'a\u2581é')
        self.assertEqual([(edge.start, edge.piece, edge.id) for edge in found.edges if edge.start],
                         [(1, '\u2581', MODEL.roles.unknown), (2, 'é', MODEL.roles.unknown)])

    def test_long_texts_take_no_long_time_and_no_overflow(self):
        found = lattice.of(MODEL, 'the deep blue sea ' * 300)
        self.assertTrue(math.isfinite(found.total))
        self.assertGreater(found.count, 10 ** 300)
        self.assertLess(max(found.marginals()), 1 + 1e-9)

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "is of kind 'bpe', which has one segmentation"):
            lattice.of(SentencePiece(vocab=280).learn(TEXT), 'a')
        with self.assertRaisesRegex(ValueError, 'The text is empty; give one'):
            lattice.of(MODEL, '')
        with self.assertRaisesRegex(ValueError, r"The text 'a\\udcff' has '\\udcff', half of a character; expected UTF-8"):
            lattice.of(MODEL, 'a\udcff')
        with self.assertRaisesRegex(ValueError, 'The text has only characters that the model leaves out; give one'):
            lattice.of(usual(), '  ')


if __name__ == '__main__':
    absltest.main()
