"""The role of a parameter, which the part that creates it declares.

Weight decay, optimizers of matrices, sharding and pruning depend on roles, never on names. During initialisation the roles are
in the collection 'roles', under the names of the parameters:

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
    """The kind of a parameter and the meaning of its axes.

    Attributes:
      kind: 'matrix', a linear map from `inputs` to `outputs`; 'table', one vector for each of its `rows`, such as words,
        positions or classes; 'vector', numbers that are added or multiplied with, such as biases and scales.
      inputs, outputs: axes of a matrix; the remaining axes index several matrices.
      rows: the axis of a table that indexes its rows.
      heads: the axis of attention heads; None: there is none.
      shared: whether these are heads of keys and values, which groups of query heads may share.
      inner: the axis of the inner width of a feed-forward; None: there is none.
      multiple: of a matrix under muP, how many times wider than the base its model is (`initial.MuP`); None: there is no muP.
    """
    kind: str
    inputs: Sequence = ()
    outputs: Sequence = ()
    rows: int | None = None
    heads: int | None = None
    shared: bool = False
    inner: int | None = None
    multiple: float | None = None

    def of_bias(self, inputs: int = 1) -> 'Role':
        """The role of the bias that is added to a product with this kernel: a vector over the axes after its `inputs`."""
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
    """The specification of a parameter of a part of a config.

    Attributes:
      initialiser: (key, shape, dtype) -> array.
    """
    initialiser: Callable
    shape: tuple
    role: Role = vector()


def declare(module: Any, name: str, wanted: Wanted, numerics: Numerics = Numerics()) -> jax.Array:
    """The parameter `name` of a Flax module; initialisation creates it and records its role."""
    if module.is_mutable_collection('roles'):
        module.put_variable('roles', name, wanted.role)
    return numerics.parameter(module, name, wanted.initialiser, wanted.shape)
