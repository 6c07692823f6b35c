"""Each noise over 10,000 rows: undone exactly, with the rates that its definition gives, against loops in Python."""

import collections
import dataclasses
import itertools
import math

import numpy as np
from absl.testing import absltest, parameterized

from data.noise.masking import BUDGETS, NGrams, Spans, Tokens, WholeWords, WithReplacement, boundaries
from data.noise.vocabulary import Vocabulary

ROWS, LENGTH, VOCAB, MASK = 10_000, 20, 60, 4
# Ids below 5 are special, those from 40 on continue a word.
ORDINARY = np.arange(5, VOCAB, dtype=np.int32)
NONE = np.zeros(VOCAB, bool)
WORDS = Vocabulary(MASK, ORDINARY, np.arange(VOCAB) < 40, NONE, NONE, NONE, NONE)
NOISES = {'tokens': Tokens(share=0.3), 'each': Tokens(share=0.3, budget='bernoulli'), 'again': WithReplacement(share=0.3),
          'words': WholeWords(share=0.3), 'ngrams': NGrams(share=0.3), 'spans': Spans(share=0.3),
          'apart': Spans(share=0.3, together=False)}


def texts(seed=0, least=1):
    """Rows of [2] text [3] padding, in which some tokens inside are special; the first two rows are full."""
    draw = np.random.default_rng(seed)
    inputs = draw.integers(5, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    inputs[draw.random(inputs.shape) < 0.03] = 1
    sizes = draw.integers(least, LENGTH - 1, ROWS)
    sizes[:2] = LENGTH - 2
    inputs[:, 0], inputs[:, 1] = 2, 5
    place = np.arange(LENGTH)
    inputs[place == sizes[:, None] + 1] = 3
    there = place < sizes[:, None] + 2
    return {'inputs': np.where(there, inputs, 0), 'segments': there.astype(np.int32)}


def full(count=ROWS):
    """Rows of words of one, two and three pieces."""
    row = [2, 10, 11, 45, 12, 46, 47, 13, 14, 48, 15, 16, 49, 50, 17, 18, 19, 20, 21, 3]
    return {'inputs': np.tile(np.int32(row), (count, 1)), 'segments': np.ones((count, LENGTH), np.int32)}


def hidden(noise, batch, seed=1, vocabulary=WORDS):
    return noise(batch, vocabulary, np.random.default_rng(seed).random((len(batch['inputs']), noise.width(LENGTH))))


def times_of(found):
    """int [B, T]: how often each place was chosen."""
    times = np.zeros(found['inputs'].shape, int)
    rows = np.broadcast_to(np.arange(len(times))[:, None], found['masked'].shape)
    used = found['weights'] > 0
    times[rows[used], found['masked'][used]] = found['weights'][used]
    return times


def words_of(inputs):
    """[(first, behind the last)] of the words of a row, in Python."""
    found = []
    for place, token in enumerate(inputs.tolist()):
        if token < 5:
            continue
        if token < 40 or inputs[place - 1] < 5:
            found.append([place, place])
        found[-1][1] = place + 1
    return [tuple(word) for word in found]


def runs(places):
    """[(first, last)] of neighbouring places."""
    found = []
    for place in places:
        if found and found[-1][1] == place - 1:
            found[-1][1] = place
        else:
            found.append([place, place])
    return [tuple(run) for run in found]


class MaskingCase(parameterized.TestCase):
    def assert_rate(self, count, n, p):
        """A count of n independent events of probability p is within four standard deviations of its mean."""
        self.assertLess(abs(count - n * p), 4 * math.sqrt(n * p * (1 - p)) + 1e-9, f'{count} of {n}, {count / n}, not {p}')


class EveryNoiseTest(MaskingCase):
    @parameterized.parameters(*NOISES)
    def test_is_undone_exactly(self, name):
        batch = texts()
        found = hidden(NOISES[name], batch)
        used = found['weights'] > 0
        rows = np.broadcast_to(np.arange(ROWS)[:, None], used.shape)
        again = found['inputs'].copy()
        again[rows[used], found['masked'][used]] = found['targets'][used]
        np.testing.assert_array_equal(again, batch['inputs'])
        self.assertEqual(found['masked'].shape[1], NOISES[name].most(LENGTH))
        for one in ('masked', 'targets'):
            self.assertFalse(found[one][~used].any())
        self.assertTrue((np.diff(np.where(used, found['masked'], LENGTH + np.arange(used.shape[1])), axis=1) > 0).all())
        self.assertGreaterEqual(found['targets'][used].min(), 5)  # never special
        changed = found['inputs'] != batch['inputs']
        self.assertTrue(((found['inputs'][changed] >= 5) | (found['inputs'][changed] == MASK)).all())
        self.assertTrue(used[:, 0].all())  # every row has a word, and so a target

    @parameterized.parameters(*NOISES)
    def test_what_hidden_tokens_become(self, name):
        batch = full()
        found = hidden(NOISES[name], batch)
        if name == 'spans':  # a fate for each stretch
            told = [found['inputs'][row, first] for row, times in enumerate(times_of(found))
                    for first, _ in runs(np.flatnonzero(times))]
            was = [batch['inputs'][row, first] for row, times in enumerate(times_of(found))
                   for first, _ in runs(np.flatnonzero(times))]
            told, was = np.array(told), np.array(was)
        else:
            once = times_of(found) == 1
            told, was = found['inputs'][once], batch['inputs'][once]
        noise, n = NOISES[name], len(told)
        same = noise.random / len(ORDINARY)  # a random token is the old one
        self.assert_rate((told == MASK).sum(), n, noise.mask)
        self.assert_rate((told == was).sum(), n, 1 - noise.mask - noise.random + same)
        self.assert_rate(((told != MASK) & (told != was)).sum(), n, noise.random - same)

    @parameterized.parameters(*NOISES)
    def test_shares_are_fields(self, name):
        cls, batch = type(NOISES[name]), full(200)
        for mask, random in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0)):
            found = hidden(cls(share=0.4, mask=mask, random=random), batch)
            chosen = times_of(found) > 0
            told, was = found['inputs'][chosen], batch['inputs'][chosen]
            self.assertEqual(((told == MASK).mean(), (told == was).mean() > 0.9), (mask, mask + random == 0))

    def test_a_row_depends_on_its_numbers_alone(self):
        for name, noise in NOISES.items():
            batch, draws = texts(), np.random.default_rng(0).random((ROWS, noise.width(LENGTH)))
            whole = noise(batch, WORDS, draws)
            part = noise({k: v[50:60] for k, v in batch.items()}, WORDS, draws[50:60])
            for key in part:
                np.testing.assert_array_equal(part[key], whole[key][50:60], name)

    @parameterized.parameters((dict(share=0.0), 'share is 0.0'), (dict(share=1.5), 'share is 1.5'),
                              (dict(mask=0.9, random=0.2), 'mask is 0.9 and random 0.2'), (dict(random=-0.1), 'random -0.1'),
                              (dict(budget='floor'), "budget is 'floor'; it takes 'round', 'ceil', 'chance'"))
    def test_fields_without_meaning(self, fields, message):
        for cls in (Tokens, WithReplacement, WholeWords, NGrams, Spans):
            with self.assertRaisesRegex(ValueError, message):
                cls(**fields)
        for cls, more in ((WholeWords, dict(budget='bernoulli')), (NGrams, dict(longest=0)), (Spans, dict(longest=0)),
                          (Spans, dict(p=1.0))):
            with self.assertRaises(ValueError):
                cls(**more)


class PlateauTest(parameterized.TestCase):
    NOISES = NOISES | {
        'more': WithReplacement(share=0.6, mask=0.5, random=0.3), 'chance': WithReplacement(share=0.3, budget='chance'),
        'random': Tokens(share=0.3, mask=0.5, random=0.3)}

    @parameterized.product(name=tuple(NOISES), rows=('full', 'short'))
    def test_is_the_loss_of_a_model_that_knows_frequencies_alone(self, name, rows):
        """It says how likely each word is where it sees a mask, this word or a random one; every token is a word here."""
        noise, size, draw = self.NOISES[name], len(ORDINARY), np.random.default_rng(2)
        shares = 1 / np.arange(10, size + 10)
        shares /= shares.sum()
        batch, vocabulary = full() if rows == 'full' else texts(), dataclasses.replace(WORDS, begins=np.ones(VOCAB, bool))
        ordinary = batch['inputs'] >= 5
        batch['inputs'][ordinary] = draw.choice(ORDINARY, ordinary.sum(), p=shares)
        found = hidden(noise, batch, vocabulary=vocabulary)
        used = found['weights'] > 0
        told, was, weights = (x[used] for x in (
            np.take_along_axis(found['inputs'], found['masked'], 1), found['targets'], found['weights']))
        share = lambda chosen: weights[chosen].sum() / weights.sum()
        random = share((told != MASK) & (told != was)) / (1 - 1 / size)  # one in `size` is the old one
        kept = share(told == was) - random / size
        p, seen = shares[was - 5], shares[np.maximum(told, 5) - 5]
        both = np.where(told == MASK, p, (random / size + kept * (told == was)) * p / np.where(
            told == MASK, 1, random / size + kept * seen))
        loss = -(weights * np.log(both)).sum() / weights.sum()
        there = (batch['segments'] > 0).sum(1)
        self.assertLess(abs(noise.plateau(shares, ordinary.sum(1), there) / loss - 1), 0.005)


class BudgetTest(MaskingCase):
    @parameterized.product(budget=('round', 'ceil'), specials=(False, True), share=(0.01, 0.15, 0.3, 1.0))
    def test_counts(self, budget, specials, share):
        batch = texts()
        noise = Tokens(share=share, budget=budget, specials=specials)
        found = (hidden(noise, batch)['weights'] > 0).sum(1)
        turn = round if budget == 'round' else lambda x: math.ceil(x - 1e-9)
        for inputs, segments, count in zip(batch['inputs'], batch['segments'], found):
            ordinary = int((inputs >= 5).sum())
            n = int(segments.sum()) if specials else ordinary
            self.assertEqual(count, min(ordinary, max(1, turn(share * n))))

    def test_chance(self):
        found = (hidden(Tokens(share=0.15, budget='chance'), full())['weights'] > 0).sum(1)
        self.assertEqual(set(found), {2, 3})  # of 18 tokens, 2.7
        self.assert_rate((found == 3).sum(), ROWS, 0.7)

    def test_bernoulli(self):
        noise = Tokens(share=0.3, budget='bernoulli')
        counts = (hidden(noise, full())['weights'] > 0).sum(1)
        chances = [math.comb(18, k) * 0.3 ** k * 0.7 ** (18 - k) for k in range(19)]
        chances[1], chances[0] = chances[1] + chances[0], 0.0  # at least one
        for k in range(15):
            self.assert_rate((counts == k).sum(), ROWS, chances[k])

    @parameterized.parameters(*BUDGETS)
    def test_rows_have_room(self, budget):
        for share in (0.01, 0.15, 0.5, 1.0):
            batch = full(100)
            noise = Tokens(share=share, budget=budget, specials=True)
            self.assertEqual(times_of(hidden(noise, batch)).sum(), hidden(noise, batch)['weights'].sum())
            self.assertLessEqual(noise.most(LENGTH), LENGTH)
            self.assertGreaterEqual(noise.most(LENGTH), min(LENGTH, share * LENGTH))


class TokensTest(MaskingCase):
    @parameterized.parameters('tokens', 'each', 'again')
    def test_all_tokens_are_chosen_alike(self, name):
        found = hidden(NOISES[name], full())
        counts = times_of(found)[:, 1:-1].sum(0)
        n = found['weights'].sum()
        for count in counts:
            self.assert_rate(count, n, 1 / 18)

    def test_drawn_with_replacement(self):
        """6 draws of 18 tokens: how often a token is drawn is binomial; one of k draws is masked unless none is."""
        times = times_of(found := hidden(NOISES['again'], full()))[:, 1:-1]
        self.assertEqual(set(times.sum(1)), {6})  # round(0.3·20): special tokens count
        for k in range(4):
            share = math.comb(6, k) * (1 / 18) ** k * (17 / 18) ** (6 - k)
            self.assertLess(abs((times == k).mean() - share), 4 * math.sqrt(share / times.size))
        for k in (1, 2):
            at = times == k
            self.assert_rate((found['inputs'][:, 1:-1][at] == MASK).sum(), at.sum(), 1 - 0.15 ** k)


class WordsTest(MaskingCase):
    @parameterized.parameters('words', 'ngrams')
    def test_words_are_whole(self, name):
        batch, noise = texts(), NOISES[name]
        found = hidden(noise, batch)
        for inputs, times in zip(batch['inputs'], times_of(found)):
            words, n = words_of(inputs), int((inputs >= 5).sum())
            budget = min(n, max(1, round(0.3 * n)))
            self.assertLessEqual(times.sum(), budget)
            cut = [word for word in words if 0 < times[slice(*word)].sum() < word[1] - word[0]]
            if cut:  # no word fits
                self.assertTrue(all(stop - start > budget for start, stop in words))
                self.assertEqual(times.sum(), budget)
            left = budget - times.sum()
            if name == 'words' and not cut:  # what is left over fits no other word
                self.assertTrue(all(times[start] or stop - start > left for start, stop in words))

    def test_order_of_words_is_random(self):
        """The first word of the budget is any, and the rates of all words of a size are alike."""
        times = times_of(hidden(WholeWords(share=0.3), full()))
        words = words_of(full(1)['inputs'][0])
        sizes = collections.defaultdict(list)
        for start, stop in words:
            sizes[stop - start].append(times[:, start].sum())
        for counts in sizes.values():
            for count in counts:
                p = np.mean(counts) / ROWS
                self.assertLess(abs(count - ROWS * p), 4.5 * math.sqrt(ROWS * p * (1 - p)))
        self.assertLess(np.mean(sizes[3]), np.mean(sizes[1]))  # a word over budget is skipped

    def expected(self, noise, inputs, draws, budget):
        """The places that ALBERT's stretches cover, in Python."""
        words, chosen = words_of(inputs), set()
        tried = sorted(range(len(words)), key=lambda word: draws[word])
        for first in tried:
            stretch = [words[first]]
            for word in words[first + 1 : first + noise.longest]:
                if word[0] != stretch[-1][1]:
                    break
                stretch.append(word)
            chances = [1 / n for n in range(1, len(stretch) + 1)]
            u = draws[LENGTH + first] * sum(chances)
            del stretch[next(n for n, below in enumerate(itertools.accumulate(chances), 1) if u < below) :]
            while stretch and len(chosen) + stretch[-1][1] - stretch[0][0] > budget:
                stretch.pop()
            places = {place for word in stretch for place in range(*word)}
            if not places & chosen:
                chosen |= places
        return sorted(chosen or [*range(*words[tried[0]])][:budget])

    @parameterized.parameters(1, 3, 5)
    def test_ngrams_equal_a_loop(self, longest):
        noise, batch = NGrams(share=0.3, longest=longest), texts(seed=3)
        draws = np.random.default_rng(5).random((ROWS, noise.width(LENGTH)))
        times = times_of(noise(batch, WORDS, draws))
        for inputs, found, row in zip(batch['inputs'][:2000], times, draws[:, 1 : 1 + noise.own_width(LENGTH)]):
            budget = max(1, round(0.3 * int((inputs >= 5).sum())))
            self.assertEqual(np.flatnonzero(found).tolist(), self.expected(noise, inputs, row, budget))

    @parameterized.parameters(1, 3, 4)
    def test_lengths_of_ngrams(self, longest):
        """p(n) ~ 1/n of a stretch that begins in the middle of a text, where single words at its front spend what it leaves."""
        draws = np.zeros((ROWS, 2 * LENGTH))
        draws[:, :LENGTH] = np.arange(1, LENGTH + 1) / 100
        draws[:, 8], draws[:, LENGTH + 8] = 0, np.random.default_rng(0).random(ROWS)
        text = np.ones((ROWS, LENGTH), bool)
        chosen = NGrams(longest=longest).chosen(text, text, np.full(ROWS, longest), draws)
        self.assertEqual(set(chosen.sum(1)), {longest})
        sizes = chosen[:, 8:].sum(1)
        for n in range(1, longest + 1):
            self.assert_rate((sizes == n).sum(), ROWS, 1 / n / sum(1 / m for m in range(1, longest + 1)))

    def test_where_words_begin_is_needed(self):
        self.assertEqual([noise.words for noise in NOISES.values()], [False] * 3 + [True] * 4)


class SpansTest(MaskingCase):
    def expected(self, noise, inputs, draws, budget):
        """The places that SpanBERT's loop chooses, in Python."""
        words, chosen = words_of(inputs), set()
        ordinary = [place for word in words for place in range(*word)]
        lengths = noise.lengths()
        for size, where in draws.reshape(-1, 2):
            if len(chosen) >= budget:
                break
            free = [place for place in ordinary if place not in chosen]
            anchor = free[int(where * len(free))]
            number = next(i for i, (start, stop) in enumerate(words) if start <= anchor < stop)
            span = next(n for n, p in enumerate(itertools.accumulate(lengths), 1) if size < p or n == noise.longest)
            for word, before in zip(words[number : number + span], [None, *words[number:]]):
                if before and before[1] != word[0]:
                    break
                for place in range(*word):
                    if len(chosen) < budget:
                        chosen.add(place)
        return sorted(chosen)

    @parameterized.parameters(dict(), dict(p=0.5), dict(longest=3), dict(budget='round'))
    def test_equals_the_loop_of_the_paper(self, **fields):
        noise, batch = Spans(share=0.3, **fields), texts(seed=3)
        draws = np.random.default_rng(5).random((ROWS, noise.width(LENGTH)))
        times = times_of(noise(batch, WORDS, draws))
        own = draws[:, 1 : 1 + noise.own_width(LENGTH)]
        for inputs, found, row in zip(batch['inputs'][:2000], times, own):
            n = int((inputs >= 5).sum())
            budget = math.ceil(0.3 * n - 1e-9) if noise.budget == 'ceil' else max(1, round(0.3 * n))
            self.assertEqual(np.flatnonzero(found).tolist(), self.expected(noise, inputs, row, budget))
            self.assertEqual(found.sum(), budget)

    def test_lengths(self):
        for p, longest in ((0.2, 10), (0.5, 3)):
            wanted = np.array([p * (1 - p) ** (n - 1) for n in range(1, longest + 1)])
            np.testing.assert_allclose(Spans(p=p, longest=longest).lengths(), wanted / wanted.sum(), rtol=1e-12)
        self.assertAlmostEqual((Spans().lengths() * np.arange(1, 11)).sum(), 3.8, places=1)  # the paper's mean

    @parameterized.parameters(True, False)
    def test_a_stretch_shares_its_fate_or_does_not(self, together):
        found = hidden(Spans(share=0.5, together=together), full())
        mixed = 0
        for inputs, times in zip(found['inputs'], times_of(found)):
            for first, last in runs(np.flatnonzero(times)):
                told = inputs[first : last + 1] == MASK
                mixed += told.any() and not told.all()
        (self.assertEqual if together else self.assertGreater)(mixed, 0)


class BoundariesTest(MaskingCase):
    @parameterized.product(name=('spans', 'tokens'), most=(1, 3, 20))
    def test_equal_a_loop(self, name, most):
        batch = texts(seed=6)
        found = hidden(NOISES[name], batch)
        made = boundaries(found, {2, 3}, most)
        with_edges = 0
        for row in range(2000):
            wanted = np.zeros((*found['masked'][row].shape, 4))
            used = found['weights'][row] > 0
            places = found['masked'][row][used].tolist()
            for first, last in runs(places):
                left, right = first - 1, last + 1
                if batch['inputs'][row, left] in (2, 3) or batch['inputs'][row, right] in (2, 3):
                    with_edges += 1
                    continue
                for inside, place in enumerate(range(first, last + 1)):
                    if inside < most:
                        wanted[places.index(place)] = left, right, inside, 1
            np.testing.assert_array_equal(made['boundaries'][row], wanted[:, :3])
            np.testing.assert_array_equal(made['boundary_weights'][row], wanted[:, 3])
        self.assertGreater(with_edges, 0)

    def test_no_places(self):
        batch = {'inputs': np.zeros((2, 5), int), 'segments': np.zeros((2, 5), int), 'masked': np.zeros((2, 3), int),
                 'weights': np.zeros((2, 3))}
        self.assertFalse(boundaries(batch, {2}, 20)['boundary_weights'].any())


if __name__ == '__main__':
    absltest.main()
