"""Blocks one after the other: unrolled or scanned, with their activations kept or computed again for the gradient."""

from functools import partial

import jax
import jax.numpy as jnp

from transformer.attention.masks import Full
from transformer.attention.positions import Encoding
from transformer.layers import fold
from transformer.sharding import BATCH, constrain

# What the backward pass finds of a block's forward pass; the rest it computes again (Chen et al. 2016).
REMAT = {
    'none': jax.checkpoint_policies.everything_saveable,
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # the products with parameters, not those of attention
    'full': jax.checkpoint_policies.nothing_saveable,
}


def stack(block, layers, x, *, mask=Full(), encoding=Encoding(), key=None, cache=None, positions=None, scan=False,
          remat='none', head_mask=None, source=None):
    """Applies `layers` blocks named block_0, block_1, ..., each with parameters of its own. Returns (x, cache).

    The result and the names of the parameters are the same for every choice of `scan` and `remat`. With a cache, to
    initialise parameters, and to capture attention, blocks are unrolled.

    Args:
      block: constructor of a block, called with a name, or a list of those of all layers.
      scan: stacks the parameters inside the step and scans one block over them: a program that does not grow with depth,
        for one more copy of the parameters. Worth it for deep models on accelerators, slower for small ones on a CPU.
      remat: what the backward pass finds: 'none' (all activations are kept), 'dots' (those of the products with
        parameters), 'full' (the input of each block only: least memory, a third more work).
      head_mask: [layers, N] or [layers, B, 1, N], as in `MultiHead`.
      source: what every block looks at besides, as in `Block`.
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
            x, new[one.name] = one(x, mask=mask.of_layer(i), encoding=encoding, key=fold(key, 'block', i), positions=positions,
                                   cache=None if cache is None else cache[one.name],
                                   head_mask=None if head_mask is None else head_mask[i], source=source)
            x = constrain(x, BATCH)
        return x, None if cache is None else new

    def apply(own, x, key, factors, *, layer):
        x, _ = makers[layer](parent=None).apply({'params': own}, x, mask=mask.of_layer(layer), encoding=encoding, key=key,
                                                positions=positions, head_mask=factors, source=source)
        return constrain(x, BATCH)

    params = [one.variables.get('params', {}) for one in blocks]
    period = mask.period if scan else layers  # layers that differ follow each other unrolled, also within a scan
    if layers % period:
        raise ValueError(f'model.scan: {layers} layers cannot be scanned under {mask}, which repeats after {period}; choose a '
                         'multiple, or scan=False.')
    functions = [partial(apply, layer=i) for i in range(period)]
    if remat != 'none':
        functions = [jax.checkpoint(function, policy=REMAT[remat], prevent_cse=not scan) for function in functions]

    def period_of_layers(x, given):
        first, own, factors = given
        for i, function in enumerate(functions):
            x = function(own[i], x, fold(key, 'block', first + i), None if factors is None else factors[i])
        return x, None

    if not scan:
        return period_of_layers(x, (0, params, head_mask))[0], None
    stacked = [jax.tree.map(lambda *leaves: jnp.stack(leaves), *params[i::period]) for i in range(period)]
    factors = None if head_mask is None else head_mask.reshape(-1, period, *head_mask.shape[1:])
    return jax.lax.scan(period_of_layers, x, (jnp.arange(0, layers, period), stacked, factors))[0], None
