"""Distillation: a student learns from a frozen teacher, the companion `teacher` (Hinton et al. 2015; Sanh et al. 2019).

    config.companions.teacher = 'runs/teacher'

The teacher takes the same inputs, and its logits are of the same words or classes.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer.layers.numerics import real_dtype, wide
from transformer.tasks.base import Task, example_weights
from transformer.tasks.losses import correct, cross_entropy, divergence
from transformer.tasks.masked import stuck
from transformer.tasks.reading import BothOrders, told


@dataclasses.dataclass(frozen=True)
class _Distilled(Task):
    """The base: both models on the same inputs, the teacher without dropout."""

    terms_of = ()  # those with a coefficient, a field of the same name

    def __post_init__(self):
        factors = {name: getattr(self, name) for name in self.terms_of}
        if min(factors.values()) < 0 or not 0 < sum(factors.values()) < math.inf or not 0 < self.temperature < math.inf:
            told_of = ', '.join(f'{name}={value}' for name, value in factors.items())
            raise ValueError(f'{told_of} and temperature={self.temperature} of task: expected factors of 0 or more, not all of '
                             'them 0, and a temperature above 0.')

    @property
    def coefficients(self) -> Mapping[str, float]:
        return {name: getattr(self, name) for name in self.terms_of if getattr(self, name)}

    def loss(self, forward: Callable, batch: Mapping, *, key: jax.Array | None, step: Any, train: bool) -> dict:
        """As in `Task`; `forward.teacher(**inputs)` applies the teacher, without which an evaluation has the other terms."""
        return super().loss(both(forward, type(self).__name__, train), batch, key=key, step=step, train=train)

    def soft_terms(self, student: jax.Array, teacher: jax.Array, weights: jax.Array) -> dict:
        """{'soft': ..} of logits [..., V] with weights [...]: T²·KL, as the gradient shrinks with 1/T² (Hinton et al. 2015,
        section 2)."""
        values = self.temperature ** 2 * divergence(teacher / self.temperature, student / self.temperature)
        return {'soft': ((weights * values).sum(), weights.sum())}


@dataclasses.dataclass(frozen=True)
class Distillation(_Distilled):
    """soft·T²·KL(teacher ‖ student) + masked·(-log p(masked word)) + cosine·(1 - cos(h, h of the teacher))

    with p = softmax(logits / T) in the first, averaged over positions, and the last hidden states h (Sanh et al. 2019, section
    3; the defaults are those of their code).

    Attributes:
      soft, masked, cosine: the factors; 0 leaves a term out. The cosine needs a teacher of the same width.
      temperature: T, of the first term alone.
      masked_only: soft targets at the masked positions alone; else at all that are not padding.
    """
    soft: float = 5.0
    masked: float = 2.0
    cosine: float = 1.0
    temperature: float = 2.0
    masked_only: bool = False

    terms_of = 'soft', 'masked', 'cosine'

    def inputs(self, batch: Mapping) -> dict:
        return told(batch) | ({'masked': batch['masked']} if self.masked_only else {})

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        """The terms, from the outputs of the 'student' and of the 'teacher', if it is there."""
        student, teacher = outputs['student'], outputs.get('teacher')
        weights, there = batch['weights'], jnp.asarray(batch['segments'] != 0, real_dtype())
        logits, found = student['logits'], {}
        if self.soft and teacher:
            found = self.soft_terms(wide(logits), wide(teacher['logits']), weights if self.masked_only else there)
        if not self.masked_only:
            logits = jnp.take_along_axis(logits, batch['masked'][..., None], 1)
        found['masked'] = (weights * cross_entropy(logits, batch['targets'])).sum(), weights.sum()
        found['accuracy'] = (weights * correct(logits, batch['targets'])).sum(), weights.sum()
        if self.cosine and teacher:
            h, other = student['hidden'], teacher['hidden']
            if h.shape != other.shape:
                raise ValueError(f'The hidden states of companions.teacher are {other.shape[-1]} wide and those of the model '
                                 f'{h.shape[-1]}, so that they have no cosine; make them equal, or set task.cosine=0.0.')
            found['cosine'] = (there * (1 - _cosine(wide(h), wide(other)))).sum(), there.sum()
        return found

    def remark(self, rows: Sequence[Mapping], data: Any, steps: int) -> str:
        return stuck(rows, 'masked', data.plateau, steps)


@dataclasses.dataclass(frozen=True)
class DistilledClasses(_Distilled, BothOrders):
    """soft·T²·KL(teacher ‖ student) + hard·(-log p(class | text)), with p = softmax(logits / T) in the first (Hinton et al.
    2015, section 2); the teacher is a run that has been fine-tuned on the same classes.

    Attributes:
      soft, hard: the factors; 0 leaves a term out.
      temperature: T, of the first term alone.
    """
    soft: float = 0.5
    hard: float = 0.5
    temperature: float = 2.0

    terms_of = 'soft', 'hard'

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        """As in `Distillation`."""
        logits, label = self.logits(outputs['student'], batch), batch['label']
        weights, found = example_weights(batch, len(label)), {}
        if self.soft and 'teacher' in outputs:
            found = self.soft_terms(logits, self.logits(outputs['teacher'], batch), weights)
        values = {'hard': cross_entropy(logits, label), 'accuracy': correct(logits, label)}
        return found | {name: ((weights * value).sum(), weights.sum()) for name, value in values.items()}


def both(forward: Callable, task: str, train: bool) -> Callable:
    """A function of inputs and a key that applies a student and, without the key, its teacher: {'student': its outputs,
    'teacher': its outputs}, with logits that can be compared. `task` is named if these cannot. In an evaluation without the
    teacher it applies the student alone."""
    def apply(key=None, **given):
        found = {'student': forward(**given, key=key)}
        if train or not forward.lacks('teacher'):
            found['teacher'] = forward.teacher(**given)
        for whose, outputs in found.items():
            if 'logits' not in outputs:
                raise ValueError(f'{task} compares logits, but the {whose} gives {", ".join(outputs)}; give it a head that has '
                                 'logits.')
        shapes = [list(outputs['logits'].shape) for outputs in found.values()]
        if shapes[0] != shapes[-1]:
            raise ValueError(f'The logits of companions.teacher are {shapes[-1]} and those of the model {shapes[0]}; give both '
                             'as many words or classes, and heads of one kind.')
        return found

    return apply


def _cosine(a, b):
    """[..., D], [..., D] -> [...]."""
    squares = (a * a).sum(-1) * (b * b).sum(-1)
    return (a * b).sum(-1) * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
