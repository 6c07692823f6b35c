"""The base of tasks: the inputs of the model, the terms of the loss, and numbers that derive from them.

    loss(forward, batch, key=, step=, train=) -> {term: (sum, weight)}
    total = sum over `coefficients` of coefficient * sum / weight

Weights depend on the batch alone, so sums and weights add up over microbatches, devices and batches, and padding
never changes a number. A term without a coefficient is a metric. The total is reported as `loss`, which is also the name of
the term of a task that has only one.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer.layers.heads import BlockedLogits
from transformer.layers.numerics import real_dtype
from transformer.tasks.losses import correct, cross_entropy, log_z_squared, uniform_cross_entropy


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC):
    """A task of one forward pass: `inputs` gives the inputs of the model, `terms` the terms of the loss from its outputs.

    Attributes:
      start: the first input of a decoder that reads the text again; -1: there is none.
      keywords: names of further keywords of the model, which `loss` computes.
    """
    start = -1
    keywords = ()

    @property
    def coefficients(self) -> Mapping[str, float]:
        return {'loss': 1.0}

    @abc.abstractmethod
    def inputs(self, batch: Mapping) -> dict:
        """{keyword of the model: array}."""

    @abc.abstractmethod
    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        """{term: (sum, weight)}."""

    def loss(self, forward: Callable, batch: Mapping, *, key: jax.Array | None, step: Any, train: bool) -> dict:
        """{term: (sum, weight)}; `forward(**inputs)` applies the model, with `key` for its randomness in training."""
        batch = real(batch)
        return self.terms(forward(**self.inputs(batch), key=key if train else None, **self.options(train)), batch)

    def options(self, train: bool) -> dict:
        """Further keywords of the model, constants."""
        return {}

    def derived(self, averages: Mapping, facts: Mapping) -> dict:
        """Further numbers from the averages over a split and its facts (bytes, tokens, ...)."""
        return {}

    def remark(self, rows: Sequence[Mapping], data: Any, steps: int) -> str:
        """A sentence that tells the user what is wrong with how training goes, from the rows of its log and the number of its
        steps in all; '' for nothing."""
        return ''


@dataclasses.dataclass(frozen=True)
class Prediction(Task):
    """Base of tasks that predict a class (a token, a label) at every position:

        loss = (1 - label_smoothing)·cross_entropy + label_smoothing·uniform + z_loss·log_z_squared

    With both at 0 the only term is `loss`; otherwise the log has the other terms too, and `cross_entropy` is comparable with
    the loss of other runs.

    Attributes:
      label_smoothing: share ε of the target's probability that is spread over all classes, in [0, 1).
      z_loss: weight of the squared logarithm of the softmax's normaliser, such as 1e-4.
    """
    label_smoothing: float = 0.0
    z_loss: float = 0.0

    def __post_init__(self):
        if not (0 <= self.label_smoothing < 1 and 0 <= self.z_loss < math.inf):
            raise ValueError(f'label_smoothing is {self.label_smoothing} and z_loss {self.z_loss}; expected a share in '
                             '[0, 1) and a weight of 0 or more.')

    @property
    def coefficients(self) -> Mapping[str, float]:
        if not (self.label_smoothing or self.z_loss):
            return {'loss': 1.0}
        all_of_them = {'cross_entropy': 1 - self.label_smoothing, 'uniform': self.label_smoothing,
                       'log_z_squared': self.z_loss}
        return {term: coefficient for term, coefficient in all_of_them.items() if coefficient}

    def predictions(self, logits: jax.Array, targets: jax.Array, weights: jax.Array) -> dict:
        """The terms of logits [..., V], or of `BlockedLogits`, against targets [...], or probabilities [..., V], of weights
        [...]."""
        values = {term: VALUES[term] for term in (*self.coefficients, 'accuracy') if term in VALUES}
        if isinstance(logits, BlockedLogits):
            factors = {term: factor for term, factor in self.coefficients.items() if term in VALUES}
            sums = logits.sums(values, factors, targets, weights)
        else:
            sums = {term: (weights * value(logits, targets)).sum() for term, value in values.items()}
        weight = weights.sum()
        return {term: (total, weight) for term, total in sums.items()}


# The terms of a prediction, functions of logits and targets.
VALUES = {'loss': cross_entropy, 'cross_entropy': cross_entropy, 'accuracy': correct,
          'uniform': lambda logits, targets: uniform_cross_entropy(logits),
          'log_z_squared': lambda logits, targets: log_z_squared(logits)}


@dataclasses.dataclass(frozen=True)
class Pondering(Prediction):
    """Base of predictions by models that may have adaptive halting (transformer/layers/universal.py).

    Attributes:
      ponder: the cost of each step of a position (Graves 2016, eq. 13), such as 0.001; the mean number of steps is a metric.
    """
    ponder: float = 0.0

    charged = {'ponder': 'model.depth'}  # {output [B, T] with the steps of each position: the field that makes it}

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.ponder < math.inf:
            raise ValueError(f'ponder is {self.ponder}; expected a charge of 0 or more.')

    @property
    def coefficients(self) -> Mapping[str, float]:
        others = super().coefficients
        if not self.ponder:
            return others
        others = {'cross_entropy': others['loss']} if 'loss' in others else others
        return others | {name: self.ponder for name in self.charged}

    @abc.abstractmethod
    def there(self, batch: Mapping) -> tuple:
        """For each of `charged`, a boolean array [B, T] of the positions that count."""

    def charges(self, outputs: Mapping, batch: Mapping) -> dict:
        """The terms of the numbers of steps, for each of `charged` that the outputs have."""
        fields = [field for name, field in self.charged.items() if name not in outputs]
        if self.ponder and fields:
            named = ' and '.join(fields)
            raise ValueError(f'task.ponder={self.ponder} charges for steps, but their number is the same everywhere; leave '
                             f'task.ponder out, or set {named}, if the model has it, to Universal(halting=True).')
        if len(fields) == len(self.charged):
            return {}
        there = {name: jnp.asarray(one, real_dtype()) for name, one in zip(self.charged, self.there(batch)) if name in outputs}
        return {name: ((outputs[name] * one).sum(), one.sum()) for name, one in there.items()}


def real(batch: Mapping) -> dict:
    """The batch with its floating-point arrays, float32 in the data, cast to the type of the computation."""
    is_real = lambda x: jnp.issubdtype(jnp.result_type(x), jnp.floating)
    return {name: jnp.asarray(x, real_dtype()) if is_real(x) else x for name, x in batch.items()}


def example_weights(batch: Mapping, rows: int) -> jax.Array:
    """[B] weights of the examples: 1, and 0 for the rows that pad a last batch."""
    return batch['example_weights'] if 'example_weights' in batch else jnp.ones(rows, real_dtype())
