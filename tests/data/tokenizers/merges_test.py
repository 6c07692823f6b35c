"""Byte-pair merges against a loop that counts every pair anew at every step, and against the counts of the book's figure."""

import dataclasses
import itertools
import random
import time

from absl.testing import absltest, parameterized

from data.tokenizers import merges
from data.tokenizers.merges import Learner, Merge

RHYME = ('a sailor went to sea sea sea to see what he could see see see '
         'but all that he could see see see was the bottom of the deep blue sea sea sea')


def slow(words):
    """[(Merge, counts after it)]; the first of the pairs with the highest count wins."""
    text, found = {(*word, ' '): count for word, count in words.items()}, []
    while True:
        pairs = {}
        for tokens, count in text.items():
            for pair in itertools.pairwise(tokens):
                pairs[pair] = pairs.get(pair, 0) + count
        if not pairs:
            return found
        best, merged, counts = max(pairs, key=pairs.get), {}, {}
        for tokens, count in text.items():
            made = []
            while tokens:
                size = 2 if tokens[:2] == best else 1
                made.append(''.join(tokens[:size]))
                tokens = tokens[size:]
            merged[tuple(made)] = count
        text = merged
        for tokens, count in text.items():
            for token in tokens:
                counts[token] = counts.get(token, 0) + count
        found.append((Merge(*best, pairs[best], len(counts), sum(counts.values())), counts))


class MergesTest(parameterized.TestCase):
    def test_the_rhyme(self):
        """Prince 2023, figure 12.8."""
        learner = Learner(merges.words([RHYME]))
        self.assertEqual(learner.counts, {
            ' ': 33, 'e': 28, 's': 15, 'a': 12, 't': 11, 'o': 8, 'h': 6, 'l': 6, 'u': 4, 'b': 3, 'd': 3, 'w': 3, 'c': 2,
            'f': 1, 'i': 1, 'm': 1, 'n': 1, 'p': 1, 'r': 1})
        steps = iter(learner)
        self.assertEqual(next(steps), Merge('s', 'e', 13, 20, 127))
        self.assertEqual((learner.counts['e'], learner.counts['se'], learner.counts['s']), (15, 13, 2))
        self.assertEqual(next(steps), Merge('e', ' ', 12, 21, 115))
        self.assertEqual((learner.counts[' '], learner.counts['e '], learner.counts['e']), (21, 12, 3))
        found = [next(steps) for _ in range(20)]
        self.assertEqual([one.count for one in found], [7, 7, 6, 4, 4, 3, *[2] * 9, *[1] * 5])
        self.assertEqual([one.left + one.right for one in found[:6]], ['a ', 'see ', 'sea ', 't ', 'he ', 'to'])
        self.assertEqual((learner.counts['see '], learner.counts['sea '], learner.counts['sailor']), (7, 6, 1))
        self.assertNotIn('se', learner.counts)  # it is part of see_ and sea_ alone
        used = [one.tokens for one in (*found, *steps)]
        self.assertEqual((max(used), used[-1], len(used) + 2), (29, 18, 50))
        self.assertEqual(learner.counts, {word + ' ': n for word, n in merges.words([RHYME]).items()})

    @parameterized.parameters(*range(60))
    def test_equals_the_loop(self, seed):
        rng = random.Random(seed)
        signs = ('ab', 'abc', 'aé中\u0301😀')[seed % 3]
        text = ' '.join(''.join(rng.choices(signs, k=rng.randint(1, 9))) for _ in range(rng.randint(1, 12)))
        words = merges.words([text])
        learner, wanted = Learner(words), slow(words)
        for made, (merge, counts) in zip(learner, wanted, strict=True):
            self.assertEqual((made, learner.counts), (merge, counts))
            for token in counts:
                self.assertNotIn(' ', token[:-1])  # no token crosses the end of a word

    @parameterized.parameters(
        ('ab cd', [('a', 'b'), ('ab', ' '), ('c', 'd'), ('cd', ' ')]),  # the first in the text, whatever the characters
        ('cd ab', [('c', 'd'), ('cd', ' '), ('a', 'b'), ('ab', ' ')]),
        ('aaa', [('a', 'a'), ('aa', 'a'), ('aaa', ' ')]), ('', []), ('a', [('a', ' ')]))
    def test_ties(self, text, wanted):
        self.assertEqual([(one.left, one.right) for one in Learner(merges.words([text]))], wanted)

    def test_overlapping_pairs_count_and_are_merged_from_the_left(self):
        found = [dataclasses.astuple(one)[2:] for one in Learner(merges.words(['aaaa']))]
        self.assertEqual(found, [(3, 2, 3), (1, 2, 2), (1, 1, 1)])

    def test_words_are_between_any_white_space_and_in_the_order_of_the_text(self):
        self.assertEqual([*merges.words(['b \t a\n', '\xa0b\u3000c ']).items()], [('b', 2), ('a', 1), ('c', 1)])

    def test_a_megabyte_takes_seconds(self):
        rng = random.Random(0)
        vocabulary = [''.join(rng.choices('etaoinshrdlu', k=rng.randint(2, 9))) for _ in range(9000)]
        text = ' '.join(vocabulary[int(9000 * rng.random() ** 3)] for _ in range(150_000))
        self.assertBetween(len(text), 900_000, 1_100_000)
        before = time.process_time()
        merged = sum(1 for _ in Learner(merges.words([text])))
        self.assertLess(time.process_time() - before, 20)  # 2 s on a fast machine
        self.assertGreater(merged, 9000)


if __name__ == '__main__':
    absltest.main()
