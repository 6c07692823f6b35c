"""Scaling laws on a surface that is known: that of Hoffmann et al. (2022), section D.3."""

import dataclasses

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from training.report import scaling
from training.report.scaling import Joint, Runs, Surface

TRUTH = Surface(1.69, 406.4, 0.34, 410.7, 0.28)
JOINT = Joint(6.4e13, 0.076, 1.8e13, 0.103)  # Kaplan et al. 2020, table 2
BUDGETS = np.geomspace(1e18, 1e22, 5)


def runs(spread=1.6, count=5, noise=0.0, seed=0, truth=TRUTH, centre=None):
    """Runs of `count` sizes for each budget, from exp(-spread) to exp(spread) times its centre."""
    budget, apart = (x.ravel() for x in np.meshgrid(BUDGETS, np.linspace(-spread, spread, count), indexing='ij'))
    size = (centre or truth.best)(budget) * np.exp(apart)
    tokens = budget / 6 / size
    loss = truth(size, tokens) * np.exp(noise * np.random.default_rng(seed).normal(size=size.shape))
    return Runs(budget, size, tokens, budget, loss)


def one_sided(name):
    """Runs whose loss falls with one of the two alone."""
    return runs(truth=lambda size, tokens: 1.7 + 400 * {'size': size, 'tokens': tokens}[name] ** -0.3, centre=TRUTH.best)


class SurfaceTest(parameterized.TestCase):
    @parameterized.parameters(TRUTH, JOINT)
    def test_the_best_size_has_the_least_loss(self, truth):
        for flops in 1e18, 1e22:
            best = truth.best(flops)
            sizes = best * np.geomspace(0.9, 1.1, 201)
            losses = truth(sizes, flops / 6 / sizes)
            self.assertAlmostEqual(sizes[np.argmin(losses)] / best, 1.0, delta=0.002)
        self.assertAlmostEqual(np.log(truth.best(1e22) / truth.best(1e18)) / np.log(1e4), truth.exponent)

    @parameterized.parameters((scaling.huber, TRUTH), (scaling.projected, TRUTH), (scaling.joint, JOINT))
    def test_it_is_found_from_its_points(self, fit, truth):
        found = dataclasses.asdict(fit(runs(truth=truth)))
        for name, value in dataclasses.asdict(truth).items():
            self.assertAlmostEqual(found[name] / value, 1.0, delta=0.01, msg=name)

    def test_one_bad_run_moves_least_squares_and_hardly_hubers_loss(self):
        clean = runs()
        spoilt = dataclasses.replace(clean, loss=np.where(np.arange(25) == 4, 1.2, 1.0) * clean.loss)
        error = lambda fit: abs(fit(spoilt).exponent - TRUTH.exponent)
        self.assertLess(error(scaling.huber), 0.002)
        self.assertGreater(error(scaling.projected), 0.01)

    @pytest.mark.slow
    def test_intervals_of_four_fifths_hold_the_truth_about_as_often(self):
        numbers, count = (lambda one: (one.E, one.alpha, one.beta, one.exponent)), 60
        held = np.zeros(4)
        for seed in range(count):
            ends = scaling.intervals(runs(noise=0.005, seed=seed), numbers, count=40, seed=seed)
            held += (ends[:, 0] <= numbers(TRUTH)) & (numbers(TRUTH) <= ends[:, 1])
        for share in held / count:
            self.assertBetween(share, 0.65, 0.95)  # four fifths of 60, and three standard deviations


    def test_deviation_is_relative(self):
        given = runs()
        self.assertLess(scaling.deviation(TRUTH, given), 1e-12)
        spoilt = dataclasses.replace(given, loss=given.loss / np.where(np.arange(25) < 9, 1.05, 1.0))
        self.assertAlmostEqual(scaling.deviation(TRUTH, spoilt), 0.05 * (9 / 25) ** 0.5)


class CurvesTest(parameterized.TestCase):
    def test_parabolas_find_the_exponent_where_sizes_lie_around_the_best(self):
        power, bottoms = scaling.valleys(runs(1.0))
        self.assertAlmostEqual(power.exponent, TRUTH.exponent, places=4)
        for flops, size, loss in bottoms:
            self.assertAlmostEqual(size / TRUTH.best(flops), 1.0, delta=0.05)
            self.assertAlmostEqual(loss / TRUTH(size, flops / 6 / size), 1.0, delta=0.002)

    def test_parabolas_are_biased_where_sizes_lie_far_apart_and_the_surface_is_not(self):
        wide = runs(4.0, 7)
        power, _ = scaling.valleys(wide)
        self.assertGreater(power(1e20) / TRUTH.best(1e20), 1.1)
        self.assertAlmostEqual(scaling.projected(wide).best(1e20) / TRUTH.best(1e20), 1.0, delta=0.01)

    def test_the_best_runs_of_each_number_of_operations_find_the_exponent(self):
        budget, size = (x.ravel() for x in np.meshgrid(np.geomspace(1e18, 1e22, 17), np.geomspace(1e7, 1e12, 21)))
        near = abs(np.log(size / TRUTH.best(budget))) < np.log(10)
        budget, size = budget[near], size[near]
        power = scaling.envelope(Runs(budget, size, budget / 6 / size, budget, TRUTH(size, budget / 6 / size)))
        self.assertAlmostEqual(power.exponent, TRUTH.exponent, delta=0.01)
        self.assertAlmostEqual(power(1e20) / TRUTH.best(1e20), 1.0, delta=0.15)  # sizes are 1.8 times apart

    def test_noise_moves_no_way_far(self):
        noisy = runs(noise=0.002)
        for power in (scaling.valleys(noisy)[0], scaling.projected(noisy), scaling.huber(noisy)):
            self.assertAlmostEqual(power.exponent, TRUTH.exponent, delta=0.04)


class RefusedTest(parameterized.TestCase):
    @parameterized.parameters(
        (lambda: dataclasses.replace(runs(), loss=np.where(np.arange(25) == 3, np.nan, 2.0)),
         'Run 3 has loss=nan; leave out runs that have diverged'),
        (lambda: dataclasses.replace(runs(), tokens=[1.0]), r'tokens has the shape \(1,\); expected \(25,\)'),
        (lambda: scaling.valleys(runs(count=3)), r'The curve of 1e\+18 operations has 3 runs; a parabola needs 4'),
        (lambda: scaling.valleys(runs()[:5]), 'One curve has no exponent'),
        (lambda: scaling.valleys(dataclasses.replace(runs(), flops=6 * runs().tokens * runs().parameters ** 0.9)),
         r'The runs of the budget 1e\+18 have .* operations; a parabola needs as many of each'),
        (lambda: scaling.valleys(runs(centre=lambda flops: 9 * TRUTH.best(flops))), 'at the edge.*train smaller ones'),
        (lambda: scaling.valleys(runs(centre=lambda flops: TRUTH.best(flops) / 9)), 'at the edge.*train larger ones'),
        (lambda: scaling.envelope(runs()), 'The best size is always the smallest or the largest'),  # no size has two runs
        (lambda: scaling.huber(runs()[:5]), 'The surface has 5 parameters, and there are 5 runs; expected at least 6'),
        (lambda: scaling.projected(runs()[:5]), 'The surface has 5 parameters, and there are 5 runs; expected at least 6'),
        (lambda: scaling.joint(runs()[:4]), 'The surface has 4 parameters, and there are 4 runs; expected at least 5'),
        (lambda: scaling.joint(runs(truth=lambda size, tokens: size + tokens, centre=TRUTH.best)), 'does not fall with more'),
        (lambda: scaling.joint(one_sided('tokens')), 'does not fall with more'),
        (lambda: scaling.huber(one_sided('tokens')), 'does not fall with more parameters'),
        (lambda: scaling.projected(one_sided('tokens')), 'does not fall with more parameters'),
        (lambda: scaling.huber(one_sided('size')), 'does not fall with more tokens'),
        (lambda: scaling.projected(one_sided('size')), 'does not fall with more tokens'),
        (lambda: scaling.intervals(runs(noise=0.3)[:12], lambda one: one.exponent), 'resamples have no best size'),
        (lambda: scaling.intervals(runs()[:5], lambda one: one.exponent), 'there are 5 runs; expected at least 6'),
        (lambda: scaling.huber(runs(count=7)[:7]), r'All runs have the budget 1e\+18: .*train runs of another'),
        (lambda: scaling.projected(runs(count=7)[:7]), r'All runs have the budget 1e\+18: .*train runs of another'))
    def test_what_has_no_exponent(self, call, message):
        with self.assertRaisesRegex(ValueError, message):
            call()


if __name__ == '__main__':
    absltest.main()
