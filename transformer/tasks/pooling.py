"""Tasks of pooling by similarity (see transformer/attention/pooling.py)."""

import abc
import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from transformer.tasks.base import Task, example_weights
from transformer.tasks.losses import correct


@dataclasses.dataclass(frozen=True)
class Pooled(Task):
    """Base of the tasks of pooling by similarity: the mean `error` of the estimates. The width is a metric, `width`, or
    `width_0`, `width_1`, .. if every coordinate has its own.

    Attributes:
      leave_one_out: a training point does not attend to itself. Without this, training shrinks the width until every point is
        estimated by itself alone.
    """
    leave_one_out: bool = True

    @abc.abstractmethod
    def error(self, estimate: jax.Array, target: jax.Array) -> jax.Array:
        """[B] of [B, C] and [B, C]."""

    def inputs(self, batch: Mapping) -> dict:
        return {name: batch[name] for name in (('query', 'own') if self.leave_one_out else ('query',))}

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        weights = example_weights(batch, len(batch['target']))
        values = {'loss': self.error(outputs['estimate'], batch['target'])} | self.metrics(outputs, batch)
        return {term: ((weights * value).sum(), weights.sum()) for term, value in values.items()}

    def metrics(self, outputs: Mapping, batch: Mapping) -> dict:
        """{metric: its value, [] for all points or [B] for each}."""
        width = outputs.get('width', jnp.zeros(0))
        return {'width': width} if width.ndim == 0 else {f'width_{i}': one for i, one in enumerate(width)}


@dataclasses.dataclass(frozen=True)
class PooledRegression(Pooled):
    """|estimate - target|²."""

    def error(self, estimate: jax.Array, target: jax.Array) -> jax.Array:
        return jnp.square(estimate - target).sum(-1)


@dataclasses.dataclass(frozen=True)
class PooledClassification(Pooled):
    """-log max(estimate[target], floor): the estimate is a distribution over the classes, as the values are one-hot vectors.
    A point to which no key has a weight counts as a mistake.

    Attributes:
      floor: the least probability of a class, in (0, 1), so that its logarithm and gradient are finite.
    """
    floor: float = 1e-6

    def __post_init__(self):
        if not 0 < self.floor < 1:
            raise ValueError(f'floor is {self.floor}; expected a probability above 0 and below 1, such as 1e-6.')

    def error(self, estimate: jax.Array, target: jax.Array) -> jax.Array:
        return -jnp.log(jnp.maximum((estimate * target).sum(-1), self.floor))

    def metrics(self, outputs: Mapping, batch: Mapping) -> dict:
        estimate, target = outputs['estimate'], batch['target']
        return super().metrics(outputs, batch) | {'accuracy': correct(estimate, target) * (estimate.sum(-1) > 0)}
