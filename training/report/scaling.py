"""Scaling laws: how the loss of finished runs falls with parameters N, tokens D and operations C, and which N is best for a C.

Hoffmann et al. (2022, "Training compute-optimal large language models", section 3) find the exponent of N_best ∝ C^a in three
ways: from the best runs of each C (`envelope`), from parabolas through runs of equal C (`valleys`), and from the surface
L(N, D) = E + A·N^-α + B·D^-β (`huber`, `projected`). Kaplan et al. (2020, "Scaling laws for neural language models") have
another surface (`joint`). All compute in float64, from losses at the end of their schedules.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize, special

DELTA = 1e-3  # of Huber's loss, on log L
LEAST = 4  # runs of a curve
EQUAL = 1.1  # the most operations of a run of a curve over the fewest
FALL = 1e-3  # of the loss, that the most parameters and the most tokens have to bring over the fewest


@dataclasses.dataclass(frozen=True)
class Runs:
    """Finished runs, each array [R] in float64.

    Attributes:
      budget: the operations that a run was given; those of equal budget lie on one curve.
      parameters: N.  tokens: D.  flops: C, counted, near the budget.  loss: L, in nats a token.
    Raises: ValueError for a run that has diverged or an array of another length.
    """

    budget: np.ndarray
    parameters: np.ndarray
    tokens: np.ndarray
    flops: np.ndarray
    loss: np.ndarray

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = np.asarray(getattr(self, field.name), np.float64)
            object.__setattr__(self, field.name, value)
            if value.shape != self.budget.shape or value.ndim != 1:
                raise ValueError(f'{field.name} has the shape {value.shape}; expected {self.budget.shape}, one for each run.')
            if bad := np.flatnonzero(~(np.isfinite(value) & (value > 0))).tolist():
                raise ValueError(f'Run {bad[0]} has {field.name}={value[bad[0]]}; leave out runs that have diverged.')

    def __getitem__(self, rows) -> 'Runs':
        return Runs(**{field.name: getattr(self, field.name)[rows] for field in dataclasses.fields(self)})


@dataclasses.dataclass(frozen=True)
class Power:
    """y = scale·x^exponent."""

    scale: float
    exponent: float

    def __call__(self, x):
        return self.scale * np.asarray(x, np.float64) ** self.exponent

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray) -> 'Power':
        """The least squares of log y."""
        exponent, offset = np.polyfit(np.log(x), np.log(y), 1)
        return cls(float(np.exp(offset)), float(exponent))


@dataclasses.dataclass(frozen=True)
class Surface:
    """L(N, D) = E + A·N^-α + B·D^-β (Hoffmann et al. 2022, eq. 2)."""

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def __call__(self, parameters, tokens):
        return self.E + self.A * np.asarray(parameters) ** -self.alpha + self.B * np.asarray(tokens) ** -self.beta

    @property
    def exponent(self) -> float:
        """a of N_best ∝ C^a where C = k·N·D: β / (α + β) (eq. 4)."""
        return self.beta / (self.alpha + self.beta)

    def best(self, flops, cost: float = 6.0):
        """N_best of so many operations, at `cost` for each parameter and token (eq. 4)."""
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return ratio * (np.asarray(flops) / cost) ** self.exponent


@dataclasses.dataclass(frozen=True)
class Joint:
    """L(N, D) = [(N_c/N)^(α_N/α_D) + D_c/D]^α_D (Kaplan et al. 2020, eq. 1.5).

    Unlike in the sum of `Surface`, more of N helps little where D is short, and the other way round.
    """

    N_c: float
    alpha_N: float
    D_c: float
    alpha_D: float

    def __call__(self, parameters, tokens):
        size, data = np.asarray(parameters, np.float64), np.asarray(tokens, np.float64)
        return ((self.N_c / size) ** (self.alpha_N / self.alpha_D) + self.D_c / data) ** self.alpha_D

    @property
    def exponent(self) -> float:
        """a of N_best ∝ C^a where C = k·N·D: α_D / (α_N + α_D), as there α_N·(N_c/N)^(α_N/α_D) = α_D·D_c/D."""
        return self.alpha_D / (self.alpha_N + self.alpha_D)

    def best(self, flops, cost: float = 6.0):
        """N_best of so many operations, at `cost` for each parameter and token."""
        power = self.alpha_N / self.alpha_D
        return (power * self.N_c ** power * np.asarray(flops) / cost / self.D_c) ** self.exponent


def envelope(runs: Runs, points: int = 200) -> Power:
    """N_best of C as the size of the best run at each of `points` C, evenly spaced in log C (approach 1).

    The loss of each size at a C is interpolated between its runs, linearly in log L over log C. Where the smallest or the
    largest of the sizes that reach a C is best, the true best may lie beyond: these C are left out.
    Raises: ValueError if that leaves less than two sizes.
    """
    sizes = np.unique(runs.parameters)
    curves = {}
    for size in sizes:
        own = runs[runs.parameters == size]
        if len(own.flops) > 1:
            order = np.argsort(own.flops)
            curves[size] = np.log(own.flops[order]), np.log(own.loss[order])
    found = []
    for at in np.linspace(np.log(runs.flops.min()), np.log(runs.flops.max()), points):
        there = {size: np.interp(at, *curve) for size, curve in curves.items() if curve[0][0] <= at <= curve[0][-1]}
        best = min(there, key=there.get, default=None)
        if best not in (None, min(there, default=None), max(there, default=None)):
            found.append((np.exp(at), best))
    if len({size for _, size in found}) < 2:
        raise ValueError('The best size is always the smallest or the largest that was trained: there is no exponent; train '
                         'sizes on both sides of the best.')
    return Power.of(*map(np.array, zip(*found)))


def valleys(runs: Runs) -> tuple[Power, list[tuple[float, float, float]]]:
    """(N_best of C, [(C, N, L) of the bottom of each curve]): a parabola of L in log N through the runs of each budget
    (approach 2). Where sizes lie far apart or to one side of the best, a parabola is no good fit and the exponent is biased.

    Raises: ValueError for fewer than two curves, for one of fewer than four runs or of unequal C, or one whose lowest point is
      at its edge.
    """
    bottoms = []
    for budget in np.unique(runs.budget):
        own = runs[runs.budget == budget]
        if len(own.loss) < LEAST:
            raise ValueError(f'The curve of {budget:.3g} operations has {len(own.loss)} runs; a parabola needs {LEAST}.')
        if own.flops.max() > EQUAL * own.flops.min():
            raise ValueError(f'The runs of the budget {budget:.3g} have {own.flops.min():.3g} to {own.flops.max():.3g} '
                             'operations; a parabola needs as many of each.')
        sizes = np.log(own.parameters)
        curvature, slope, _ = fitted = np.polyfit(sizes, own.loss, 2)
        bottom = -slope / (2 * curvature)
        if curvature <= 0 or not sizes.min() < bottom < sizes.max():
            side = 'smaller' if own.loss[np.argmin(sizes)] < own.loss[np.argmax(sizes)] else 'larger'
            ends = ' to '.join(f'{end:.3g}' for end in (own.parameters.min(), own.parameters.max()))
            raise ValueError(f'The lowest loss of {budget:.3g} operations is at the edge of the sizes, {ends}: there is no '
                             f'exponent; train {side} ones.')
        bottoms.append((float(np.exp(np.log(own.flops).mean())), float(np.exp(bottom)), float(np.polyval(fitted, bottom))))
    if len(bottoms) < 2:
        raise ValueError('One curve has no exponent; train runs of another number of operations.')
    flops, sizes, _ = map(np.array, zip(*bottoms))
    return Power.of(flops, sizes), bottoms


def _require_enough(runs, kind=Surface):
    """One more run than the surface has parameters, to say how well it fits."""
    if len(runs.loss) <= (count := len(dataclasses.fields(kind))):
        raise ValueError(f'The surface has {count} parameters, and there are {len(runs.loss)} runs; expected at least '
                         f'{count + 1}.')
    if (runs.budget == runs.budget[0]).all():
        raise ValueError(f'All runs have the budget {runs.budget[0]:.3g}: the surface has no exponent; train runs of another '
                         'number of operations.')


def _require_fall(surface, runs):
    """The surface, if it falls with N and with D, as it has no best size otherwise."""
    size, tokens = runs.parameters, runs.tokens
    for name, low, high in (('parameters', (size.min(), np.median(tokens)), (size.max(), np.median(tokens))),
                            ('tokens', (np.median(size), tokens.min()), (np.median(size), tokens.max()))):
        if not surface(*high) < (1 - FALL) * surface(*low):
            raise ValueError(f'The loss of these runs does not fall with more {name}: the surface has no best size.')
    return surface


def huber(runs: Runs, starts: int = 6) -> Surface:
    """The surface with the least sum of Huber's loss, δ = 1e-3, of log L (eq. 3, approach 3), by L-BFGS from the best `starts`
    points of a grid like that of Hoffmann et al., section D.2.

    The objective is divided by δ², as L-BFGS takes less than 1e-8 of it for nothing: that stopped the published fit too early
    (Besiroglu et al. 2024).

    Raises: ValueError for fewer than 6 runs or one budget, or where the loss does not fall with N and D.
    """
    _require_enough(runs)
    size, tokens, wanted = np.log(runs.parameters), np.log(runs.tokens), np.log(runs.loss)

    def objective(x):
        a, b, e, alpha, beta = x
        terms = np.stack([a - alpha * size, b - beta * tokens, np.full_like(size, e)])
        found = special.logsumexp(terms, 0)
        error = found - wanted
        slope = np.clip(error, -DELTA, DELTA) / DELTA ** 2
        share = np.exp(terms - found) * slope
        value = np.where(abs(error) < DELTA, error ** 2 / 2, DELTA * (abs(error) - DELTA / 2)).sum() / DELTA ** 2
        return value, np.array([*share.sum(1), -(share[0] * size).sum(), -(share[1] * tokens).sum()])

    grid = itertools.product(range(0, 26, 5), range(0, 26, 5), (-1.0, -0.5, 0.0, 0.5, 1.0), *2 * [(0.25, 0.5, 0.75, 1.0)])
    best = sorted(grid, key=lambda start: objective(start)[0])[:starts]
    found = [optimize.minimize(objective, start, jac=True, method='L-BFGS-B', options={
        'maxiter': 5000, 'maxfun': 10_000, 'maxcor': 30, 'ftol': 1e-12, 'gtol': 1e-8}) for start in best]
    a, b, e, alpha, beta = min(found, key=lambda one: one.fun).x
    return _require_fall(Surface(*map(float, (np.exp(e), np.exp(a), alpha, np.exp(b), beta))), runs)


def projected(runs: Runs, start: Surface | None = None) -> Surface:
    """The surface with the least squares of L relative to the measured loss, by variable projection (Golub and Pereyra 1973):
    for given α and β, the best E, A, B >= 0 are linear least squares, and only α and β are searched.

    Raises: ValueError for fewer than 6 runs or one budget, or where the loss does not fall with N and D.
    """
    _require_enough(runs)
    size, tokens = np.log(runs.parameters), np.log(runs.tokens)
    centre = size.mean(), tokens.mean()  # so that the columns are of like size

    def solved(x):
        alpha, beta = np.exp(x)
        columns = [np.ones_like(size), np.exp(-alpha * (size - centre[0])), np.exp(-beta * (tokens - centre[1]))]
        return optimize.nnls(np.stack(columns, 1) / runs.loss[:, None], np.ones_like(size))

    starts = [(start.alpha, start.beta)] if start else itertools.product((0.15, 0.4, 1.0), repeat=2)
    # In parts per million; the rounding of some hundreds of them is up to 4e-11, and a fatol of 1e-12 is often never reached.
    found = [optimize.minimize(lambda x: solved(x)[1] ** 2 * 1e6, np.log(one), method='Nelder-Mead', bounds=[(-4.0, 1.5)] * 2,
                               options={'xatol': 1e-7, 'fatol': 1e-9, 'maxiter': 2000}) for one in starts]
    best = min(found, key=lambda one: one.fun).x
    (alpha, beta), (constant, a, b) = np.exp(best), solved(best)[0]
    return _require_fall(
        Surface(*map(float, (constant, a * np.exp(alpha * centre[0]), alpha, b * np.exp(beta * centre[1]), beta))), runs)


def joint(runs: Runs) -> Joint:
    """The surface of Kaplan et al. with the least squares of log L, by variable projection.

    log L = α_D·log D_c + α_D·log(S·N^-q + 1/D), where q = α_N/α_D and S = N_c^q/D_c: given q and S, a straight line.
    Raises: ValueError for fewer than 5 runs or one budget, or where the loss does not fall with N and D.
    """
    _require_enough(runs, Joint)
    size, tokens, wanted = np.log(runs.parameters), np.log(runs.tokens), np.log(runs.loss)

    def line(x):
        power = np.exp(x[0])
        return np.logaddexp(x[1] - power * (size - size.mean()), -(tokens - tokens.mean()))

    def error(x):
        return np.polyfit(line(x), wanted, 1, full=True)[1].sum() * 1e6

    starts = itertools.product(np.log((0.5, 1.0, 2.0)), (-1.0, 0.0, 1.0))
    found = [optimize.minimize(error, start, method='Nelder-Mead', bounds=[(-3.0, 3.0), (-20.0, 20.0)],
                               options={'xatol': 1e-7, 'fatol': 1e-9, 'maxiter': 2000}) for start in starts]
    best = min(found, key=lambda one: one.fun).x
    slope, offset = np.polyfit(line(best), wanted, 1)
    if slope <= 0 or abs(best[0]) > 2.99:  # q at a bound: one of N and D changes nothing
        raise ValueError('The loss of these runs does not fall with more parameters and tokens: the surface has no best size.')
    power, level = np.exp(best[0]), offset / slope
    return _require_fall(Joint(*map(float, (np.exp(size.mean() + (best[1] + level) / power), power * slope,
                                            np.exp(tokens.mean() + level), slope))), runs)


def deviation(surface: Surface | Joint, runs: Runs) -> float:
    """The root of the mean square of what the surface says of runs beyond their losses, as a share of these."""
    return float(np.sqrt(np.mean((surface(runs.parameters, runs.tokens) / runs.loss - 1) ** 2)))


def intervals(runs: Runs, number: Callable[[Surface], float | Sequence[float]], *, count: int = 200, seed: int = 0,
              level: float = 0.8) -> np.ndarray:
    """[.., 2]: the ends of bootstrap intervals of numbers of the surface, such as its exponent.

    The sizes and tokens are chosen, not drawn: each of `count` resamples has the losses of `projected` times resampled
    residuals, which are widened by sqrt(R / (R - 5)) as the fit has 5 parameters.
    Raises: ValueError for fewer than 6 runs or one budget, or where more than one resample in 20 has no best size.
    """
    surface, draw = projected(runs), np.random.default_rng(seed)
    fitted = surface(runs.parameters, runs.tokens)
    rest = np.log(runs.loss / fitted)
    rest = (rest - rest.mean()) * np.sqrt(len(rest) / (len(rest) - 5))
    found = []
    for _ in range(count):
        loss = fitted * np.exp(draw.choice(rest, len(rest)))
        with contextlib.suppress(ValueError):
            found.append(number(projected(dataclasses.replace(runs, loss=loss), surface)))
    if len(found) < 0.95 * count:
        raise ValueError(f'The noise of these runs hides how the loss falls: {count - len(found)} of {count} resamples have no '
                         'best size.')
    return np.quantile(np.array(found), [(1 - level) / 2, (1 + level) / 2], axis=0).T
