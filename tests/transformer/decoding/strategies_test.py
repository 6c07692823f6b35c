import functools
import itertools

import jax
import numpy as np
import scipy.stats
from absl.testing import absltest, parameterized

from tests import decoders
from tests.marks import slow_but
from transformer.decoding.constraints import Repetition, Without
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Beam, DiverseBeam, Greedy, Sample, top

KEY = jax.random.key(3)
FAKE = decoders.Fake()
PROMPTS = [[5], [6, 1], [4, 4, 2], [0, 5, 6, 3]]
SOURCES = [[1, 2, 3], [4], [5, 0, 6, 6, 2], [3, 3]]
END = 0


def outputs(strategy, prompts=PROMPTS, steps=4, vocab=4, source=None, model=FAKE, key=KEY, end=END):
    found = generate(model, model.params, prompts, steps=steps, strategy=strategy, key=key, end=end, vocab=vocab, source=source)
    return [[(one.tokens.tolist(), one.score, one.finished) for one in row] for row in found]


@slow_but('test_a_row_that_may_be_longer_changes_no_other', 'beam')
@slow_but('test_a_beam_that_is_wide_enough_finds_the_best_of_all_outputs', 'coverage', 'no_offset')
@slow_but('test_outputs_are_those_of_a_search_that_never_stops_early', 'coverage', 'groups')
class SearchTest(parameterized.TestCase):
    def assertSame(self, found, wanted):
        """Outputs in the same order with the same scores, but for ties."""
        np.testing.assert_allclose([score for _, score, _ in found], [score for _, score, _ in wanted], atol=1e-5)
        for one, other in zip(found, wanted):
            self.assertEqual((one[0], one[2]), (other[0], other[2]))

    @parameterized.named_parameters(('sum', 0.0, 0.0, 5.0), ('length', 1.0, 0.0, 5.0), ('coverage', 0.6, 0.5, 5.0),
                                    ('no_offset', 2.0, 0.0, 0.0))
    def test_a_beam_that_is_wide_enough_finds_the_best_of_all_outputs(self, alpha, beta, offset):
        # Of three tokens that may go on and four steps, 108 candidates are the most.
        found = outputs(Beam(128, alpha, beta, count=20, length_offset=offset), source=SOURCES)
        for row, prompt, source in zip(found, PROMPTS, SOURCES):
            next_ = functools.partial(FAKE.next, source=source, vocab=4)
            self.assertSame(row, decoders.exhaustive(next_, prompt, 4, END, 4, alpha, beta, offset)[:20])

    @parameterized.named_parameters(
        ('sum', Beam(2, count=2), 1), ('coverage', Beam(4, 1.0, 0.3, count=4), 1),
        ('groups', DiverseBeam(6, 0.6, 0.2, count=6, groups=3, diversity=2.0), 3))
    def test_outputs_are_those_of_a_search_that_never_stops_early(self, strategy, groups):
        prompts = [[*prompt, token] for prompt in PROMPTS for token in range(7)]
        sources = [source for source in SOURCES for _ in range(7)] if strategy.covers else None
        found = outputs(strategy, prompts, 6, 7, sources)
        for i, (row, prompt) in enumerate(zip(found, prompts)):
            next_ = functools.partial(FAKE.next, source=sources and sources[i])
            wanted = decoders.beam(next_, prompt, 6, END, strategy.size, strategy.length_penalty, strategy.coverage_penalty,
                                   groups, strategy.diversity)
            self.assertSame(row, wanted[:strategy.count])

    @parameterized.named_parameters(('beam', Beam(4, 2.0, count=4)), ('greedy', Greedy()), ('sample', Sample()))
    def test_a_row_that_may_be_longer_changes_no_other(self, strategy):
        together = outputs(strategy, PROMPTS, [1, 2, 3, 8], 7)
        for prompt, steps, number in zip(PROMPTS, (1, 2, 3), itertools.count()):
            alone = generate(FAKE, FAKE.params, [prompt], steps=steps, strategy=strategy, key=KEY, end=END, vocab=7,
                             numbers=[number])[0]
            self.assertSame(together[number], [(one.tokens.tolist(), one.score, one.finished) for one in alone])
            self.assertLessEqual(max(len(tokens) for tokens, *_ in together[number]), steps)

    @parameterized.parameters((0.0, 2), (1.0, 5))
    def test_a_search_stops_as_soon_as_nothing_better_can_come(self, alpha, tokens):
        # Of each token but `end` log P is at least 8 lower. With a length penalty of 1 the second output has a score of about
        # -8·6/7, and n other tokens and any number of `end` can reach -8n·6/29: as good up to n = 4.
        model = decoders.Fake()
        model.params['logits'][:] = [8.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0]
        found = outputs(Beam(2, alpha, count=2), [[1]], 24, 7, model=model)
        jax.effects_barrier()
        self.assertEqual([row[0] for row in found[0]], [[], [1]])
        self.assertEqual(model.calls, tokens)  # of the prompt comes the first one

    @parameterized.parameters(0.0, 0.6)
    def test_a_search_goes_on_only_for_the_outputs_that_are_returned(self, alpha):
        best, calls = [], []
        for count in (1, 4):
            model = decoders.Fake(scale=3.0)
            found = outputs(Beam(4, alpha, count=count), [[2]], 30, 7, model=model)
            jax.effects_barrier()
            best.append([row[0] for row in found])
            calls.append(model.calls)
        self.assertEqual(*best)
        self.assertLess(*calls)

    def test_beam_of_one_is_greedy(self):
        prompts = [[a, b] for a, b in itertools.product(range(7), repeat=2)]
        found, wanted = outputs(Beam(1), prompts, 8, 7), outputs(Greedy(), prompts, 8, 7)
        for one, other in zip(found, wanted):
            self.assertSame(one, other)
        self.assertTrue(any(row[0][2] for row in wanted) and any(not row[0][2] for row in wanted))

    def test_greedy_takes_the_most_probable_and_its_score_is_its_log_probability(self):
        for prompt, ((new, score, finished),) in zip(PROMPTS, outputs(Greedy(), steps=8, vocab=7)):
            wanted = 0.0
            for token in [*new, END] if finished else new:
                gains = FAKE.next(prompt)[0]
                self.assertEqual(gains.argmax(), token)
                wanted, prompt = wanted + gains[token], [*prompt, token]
            self.assertAlmostEqual(score, wanted, delta=1e-5)

    def test_groups_differ_at_each_step_if_they_have_to(self):
        found = outputs(DiverseBeam(3, count=3, groups=3, diversity=100.0), steps=1, vocab=7)
        for row, prompt in zip(found, PROMPTS):
            self.assertEqual([new for new, _, _ in row], [[] if token == END else [token] for token in
                                                           np.argsort(-FAKE.next(prompt)[0])[:3]])

    def test_groups_do_not_all_end_at_once(self):
        for row in outputs(DiverseBeam(3, count=3, groups=3, diversity=100.0), [[0, 3], [6, 2]], steps=1, vocab=7):
            self.assertEqual(row[0][0], [])  # the most probable
            self.assertLen({tuple(new) for new, _, _ in row}, 3)

    def test_a_group_may_find_what_another_found_and_it_is_listed_once(self):
        for row in outputs(DiverseBeam(4, count=4, groups=2, diversity=0.0), steps=3):
            self.assertLen(row, 2)
            self.assertNotEqual(row[0], row[1])

    @parameterized.parameters(Greedy, DiverseBeam, Sample)
    def test_constraints(self, strategy):
        for row in outputs(strategy(constraint=Without((END, 1, 2))), steps=5):
            self.assertEqual(row[0][0], [3] * 5)

    def test_scores_of_beams_are_those_under_the_constraint(self):
        penalty = 3.0
        (row, *_) = outputs(Beam(constraint=Repetition(penalty)), [[1]], 5, 7)
        new, score, finished = row[0]
        wanted, tokens = 0.0, [1]
        for token in [*new, END] if finished else new:
            wanted += FAKE.next(tokens)[0][token] * (penalty if token in tokens else 1.0)
            tokens.append(token)
        self.assertAlmostEqual(score, wanted, delta=1e-5)

    @parameterized.parameters(
        (lambda: Beam(0), 'size is 0; expected 1 to 4,096'),
        (lambda: Beam(2, count=3), 'count is 3; expected 1 to the size, 2'), (lambda: Beam(count=0), 'count is 0'),
        (lambda: Beam(length_penalty=-0.1), 'length_penalty is -0.1; expected 0 or more'),
        (lambda: Beam(length_offset=-1.0), 'length_offset is -1.0; expected 0 or more'),
        (lambda: Beam(coverage_penalty=float('inf')), 'coverage_penalty is inf'),
        (lambda: Beam(length_penalty=float('nan')), 'length_penalty is nan'),
        (lambda: DiverseBeam(4, groups=3), 'groups is 3; expected a divisor of the size, 4'),
        (lambda: DiverseBeam(groups=0), 'groups is 0'), (lambda: DiverseBeam(diversity=-1.0), 'diversity is -1.0'),
        (lambda: DiverseBeam(0), 'size is 0'),
        (lambda: Beam(10 ** 9), 'size is 1000000000; expected 1 to 4,096'),
        (lambda: Sample(count=0), 'count is 0; expected 1 to 4,096'))
    def test_values_without_a_meaning_are_refused(self, make, message):
        with self.assertRaisesRegex(ValueError, message):
            make()

    def test_a_coverage_penalty_needs_a_source(self):
        with self.assertRaisesRegex(ValueError, 'A coverage penalty needs a model that attends to a source'):
            outputs(Beam(coverage_penalty=0.2))

    def test_top_of_many(self):
        rng = np.random.default_rng(0)
        for x in (rng.normal(size=(3, 2, 5000)), rng.integers(0, 40, (2, 5003)), np.where(np.arange(4000) % 997, -np.inf, 1.0),
                  np.bincount([3000, 3000, 3001, 10], minlength=4000)):  # as large as others, before them and behind
            value, at = jax.jit(lambda x: top(x, 7))(np.float32(x))
            wanted = np.argsort(-x, axis=-1, kind='stable')[..., :7]
            np.testing.assert_array_equal(value, np.take_along_axis(np.float32(x), wanted, -1))
            places = np.where(np.isfinite(value), at - wanted, 0)
            np.testing.assert_array_equal(places, 0)


def distribution(prompt, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """What `Sample` says, token by token in order of their probability."""
    log_probabilities = FAKE.next(prompt)[0]
    p = np.exp(log_probabilities / temperature)
    order = np.argsort(-p)
    p[order[top_k or 7:]] = 0.0
    before, kept = 0.0, np.zeros_like(p)
    for token in order:
        if before < top_p * p.sum():
            kept[token] = p[token]
        before += p[token]
    kept[kept < min_p * kept.max()] = 0.0
    return kept / kept.sum()


class SampleTest(parameterized.TestCase):
    def assertDrawn(self, tokens, p):
        counts = np.bincount(tokens, minlength=len(p))
        np.testing.assert_array_equal(counts[p == 0], 0)
        rare = p * len(tokens) < 5  # the test is for large counts: these make one
        found, wanted = (np.append(x[~rare], x[rare].sum()) for x in (counts, p * len(tokens)))
        found, wanted = found[wanted > 0], wanted[wanted > 0]
        if len(wanted) > 1:
            self.assertGreater(scipy.stats.chisquare(found, wanted).pvalue, 1e-3)

    @parameterized.parameters(
        dict(), dict(temperature=3.0), dict(top_k=1), dict(top_k=100), dict(top_p=0.01), dict(top_p=0.9),
        dict(temperature=2.0, min_p=0.3), dict(temperature=0.7, top_k=4, top_p=0.8, min_p=0.2))
    def test_distribution(self, **fields):
        (row,) = outputs(Sample(**fields, count=4096), [[3, 1]], 1, 7, end=-1)
        self.assertDrawn([new[0] for new, _, _ in row], distribution([3, 1], **fields))
        self.assertEqual(row, sorted(row, key=lambda one: -one[1]))
        by_token = FAKE.next([3, 1])[0]
        np.testing.assert_allclose([score for _, score, _ in row], [by_token[new[0]] for new, _, _ in row], atol=1e-5)

    def test_rows_and_steps_draw_independently(self):
        rows = outputs(Sample(), [[3, 1]] * 4096, 2, 7, end=-1)
        first, second = distribution([3, 1]), np.array([distribution([3, 1, token]) for token in range(7)])
        drawn = np.array([new for (new, _, _), in rows])  # [rows, steps]
        self.assertDrawn(drawn[:, 0] * 7 + drawn[:, 1], (first[:, None] * second).ravel())
        self.assertDrawn(drawn[::2, 0] * 7 + drawn[1::2, 0], np.outer(first, first).ravel())

    def test_a_key_repeats_its_draws(self):
        draw = lambda seed: outputs(Sample(), PROMPTS * 4, 6, 7, key=jax.random.key(seed))
        self.assertEqual(draw(0), draw(0))
        self.assertNotEqual(draw(0), draw(1))

    @parameterized.parameters(
        dict(temperature=0.0), dict(temperature=1e-50), dict(temperature=float('nan')), dict(temperature=float('inf')),
        dict(top_k=-1), dict(top_p=0.0), dict(top_p=1.5), dict(min_p=-0.1), dict(min_p=1.1))
    def test_values_without_a_meaning_are_refused(self, **fields):
        with self.assertRaisesRegex(ValueError, r'expected temperature >= 0.001, top_k >= 0, top_p in .* and min_p in'):
            Sample(**fields)


if __name__ == '__main__':
    absltest.main()
