"""How large activations and gradients of a run are (see training/contracts.py for the contract)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.evaluators.base import Evaluator, loss_of

CAPTURED = 'hidden', 'scores', 'logits'  # the ends of their names


@dataclasses.dataclass(frozen=True)
class Activations(Evaluator):
    """The mean of |x| over all entries of each activation x in the first batch of a split: 'block_0/hidden', .. after every
    block, 'block_0/attention/scores', .., 'hidden' at the end of the stack, and 'logits'. A learning rate that serves all
    widths leaves these as large at every width (Yang et al. 2022, section D.1). Of padded windows, the zeros of
    the padding count."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        inputs = run.task.inputs(next(iter(batches)))
        found = jax.eval_shape(lambda given: run.model.apply(given, **inputs, capture=CAPTURED), run.shapes.variables)
        return tuple(name for name in found if name.endswith(CAPTURED))

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        found = snapshot.captured(*CAPTURED, **snapshot.run.task.inputs(next(iter(batches))))
        return {name: float(np.abs(np.asarray(x, np.float64)).mean()) for name, x in found.items()}


@dataclasses.dataclass(frozen=True)
class Gradients(Evaluator):
    """The Euclidean norm of the gradient of every matrix, such as 'block_0/attention/query', of the loss of the first batch of
    a split, without dropout. Those of queries and keys are zero where all values that a query sees are alike, while those of
    values are not (Noci et al. 2022)."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        return tuple(_matrices(run).values())

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        run = snapshot.run
        found = run.compiled(_norms)(run.companions.variables, snapshot.variables, next(iter(batches)))
        return {name: float(_at(found, path)) for path, name in _matrices(run).items()}


def _norms(run, frozen, variables, batch):
    """The norm of the gradient of every parameter."""
    def loss(params):
        apply = lambda **inputs: run.model.apply(variables | {'params': params}, **inputs)
        terms = run.task.loss(run.forward(apply, frozen), batch, key=None, step=None, train=False)
        return loss_of(terms, run.task.coefficients)

    return jax.tree.map(lambda x: jnp.sqrt(jnp.square(x).sum()), jax.grad(loss)(variables['params']))


def _matrices(run):
    """{path of a matrix: its name}."""
    return {path: path.removesuffix('/kernel') for path, role in run.roles.items() if role.kind == 'matrix'}


def _at(tree, path):
    for name in path.split('/'):
        tree = tree[name]
    return tree
