import itertools
import math

import numpy as np
from absl.testing import absltest, parameterized

from data.noise.span_corruption import SpanCorruption
from data.noise.vocabulary import Vocabulary
from data.tokenizers.specs import Byte

DRAWS = 10_000
WORDS = Vocabulary.of(Byte(sentinels=100).learn())
FIRST = 356  # the highest id


def interleaved(inputs, targets):
    """The text, by the rule of the paper's figure 2: every sentinel of the inputs stands for what follows it in the targets, up
    to the next one."""
    spans, text = {}, []
    for one in targets:
        if one > 256:
            spans[one] = []
            last = one
        else:
            spans[last].append(one)
    for one in inputs:
        text += spans[one] if one > 256 else [one]
    return text


def random_spans_helper(length, share, mean):
    """(tokens, targets) of t5/data/preprocessors.py, with one sentinel for each span, by itself."""
    def lengths(tokens):
        missing = round(tokens * share)
        spans = round(missing / mean)
        return tokens - missing + spans + 1, missing + spans + 1

    tokens = length
    while lengths(tokens + 1)[0] <= length:
        tokens += 1
    inputs, targets = lengths(tokens)
    return (tokens - 1, targets - 1) if share == 0.5 and targets > inputs else (tokens, targets)


class SpanCorruptionTest(parameterized.TestCase):
    @parameterized.parameters((0.15, 3.0, False), (0.5, 1.0, True), (0.9, 2.0, False))
    def test_inputs_and_targets_interleave_to_the_text(self, share, mean, closing):
        noise, sizes = SpanCorruption(share, mean, closing), np.random.default_rng(1).integers(2, 60, DRAWS)
        for seed, size in enumerate(sizes):
            rng = np.random.default_rng(seed)
            text = rng.integers(0, 256, size)
            inputs, targets = noise.corrupted(text, rng, WORDS)
            self.assertEqual(interleaved(inputs, targets), text.tolist())
            np.testing.assert_array_equal(noise.restored(inputs, targets, WORDS), text)
            missing, spans = noise.counts(size)
            sentinels = [FIRST - i for i in range(spans)]
            self.assertEqual(inputs[inputs > 256].tolist(), sentinels)
            self.assertEqual(targets[targets > 256].tolist(), [*sentinels, FIRST - spans] if closing else sentinels)
            self.assertLess(inputs[0], 256)  # a row begins with text, and ends with a span
            self.assertEqual(inputs[-1], sentinels[-1])
            self.assertLen(inputs, size - missing + spans)
            self.assertLen(targets, noise.targets(size))
            self.assertEqual(noise.sentinels(size), spans + closing)

    def test_as_many_tokens_and_spans_as_t5_says(self):
        """t5/data/preprocessors.py: round(length · density), at least 1 and at most length - 1, and round(that / mean)."""
        for size, expected in ((568, (85, 28)), (100, (15, 5)), (10, (2, 1)), (30, (4, 1)), (2, (1, 1)), (3, (1, 1))):
            self.assertEqual(SpanCorruption().counts(size), expected)
        self.assertEqual(SpanCorruption(0.99, 1.0).counts(2), (1, 1))

    def test_row_length_of_random_spans_helper(self):
        noise = SpanCorruption()
        self.assertEqual(noise.raw(511), 568)  # 512 with the end
        self.assertEqual(noise.targets(568) + 1, 114)
        for room in range(2, 200):
            count = noise.raw(room)
            inputs = lambda n: n - sum(noise.counts(n)) + 2 * noise.counts(n)[1]
            self.assertLessEqual(inputs(count), room)
            self.assertGreater(inputs(count + 1), room)
        self.assertLen(noise.corrupted(np.zeros(568, int), np.random.default_rng(0), WORDS)[0], 511)

    def test_targets_of_a_half_have_no_more_places_than_inputs(self):
        self.assertEqual(random_spans_helper(512, 0.5, 3.0), (766, 512))
        for share, mean, closing in itertools.product((0.15, 0.25, 0.5), (2.0, 3.0, 8.0), (False, True)):
            noise = SpanCorruption(share, mean, closing)
            for length in (64, 114, 128, 256, 512, 1024):
                tokens, targets = random_spans_helper(length, share, mean)
                self.assertEqual((noise.raw(length - 1), noise.targets(tokens) + 1), (tokens, targets + closing), noise)

    def test_lengths_are_uniform_among_those_that_add_up(self):
        noise, first = SpanCorruption(0.2, 4.0), np.zeros(16)  # of 80 tokens 16 in 4 spans
        for seed in range(DRAWS):
            _, targets = noise.corrupted(np.zeros(80, int), np.random.default_rng(seed), WORDS)
            first[np.flatnonzero(targets > 256)[1] - 1] += 1
        for length in range(1, 14):
            p = math.comb(15 - length, 2) / math.comb(15, 3)
            self.assertLess(abs(first[length] - DRAWS * p), 4 * (DRAWS * p * (1 - p)) ** 0.5 + 1e-9)

    def test_what_a_model_leaves_out_has_no_text(self):
        inputs, targets = [1, FIRST, 2, FIRST - 1, 3], [7, FIRST - 1, 8, 9, FIRST - 1, 10]
        self.assertEqual(SpanCorruption().restored(inputs, targets, WORDS).tolist(), [1, 2, 8, 9, 3])

    def test_refuses(self):
        for bad in (dict(share=0.0), dict(share=1.0), dict(share=1 - 1e-6), dict(mean=0.5)):
            with self.assertRaisesRegex(ValueError, 'is out of range: share is above 0 and at most 0.99'):
                SpanCorruption(**bad)
        with self.assertRaisesRegex(ValueError, 'hides 0.1 of the 10 tokens'):
            SpanCorruption(share=0.01).check(10)


if __name__ == '__main__':
    absltest.main()
