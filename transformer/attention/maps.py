"""What captured attention says, by numpy: its entropy, how sure it is, and where it leads through all layers.

Weights are [.., T, S], a row for each query; a row of zeros is that of a query which sees nothing, and counts nowhere.
"""

import re

import jax
import numpy as np

from transformer.attention import masks
from transformer.attention.heads import kept_heads


def read(model, captured):
    """What a collection 'attention' (see `MultiHead`) says of the first example: ({'block_0': weights [N, T, S]},
    [{'layer', 'heads', 'entropy', 'highest_entropy', 'confidence'}]), both in the order of the layers.

    `heads` are the numbers of a layer's heads, the rest is in nats, `entropy` and `confidence` of each head; these are None
    where the weights are no distributions, but the matrix that some other mechanism amounts to.
    """
    layers = {_named(keys): np.asarray(x[0], np.float32) for keys, x in jax.tree_util.tree_leaves_with_path(captured)}
    kept = {f'block_{i}': row for i, row in enumerate(kept_heads(model))} if hasattr(model, 'kept') else {}
    if not layers:
        what = 'no head left' if kept and all(row == () for row in kept.values()) else 'no attention heads'
        raise ValueError(f'This {type(model).__name__} has {what}, so there is nothing to look at; give another --workdir.')
    if not all(np.isfinite(weights).all() for weights in layers.values()):
        raise ValueError('The attention weights are not finite: this run has diverged; give an earlier checkpoint with '
                         '--step=N.')
    longest = max(weights.shape[-1] for weights in layers.values())
    layers |= {name: np.zeros((0, longest, longest), np.float32) for name, row in kept.items() if row == ()}
    layers = {name: layers[name] for name in sorted(layers, key=_order)}
    found = []
    for name, weights in layers.items():
        visible, sure, mask = np.ones(weights.shape[1:], bool), are_distributions(weights), _mask(model, name)
        if mask is not None and weights.shape[1] == weights.shape[2]:
            visible = masks.dense(mask, weights.shape[1])
        if len(weights):  # a mechanism may let a query see less than the mask
            visible = visible & weights.any((0, 2))[:, None]
        found.append({
            'layer': name, 'heads': list(kept.get(name) or range(len(weights))),
            'entropy': entropy(weights).tolist() if sure else None, 'highest_entropy': highest_entropy(visible),
            'confidence': confidence(weights).tolist() if sure else None})
    return layers, found


def _named(keys):
    """The name of a layer: of the second call of block_0, which Universal Transformers have, block_1."""
    *parts, _, call = keys
    name = jax.tree_util.keystr(parts, simple=True, separator='/').removesuffix('/attention')
    return name.replace('block_0', f'block_{call.idx}') if call.idx else name


def _mask(model, name):
    """The mask of a layer such as 'block_0' or 'encoder/block_0'; None where none is known."""
    number = re.fullmatch(r'(?:(encoder|decoder)/)?block_(\d+)', name)
    mask = number and getattr(model, 'encoder_mask' if number[1] == 'encoder' else 'mask', None)
    return mask and mask.of_layer(int(number[2]))


def alignment(layers):
    """[T, S]: the mean over layers and heads of weights [N, T, S] of each layer: how much of each position of a source goes to
    each of the output."""
    return np.mean([weights.mean(0) for weights in layers.values()], 0)


def _order(name):
    return [(int(part), '') if part.isdigit() else (-1, part) for part in re.split(r'(\d+)', name)]


def are_distributions(weights):
    """Whether rows are distributions over the keys, not only the matrix that some other mechanism amounts to."""
    total = weights.sum(-1)
    return bool(np.all(weights >= 0) and np.all((np.abs(total - 1) < 1e-3) | (total == 0)))


def _mean_of_rows(values, weights):
    """[..] means over the queries that see something, of values [.., T]."""
    seeing = weights.any(-1)
    return np.where(seeing, values, 0.0).sum(-1) / np.maximum(seeing.sum(-1), 1)


def entropy(weights):
    """-sum_s w_s ln w_s in nats, averaged over the queries: [..]."""
    weights = np.asarray(weights, np.float64)
    return _mean_of_rows(-(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(-1), weights)


def highest_entropy(visible):
    """The entropy, in nats, of queries that look at all they see evenly, averaged: of booleans [T, S]."""
    count = visible.sum(-1)
    return float(_mean_of_rows(np.log(np.maximum(count, 1)), visible))


def confidence(weights):
    """max_s w_s, averaged over the queries (Voita et al. 2019, section 4): [..]."""
    return _mean_of_rows(weights.max(-1), weights)


def rollout(layers):
    """Attention rollout, [T, T]: how much of each input position is in each output one, if layers only mixed positions.

        A_l = rows of (mean over heads of W_l + I) scaled to sum 1;   A_L · .. · A_1

    (Abnar and Zuidema 2020, section 3; I is the residual connection.)

    Args:
      layers: weights [N, T, T] of each layer; a layer without heads is the residual alone.
    """
    length = max(layer.shape[-1] for layer in layers)
    total = np.eye(length)
    for layer in layers:
        step = (layer.astype(np.float64).mean(0) if len(layer) else 0.0) + np.eye(length)
        total = step / step.sum(-1, keepdims=True) @ total
    return total
