"""Layers that share parameters over depth: in groups (ALBERT, Lan et al. 2020), or all, with a signal of the step and a learnt
number of steps for each position (Universal Transformer, Dehghani et al. 2019)."""

import abc
import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from transformer.attention.context import Context
from transformer.attention.positions.absolute import sinusoid
from transformer.layers.dense import Dense
from transformer.layers.dropout import fold
from transformer.layers.initial import zeros
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import table


@dataclasses.dataclass(frozen=True)
class Depth(abc.ABC):
    """Base: whether the layers of a stack share their parameters."""

    @abc.abstractmethod
    def blocks(self, layers: int) -> int:
        """The number of blocks with parameters, by which the number of layers can be divided. Raises ValueError if there is no
        such number."""


@dataclasses.dataclass(frozen=True)
class Own(Depth):
    """Every layer has its own parameters."""

    def blocks(self, layers: int) -> int:
        return layers


@dataclasses.dataclass(frozen=True)
class Groups(Depth):
    """Layers in groups of consecutive ones, of equal size, each with one set of parameters (Lan et al. 2020, section 3.1; the
    groups are in their code). Nothing tells layers of a group apart but their dropout.

    Attributes:
      groups: their number.
    """
    groups: int = 1

    def __post_init__(self):
        if self.groups < 1:
            raise ValueError(f'{self}: expected 1 group or more.')

    def blocks(self, layers: int) -> int:
        if layers % self.groups:
            raise ValueError(f'{layers} layers cannot be divided into the equal groups of depth={self}; choose a multiple of '
                             f'{self.groups} layers.')
        return self.groups


@dataclasses.dataclass(frozen=True)
class Universal(Depth):
    """`layers` steps of one block with one set of parameters, h_t = block(x_t), x_t = h_{t-1} + the sinusoid of t, t = 1 ..
    layers (section 2.1, eq. 4 to 6; positions enter in every step with positions="Sinusoidal(at='layers')").

    With halting every position stops at its own step (section 2.2; Graves 2016, section 2.2): step t gives it the probability
    p_t = sigmoid(w·x_t + b) of stopping, N is the first t at which p_1 + .. + p_t exceeds the threshold (at most layers), its
    remainder is R = 1 - (p_1 + .. + p_{N-1}), and the output is

        y = p_1·h_1 + .. + p_{N-1}·h_{N-1} + R·h_N.

    N + R is the ponder time, 'ponder' of the outputs, which a task can penalise. Shapes are static: positions that have stopped
    are still updated, and others still see their new states (in the paper's text, the state at the stop), but y includes no
    more of these.

    Attributes:
      threshold: 1 - ε, in (0, 1].
      bias: the initial b; the larger it is, the earlier positions stop at first.
    """
    halting: bool = False
    threshold: float = 0.99
    bias: float = 1.0

    def __post_init__(self):
        if not 0 < self.threshold <= 1:
            raise ValueError(f'{self}: threshold is {self.threshold}; expected a probability above 0 and up to 1.')

    def blocks(self, layers: int) -> int:
        return 1


def steps(depth: 'Universal', block: Callable, layers: int, x: jax.Array, context: Context, *, key: jax.Array | None = None,
          cache: dict | None = None, path_rates: Sequence = (), numerics: Numerics = Numerics()) -> tuple:
    """(x, cache, aux) after `layers` steps of one block, named block_0; `aux` has the auxiliary outputs of block t = 0, 1, ..,
    and with halting 'ponder' [B, T].

    Args:
      block: constructor of the block, called with a name.
      cache: {'block_0', 'block_1', ..}, one for each step.
      path_rates: of drop path, one for each step; (): there is none.
    """
    block, new, aux, outcome = block(name='block_0'), {}, {}, Halting(x, depth) if depth.halting else None
    stop = Dense(1, kernel_init=zeros, role=table(1), numerics=numerics, name='halting') if depth.halting else None
    for t in range(layers):
        signal = sinusoid(jnp.array(t + 1), x.shape[-1])
        x = x + signal.astype(x.dtype)
        if outcome:
            outcome.decide(jax.nn.sigmoid(wide(stop(x).squeeze(-1)) + depth.bias), last=t + 1 == layers)
        x, new[f'block_{t}'], own = block(x, context.of_layer(t), key=fold(key, 'block', t),
                                          cache=None if cache is None else cache[f'block_{t}'],
                                          path_rate=path_rates[t] if len(path_rates) else None)
        aux |= {f'block_{t}/{name}': one for name, one in own.items()}
        if outcome:
            outcome.take(x)
    if outcome:
        return outcome.output, None if cache is None else new, aux | {'ponder': outcome.ponder}
    return x, None if cache is None else new, aux


class Halting:
    """The state of adaptive computation: for every position [B, T] the sum of its probabilities so far, whether it is still
    active, its ponder time, and the weighted sum of its states."""

    def __init__(self, x: jax.Array, depth: 'Universal') -> None:
        self._threshold, self._weight = depth.threshold, None
        self._total, self._open = jnp.zeros(x.shape[:2]), jnp.ones(x.shape[:2], bool)
        self.ponder, self.output = jnp.zeros(x.shape[:2]), jnp.zeros_like(x)

    def decide(self, probability: jax.Array, last: bool) -> None:
        """Decides which positions stop at this step, given the probability [B, T] of stopping."""
        stops = self._open & ((self._total + probability > self._threshold) | last)
        remainder = 1.0 - self._total
        self._weight = jnp.where(stops, remainder, jnp.where(self._open, probability, 0.0))
        self.ponder = self.ponder + self._open + jnp.where(stops, remainder, 0.0)
        self._total = self._total + jnp.where(self._open & ~stops, probability, 0.0)
        self._open = self._open & ~stops

    def take(self, x: jax.Array) -> None:
        """Adds the states of the step that was decided last to the output."""
        self.output = self.output + (self._weight[..., None] * x).astype(x.dtype)
