"""What a parameter is: its role, which the part that makes it declares.

Weight decay, optimizers of matrices, sharding and pruning ask for roles and never for names. While a model is initialised the
roles stand beside its parameters, in the collection 'roles', under the same names:

    jax.eval_shape(model.init, key, **inputs)['roles']['block_0']['attention']['query']['kernel']  ->  a `Role`
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from transformer.layers.numerics import Numerics


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Role:
    """What a parameter is, and what its axes are.

    Attributes:
      kind: 'matrix', a linear map from `inputs` to `outputs`; 'table', one vector for each of its `rows`, such as words,
        positions or classes; 'vector', numbers that are added or multiplied with, such as biases and scales.
      inputs, outputs: axes of a matrix; those in neither tell several matrices apart.
      rows: the axis of a table along which its rows are.
      heads: the axis of attention heads; None: there is none.
      shared: those heads are of keys and values, and groups of query heads may share them.
      inner: the axis of the inner width of a feed-forward; None: there is none.
    """
    kind: str
    inputs: Sequence = ()
    outputs: Sequence = ()
    rows: int | None = None
    heads: int | None = None
    shared: bool = False
    inner: int | None = None

    def of_bias(self, inputs: int = 1) -> 'Role':
        """The role of the bias that is added to a product with this kernel: a vector over the axes behind its `inputs`."""
        axis = lambda number: None if number is None or number < inputs else number - inputs
        heads = axis(self.heads)
        return vector(heads=heads, shared=self.shared and heads is not None, inner=axis(self.inner))


def matrix(inputs: Sequence = (0,), outputs: Sequence = (1,), **axes: Any) -> Role:
    return Role('matrix', tuple(inputs), tuple(outputs), **axes)


def table(rows: int = 0, **axes: Any) -> Role:
    return Role('table', rows=rows, **axes)


def vector(**axes: Any) -> Role:
    return Role('vector', **axes)


class Wanted(NamedTuple):
    """A parameter that a part of a config asks for.

    Attributes:
      initialiser: (key, shape, dtype) -> array.
    """
    initialiser: Callable
    shape: tuple
    role: Role = vector()


def declare(module: Any, name: str, wanted: Wanted, numerics: Numerics = Numerics()) -> jax.Array:
    """The parameter `name` of a Flax module, made and given its role while the module is initialised."""
    if module.is_mutable_collection('roles'):
        module.put_variable('roles', name, wanted.role)
    return numerics.parameter(module, name, wanted.initialiser, wanted.shape)
