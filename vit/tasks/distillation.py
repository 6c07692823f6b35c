"""Distillation of image classifiers: a student learns from labels and from a frozen teacher, the companion `teacher` (Touvron
et al. 2021, section 4).

    config.companions.teacher = 'runs/teacher'

The teacher is a run of any architecture on images of the same form with the same classes, and takes the very pixels that the
student takes, as they are augmented. Of a student with a distillation token (`Vit`), the head of this token learns from the
teacher and that of the class token from the labels; any other student learns both with its only head.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from transformer.layers.numerics import wide
from transformer.tasks.base import example_weights
from transformer.tasks.distillation import both
from transformer.tasks.losses import correct, cross_entropy, divergence
from vit.tasks.classification import Classification


class Targets(abc.ABC):
    """Base of what is learnt of a teacher, frozen dataclasses."""

    @abc.abstractmethod
    def __call__(self, student: jax.Array, teacher: jax.Array) -> jax.Array:
        """The loss [B] of logits [B, classes] against those of the teacher."""


@dataclasses.dataclass(frozen=True)
class Hard(Targets):
    """The teacher's prediction: -log p(argmax of its logits) (section 4, eq. 3)."""

    def __call__(self, student: jax.Array, teacher: jax.Array) -> jax.Array:
        return cross_entropy(student, teacher.argmax(-1))


@dataclasses.dataclass(frozen=True)
class Soft(Targets):
    """The teacher's probabilities: T²·KL(teacher ‖ p), both softmax(logits / T) (section 4, eq. 2, with a share of 0.1). It is
    averaged over examples, where the authors' code also divides by the number of classes.

    Attributes:
      temperature: T.
    """
    temperature: float = 3.0

    def __post_init__(self):
        if not 0 < self.temperature < math.inf:
            raise ValueError(f'{self}: expected a temperature above 0.')

    def __call__(self, student: jax.Array, teacher: jax.Array) -> jax.Array:
        return self.temperature ** 2 * divergence(teacher / self.temperature, student / self.temperature)


@dataclasses.dataclass(frozen=True)
class Distillation(Classification):
    """(1 - share)·the loss of `Classification` + share·distillation.

    Metrics are the `accuracy` of the averaged prediction, and `agreement`: how often the prediction that learns from the
    teacher is the teacher's. Of a student with a distillation token also `cls_accuracy` and `distillation_accuracy`, of the
    predictions by either token alone.

    Attributes:
      targets: what is learnt of the teacher, 'Hard()' or 'Soft(temperature=3.0)'.
      share: of the teacher in the loss.
    """
    targets: Targets = Hard()
    share: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise ValueError(f'task.share is {self.share}; expected the share of the teacher in the loss, above 0 and up to 1.')

    @property
    def coefficients(self) -> Mapping[str, float]:
        of_labels = dict(super().coefficients)
        if 'loss' in of_labels:  # with another term it is no longer the total
            of_labels = {'cross_entropy': of_labels['loss']}
        own = {term: (1 - self.share) * coefficient for term, coefficient in of_labels.items() if self.share < 1}
        return own | {'distillation': self.share}

    def loss(self, forward: Callable, batch: Mapping, *, key: jax.Array | None, step: Any, train: bool) -> dict:
        return super().loss(both(forward, type(self).__name__, train), batch, key=key, step=step, train=train)

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        """The terms, from the outputs of the 'student' and of the 'teacher', if it is there."""
        student = outputs['student']
        averaged = student['logits']
        taught = wide(student.get('distillation_logits', averaged))
        found = super().terms({'logits': student.get('cls_logits', averaged)}, batch)
        label = self.label(averaged, batch)
        weights = example_weights(batch, len(label))
        values = {'accuracy': correct(averaged, label)} | {
            f'{token}_accuracy': correct(student[f'{token}_logits'], label) for token in ('cls', 'distillation')
            if f'{token}_logits' in student}
        if 'teacher' in outputs:
            teacher = wide(outputs['teacher']['logits'])
            values |= {'distillation': self.targets(taught, teacher), 'agreement': correct(taught, teacher.argmax(-1))}
        return found | {name: ((weights * value).sum(), weights.sum()) for name, value in values.items()}
