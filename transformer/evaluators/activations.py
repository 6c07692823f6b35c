"""How large the activations of a run are, for the coordinate check of muP (see training/contracts.py for the contract)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from transformer.evaluators.base import Evaluator

CAPTURED = 'hidden', 'scores', 'logits'  # the ends of their names


@dataclasses.dataclass(frozen=True)
class Activations(Evaluator):
    """The mean of |x| over all entries of each activation x in the first batch of a split: 'block_0/hidden', .. after every
    block, 'block_0/attention/scores', .., 'hidden' at the end of the stack, and 'logits'. A learning rate that serves all
    widths leaves these as large at every width (Yang et al. 2022, section D.1)."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        inputs = run.task.inputs(next(iter(batches)))
        found = jax.eval_shape(lambda given: run.model.apply(given, **inputs, capture=CAPTURED), run.shapes.variables)
        return tuple(name for name in found if name.endswith(CAPTURED))

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        found = snapshot.captured(*CAPTURED, **snapshot.run.task.inputs(next(iter(batches))))
        return {name: float(np.abs(np.asarray(x, np.float64)).mean()) for name, x in found.items()}
