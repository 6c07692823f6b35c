"""What the tests of models share."""

from unittest import mock

import jax


def dropout_keys(model, inputs):
    """The key of every dropout mask that an application of the model draws, in order."""
    key = jax.random.key(0)
    params = model.init(key, inputs)['params']
    with mock.patch.object(jax.random, 'bits', wraps=jax.random.bits) as draw:
        model.apply({'params': params}, inputs, key=key)
    return [tuple(jax.random.key_data(call.args[0]).tolist()) for call in draw.call_args_list]
