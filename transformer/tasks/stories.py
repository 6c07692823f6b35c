"""Tasks of models that answer questions about stories."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.tasks.base import Pondering, example_weights
from transformer.tasks.losses import correct


@dataclasses.dataclass(frozen=True)
class Answers(Pondering):
    """-log p(answer | story, question), averaged over the questions."""

    def inputs(self, batch: Mapping) -> dict:
        return {name: batch[name] for name in ('story', 'question')}

    def there(self, batch: Mapping) -> tuple:
        sentences = (batch['story'] != 0).any(-1)
        return jnp.concatenate([jnp.ones_like(sentences[:, :1]), sentences], 1) & (batch['question'] != 0).any(1)[:, None],

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        """Answer 0 stands for any answer that is absent from training; it counts as wrong."""
        logits, label = outputs['logits'], batch['label']
        weights = example_weights(batch, len(label))
        right = (weights * correct(logits, label) * (label > 0)).sum()
        terms = self.predictions(logits, label, weights) | {'accuracy': (right, weights.sum())}
        return terms | self.charges(outputs, batch)


@dataclasses.dataclass(frozen=True)
class MemoryAnswers(Answers):
    """`Answers` of a memory network.

    Attributes:
      linear_steps: training steps without the softmax over memories, the linear start of Sukhbaatar et al. 2015, section 4.2
        (there, until the validation loss stops falling). Evaluation always has the softmax, so its numbers mean nothing before
        these steps are over.
    """
    linear_steps: int = 0

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.linear_steps < 1 << 31:
            raise ValueError(f'linear_steps is {self.linear_steps}; expected 0 or more, and less than 2**31.')

    @property
    def keywords(self) -> tuple:
        return ('linear',) if self.linear_steps else ()

    def loss(self, forward: Callable, batch: Mapping, *, key: jax.Array | None, step: Any, train: bool) -> dict:
        linear = train and self.linear_steps > 0
        start = (lambda **inputs: forward(**inputs, linear=step < self.linear_steps)) if linear else forward
        return super().loss(start, batch, key=key, step=step, train=train)
