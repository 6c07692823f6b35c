"""Which heads matter (Michel et al. 2019, "Are sixteen heads really better than one?"), and models without the others.

    I_h = E_x |d L(x) / d ξ_h| at ξ = 1,   ξ_h being a factor of what head h gives (their eq. 2),

divided by the length of the vector of its layer. x is a row of a batch, L(x) the share of the task's loss that its predictions
have. Voita et al. 2019 learn such factors; here they are only looked at.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.heads import kept_heads


def require_heads(model):
    """Raises ValueError for a model without heads that can be switched off."""
    if 'head_mask' not in inspect.signature(type(model).__call__).parameters:
        raise ValueError(f'{type(model).__name__} has no heads that could be switched off; --heads is for models such as '
                         'transformer.gpt:Gpt.')
    if not all_heads(model):
        raise ValueError(f'This {type(model).__name__} has no head left; give the --workdir of another run.')


def all_heads(model):
    """[(layer, head)] of those that a model has."""
    rows = [range(model.heads) if row is None else row for row in kept_heads(model)]
    return [(layer, head) for layer, row in enumerate(rows) for head in row]


def importance(snapshot, batches):
    """[layers, N], nan where a head is not there: I_h over the rows of all batches, before it is scaled."""
    model, task = snapshot.model, snapshot.run.task

    @jax.jit
    def gradient(params, batch):
        def total(mask):
            forward = lambda **inputs: model.apply({'params': params}, head_mask=mask, **inputs)
            terms = task.loss(forward, batch, key=None, step=None, train=False)
            loss = sum(c * terms[t][0] / jnp.maximum(terms[t][1], 1e-9) for t, c in task.coefficients.items())
            return loss, terms[next(iter(task.coefficients))][1]
        rows = len(next(iter(batch.values())))
        slopes, weight = jax.grad(total, has_aux=True)(jnp.ones((model.layers, rows, 1, model.heads)))
        return jnp.abs(slopes).sum((1, 2)) * weight, weight  # a factor for each row: a gradient for each row

    sums = weights = 0.0
    for batch in batches:
        slopes, weight = jax.device_get(gradient(snapshot.params, batch))
        sums, weights = sums + slopes.astype(np.float64), weights + float(weight)
    if not np.isfinite(sums).all():
        raise ValueError('The gradients of the heads are not finite, so none can be said to matter: this run has diverged; '
                         'give an earlier checkpoint with --step=N.')
    there = np.zeros((model.layers, model.heads), bool)
    there[tuple(zip(*all_heads(model)))] = True
    return np.where(there, sums / max(weights, 1e-9), np.nan)


def by_layer(scores):
    """Importance with the vector of each layer scaled to length 1."""
    length = np.sqrt(np.nansum(np.square(scores), 1, keepdims=True))
    return scores / np.where(length > 0, length, 1.0)


def order(scores):
    """[(layer, head)] from the least important on, by importance as `by_layer` scales it."""
    there = np.argwhere(~np.isnan(scores))
    return [tuple(map(int, there[i])) for i in np.argsort(scores[tuple(there.T)], kind='stable')]


def without(model, params, heads):
    """Parameters with which these (layer, head) give nothing, as under a head mask of 0: their rows of the output projection
    are zeros."""
    params = jax.tree.map(lambda x: x, params)  # dicts of its own
    for layer in {layer for layer, _ in heads}:
        output = params[f'block_{layer}']['attention']['output']
        gone = places(model, layer, [head for other, head in heads if other == layer])
        output['kernel'] = output['kernel'].at[gone].set(0.0)
    return params


def places(model, layer, heads):
    """Where heads of a layer are among those that it has."""
    row = kept_heads(model)[layer]
    return np.array([head if row is None else row.index(head) for head in heads], int)


def curve(snapshot, measure, heads, counts):
    """[(heads left, measure(parameters))] with the last so many of `heads`, given from the least important on."""
    gone = lambda count: heads[:len(heads) - count]
    return [(count, measure(without(snapshot.model, snapshot.params, gone(count)))) for count in counts]


def require_same(snapshot, small, params, kept, batch):
    """Raises ValueError unless the model `small`, with `params`, gives what the whole one does under a head mask."""
    model = snapshot.model
    gone = [(layer, head) for layer, head in all_heads(model) if head not in kept[layer]]
    inputs = snapshot.run.task.inputs(batch)
    apply = jax.jit(lambda model, params: model.apply({'params': params}, **inputs), static_argnums=0)
    wanted, found = apply(model, without(model, snapshot.params, gone)), apply(small, params)
    for name, x in jax.device_get(wanted).items():
        y, x = np.asarray(found[name], np.float64), x.astype(np.float64)
        if not np.abs(x - y).max(initial=0.0) <= (1e-4 if model.dtype == 'float32' else 0.05) * np.abs(x).max():
            raise _mixes(model)


def _mixes(model):
    return ValueError(f'A smaller model cannot give what this one does without those heads, as {model.attention} or '
                      f'{model.positions} mixes heads; leave --keep and --pruned out.')


def pruned(model, params, kept, shapes):
    """Parameters of the model with `kept`, [heads of each layer], whose `shapes` these are: it gives what `model` does under a
    head mask of 0 for the others. Each head that is kept gets keys and values of its own."""
    axes = _head_axes(model)

    def one(keys, _):
        names = [key.key for key in keys]
        x = params
        for name in names:
            x = x[name]
        if 'attention' not in names:
            return x
        layer = int(names[0].removeprefix('block_'))
        row, all_of_them = places(model, layer, kept[layer]), kept_heads(model)[layer] is None
        # Without `kept`, groups of query heads may share those of keys and values.
        shared = model.heads // (model.key_heads or model.heads) if all_of_them else 1
        part, leaf = names[-2:]
        if part in ('query', 'key', 'value'):
            return jnp.take(x, row if part == 'query' else row // shared, 1 if leaf == 'kernel' else 0)
        if part == 'output':
            return jnp.take(x, row, 0) if leaf == 'kernel' else x
        if part == 'positions':  # told which heads there are
            return x
        axis, of_keys = axes[leaf]
        return x if axis is None else jnp.take(x, row // shared if of_keys else row, axis)
    return jax.tree_util.tree_map_with_path(one, shapes)


def _head_axes(model):
    """{name: (axis of heads or None, whether these are those of keys)} of the mechanism's parameters."""
    def shapes(heads, key_heads):
        array = lambda count: jax.ShapeDtypeStruct((1, 2, count, model.each_head), 'float32')
        wanted = model.attention.parameters(array(heads), array(key_heads), array(key_heads))
        return {name: shape for name, (_, shape) in wanted.items()}

    base, more_queries, more_keys = shapes(4, 2), shapes(8, 2), shapes(4, 4)
    found = {}
    for name, shape in base.items():
        by = [(axis, of_keys) for of_keys, other in enumerate((more_queries, more_keys))
              for axis, size in enumerate(other[name]) if size != shape[axis]]
        if len(by) > 1 or any(shape[axis] != (4, 2)[of_keys] for axis, of_keys in by):
            raise _mixes(model)
        found[name] = by[0] if by else (None, False)
    return found
