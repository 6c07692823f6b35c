"""Evaluators: `(snapshot, batches) -> {name: number}`, run during training, at its end and by eval.py.

`Evaluator` and `Snapshot` in training/contracts.py are what a run asks of them, and what they are given; what they ask of the
data is in transformer/contracts.py.
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
        """Keywords for the data's `evaluation`: how its rows are cut."""
        return {}

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        """The names of the numbers it will give; raises what is wrong with it for this run, before anything is computed."""
        return ()

    @abc.abstractmethod
    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        """{name: number}."""


@dataclasses.dataclass(frozen=True)
class Averages(Evaluator):
    """The task's own terms, averaged over the split, and what the task derives from them."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        return run.metric_names(batches)

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        return snapshot.averages(batches)
