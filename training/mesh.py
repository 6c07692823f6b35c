"""The device mesh (`data`, `fsdp`, `tensor`) and the sharding of arrays over it.

A batch is sharded over `data` and `fsdp` together. A parameter is sharded by its role (training/roles.py), unless the regex
of a rule matches its path; a rule names a mesh axis, or None, for each dimension. An axis of size 1, or one that does not
divide its dimension, leaves the dimension whole, so the same rules serve one device and a pod; training refuses `fsdp` and
`tensor` that split nothing.
"""

import functools
import math
import re

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from training.config.resolve import did_you_mean

AXES = ('data', 'fsdp', 'tensor')


def make(data=-1, fsdp=1, tensor=1, devices=None):
    """A mesh of the given sizes, of these devices (None: of all); -1, for one axis, takes all remaining devices."""
    devices = jax.devices() if devices is None else devices
    sizes, count = [data, fsdp, tensor], len(devices)
    if sizes.count(-1) > 1 or any(s == 0 or s < -1 for s in sizes):
        raise ValueError(f'The mesh is data={data}, fsdp={fsdp}, tensor={tensor}; '
                         'expected positive sizes and at most one -1 (all remaining devices).')
    fixed = int(np.prod([s for s in sizes if s > 0]))
    if -1 in sizes:
        if fixed <= count and count % fixed:
            raise ValueError(f'The mesh is data={data}, fsdp={fsdp}, tensor={tensor}; its -1 stands for all remaining of the '
                             f'{count} devices, but {fixed} does not divide {count}.')
        sizes[sizes.index(-1)] = max(1, count // fixed)
    total = int(np.prod(sizes))
    if total > count:
        raise ValueError(f'The mesh data={data}, fsdp={fsdp}, tensor={tensor} needs {max(total, fixed)} devices, '
                         f'but there are {count}; use smaller sizes.')
    slices = {getattr(device, 'slice_index', 0) for device in devices[:total]}
    if devices[0].platform == 'tpu' and len(slices) > 1:
        raise ValueError(f'The devices are in {len(slices)} slices of TPUs, but a mesh is of one; start the run on one.')
    try:  # as jax.make_mesh, which splits an axis of the torus only on v5e
        placed = mesh_utils.create_device_mesh(sizes, devices[:total], allow_split_physical_axes=True)
    except (AssertionError, NotImplementedError):
        raise ValueError(f'The mesh data={sizes[0]}, fsdp={sizes[1]}, tensor={sizes[2]} cannot be laid on the first {total} of '
                         f'{count} x {devices[0].device_kind}, which fill no box of whole chips; choose sizes whose product is '
                         f'{count}.') from None
    return Mesh(placed, AXES, axis_types=(AxisType.Auto,) * 3)


def platform():
    """'cpu', 'gpu' or 'tpu': of the devices of the mesh that is set (jax.set_mesh), else of this process."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def compiler_options(mesh):
    """What the compiler of a training step is told.

    Where `mesh.fsdp` gathers parameters, the compiler for TPUs may pass them around a ring of chips and multiply each part as
    it comes, which reads and writes the sums once for every part: a step of GPT-2 124M on 16 chips of v5e has 172 GB of
    traffic then, and 34 without. With `mesh.tensor` the choice stays the compiler's."""
    whole = mesh.devices.flat[0].platform == 'tpu' and mesh.shape['fsdp'] > 1 and mesh.shape['tensor'] == 1
    return {'xla_jf_spmd_threshold_for_windowed_einsum_mib': '1000000'} if whole else {}


def rows(mesh):
    """The number of parts into which a batch is split."""
    return mesh.shape['data'] * mesh.shape['fsdp']


def batch_sharding(mesh, stacked=False):
    """The sharding of arrays whose first axis is the batch, or the second, after an axis of stacked batches."""
    return NamedSharding(mesh, PartitionSpec(*(None,) * stacked, ('data', 'fsdp')))


def replicated(mesh):
    return NamedSharding(mesh, PartitionSpec())


AT_ONCE = 100 << 10  # bytes that XLA on CPU copies within the call; another thread copies larger arrays


def put(batch, mesh, stacked=False):
    """Puts a dict of numpy arrays, a global batch (or several stacked), on the devices. Every process has the whole batch, and
    puts its own part."""
    place = batch_sharding(mesh, stacked)
    if jax.process_count() > 1:
        return {name: jax.make_array_from_callback(x.shape, place, x.__getitem__) for name, x in batch.items()}
    placed = jax.device_put(batch, place)
    if mesh.devices.flat[0].platform == 'cpu':  # a program that waits for its input runs on another thread: see allocator
        jax.block_until_ready(placed)
    return placed


_UNMATCHED = object()  # a value that no rule can have


def first_match(rules, path, what, default=None):
    """The value of the first (regex, value) whose regex matches the whole path, else the default. Raises ValueError if no rule
    matches and the default is None."""
    return matched(rules, path, what, default)[1]


def matched(rules, path, what, default=None):
    """(the match, the value) of the first (regex, value), as in `first_match`; (None, default) if there is none."""
    for rule in rules:
        try:
            pattern, value = rule
            match = re.fullmatch(pattern, path)
        except (TypeError, ValueError, re.error) as error:
            raise ValueError(f'{rule!r} in {what} is not a pair (regular expression, value): {error}.') from None
        if match:
            return match, value
    if default is not None:
        return None, default
    raise ValueError(f'No rule of {what} covers the parameter {path}; add one, or end the rules with (".*", ...).')


def require_used(rules, paths, what):
    """Raises ValueError for a rule that matches none of the parameters."""
    for rule in rules:
        if not any(first_match((rule,), path, what, _UNMATCHED) is not _UNMATCHED for path in paths):
            raise ValueError(f'The rule {rule!r} of {what} matches no parameter; those of this model have names such as '
                             f'{next(iter(paths))}.')


def path_of(keys):
    """'block_3/attention/query/kernel' of a key path of jax.tree_util."""
    return jax.tree_util.keystr(keys, simple=True, separator='/')


def flat(*trees):
    """{path: leaf} of all leaves of trees. Raises ValueError for a path that several trees have."""
    found = {}
    for keys, leaf in (one for tree in trees for one in jax.tree_util.tree_leaves_with_path(tree)):
        if (path := path_of(keys)) in found:
            raise ValueError(f'{path} is the name of a parameter and of a statistic; give one of them another name.')
        found[path] = leaf
    return found


def nested(named):
    """Nested dicts of {path: leaf}, the inverse of `path_of`."""
    tree = {}
    for name, leaf in named.items():
        *parents, last = name.split('/')
        functools.reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[last] = leaf
    return tree


def follow(tree, shapes, shardings, mesh):
    """The sharding of every array of a tree such as an optimizer's moments: that of the parameter whose path ends the array's
    path and whose shape is the same; other arrays are replicated."""
    known = {path_of(keys): (leaf.shape, sharding) for (keys, leaf), sharding in
             zip(jax.tree_util.tree_leaves_with_path(shapes), jax.tree.leaves(shardings), strict=True)}

    def one(keys, leaf):
        for start in range(len(keys)):
            shape, sharding = known.get(path_of(keys[start:]), (None, None))
            if shape == leaf.shape:
                return sharding
        return replicated(mesh)
    return jax.tree_util.tree_map_with_path(one, tree)


def shardings(shapes, axes_of, rules, mesh):
    """The NamedSharding of every parameter of a tree of shapes.

    Args:
      axes_of: {path: the mesh axis, or None, of each dimension}.
      rules: (regex over paths, axes), which take precedence.
    """
    def one(keys, leaf):
        axes = first_match(rules, path_of(keys), 'mesh.rules', axes_of[path_of(keys)])
        if not isinstance(axes, (tuple, list)):
            raise ValueError(f'mesh.rules gives {axes!r} for {path_of(keys)}; expected an axis or None for each dimension, '
                             "such as ('fsdp', None).")
        if len(axes) > leaf.ndim:
            raise ValueError(f'The rule {tuple(axes)} of mesh.rules has more dimensions than {path_of(keys)} {leaf.shape}.')
        for axis in axes:
            if axis and axis not in AXES:
                raise ValueError(f'There is no axis {axis!r} (in mesh.rules for {path_of(keys)}); '
                                 f'{did_you_mean(axis, AXES)}')
        if len(set(axes) - {None}) < len([axis for axis in axes if axis]):
            raise ValueError(f'The rule {tuple(axes)} of mesh.rules names an axis twice; name it for one dimension at most.')
        fits = [axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, leaf.shape)]
        return NamedSharding(mesh, PartitionSpec(*fits))
    require_used(rules, axes_of, 'mesh.rules')
    return jax.tree_util.tree_map_with_path(one, shapes)


def require_split(places, shapes, axes_of, mesh):
    """Raises ValueError if `fsdp` or `tensor` splits none of the parameters, which `shardings` has placed."""
    used = {axis for place in jax.tree.leaves(places) for axis in place.spec}
    for axis, size in mesh.shape.items():
        if axis != 'data' and size > 1 and axis not in used:
            most = most_split(shapes, axes_of, axis, size)
            rest = f' and mesh.data={mesh.shape["data"] * size // most}' if axis == 'fsdp' else ''
            raise ValueError(f'mesh.{axis}={size} splits no parameter of this model; take mesh.{axis}={most}{rest}.')


def most_split(shapes, axes_of, axis, count):
    """The divisor of `count` that, as the size of a mesh axis, leaves the fewest parameters on a device."""
    def held(size):
        return sum(math.prod(leaf.shape) // (size if any(one == axis and n % size == 0 for n, one in zip(
            leaf.shape, axes_of[path_of(keys)])) else 1) for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes))

    return min((size for size in range(1, count + 1) if count % size == 0), key=held)
