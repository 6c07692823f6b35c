"""Two runs over the same examples: is their difference more than chance?

Right and wrong examples: McNemar's exact test (McNemar 1947; Dietterich 1998, "Approximate Statistical Tests for Comparing
Supervised Classification Learning Algorithms"). Scores of a corpus: the paired bootstrap (Efron and Tibshirani 1993, chapter
16; Koehn 2004; Berg-Kirkpatrick, Burkett and Klein 2012), which draws the examples anew, the same ones for both runs.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from transformer.evaluators.base import Found, OfExamples

DRAWS = 10_000  # of the bootstrap: p is 1e-4 at the least


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """The two-sided p of right answers, bool [examples], of two runs, if both have the same chance of them: that of a fair coin
    to fall as unevenly as those examples that one of them alone has right. 1 if there are none."""
    from scipy import stats  # which comes with jax

    alone, other = int((first & ~second).sum()), int((second & ~first).sum())
    return float(stats.binomtest(alone, alone + other, 0.5).pvalue) if alone + other else 1.0


def compare(evaluator: OfExamples, first: Found, second: Found, draws: int = DRAWS, seed: int = 0) -> dict[str, Mapping]:
    """{metric: {'first', 'second', 'difference', 'low', 'high', 'p', 'test'}} of two runs over the same examples.

    The difference is first - second; low and high bound its interval of 95 % (percentiles of the bootstrap). The p of the
    bootstrap is the share of draws whose difference is as far from the measured one as that is from 0, (1 + k) / (1 + draws).

    Raises: ValueError if the examples are not the same, or if the evaluator has no number for them.
    """
    if not (first and second):
        raise ValueError(f'{type(evaluator).__name__} has no number for these data, so two runs cannot be compared by it; '
                         'choose another evaluator.')
    described = [f'{", ".join(found)} of {len(next(iter(found.values()))):,} examples' for found in (first, second)]
    first, second = evaluator.shared(first, second)
    counts = [{len(x) for x in found.values()} for found in (first, second)]
    if not first or first.keys() != second.keys() or counts[0] != counts[1]:
        raise ValueError(f'The two runs are measured over other examples or other tokens ({described[0]} against '
                         f'{described[1]}); compare runs on the same data, with an evaluator of examples and not of tokens.')
    (examples,), rng = counts[0], np.random.default_rng(seed)
    measured = evaluator.numbers(first), evaluator.numbers(second)
    names = [name for name in measured[0] if np.isfinite([one[name] for one in measured]).all()]
    differences = np.empty((draws, len(names)))
    for draw in range(draws):
        drawn = rng.integers(examples, size=examples)
        one, two = (evaluator.numbers({name: x[drawn] for name, x in found.items()}) for found in (first, second))
        differences[draw] = [one[name] - two[name] for name in names]
    right, found = [evaluator.right(one) for one in (first, second)], {}
    for name, drawn in zip(names, differences.T):
        difference = measured[0][name] - measured[1][name]
        low, high = np.percentile(drawn, (2.5, 97.5))
        far = np.abs(drawn - difference) >= abs(difference) - 1e-12
        exact = all(name in one for one in right)
        found[name] = {
            'first': measured[0][name], 'second': measured[1][name], 'difference': difference,
            'low': float(low), 'high': float(high),
            'p': mcnemar(right[0][name], right[1][name]) if exact else float((1 + far.sum()) / (1 + draws)),
            'test': 'mcnemar' if exact else 'bootstrap'}
    return found


def line(found: Mapping[str, Mapping], percent: Sequence[str] = ()) -> str:
    """'accuracy 0.861 - 0.842 = +0.019 (+0.002 to +0.036), p 0.031 (McNemar)' of what `compare` finds; '%' stands behind the
    numbers named in `percent`, as of an evaluator."""
    tests = {'mcnemar': 'McNemar', 'bootstrap': 'bootstrap'}

    def said(name: str, one: Mapping) -> str:
        unit = '%' * (name.partition('/')[0] in percent)
        return (f'{name} {one["first"]:.4g}{unit} - {one["second"]:.4g}{unit} = {one["difference"]:+.3g}{unit} '
                f'({one["low"]:+.3g}{unit} to {one["high"]:+.3g}{unit}), p {one["p"]:.2g} ({tests[one["test"]]})')

    return '; '.join(said(name, one) for name, one in found.items())
