"""The state of a run: all arrays that a checkpoint holds."""

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np


@flax.struct.dataclass
class State:
    """Attributes:
      step: optimizer steps done, int32.
      params: {'block_0': {'attention': {...}}, ...}, in the model's parameter_dtype.
      opt_state: the state of the optax transformation.
      average: the moving average of the parameters, in at least float32, or {}.
      sums: {term: [sum, weight]} of the training terms since the last log row.
      skipped: the number of updates skipped because they were not finite, int32.
      statistics: {'stem': {'norm': {...}}, ...}, what the model gathers in training without a gradient, such as the running
        moments of batch normalization, in at least float32; {} for most models.
      average_statistics: that of the statistics, or {}: the running moments belong to the parameters of their step, so they are
        averaged alike. They only come near to those that the averaged parameters would give.
    """
    step: jax.Array
    params: Any
    opt_state: Any
    average: Any
    sums: Any
    skipped: jax.Array
    statistics: Any = flax.struct.field(default_factory=dict)
    average_statistics: Any = flax.struct.field(default_factory=dict)

    @property
    def evaluated(self):
        """{'params', 'statistics'} to evaluate: their averages, if there are any."""
        return {'params': self.average or self.params, 'statistics': self.average_statistics or self.statistics}

    @property
    def variables(self):
        """What the model is applied to: its parameters and statistics."""
        return variables(self.params, self.statistics)

    def logged(self):
        """The state behind a log row: its sums are 0."""
        return self.replace(sums=jax.tree.map(lambda x: jax.device_put(np.zeros(x.shape, x.dtype), x.sharding), self.sums))

    def tree(self):
        """The state as a plain dict, the form that checkpoints store."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def wide(tree):
    """The arrays of a tree in at least float32, or float64 if JAX has 64-bit types enabled: the type in which updates are
    computed, whatever the type of the stored parameters."""
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.result_type(float))), tree)


def variables(params, statistics=None):
    """What a Flax module is applied to: {'params': ..} and, if the model has any, {'statistics': ..}."""
    return {'params': params} | ({'statistics': statistics} if statistics else {})


def initialised(model, inputs, key):
    """(parameters, statistics) of a Flax module for inputs of these shapes."""
    found = collections_of(model, inputs, key)
    return found['params'], found.get('statistics', {})


@functools.partial(jax.jit, static_argnums=0)
def collections_of(model, inputs, key):
    """All collections that a Flax module makes for inputs of these shapes, compiled: roles, shapes and values of the parameters
    are asked for one after another, and the model is traced once for them. Equal modules must make equal collections."""
    return model.init(key, **inputs)
