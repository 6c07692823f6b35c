"""The critical batch size: how many steps S and how many tokens E = S·B training at a batch of B tokens takes to one loss.

McCandlish et al. (2018, "An empirical model of large-batch training", eq. 2.11; Kaplan et al. 2020, section 5.1):

    (S / S_min - 1) (E / E_min - 1) = 1, or S = S_min + E_min / B, or E = E_min + S_min·B

At the critical batch B_crit = E_min / S_min training takes twice the least steps and twice the least tokens. Computed in
float64.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import optimize

LEAST = 4  # batches of a fit


@dataclasses.dataclass(frozen=True)
class Critical:
    """The hyperbola of steps and tokens.

    Attributes:
      steps: S_min, with a batch of any size.
      tokens: E_min, with any number of steps.
      error: the standard error of log B_crit, by the residuals of the fit; the divisor of their variance is the number of
        batches less 2.
    """

    steps: float
    tokens: float
    error: float

    @property
    def batch(self) -> float:
        """B_crit, in tokens."""
        return self.tokens / self.steps

    def at(self, batch):
        """(S, E) of batches, in tokens."""
        batch = np.asarray(batch, np.float64)
        return self.steps + self.tokens / batch, self.tokens + self.steps * batch


def critical(steps: Sequence[float], tokens: Sequence[float]) -> Critical:
    """The least squares of log S, whose errors are relative ones, over batches B = E / S.

    Args:
      steps: S of each batch.  tokens: E of each batch, or examples, which are then the unit of all results.
    Raises: ValueError for fewer than 4 batches, for numbers that are not positive, and if B_crit is none between the smallest
      and the largest batch, where it would be extrapolated.
    """
    steps, tokens = np.asarray(steps, np.float64), np.asarray(tokens, np.float64)
    if steps.shape != tokens.shape or steps.ndim != 1:
        raise ValueError(f'The steps have the shape {steps.shape} and the tokens {tokens.shape}; expected one number of each '
                         'for every batch.')
    for name, values in ('steps', steps), ('tokens', tokens):
        if bad := np.flatnonzero(~(np.isfinite(values) & (values > 0))).tolist():
            raise ValueError(f'Number {bad[0]} of the {name} is {values[bad[0]]}; leave out batches that do not reach the '
                             'loss.')
    batches = tokens / steps
    if (count := len(np.unique(batches.round(6)))) < LEAST:
        raise ValueError(f'There are {count} batch sizes that reach the loss; the fit of two numbers needs {LEAST}.')
    ends = batches.min(), batches.max()

    def rest(log_batch):
        """(log S_min, what the fit leaves of log S) for a B_crit."""
        rest = np.log(steps) - np.log1p(np.exp(log_batch) / batches)
        return rest.mean(), rest - rest.mean()

    square = lambda log_batch: np.square(rest(log_batch)[1]).sum()
    grid = np.linspace(np.log(ends[0]) - 3, np.log(ends[1]) + 3, 200)  # a factor of 20 beyond
    best = grid[np.argmin([square(one) for one in grid])]
    step = grid[1] - grid[0]
    best = optimize.minimize_scalar(square, bounds=(best - step, best + step), method='bounded', options={'xatol': 1e-10}).x
    if not ends[0] < np.exp(best) < ends[1]:
        side = 'larger' if np.exp(best) >= ends[1] else 'smaller'
        raise ValueError(f'The critical batch lies outside of the batches tried, {ends[0]:.4g} to {ends[1]:.4g} tokens; train '
                         f'{side} ones.')
    least, residuals = rest(best)
    share = np.exp(best) / (np.exp(best) + batches)  # the slope of log S in log B_crit
    variance = np.square(residuals).sum() / (len(steps) - 2) / np.square(share - share.mean()).sum()
    return Critical(float(np.exp(least)), float(np.exp(least + best)), float(np.sqrt(variance)))
