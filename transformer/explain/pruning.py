"""Models without some of their heads: their loss in quality, and equivalent smaller models (Michel et al. 2019; Voita et al.
2019).

The role of a parameter names its axis of heads (transformer/layers/roles.py); transformer/attention/pruned.py handles the
remaining heads in a stack.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from display import progress
from transformer.explain.importance import AttentionLayer, all_heads, layers_of


def without(model: Any, params: dict, heads: list) -> dict:
    """Parameters with which these (layer, head) contribute nothing, as under a head mask of 0: their rows of the output
    projection are zeros."""
    params = jax.tree.map(lambda x: x, params)  # copies the dicts
    for number, layer in enumerate(layers_of(model)):
        gone = [layer.kept.index(head) for other, head in heads if other == number]
        if gone:
            output = _of(params, layer)['output']
            output['kernel'] = output['kernel'].at[np.array(gone)].set(0.0)
    return params


def _of(params, layer: AttentionLayer):
    """The parameters of one layer of an attention."""
    for name in _path(layer):
        params = params[name]
    return params


def _path(layer: AttentionLayer):
    *front, branch = layer.attention.split('/')
    return *front, f'block_{layer.number}', branch


def curve(snapshot: Any, measure: Callable, heads: list, counts: list) -> list[tuple]:
    """[(heads left, measure(parameters))], each with the last of `heads`, which are ordered from the least important on."""
    gone = lambda count: heads[:len(heads) - count]
    return [(count, measure(without(snapshot.model, snapshot.params, gone(count))))
            for count in progress.over(counts, 'measuring the loss with fewer heads', 'points')]


def fields(model: Any, kept: Sequence) -> dict:
    """{name of an attention: the value of its field} for a model with the heads `kept` of each layer."""
    found = {}
    for layer, row in zip(layers_of(model), kept):
        found.setdefault(layer.attention, []).append(tuple(row))
    return {name: tuple(rows) for name, rows in found.items()}


def require_same(snapshot: Any, small: Any, params: dict, kept: Sequence, batch: dict) -> None:
    """Raises ValueError unless the model `small`, with `params`, has the same outputs as the whole one under a head mask."""
    model = snapshot.model
    gone = [(layer, head) for layer, head in all_heads(model) if head not in kept[layer]]
    inputs = snapshot.run.task.inputs(batch)
    apply = jax.jit(lambda model, params: model.apply(snapshot.variables | {'params': params}, **inputs), static_argnums=0)
    wanted, found = apply(model, without(model, snapshot.params, gone)), apply(small, params)
    for name, x in jax.device_get(wanted).items():
        y, x = np.asarray(found[name], np.float64), x.astype(np.float64)
        if not np.abs(x - y).max(initial=0.0) <= (0.05 if model.dtype in ('bfloat16', 'mixed') else 1e-4) * np.abs(x).max():
            raise _mixes(model)


def _mixes(model):
    parts = (str(part) for stack, *_ in model.attentions.values() for part in (stack.attention, stack.positions))
    return ValueError('A smaller model cannot give what this one does without those heads, as '
                      f'{" or ".join(dict.fromkeys(parts))} mixes heads; leave --keep and --pruned out.')


def pruned(model: Any, params: dict, kept: Sequence, shapes: dict, roles: dict) -> dict:
    """Parameters, of these `shapes` and `roles`, {path: role}, of the model with the heads `kept` of each layer, whose outputs
    are those of `model` under a head mask of 0 for the others. Each remaining head gets its own keys and values."""
    layers = {'/'.join(_path(layer)): (layer, row) for layer, row in zip(layers_of(model), kept)}

    def one(keys, wanted):
        names = [key.key for key in keys]
        x = params
        for name in names:
            x = x[name]
        role = roles['/'.join(names)]
        layer, row = next((found for front, found in layers.items() if '/'.join(names).startswith(f'{front}/')), (None, ()))
        # Position encodings keep the parameters of all heads and select the remaining ones themselves.
        if layer is not None and role.heads is not None and 'positions' not in names:
            stack, _, field = model.attentions[layer.attention]
            place = np.array([layer.kept.index(head) for head in row], int)
            if role.shared and getattr(stack, field) == ():  # else each head already has its own keys and values
                place = place // (stack.heads // (stack.key_heads or stack.heads))
            x = jnp.take(x, place, role.heads)
        if x.shape != wanted.shape:
            raise _mixes(model)
        return x
    return jax.tree_util.tree_map_with_path(one, shapes)
