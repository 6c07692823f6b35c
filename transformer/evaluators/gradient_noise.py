"""The noise of the gradient of a batch, which says how far its size can be raised."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.evaluators.base import Evaluator, loss_of

NAMES = 'noise_scale', 'gradient_variance', 'gradient_squared'


@dataclasses.dataclass(frozen=True)
class GradientNoise(Evaluator):
    """The simple noise scale tr(Σ) / |G|² (McCandlish et al. 2018, eq. 2.9), without dropout: from the gradients g_i of the
    losses of n rows, of which each counts alike, and their mean m, the unbiased (appendix A.1)

        gradient_variance: tr(Σ) = (sum of |g_i|² - n·|m|²) / (n - 1), of a row
        gradient_squared: |G|² = |m|² - tr(Σ) / n, which may be negative where noise outweighs the gradient

    and noise_scale, their quotient in units of the weight of the loss's first term, such as tokens; nan where |G|² is not
    positive. The quotient is not unbiased: of several evaluations, average the two others. The loss must be a mean over rows:
    one that compares the rows of a batch, such as a contrastive one, is measured on batches of one.

    Attributes:
      rows: n, spread evenly over the split, as gradients of neighbours in a text are alike; all of a split with fewer.
      at_once: rows whose gradients are in memory at a time.
    """
    rows: int = 256
    at_once: int = 8

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        if self.rows < 2 or self.at_once < 1:
            raise ValueError(f'GradientNoise has rows={self.rows} and at_once={self.at_once}; expected at least 2 rows, and '
                             '1 at a time.')
        if len([*itertools.islice((i for batch in batches for i in _there(batch)), 2)]) < 2:
            raise ValueError('GradientNoise needs two rows, but the split has one; choose a larger split.')
        return NAMES

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        run, groups, count = snapshot.run, [], 0
        for shape, rows in _by_shape(_spread(batches, self.rows)).items():
            empty = -len(rows) % self.at_once
            stacked = {name: np.stack([row[name] for row in rows + empty * rows[:1]]).reshape(-1, self.at_once, *own)
                       for name, own, _ in shape}
            groups.append((stacked, (np.arange(len(rows) + empty) < len(rows)).reshape(-1, self.at_once)))
            count += len(rows)
        found = jax.device_get(run.compiled(_moments)(run.companions.variables, snapshot.variables, groups))
        of_sum, squares, weight = map(float, found)
        mean_squared = of_sum / count ** 2
        variance = (squares - count * mean_squared) / (count - 1)
        squared = mean_squared - variance / count
        noise = variance / squared * weight / count if squared > 0 else float('nan')
        return dict(zip(NAMES, (noise, variance, squared)))


def _moments(run: Any, frozen: Any, variables: Mapping, groups: Sequence) -> tuple:
    """(the squared length of the sum of the gradients of rows, the sum of their squared lengths, the sum of the weights of
    their loss).

    Args:
      frozen: the variables of the companions.
      groups: of rows of equal shape ({name: [chunks, rows of a chunk, ..]}, [chunks, rows of a chunk], False for rows that
        fill up the last chunk).
    """
    def loss(params, row):
        apply = lambda **inputs: run.model.apply(variables | {'params': params}, **inputs)
        batch = {name: x[None] for name, x in row.items()}
        terms = run.task.loss(run.forward(apply, frozen), batch, key=None, step=None, train=False)
        return loss_of(terms, run.task.coefficients), terms[next(iter(run.task.coefficients))][1].astype(jnp.float32)

    def add(sums, chunk):
        rows, real = chunk
        gradients, weights = jax.vmap(jax.grad(loss, has_aux=True), (None, 0))(variables['params'], rows)
        real = real.astype(weights.dtype)
        squares = sum(jnp.square(x).reshape(len(x), -1).sum(1) for x in jax.tree.leaves(gradients))
        total = lambda x: jnp.tensordot(real.astype(x.dtype), x, 1, precision='highest')
        own = jax.tree.map(total, gradients), total(squares), total(weights)
        return jax.tree.map(jnp.add, sums, own), None

    sums = jax.tree.map(jnp.zeros_like, variables['params']), jnp.zeros(()), jnp.zeros(())
    for group in groups:
        sums = jax.lax.scan(add, sums, group)[0]
    total, squares, weight = sums
    return sum(jnp.square(x).sum() for x in jax.tree.leaves(total)), squares, weight


def _there(batch: Mapping) -> np.ndarray:
    """The rows of a batch that do not fill it up."""
    return np.flatnonzero(batch.get('example_weights', np.ones(len(next(iter(batch.values()))))))


def _spread(batches: Any, count: int) -> list:
    """At most `count` rows, {name: array}, evenly spread over the batches, which are read twice."""
    whole = sum(len(_there(batch)) for batch in batches)
    chosen = {*np.linspace(0, whole - 1, min(count, whole)).round().astype(int).tolist()}
    places = ((batch, i) for batch in batches for i in _there(batch))
    return [{name: x[i] for name, x in batch.items()} for number, (batch, i) in enumerate(places) if number in chosen]


def _by_shape(rows: list) -> dict:
    """{((name, shape, dtype), ..): rows}: batches of several lengths are no one array."""
    found = {}
    for row in rows:
        shape = tuple((name, np.shape(x), np.asarray(x).dtype) for name, x in sorted(row.items()))
        found.setdefault(shape, []).append(row)
    return found
