"""What the tests of models share."""

import functools
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from transformer.tasks import NextToken

KEY = jax.random.key(0)
# Fields of every tower, and values with which another program is computed than with its defaults and some dropout.
CHANGES = {
    'head_width': 6, 'gated': True, 'normalization': 'rms', 'epsilon': 1e-3, 'embedding_norm': True, 'attention_dropout': 0.3,
    'inner_dropout': -1.0, 'last_dropout': 0.3}


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
    def all_of_it():
        params = model.init(KEY, *inputs, **more)['params']
        loss = lambda p: model.apply({'params': p}, *inputs, **more, key=KEY)['logits'].astype(jnp.float32).sum()
        return params, jax.grad(loss)(params)
    return re.sub('0x[0-9a-f]+', '', str(jax.make_jaxpr(all_of_it)()))


def equations(jaxpr):
    """All equations of a jaxpr, with those inside its equations."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def init(model, *inputs, **more):
    """Parameters of a model, as it begins; by default of one of tokens. Nothing but these is computed."""
    shapes, named = jax.eval_shape(lambda: (inputs or (jnp.zeros((1, 2), jnp.int32),), more))
    return model.lazy_init(KEY, *shapes, **named)['params']


@functools.partial(jax.jit, static_argnums=0)
def losses(model, params, batch):
    """The terms of next-token prediction, and the gradient of the sum of the loss."""
    def loss(params):
        forward = lambda **inputs: model.apply({'params': params}, **inputs)
        terms = NextToken().loss(forward, batch, key=None, step=0, train=True)
        return terms['loss'][0], terms
    gradient, terms = jax.grad(loss, has_aux=True)(params)
    return terms, gradient


def packed_and_apart(vocab, seed):
    """Two documents, of 3 and 4 tokens, as a batch of one row and as one of two rows."""
    rng = np.random.default_rng(seed)
    packed = {name: np.zeros((1, 8), int) for name in ('inputs', 'targets', 'segments', 'positions')}
    rows = {name: np.zeros((2, 8), int) for name in packed}
    start = 0
    for i, n in enumerate((3, 4)):
        document = rng.integers(vocab, size=(2, n))
        for batch, row, at in ((packed, 0, start), (rows, i, 0)):
            here = (row, slice(at, at + n))
            batch['inputs'][here], batch['targets'][here] = document
            batch['segments'][here] = i + 1 if batch is packed else 1
            batch['positions'][here] = range(n)
        start += n
    for batch in (packed, rows):
        batch['weights'] = (batch['segments'] > 0).astype(np.float32)
    return packed, rows


def dropout_keys(model, *inputs, **more):
    """The key of every dropout mask that an application of the model draws, in order."""
    def drawn_with(params, key):
        with mock.patch.object(jax.random, 'bits', wraps=jax.random.bits) as draw:
            model.apply({'params': params}, *inputs, **more, key=key)
        return [jax.random.key_data(call.args[0]) for call in draw.call_args_list]
    return [tuple(data.tolist()) for data in jax.jit(drawn_with)(drawn(model, *inputs, **more), KEY)]
