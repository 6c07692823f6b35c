"""Where activations lie on a device mesh."""

import jax
from jax.sharding import PartitionSpec

BATCH = ('data', 'fsdp')  # the mesh axes over which a batch is split


def constrain(x, *axes):
    """Splits the dimensions of x over the named mesh axes (None: whole); does nothing unless a mesh of several devices is
    set (jax.set_mesh). Without it the compiler may follow a sharded parameter and gather the batch instead."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))
