"""The state of a run: all arrays that a checkpoint holds."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class State:
    """Attributes:
      step: optimizer steps done, int32.
      params: {'block_0': {'attention': {...}}, ...}, in the model's parameter_dtype.
      opt_state: the state of the optax transformation.
      average: the moving average of the parameters, in at least float32, or {}.
      sums: {term: [sum, weight]} of the training terms since the last log row.
      skipped: the number of updates skipped because they were not finite, int32.
    """
    step: jax.Array
    params: Any
    opt_state: Any
    average: Any
    sums: Any
    skipped: jax.Array

    @property
    def evaluated(self):
        """The parameters to evaluate: their average, if there is one."""
        return self.average or self.params

    def tree(self):
        """The state as a plain dict, the form that checkpoints store."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def wide(tree):
    """The arrays of a tree in at least float32, or float64 if JAX has 64-bit types enabled: the type in which updates are
    computed, whatever the type of the stored parameters."""
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.result_type(float))), tree)


def initialised(model, inputs, key):
    """Parameters of a Flax module for inputs of these shapes."""
    return model.init(key, **inputs)['params']
