import dataclasses
import fractions
import math
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from data.noise.denoising import DeleteTokens, Infill, MaskTokens, PermuteSentences, Rotate
from data.noise.noise import Noise
from data.noise.span_corruption import SpanCorruption
from data.noise.vocabulary import Vocabulary
from data.tokenizers.specs import Byte, Ids
from training.config.resolve import parse

DRAWS = 10_000
WORDS = Vocabulary.of(Byte(special=('mask',)).learn())
MASK = 257


def ids(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def sigmas(count, n, p):
    """By how many standard deviations a count of n draws of probability p is off."""
    return abs(count - n * p) / (n * p * (1 - p)) ** 0.5


class DenoisingTest(parameterized.TestCase):
    def draws(self, noise, text, count=DRAWS):
        for seed in range(count):
            yield noise(ids(text), np.random.default_rng(seed), WORDS)

    @parameterized.parameters(
        'Infill()', 'MaskTokens(share=0.4)', 'DeleteTokens()', 'PermuteSentences() >> Infill(share=0.5, random=0.5)',
        'Rotate() >> DeleteTokens(share=0.9) >> PermuteSentences(share=0.5)', 'Infill(mean=0.5) >> Rotate(share=0.5)')
    def test_the_targets_are_the_text_and_the_seed_records_the_noise(self, expression):
        noise = parse(expression, Noise, 'data.noise')
        self.assertEqual(parse(repr(noise), Noise, 'data.noise'), noise)
        sizes, changed = np.random.default_rng(0).integers(1, 40, DRAWS), 0
        for seed, size in enumerate(sizes):
            text = np.random.default_rng([seed, 1]).choice(ids('ab c. d e.'), size)
            given = text.copy()
            inputs, targets = noise.corrupted(text, np.random.default_rng(seed), WORDS)
            again, _ = noise.corrupted(targets, np.random.default_rng(seed), WORDS)
            np.testing.assert_array_equal(targets, given)
            np.testing.assert_array_equal(text, given)  # unchanged
            np.testing.assert_array_equal(inputs, again)
            np.testing.assert_array_equal(noise.restored(inputs, targets, WORDS), given)
            changed += not np.array_equal(inputs, text)
        self.assertGreater(changed, len(sizes) / 2)

    def test_infilling_is_that_of_a_loop(self):
        """Spans of words are removed one by one, each from a first word of its own on, as in fairseq's add_whole_word_mask;
        what remains besides are the masks of spans of no words."""
        for seed in range(1000):
            draw = np.random.default_rng([seed, 9])
            text = draw.choice(ids('ab c d. ee'), draw.integers(1, 60))
            noise = Infill(share=draw.choice([0.05, 0.3, 0.7, 1.0]).item(), mean=draw.choice([0.5, 3.0]).item())
            found, rng = noise(text, np.random.default_rng(seed), WORDS), np.random.default_rng(seed)
            begins = [place for place in range(len(text)) if place == 0 or WORDS.word_starts(text)[place]]
            lengths = noise.lengths(math.ceil(fractions.Fraction(str(noise.share)) * len(begins)), rng)
            kept, firsts = text.tolist(), rng.permutation(len(begins)).tolist()
            spans = list(zip(firsts, lengths[lengths > 0].tolist()))
            for first, _ in spans:
                kept[begins[first]] = MASK
            for first, length in spans:  # of two that overlap one mask remains
                for place in range(begins[first] + 1, [*begins[first + length:], len(text)][0]):
                    kept[place] = None
            wanted, rest = [one for one in kept if one is not None], found.tolist()
            self.assertLen(rest, len(wanted) + (lengths == 0).sum(), seed)
            remaining = iter(rest)
            self.assertTrue(all(one in remaining for one in wanted), seed)

    def test_masks_of_tokens(self):
        found = np.stack(list(self.draws(MaskTokens(share=0.3), 'abcdefghij' * 2))) == MASK
        np.testing.assert_array_equal(found.sum(1), 6)
        for count in found.sum(0):
            self.assertLess(sigmas(count, DRAWS, 0.3), 4)

    @parameterized.product(percent=(7, 14, 28, 55, 70), size=(25, 50, 100))
    def test_a_share_is_rounded_up_once(self, percent, size):
        """0.07 · 100 is above 7 in floating point, but not 8."""
        share, wanted = percent / 100, -(-percent * size // 100)
        rng, text = np.random.default_rng(0), np.arange(size, dtype=np.int32)
        letters = dataclasses.replace(WORDS, begins=None, ends=None)
        self.assertEqual((MaskTokens(share)(text, rng, WORDS) == MASK).sum(), wanted)
        self.assertLen(DeleteTokens(share)(text, rng, WORDS), size - wanted)
        with mock.patch.object(Infill, 'lengths', return_value=np.array([1])) as lengths:
            Infill(share)(text, rng, letters)
        self.assertEqual(lengths.call_args.args[0], wanted)
        none, pairs = np.zeros(len(WORDS.stops), bool), np.arange(2 * size, dtype=np.int32)  # sentences of two tokens
        odd = dataclasses.replace(WORDS, stops=np.arange(len(none)) % 2 > 0, closes=none, digits=none)
        moved = [(PermuteSentences(share)(pairs, np.random.default_rng(seed), odd) != pairs).sum() for seed in range(50)]
        self.assertEqual(max(moved), 2 * wanted)

    def test_random_tokens_in_place_of_masks(self):
        found = np.stack(list(self.draws(MaskTokens(share=1.0, random=0.2), 'abcdefghij')))
        self.assertLess(sigmas((found == MASK).sum(), found.size, 0.8), 4)
        self.assertLess(found[found != MASK].max(), 256)  # none is special
        self.assertLess(sigmas((found < 128).sum(), found.size, 0.1), 4)

    def test_deletion(self):
        counts = np.zeros(128)
        for found in self.draws(DeleteTokens(share=0.15), 'abcdefghij'):
            self.assertLen(found, 8)  # 10 - ceil(1.5)
            self.assertEqual(sorted(found), found.tolist())
            counts[found] += 1
        for one in ids('abcdefghij'):
            self.assertLess(sigmas(counts[one], DRAWS, 0.8), 4)
        self.assertLen(next(self.draws(DeleteTokens(share=1.0), 'abc')), 1)

    def test_rotation(self):
        starts = np.zeros(128)
        for found in self.draws(Rotate(), 'abcdefgh'):
            text = bytes(found.tolist()).decode()
            self.assertIn(text, 'abcdefgh' * 2)
            starts[found[0]] += 1
        for one in ids('abcdefgh'):
            self.assertLess(sigmas(starts[one], DRAWS, 1 / 8), 4)
        same = sum(found[0] == ord('a') for found in self.draws(Rotate(share=0.5), 'abcdefgh'))
        self.assertLess(sigmas(same, DRAWS, 0.5 + 0.5 / 8), 4)

    def test_sentences(self):
        counts = {}
        for found in self.draws(PermuteSentences(), 'a b. c.d! e'):
            text = bytes(found.tolist()).decode()
            counts[text] = counts.get(text, 0) + 1
        orders = ['a b.', ' c.', 'd!', ' e']
        self.assertLen(counts, 24)
        for text, count in counts.items():
            self.assertEqual(sorted(text), sorted(''.join(orders)))
            self.assertTrue(all(sentence in text for sentence in orders))
            self.assertLess(sigmas(count, DRAWS, 1 / 24), 4)

    def test_several_stops_end_one_sentence(self):
        texts = {bytes(found.tolist()).decode() for found in self.draws(PermuteSentences(), 'a... b', 100)}
        self.assertEqual(texts, {'a... b', ' ba...'})

    def test_texts_that_share_a_row_are_sentences(self):
        found = {tuple(PermuteSentences()(np.array([97, 256, 98]), np.random.default_rng(seed), WORDS)) for seed in range(20)}
        self.assertEqual(found, {(97, 256, 98), (98, 97, 256)})

    def test_unknown_words_end_no_sentence(self):
        tokenizer = Ids(vocab=9, mask=1, unknown=2, end=3).learn()
        row = np.array([5, 2, 6, 3, 7, 2])  # two texts
        found = {tuple(PermuteSentences()(row, np.random.default_rng(seed), Vocabulary.of(tokenizer))) for seed in range(20)}
        self.assertEqual(found, {(5, 2, 6, 3, 7, 2), (7, 2, 5, 2, 6, 3)})

    def test_a_share_of_the_sentences(self):
        fixed = [sum(a == b for a, b in zip(bytes(found.tolist()).split(b'.'), b'a.b.c.d.e.f.g.h'.split(b'.')))
                 for found in self.draws(PermuteSentences(share=0.5), 'a.b.c.d.e.f.g.h.')]
        self.assertGreaterEqual(min(fixed), 4)
        self.assertLess(abs(np.mean(fixed) - 5), 4 * np.std(fixed) / DRAWS ** 0.5)  # four stay, and one of four on average

    def test_lengths_of_spans(self):
        noise, first = Infill(mean=3.0), np.zeros(40)
        for seed in range(DRAWS):
            found = noise.lengths(100, np.random.default_rng(seed))
            self.assertEqual(found.sum(), 100)
            self.assertGreater(found[-1], 0)
            first[found[0]] += 1
        for k in range(10):
            p = math.exp(-3.0) * 3.0**k / math.factorial(k)
            self.assertLess(sigmas(first[k], DRAWS, p), 4)

    @parameterized.parameters(0.2, 0.05)
    def test_infilling(self, share):
        """Every letter is a word here."""
        noise, letters = Infill(share=share), dataclasses.replace(WORDS, begins=None, ends=None)
        budget, kept = math.ceil(share * 20), []
        for seed in range(DRAWS):
            found = noise(ids('abcdefghijklmnopqrst'), np.random.default_rng(seed), letters)
            lengths = noise.lengths(budget, np.random.default_rng(seed))
            rest = found[found != MASK]
            self.assertEqual(sorted(rest), rest.tolist())
            self.assertLessEqual(np.sum(found == MASK), len(lengths))
            self.assertGreaterEqual(len(rest), 20 - budget)
            kept.append(len(rest))
            if np.count_nonzero(lengths) == 1:  # no spans can overlap
                self.assertEqual(np.sum(found == MASK), len(lengths))
                self.assertIn(len(rest), range(20 - budget, 20))
        self.assertBetween(np.mean(kept), 20 - budget, 20 - budget / 2)

    def test_a_span_is_one_mask_and_all_pieces_of_its_words(self):
        noise = Infill(share=0.01, mean=3.0)  # a span of one word
        found = [bytes(np.where(one == MASK, ord('_'), one).tolist()).decode() for one in self.draws(noise, 'ab cd ef', 300)]
        self.assertContainsSubset({'_ cd ef', 'ab_ ef', 'ab cd_'}, found)
        self.assertEqual({len(text.replace('_', '').replace(' ', '')) for text in found}, {4})
        texts = np.array([97, 97, 256, 98, 98])  # the end between two texts is a word, and one begins behind it
        found = {tuple(noise(texts, np.random.default_rng(seed), WORDS)[-3:].tolist()) for seed in range(100)}
        self.assertContainsSubset({(MASK, 98, 98), (97, 256, MASK), (256, 98, 98)}, found)

    def test_places_of_inserted_masks(self):
        counts = np.zeros(5)
        noise = Infill(share=0.01, mean=0.01)  # 'a' is nearly always hidden behind inserted masks
        for found in self.draws(noise, 'a', 100):
            self.assertEqual(set(found), {MASK})
        for seed in range(DRAWS):
            found = noise._inserted(ids('abcd'), 1, np.random.default_rng(seed), WORDS)
            self.assertEqual(found[found != MASK].tolist(), ids('abcd').tolist())
            counts[np.flatnonzero(found == MASK)] += 1
        for count in counts:
            self.assertLess(sigmas(count, DRAWS, 0.2), 4)

    def test_order_matters(self):
        one, other = (parse(text, Noise, 'data.noise') for text in (
            'PermuteSentences() >> DeleteTokens(share=0.5)', 'DeleteTokens(share=0.5) >> PermuteSentences()'))
        both = [[noise(ids('a b. c d. e f.'), np.random.default_rng(s), WORDS).tolist() for s in range(20)]
                for noise in (one, other)]
        self.assertNotEqual(*both)

    @parameterized.parameters(
        ('Infill(share=0)', 'share is above 0'), ('Infill(mean=1e-9)', 'mean is 0.001'), ('Infill(random=2)', 'random between'),
        ('MaskTokens(random=-1)', 'random is a share'), ('DeleteTokens(share=1.5)', 'at most 1'),
        ('SpanCorruption() >> Rotate()', 'has no >>'), ('Rotate() >> SpanCorruption()', 'has no >>'))
    def test_refuses(self, expression, message):
        with self.assertRaisesRegex(ValueError, message):
            parse(expression, Noise, 'data.noise')

    def test_needs_a_mask_or_not(self):
        self.assertTrue(all(noise.masks for noise in (Infill(), MaskTokens(), Rotate() >> Infill())))
        self.assertFalse(any(noise.masks for noise in (Rotate(), DeleteTokens() >> PermuteSentences(), SpanCorruption())))


if __name__ == '__main__':
    absltest.main()
