"""What the tests of models share."""

import functools
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

KEY = jax.random.key(0)


def drawn(model, *inputs, scale=0.4, **more):
    """Parameters from numpy, none of them 0; nothing to compile."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: model.init(KEY, *inputs, **more)['params'])
    return jax.tree.map(lambda s: (scale * rng.normal(size=s.shape)).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, *inputs, **more):
    """The outputs of a model."""
    return model.apply({'params': params}, *inputs, **more)


def program(model, *inputs, **more):
    """Initialisation and gradient as text: what a field that is ignored cannot change."""
    def all_of_it(params):
        loss = lambda p: model.apply({'params': p}, *inputs, **more, key=KEY)['logits'].astype(jnp.float32).sum()
        return model.init(KEY, *inputs, **more), jax.grad(loss)(params)
    params = jax.eval_shape(lambda: model.init(KEY, *inputs, **more)['params'])
    return re.sub('0x[0-9a-f]+', '', str(jax.make_jaxpr(all_of_it)(params)))


def dropout_keys(model, inputs):
    """The key of every dropout mask that an application of the model draws, in order."""
    params = model.init(KEY, inputs)['params']
    with mock.patch.object(jax.random, 'bits', wraps=jax.random.bits) as draw:
        model.apply({'params': params}, inputs, key=KEY)
    return [tuple(jax.random.key_data(call.args[0]).tolist()) for call in draw.call_args_list]
