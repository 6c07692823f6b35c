"""Blocks one after the other: unrolled or scanned, with their activations kept or computed again for the gradient."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from transformer.block import Context
from transformer.layers import fold
from transformer.sharding import BATCH, constrain

# What the backward pass finds of a block's forward pass; the rest it computes again (Chen et al. 2016).
REMAT = {
    'none': jax.checkpoint_policies.everything_saveable,
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # the products with parameters, not those of attention
    'full': jax.checkpoint_policies.nothing_saveable,
}


def stack(block, layers, x, context=Context(), *, key=None, cache=None, scan=False, remat='none'):
    """Applies `layers` blocks named block_0, block_1, ..., each with parameters of its own. Returns (x, cache).

    The result and the names of the parameters are the same for every choice of `scan` and `remat`. With a cache, to
    initialise parameters, and to capture attention, blocks are unrolled.

    Args:
      block: constructor of a block, called with a name, or a list of those of all layers.
      scan: stacks the parameters inside the step and scans one block over them: a program that does not grow with depth,
        for one more copy of the parameters. Worth it for deep models on accelerators, slower for small ones on a CPU.
      remat: what the backward pass finds: 'none' (all activations are kept), 'dots' (those of the products with
        parameters), 'full' (the input of each block only: least memory, a third more work).
    """
    if remat not in REMAT:
        raise ValueError(f'model.remat is {remat!r}; expected one of {", ".join(REMAT)}.')
    makers = block if isinstance(block, list) else [block] * layers
    blocks = [make(name=f'block_{i}') for i, make in enumerate(makers)]
    x = constrain(x, BATCH)
    captures = blocks[0].is_mutable_collection('attention')
    if cache is not None or blocks[0].is_initializing() or captures or not (scan or remat != 'none'):
        new = {}
        for i, one in enumerate(blocks):
            x, new[one.name] = one(x, context.of_layer(i), key=fold(key, 'block', i),
                                   cache=None if cache is None else cache[one.name])
            x = constrain(x, BATCH)
        return x, None if cache is None else new

    def apply(own, x, key, factors, *, layer):
        here = dataclasses.replace(context.of_layer(layer), head_mask=factors)
        x, _ = makers[layer](parent=None).apply({'params': own}, x, here, key=key)
        return constrain(x, BATCH)

    params = [one.variables.get('params', {}) for one in blocks]
    period = context.mask.period if scan else layers  # layers that differ follow each other unrolled, also within a scan
    if layers % period:
        raise ValueError(f'model.scan: {layers} layers cannot be scanned under {context.mask}, which repeats after {period}; '
                         'choose a multiple, or scan=False.')
    functions = [partial(apply, layer=i) for i in range(period)]
    if remat != 'none':
        functions = [jax.checkpoint(function, policy=REMAT[remat], prevent_cse=not scan) for function in functions]

    def period_of_layers(x, given):
        first, own, factors = given
        for i, function in enumerate(functions):
            x = function(own[i], x, fold(key, 'block', first + i), None if factors is None else factors[i])
        return x, None

    if not scan:
        return period_of_layers(x, (0, params, context.head_mask))[0], None
    stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *params[i::period]) for i in range(period)]
    factors = context.head_mask
    if factors is not None:
        factors = factors.reshape(-1, period, *factors.shape[1:])
    return jax.lax.scan(period_of_layers, x, (jnp.arange(0, layers, period), stacked, factors))[0], None
