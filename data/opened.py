"""The base class of opened data, with defaults that subclasses may override. A run needs more methods: see `Opened` in
training/contracts.py."""

import abc
import math
import types
from collections.abc import Mapping
from typing import Any

import numpy as np


class Opened(abc.ABC):
    """Base of opened data.

    Attributes:
      config: the dataclass that was opened.
      facts: {model field: its value, which follows from the data}.
      meanings: {what the numbers of a batch stand for, such as 'tokenizer' and 'classes': its digest}.
      unit: what `count` counts, in the plural.
      packed: whether a row of training holds several examples that a model has to tell apart.
      plateau: nats, the loss of a model that knows only how frequent each target is and copies what it sees of it; nan: it is
        not known.
    """

    config: Any
    facts: Mapping[str, Any]
    meanings: Mapping[str, str] = types.MappingProxyType({})
    unit: str
    packed: bool = False
    plateau: float = math.nan

    @property
    @abc.abstractmethod
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known before the data are read."""

    @property
    def buckets(self) -> list[dict[str, tuple[tuple[int, ...], type]]]:
        """The shapes of all training batches, the longest last."""
        return [self.shapes]

    def count(self, batch: dict[str, np.ndarray]) -> int:
        """Rows in a batch, without padding rows."""
        if 'example_weights' in batch:
            return int(np.count_nonzero(batch['example_weights']))
        return len(next(iter(batch.values())))

    def contents(self, split: str) -> str:
        """A digest of the examples of a split, however they are read where the data can tell."""
        return self.digest(split)

    def refuse_view(self, view: Mapping[str, Any]) -> None:
        """Raises ValueError if `evaluation` was given keywords, which only text for language modelling takes."""
        if view:
            raise ValueError(f'{type(self.config).__name__} takes no {", ".join(view)} in evaluation; leave it out.')
