"""What the tests of models share."""

import dataclasses
import functools
import re
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.extend import core

from transformer.attention.masks.patterns import Causal, Window
from transformer.attention.mechanism import Softmax
from transformer.attention.positions.base import NoPositions
from transformer.attention.scores import Dot
from transformer.layers.activations import Relu
from transformer.layers.feed_forward import Gated, Mlp
from transformer.layers.initial import TFixup
from transformer.layers.norm import LayerNorm, RMSNorm
from transformer.layers.residual import ReZero
from transformer.layers.stack import Stack
from transformer.layers.universal import Universal
from transformer.tasks.language_model import NextToken

KEY = jax.random.key(0)
# Fields of stacks whose layers have no biases.
NO_BIASES = dict(projection_bias=False, output_bias=False, feed_forward=Mlp(bias=False), norm=LayerNorm(bias=False))
# Every field of a stack, and those of its feed-forward and norm, with values by which another program is computed than by
# those of a stack of two layers with two heads, a width of 8 and some dropout. All are tried with Gpt; one, OF_STACK, says
# that other models have these stacks.
CHANGES = {
    'layers': 3, 'heads': 4, 'width': 16, 'head_width': 6, 'key_heads': 1, 'attention': Softmax(score=Dot()),
    'mask': Causal() & Window(2), 'positions': NoPositions(), 'projection_bias': False, 'output_bias': False,
    'feed_forward': Gated(), 'feed_forward.inner': 20, 'feed_forward.activation': Relu(), 'feed_forward.bias': False,
    'feed_forward.dropout': 0.1, 'norm': RMSNorm(), 'norm.epsilon': 1e-3, 'norm.bias': False, 'embedding_norm': True,
    'residual': ReZero(), 'dropout': 0.1, 'attention_dropout': 0.3, 'last_dropout': 0.3, 'drop_path': 0.1,
    'constant_drop_path': True, 'initial': TFixup(),
    'depth': Universal(), 'kept': ((0,), (0, 1)), 'scan': True, 'remat': 'full'}
OF_STACK = {'layers': 3}


def build(cls, **fields):
    """A model whose fields are given among those of its stacks, as `changed` takes them."""
    needed = {name: fields.pop(name) for name in ('vocab', 'source_vocab', 'classes') if name in fields}
    return changed(cls(**needed), **fields)


def changed(model, **fields):
    """A model with other values of some fields, such as length=8, layers=1 or, with a dictionary, 'feed_forward.inner': 20;
    both stacks of an encoder-decoder get those, unless they are called 'encoder.layers'."""
    stacks = [name for name in ('stack', 'encoder', 'decoder') if isinstance(getattr(model, name, None), Stack)]
    for path, value in fields.items():
        own = path.partition('.')[0] in model.__dataclass_fields__
        for front in [''] if own else [f'{name}.' for name in stacks]:
            model = _with(model, front + path, value)
    return model


def _with(part, path, value):
    name, _, inside = path.partition('.')
    value = _with(getattr(part, name), inside, value) if inside else value
    return part.clone(**{name: value}) if isinstance(part, nn.Module) else dataclasses.replace(part, **{name: value})


def own_fields(cls):
    """The names of the fields of a model, but for those of its stacks."""
    return {field.name for field in dataclasses.fields(cls)} - {'parent', 'name', 'stack', 'encoder', 'decoder'}


def field_names(cls):
    """The names of the fields of a model, of its stacks, and of their feed-forward and norm, as `changed` takes them."""
    own = own_fields(cls)
    parts = {'': Stack, 'feed_forward.': Mlp, 'norm.': LayerNorm}
    return own | {front + field.name for front, part in parts.items() for field in dataclasses.fields(part)} - {
        'cross_kept', 'partition'}  # refused where there is no source, and where there are no patches


def named(changes):
    """Cases of a parameterized test for {field: value}."""
    return [(path.replace('.', '_'), path, value) for path, value in changes.items()]


def drawn(model, *inputs, scale=0.4, **more):
    """Parameters from numpy, none of them 0; nothing to compile."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(lambda: model.init(KEY, *inputs, **more)['params'])
    return jax.tree.map(lambda s: (scale * rng.normal(size=s.shape)).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnums=0, static_argnames='capture')
def apply(model, params, *inputs, **more):
    """The outputs of a model."""
    return model.apply({'params': params}, *inputs, **more)


class Program:
    """Initialisation and gradient of a model, of the sum of an output, as text: what a field that is ignored cannot change. The
    gradient of a model whose initialisation differs is never traced."""

    def __init__(self, model, *inputs, output='logits', **more):
        self.model, self.inputs, self.output, self.more = model, inputs, output, more

    @functools.cached_property
    def initialisation(self):
        init = lambda: self.model.init(KEY, *self.inputs, **self.more)['params']
        jaxpr, self.shapes = jax.make_jaxpr(init, return_shape=True)()
        return re.sub('0x[0-9a-f]+', '', str(jaxpr))

    @functools.cached_property
    def gradient(self):
        outputs = lambda p: self.model.apply({'params': p}, *self.inputs, **self.more, key=KEY)
        loss = lambda p: outputs(p)[self.output].astype(jnp.float32).sum()
        return re.sub('0x[0-9a-f]+', '', str(jax.make_jaxpr(jax.grad(loss))(self.shapes)))

    def __eq__(self, other):
        return self.initialisation == other.initialisation and self.gradient == other.gradient


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
