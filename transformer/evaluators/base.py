"""Evaluators: `(snapshot, batches) -> {name: number}`, run during training, at its end and by eval.py.

training/contracts.py defines their contract, `Evaluator`, and that of their argument, `Snapshot`; transformer/contracts.py
defines the contracts of the data that they use.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Evaluator(abc.ABC):
    """Base of the evaluators."""

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


@dataclasses.dataclass(frozen=True)
class Averages(Evaluator):
    """The task's own terms, averaged over the split, and the numbers that the task derives from them."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        return run.metric_names(batches)

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        return snapshot.averages(batches)
