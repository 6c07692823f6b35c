"""Blocks one after the other: unrolled or scanned, with their activations kept or computed again for the gradient."""

import jax
import jax.numpy as jnp

from transformer.layers import fold
from transformer.sharding import BATCH, constrain

# What the backward pass finds of a block's forward pass; the rest it computes again (Chen et al. 2016).
REMAT = {
    'none': jax.checkpoint_policies.everything_saveable,
    'dots': jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # the products with parameters, not those of attention
    'full': jax.checkpoint_policies.nothing_saveable,
}


def stack(block, layers, x, *, visible=None, key=None, cache=None, positions=None, scan=False, remat='none'):
    """Applies `layers` blocks named block_0, block_1, ..., each with parameters of its own. Returns (x, cache).

    The result and the names of the parameters are the same for every choice of `scan` and `remat`. With a cache, and to
    initialise parameters, blocks are unrolled.

    Args:
      block: constructor of a block, called with a name.
      scan: stacks the parameters inside the step and scans one block over them: a program that does not grow with depth,
        for one more copy of the parameters. Worth it for deep models on accelerators, slower for small ones on a CPU.
      remat: what the backward pass finds: 'none' (all activations are kept), 'dots' (those of the products with
        parameters), 'full' (the input of each block only: least memory, a third more work).
    """
    if remat not in REMAT:
        raise ValueError(f'model.remat is {remat!r}; expected one of {", ".join(REMAT)}.')
    blocks = [block(name=f'block_{i}') for i in range(layers)]
    x = constrain(x, BATCH)
    if cache is not None or blocks[0].is_initializing() or not (scan or remat != 'none'):
        new = {}
        for i, one in enumerate(blocks):
            x, new[one.name] = one(x, visible=visible, key=fold(key, 'block', i), positions=positions,
                                   cache=None if cache is None else cache[one.name])
            x = constrain(x, BATCH)
        return x, None if cache is None else new

    def apply(params, x, number):
        x, _ = block(parent=None).apply({'params': params}, x, visible=visible, key=fold(key, 'block', number),
                                        positions=positions)
        return constrain(x, BATCH)

    params = [one.variables['params'] for one in blocks]
    if remat != 'none':
        apply = jax.checkpoint(apply, policy=REMAT[remat], prevent_cse=not scan)
    if scan:
        numbers = jnp.arange(layers)
        x, _ = jax.lax.scan(lambda x, layer: (apply(layer[0], x, layer[1]), None), x,
                            (jax.tree.map(lambda *leaves: jnp.stack(leaves), *params), numbers))
    else:
        for i, own in enumerate(params):
            x = apply(own, x, i)
    return x, None
