"""Dense layers, and the parameters of parts of a config."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import flax.linen as nn
import jax

from transformer.layers.initial import Growing, normal, zeros
from transformer.layers.numerics import Numerics
from transformer.layers.roles import Role, Wanted, declare, matrix


class Dense(nn.Module):
    """y = x·W + b over the last `axes` dimensions of x: [..., *inputs] -> [..., *features].

    Attributes:
      features: the output dimensions, an int or a tuple such as (heads, head width).
      axes: the number of trailing dimensions of x that are contracted.
      role: of the kernel [*inputs, *features]; None: a matrix without further axes.
      kernel_init: initialiser of the kernel; the bias starts at zero.
    """
    features: int | Sequence[int]
    axes: int = 1
    bias: bool = True
    role: Role | None = None
    kernel_init: Callable = normal(0.02)
    numerics: Numerics = Numerics()

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel, bias = self.weights(x.shape[x.ndim - self.axes:])
        y = self.numerics.dense(x, kernel, self.axes)
        return y if bias is None else self.numerics.plus(y, bias)

    @nn.compact
    def weights(self, inputs: Sequence[int]) -> tuple:
        """(kernel [*inputs, *features], bias [*features] or None), for a caller that merges several layers."""
        features = (self.features,) if isinstance(self.features, int) else tuple(self.features)
        shape, axes = (*inputs, *features), range(len(inputs) + len(features))
        role = self.role or matrix(axes[:len(inputs)], axes[len(inputs):])
        if isinstance(self.kernel_init, Growing):
            role = dataclasses.replace(role, multiple=self.kernel_init.multiple)
        # Initialised as a matrix, whatever its dimensions: the fans are its rows and columns.
        flat = lambda key, shape, dtype: self.kernel_init(key, (math.prod(inputs), math.prod(features)), dtype).reshape(shape)
        kernel, bias = Wanted(flat, shape, role), Wanted(zeros, features, role.of_bias(len(inputs)))
        own = lambda name, wanted: declare(self, name, wanted, self.numerics)
        return own('kernel', kernel), own('bias', bias) if self.bias else None


class Parameters(nn.Module):
    """Declares and returns the parameters of a part of a config, which is then called with them.

    Attributes:
      wanted: {name: `Wanted`}.
      fit: (name, array) -> array of the wanted shape, for arrays of another shape; None: these raise an error.
    """
    wanted: Mapping
    fit: Callable | None = None
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self) -> dict:
        return {name: self._one(name, wanted) for name, wanted in self.wanted.items()}

    def _one(self, name, wanted):
        given = self.get_variable('params', name) if self.fit else None
        if given is None or given.shape == wanted.shape:
            return declare(self, name, wanted, self.numerics)
        return self.fit(name, self.numerics.read(given))
