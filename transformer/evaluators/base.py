"""Evaluators: `(snapshot, batches) -> {name: number}`, run during training, at its end and by eval.py.

training/contracts.py defines their contract, `Evaluator`, and that of their argument, `Snapshot`; transformer/contracts.py
defines the contracts of the data that they use.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

Found = Mapping[str, np.ndarray]  # {name: [examples, ..]}


def loss_of(terms: Mapping, coefficients: Mapping[str, float]) -> Any:
    """The loss of {term: (sum, weight)}, as in training: a term of weight 0 adds 0."""
    weighted = lambda pair: pair[0] / jnp.where(pair[1] > 0, pair[1], 1.0)
    return sum(coefficient * weighted(terms[name]) for name, coefficient in coefficients.items())


@dataclasses.dataclass(frozen=True)
class Evaluator(abc.ABC):
    """Base of the evaluators.

    Attributes:
      percent: the names of its numbers that are in per cent; of 'bleu/1-5' the part before the slash.
    """
    percent: ClassVar[tuple[str, ...]] = ()

    @property
    def view(self) -> Mapping:
        """Keywords of the data's `evaluation`, which determine how rows are cut."""
        return {}

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        """The names of its metrics. Raises ValueError, before anything is computed, if it does not fit this run."""
        return ()

    @abc.abstractmethod
    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        """{metric: number}."""


class OfExamples(Evaluator):
    """Base of evaluators whose numbers follow from what is found for each example, so that two runs can be compared over the
    same examples (transformer/evaluators/paired.py)."""

    @abc.abstractmethod
    def each(self, snapshot: Any, batches: Any) -> Found:
        """What is found for each example, in the order of the split."""

    @abc.abstractmethod
    def numbers(self, found: Found) -> Mapping[str, float]:
        """{metric: number} of these examples; of others than in `each` if some are drawn again and others left out."""

    def right(self, found: Found) -> Mapping[str, np.ndarray]:
        """{metric: bool [examples]} of the metrics that are shares of right examples."""
        return {}

    def shared(self, first: Found, second: Found) -> tuple[Found, Found]:
        """What two runs have found that can be compared."""
        return first, second

    def naming(self, data: Any) -> 'OfExamples':
        """This evaluator with the names of what it takes by its place in these data, so that it scores the same of a run whose
        data have another order."""
        return self

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        return self.numbers(self.each(snapshot, batches))


@dataclasses.dataclass(frozen=True)
class Averages(OfExamples):
    """The task's own terms, averaged over the split, and the numbers that the task derives from them. `numbers` are the terms
    alone."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        return run.metric_names(batches)

    def each(self, snapshot: Any, batches: Any) -> Found:
        return snapshot.each(batches)

    def numbers(self, found: Found) -> Mapping[str, float]:
        total = {term: pairs.sum(0) for term, pairs in found.items()}
        return {term: float(total / weight) if weight else float('nan') for term, (total, weight) in total.items()}

    def right(self, found: Found) -> Mapping[str, np.ndarray]:
        return {term: values > 0 for term, (values, weights) in ((term, pairs.T) for term, pairs in found.items())
                if (weights == 1).all() and np.isin(values, (0, 1)).all()}

    def shared(self, first: Found, second: Found) -> tuple[Found, Found]:
        """The terms of both tasks, but those whose weights differ: a loss for each token of another tokenizer is another."""
        same = [term for term in first if term in second and np.array_equal(first[term][:, 1], second[term][:, 1])]
        return {term: first[term] for term in same}, {term: second[term] for term in same}

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        return snapshot.averages(batches)
