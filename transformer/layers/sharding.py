"""The placement of activations on a device mesh."""

import math

import jax
from jax.sharding import PartitionSpec

BATCH = ('data', 'fsdp')  # the mesh axes over which a batch is split


def several() -> bool:
    """Whether a mesh of several devices is set (jax.set_mesh)."""
    mesh = jax.sharding.get_abstract_mesh()
    return not (mesh.empty or mesh.size == 1)


def platform() -> str:
    """The kind of device that is computed or compiled for, 'cpu', 'gpu' or 'tpu': that of the mesh that is set (jax.set_mesh),
    which may be compiled for where there is no such device, else this process's."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def rows_axes(rows: int) -> tuple | None:
    """The axes of the mesh that is set over which so many rows are split: `BATCH`, or None where these do not divide them."""
    shape = jax.sharding.get_abstract_mesh().shape
    return BATCH if rows % math.prod(shape[axis] for axis in BATCH) == 0 else None


def constrain(x: jax.Array, *axes: str | tuple | None) -> jax.Array:
    """Splits the dimensions of x over the named mesh axes (None: not split); does nothing on one device. Without it the
    compiler may follow the sharding of a parameter and gather the batch instead."""
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes)) if several() else x
