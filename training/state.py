"""The state of a run: everything that a checkpoint holds besides the position in the data."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class State:
    """Attributes:
      step: optimizer steps done, int32.
      params: {'block_0': {'attention': {...}}, ...}, in the type in which the model stores them.
      opt_state: of the optax transformation.
      average: the moving average of the parameters, in at least float32, or {}.
      sums: {term: [sum, weight]} of the training terms since the last log row.
      skipped: updates left out because they were not finite, int32.
    """
    step: jax.Array
    params: Any
    opt_state: Any
    average: Any
    sums: Any
    skipped: jax.Array

    @property
    def evaluated(self):
        """The parameters to evaluate and to use: their average, if there is one."""
        return self.average or self.params

    def tree(self):
        """As a plain dict, the form in which checkpoints keep it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def wide(tree):
    """The arrays of a tree in at least float32, in float64 where JAX has 64-bit types enabled: in what an update is computed,
    however parameters are stored."""
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.result_type(float))), tree)


def initialised(model, inputs, key):
    """Parameters of a Flax module for inputs of these shapes."""
    return model.init(key, **inputs)['params']
