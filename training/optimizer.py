"""Optimizers, schedules and what surrounds them, from Optax.

update = clip by global norm -> the optimizer's direction -> + decay·parameter -> times -learning rate
"""

import dataclasses
import functools
import math

import jax
import optax

from training import resolve
from training.mesh import first_match, path_of


@dataclasses.dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019)."""
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self):
        if not (0 <= self.b1 < 1 and 0 <= self.b2 < 1 and self.eps > 0):
            raise ValueError(f'{self}: expected b1 and b2 in [0, 1) and eps > 0.')

    def direction(self):
        return optax.scale_by_adam(self.b1, self.b2, self.eps)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The learning rate as a multiple of its peak: linear warm-up from 0 over `warmup_steps`, then `after`, which ends at
    `final` when `decay_steps` (0: train.steps) steps are done, counted from the start."""
    warmup_steps: int = 0
    decay_steps: int = 0
    final: float = 0.0

    def after(self, steps):
        raise ValueError('training.optimizer:Schedule is no schedule itself; name Constant, Cosine or Linear there.')

    def __call__(self, train_steps):
        end = self.decay_steps or train_steps
        if self.warmup_steps < 0 or self.decay_steps < 0:
            raise ValueError(f'warmup_steps is {self.warmup_steps} and decay_steps {self.decay_steps}; expected 0 or more.')
        if not 0 <= self.final < math.inf:
            raise ValueError(f'final is {self.final} in optimizer.schedule; expected a multiple of the peak, 0 or more.')
        rest = self.after(max(1, end - self.warmup_steps))
        # Warm-up reaches the peak at its last step: update number n (from 1) has n / warmup_steps.
        warm = lambda count: (count + 1) / max(1, self.warmup_steps)
        return optax.join_schedules([warm, rest], [self.warmup_steps])


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
    """The peak throughout."""

    def after(self, steps):
        return optax.constant_schedule(1.0)


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from the peak to `final` (Loshchilov and Hutter 2017)."""

    def after(self, steps):
        return optax.cosine_decay_schedule(1.0, steps, alpha=self.final)


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
    """A straight line from the peak to `final`."""

    def after(self, steps):
        return optax.linear_schedule(1.0, self.final, steps)


def schedule(config, train_steps):
    """step -> learning rate."""
    shape = resolve.construct(config.schedule)(train_steps)
    return lambda count: config.learning_rate * shape(count)


def make(config, train_steps):
    """The optax transformation of `config.optimizer`."""
    def rate(keys, _):
        multiple = first_match(config.decay_rules, path_of(keys), 'optimizer.decay_rules')
        if not isinstance(multiple, (int, float)) or not 0 <= multiple < math.inf:
            raise ValueError(f'optimizer.decay_rules gives {multiple!r} for {path_of(keys)}; expected a multiple of '
                             'optimizer.weight_decay, 0 or more.')
        return config.weight_decay * multiple

    rates = functools.partial(jax.tree_util.tree_map_with_path, rate)

    def init(params):
        rates(params)  # a parameter that no rule covers is found here, before anything is computed
        return optax.EmptyState()

    def decayed(updates, state, params):
        return jax.tree.map(lambda u, p, rate: u + rate * p if rate else u, updates, params, rates(params)), state

    own = ('name', 'learning_rate', 'weight_decay', 'decay_rules', 'clip', 'schedule')
    direction = resolve.construct(config, ignore=own[1:]).direction()
    return optax.chain(
        optax.clip_by_global_norm(config.clip) if config.clip else optax.identity(),
        direction,
        optax.GradientTransformation(init, decayed),
        optax.scale_by_learning_rate(schedule(config, train_steps)))
