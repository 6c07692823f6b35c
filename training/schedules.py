"""Learning rates over time, as multiples of the peak `optimizer.learning_rate`."""

import abc
import dataclasses
import math

import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Schedule(abc.ABC):
    """The learning rate as a multiple of its peak: linear warm-up from 0 over `warmup_steps`, then `after`, which ends at
    `final` when `decay_steps` (0: train.steps) steps are done, counted from the start."""
    warmup_steps: int = 0
    decay_steps: int = 0
    final: float = 0.0

    @abc.abstractmethod
    def after(self, steps):
        """The schedule of the `steps` after the warm-up."""

    def __call__(self, train_steps):
        end = self.decay_steps or train_steps
        if not 0 <= min(self.warmup_steps, self.decay_steps) <= max(self.warmup_steps, self.decay_steps) < 1 << 31:
            raise ValueError(f'warmup_steps is {self.warmup_steps} and decay_steps {self.decay_steps}; expected 0 or more, and '
                             'less than 2**31.')
        if 0 < self.decay_steps <= self.warmup_steps:
            raise ValueError(f'decay_steps is {self.decay_steps}, which includes the warmup_steps={self.warmup_steps}; '
                             'expected more than these, or 0 for train.steps.')
        if not 0 <= self.final < math.inf:
            raise ValueError(f'final is {self.final} in optimizer.schedule; expected a multiple of the peak, 0 or more.')
        rest = self.after(max(1, end - self.warmup_steps))
        # Warm-up reaches the peak at its last step: the rate of update n (from 1) is n / warmup_steps.
        warm = lambda count: (count + 1) / max(1, self.warmup_steps)
        return optax.join_schedules([warm, rest], [self.warmup_steps])


@dataclasses.dataclass(frozen=True)
class ConstantRate(Schedule):
    """The peak at every step after the warm-up; `decay_steps` and `final` are refused."""

    def after(self, steps):
        if self.decay_steps or self.final:
            raise ValueError('A constant rate never ends: leave optimizer.schedule.decay_steps and .final at 0.')
        return optax.constant_schedule(1.0)


@dataclasses.dataclass(frozen=True)
class CosineDecay(Schedule):
    """Half a cosine from the peak to `final` (Loshchilov and Hutter 2017)."""

    def after(self, steps):
        return optax.cosine_decay_schedule(1.0, steps, alpha=self.final)


@dataclasses.dataclass(frozen=True)
class LinearDecay(Schedule):
    """A straight line from the peak to `final`."""

    def after(self, steps):
        return optax.linear_schedule(1.0, self.final, steps)


@dataclasses.dataclass(frozen=True)
class InverseSqrt(Schedule):
    """sqrt(warmup_steps / n) at update n (Vaswani et al. 2017, section 5.3): their d^-0.5 · min(n^-0.5, n · warmup^-1.5)
    has the peak (d · warmup)^-0.5. Without warm-up it is 1 / sqrt(n). It never ends: `decay_steps` and `final` are refused."""

    def after(self, steps):
        if self.decay_steps or self.final:
            raise ValueError('An inverse square root never ends: leave optimizer.schedule.decay_steps and .final at 0.')
        start = max(1, self.warmup_steps)
        # The first update after a warm-up of w is number w + 1; without one the first is number 1.
        return lambda count: jnp.sqrt(start / (count + start + (self.warmup_steps > 0)))


@dataclasses.dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """The peak until `cooldown_steps` before the end, then 1 - sqrt(elapsed share of the cooldown), down to `final` (Hu et al.
    2024; the square root from Haegele et al. 2024, section 3)."""
    cooldown_steps: int = 0

    def after(self, steps):
        if not 0 < self.cooldown_steps <= steps:
            raise ValueError(f'optimizer.schedule.cooldown_steps is {self.cooldown_steps}; expected 1 to {steps}, the steps '
                             'after the warm-up.')
        stable = steps - self.cooldown_steps

        def multiple(count):
            over = jnp.clip((count - stable) / self.cooldown_steps, 0.0, 1.0)
            return 1.0 - (1.0 - self.final) * jnp.sqrt(over)
        return multiple
