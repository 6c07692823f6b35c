"""How training uses the roles that a model's parts declare for their parameters (transformer/layers/roles.py): which parameters
decay, which are matrices to an optimizer, and over which mesh axes each is sharded.

A role has a `kind` ('matrix', 'table' or 'vector') and names axes: `inputs` and `outputs` of a matrix, `rows` of a table,
`heads` and `inner` of any. Under muP a matrix has a `multiple`.
"""

import functools

import jax

from training.contracts import Model, Role
from training.mesh import path_of
from training.state import collections_of


def of_model(model: Model, inputs: dict) -> dict[str, Role]:
    """{path: role} of all parameters of a model that is given `inputs` (arrays or shapes)."""
    there = jax.eval_shape(functools.partial(collections_of, model), inputs, jax.random.key(0))
    found = dict(_flat(there.get('roles', {})))
    for keys, _ in jax.tree_util.tree_leaves_with_path(there['params']):
        if path_of(keys) not in found:
            raise ValueError(f'The parameter {path_of(keys)} of {type(model).__name__} has no role; make it with '
                             'transformer.layers.roles.declare.')
    return found


def _flat(tree, front=''):
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f'{front}{name}/')
        else:
            yield front + name, value


def decay(role: Role) -> float:
    """The multiple of weight decay: matrices and tables decay, vectors do not."""
    return 0.0 if role.kind == 'vector' else 1.0



def multiples(roles: dict[str, Role]) -> dict[str, float]:
    """{path: m} of the matrices of a model under muP, by which its rate under Adam is divided; {} for other models.

    Raises ValueError for one under muP with another matrix."""
    found = {path: role.multiple for path, role in roles.items() if role.multiple is not None}
    others = [path for path, role in roles.items() if role.kind == 'matrix' and path not in found]
    if found and others:
        raise ValueError(f'The model has initial=MuP(..), which says nothing of the matrix {others[0]}; leave out the part '
                         'that it belongs to, give all stacks this initial, or use Scaled().')
    return found


def sides(role: Role, dimensions: int) -> tuple | None:
    """(input axes, output axes) of a parameter that is a single matrix; None for others."""
    whole = sorted(role.inputs + role.outputs) == list(range(dimensions))
    return (role.inputs, role.outputs) if role.kind == 'matrix' and whole else None


def mesh_axes(role: Role, dimensions: int) -> tuple:
    """The mesh axis, or None, of each dimension, as in Megatron (Shoeybi et al. 2019, section 3): heads, inner widths and rows
    of tables are sharded over `tensor`, the other side of such a matrix or table over `fsdp`; so are the output channels of a
    convolution. Other matrices stay whole: those of a recurrent layer would be gathered at every position."""
    wide = next((axis for axis in (role.heads, role.inner, role.rows) if axis is not None), None)
    if wide is None:
        channels = role.outputs if len(role.inputs) > 1 else ()
        return tuple('fsdp' if axis in channels else None for axis in range(dimensions))
    others = [axis for axis in range(dimensions) if axis != wide]
    if role.kind == 'matrix':
        others = role.inputs if wide in role.outputs else role.outputs
    narrow = None if role.kind == 'vector' or not others else others[0] if role.kind == 'matrix' else others[-1]
    return tuple({wide: 'tensor', narrow: 'fsdp'}.get(axis) for axis in range(dimensions))


def axes_of(roles: dict[str, Role], shapes: dict) -> dict[str, tuple]:
    """{path: the mesh axis, or None, of each dimension} of a tree of parameters."""
    return {path_of(keys): mesh_axes(roles[path_of(keys)], leaf.ndim)
            for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes)}
