"""The state of a run: everything that a checkpoint holds besides the position in the data."""

from typing import Any

import flax.struct
import jax


@flax.struct.dataclass
class State:
    """Attributes:
      step: optimizer steps done, int32.
      params: {'block_0': {'attention': {...}}, ...}.
      opt_state: of the optax transformation.
      sums: {term: [sum, weight]} of the training terms since the last log row.
      skipped: updates left out because they were not finite, int32.
    """
    step: jax.Array
    params: Any
    opt_state: Any
    sums: Any
    skipped: jax.Array

    def tree(self):
        """As a plain dict, the form in which checkpoints keep it."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def initialised(model, inputs, key):
    """Parameters of a Flax module for inputs of these shapes."""
    return model.init(key, **inputs)['params']
