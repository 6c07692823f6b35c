"""Paired tests of two runs: against loops and known values, and under the null."""

import math

import numpy as np
from absl.testing import absltest, parameterized

from transformer.evaluators.base import Averages
from transformer.evaluators.paired import compare, line, mcnemar
from transformer.evaluators.reading import ClassScores, Correlation, Entities


def found_of(label, said):
    table = np.stack([label & said, said, label], 1)
    return {'label': np.int64(label), 'said': np.int64(said), 'positive': np.int64(table)}


class McNemarTest(parameterized.TestCase):
    @parameterized.parameters((0, 0), (1, 0), (3, 9), (9, 3), (10, 10), (0, 8), (25, 41))
    def test_the_tails_of_a_fair_coin(self, alone, other):
        first = np.array([True] * (alone + 5) + [False] * (other + 3))
        second = np.array([False] * alone + [True] * 5 + [True] * other + [False] * 3)
        thrown = alone + other
        tail = sum(math.comb(thrown, k) for k in range(min(alone, other) + 1)) / 2 ** thrown
        self.assertAlmostEqual(mcnemar(first, second), min(1.0, 2 * tail), places=12)

    def test_the_exact_p_of_a_textbook(self):
        """Agresti 2002, section 10.1.1, has 86 and 150 that changed: z² is 17.4, and p of the order of 1e-5."""
        first = np.arange(236) < 86
        self.assertBetween(mcnemar(first, ~first), 2e-5, 6e-5)


class CompareTest(parameterized.TestCase):
    def test_the_bootstrap_in_a_loop(self):
        rng = np.random.default_rng(1)
        label, one, two = (rng.random(60) < 0.5 for _ in range(3))
        found = compare(ClassScores(), found_of(label, one), found_of(label, two), draws=200, seed=3)

        def f1(drawn, said):
            both, total = 0, 0
            for i in drawn:
                both += int(label[i] and said[i])
                total += int(label[i]) + int(said[i])
            return 100 * 2 * both / total

        again, differences = np.random.default_rng(3), []
        for _ in range(200):
            drawn = again.integers(60, size=60)
            differences.append(f1(drawn, one) - f1(drawn, two))
        whole = f1(range(60), one) - f1(range(60), two)
        far = sum(abs(difference - whole) >= abs(whole) - 1e-12 for difference in differences)
        wanted = {'first': f1(range(60), one), 'second': f1(range(60), two), 'difference': whole,
                  'low': np.percentile(differences, 2.5), 'high': np.percentile(differences, 97.5), 'p': (1 + far) / 201}
        for name, number in wanted.items():
            self.assertAlmostEqual(found['f1'][name], number, places=10, msg=name)
        self.assertEqual({name: one['test'] for name, one in found.items()},
                         {'accuracy': 'mcnemar', 'f1': 'bootstrap', 'macro_f1': 'bootstrap', 'matthews': 'bootstrap'})
        self.assertAlmostEqual(found['accuracy']['p'], mcnemar(label == one, label == two))

    def test_a_run_is_no_better_than_itself(self):
        rng = np.random.default_rng(0)
        found = {'label': rng.normal(size=50), 'said': rng.normal(size=50)}
        for one in compare(Correlation(), found, found, draws=50).values():
            self.assertEqual((one['difference'], one['low'], one['high'], one['p']), (0, 0, 0, 1))

    def test_a_real_difference_is_found(self):
        rng = np.random.default_rng(0)
        label = rng.normal(size=200)
        near, far = ({'label': label, 'said': label + noise * rng.normal(size=200)} for noise in (0.5, 1.5))
        for one in compare(Correlation(), near, far, draws=400).values():
            self.assertLess(one['p'], 0.01)
            self.assertGreater(one['low'], 0)

    def test_p_is_uniform_under_the_null(self):
        """Of two runs that are right as often as each other p of F1 is under α in about a share α of 200 simulations (with a
        standard deviation of 0.035 at 0.5), and that of McNemar in no more."""
        values = {'f1': [], 'accuracy': []}
        for simulation in range(200):
            rng = np.random.default_rng(simulation)
            label = rng.random(150) < 0.5
            one, two = (found_of(label, label ^ (rng.random(150) < 0.25)) for _ in range(2))
            found = compare(ClassScores(), one, two, draws=100, seed=simulation)
            for name, ps in values.items():
                ps.append(found[name]['p'])
        for alpha in (0.1, 0.25, 0.5, 0.75):
            share = np.mean(np.array(values['f1']) <= alpha)
            self.assertBetween(share, alpha - 0.12, alpha + 0.12, alpha)
            self.assertLess(np.mean(np.array(values['accuracy']) <= alpha), alpha + 0.1)
        self.assertGreater(np.std(values['accuracy']), 0.2)

    def test_terms_of_the_task(self):
        """A term with a weight other than 1 is no share of right examples; one without any weight is left out."""
        pairs = lambda values, weights: np.stack([np.float64(values), np.float64(weights)], 1)
        one, two = ({'loss': pairs([2.0, scale, 0.5], [1, 2, 1]), 'accuracy': pairs([1, 0, scale > 1], [1, 1, 1]),
                     'none': pairs([0, 0, 0], [0, 0, 0])} for scale in (1.0, 3.0))
        found = compare(Averages(), one, two, draws=20)
        self.assertEqual({name: test['test'] for name, test in found.items()}, {'loss': 'bootstrap', 'accuracy': 'mcnemar'})
        self.assertAlmostEqual(found['loss']['difference'], (3.5 - 5.5) / 4)
        self.assertEqual(found['accuracy']['p'], 1.0)
        self.assertStartsWith(line(found), 'loss 0.875 - 1.375 = -0.5 (')
        self.assertRegex(line(found, ['loss']), r'\Aloss 0.875% - 1.375% = -0.5% \(-[0-9.]+% to [+-][0-9.]+%\), p .*; accuracy '
                                                '0.3333 -')
        self.assertIn('; accuracy 0.3333 - 0.6667 = -0.333 (', line(found))
        self.assertEndsWith(line(found), ', p 1 (McNemar)')

    def test_terms_in_common(self):
        """As of a task with label smoothing and one without, or of losses over other numbers of tokens."""
        one = {'accuracy': np.ones((3, 2)), 'loss': np.float64([[4, 2], [6, 3], [2, 1]]), 'other': np.ones((3, 2))}
        two = {'loss': one['loss'], 'accuracy': np.float64([[0, 1], [1, 1], [1, 1]])}
        self.assertEqual([*compare(Averages(), one, two, draws=2)], ['accuracy', 'loss'])
        halved = two | {'loss': one['loss'] * [1, 2]}  # the same nats of texts, each cut into twice as many tokens
        self.assertEqual([*compare(Averages(), one, halved, draws=2)], ['accuracy'])
        for rest in {'loss': halved['loss']}, {'third': one['other']}:
            with self.assertRaisesRegex(ValueError, 'over other examples or other tokens .accuracy, loss, other of 3 examples'):
                compare(Averages(), one, rest)

    def test_other_examples_are_refused(self):
        one = {'label': np.zeros(3), 'said': np.zeros(3)}
        with self.assertRaisesRegex(ValueError, 'examples or other tokens .label, said of 3 examples against label, said of 4'):
            compare(Correlation(), one, {name: np.zeros(4) for name in one})

    def test_an_evaluator_without_numbers_is_refused(self):
        found = {'names': np.ones((3, 3)), 'strict': np.ones((3, 3))}
        for pair in (({}, {}), (found, {}), ({}, found)):
            with self.assertRaisesRegex(ValueError, r'\AEntities has no number for these data, .*; choose another'):
                compare(Entities(), *pair)


if __name__ == '__main__':
    absltest.main()
