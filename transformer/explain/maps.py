"""The analysis of captured attention weights, by numpy: entropy, confidence, alignment and rollout.

Weights are [.., T, S], a row for each query; the row of a query that sees nothing is zero, and excluded from all means. Those
of a partition are [.., T, t], over the t keys of the query's group alone, whose numbers are in `keys_of`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.attention.masks import analysis
from transformer.attention.masks.data import Marked
from transformer.attention.partition import Whole
from transformer.attention.pruned import kept_heads

ALL_HEADS = 'all heads'


def read(model: Any, captured: Mapping, prefix: np.ndarray | None = None) -> tuple[dict, list]:
    """Analyses captured attention, {'block_0/attention': weights [B, N, T, S]}, on the first example: ({'block_0': weights
    [N, T, S]}, [{'layer', 'heads', 'entropy', 'highest_entropy', 'confidence'}]), both in the order of the layers.

    `heads` are the indices of a layer's heads, or `ALL_HEADS` where one matrix stands for all of them; entropies are in nats.
    `entropy` and `confidence` have a value for each head; they are None if the weights are not distributions but the equivalent
    matrix of another mechanism. Where windows are padded, both are of the weights of the real keys, scaled to sum 1.
    A layer without heads has weights [0, T, S]; [0, 1, 1] if no other layer of its stack tells T and S.

    Args:
      prefix: [B, T], 1 for the tokens that all tokens see, whatever the mask, as the model was given it; None: there are none.
    """
    layers = {name.removesuffix('/attention'): np.asarray(x[0], np.float32) for name, x in captured.items()}
    kept, masks_of, apart, joint = {}, {}, {}, set()
    for name, (stack, _, field) in model.attentions.items():
        for i, row in enumerate(kept_heads(stack, field)):
            layer = layer_of(name, i)
            cross = name.endswith('cross_attention')
            shown = cross or stack.attention.of_layer(i).shown
            kept[layer], masks_of[layer] = row, None if cross else stack.mask.of_layer(i)
            if not shown:
                joint.add(layer)
            if stack.partition.of_layer(i) != Whole():
                apart[layer] = shown
    if not layers:
        what = 'no head left' if kept and all(row == () for row in kept.values()) else 'no attention heads'
        raise ValueError(f'This {type(model).__name__} has {what}, so there are no weights to show; give another --workdir.')
    if not all(np.isfinite(weights).all() for weights in layers.values()):
        raise ValueError('The attention weights are not finite: this run has diverged; give an earlier checkpoint with '
                         '--step=N.')
    pairs = {_kind(name): weights.shape[1:] for name, weights in layers.items()}
    layers |= {name: np.zeros((0, *pairs.get(_kind(name), (1, 1))), np.float32) for name, row in kept.items() if row == ()}
    layers = {name: layers[name] for name in sorted(layers, key=_order)}
    found = []
    for name, weights in layers.items():
        visible, mask, padded = np.ones(weights.shape[1:], bool), masks_of.get(name), apart.get(name, False)
        sure = name not in joint and are_distributions(weights, padded)
        if mask is not None and name not in apart and weights.shape[1] == weights.shape[2]:
            visible = analysis.dense(mask if prefix is None else mask | Marked(prefix), weights.shape[1])
        if len(weights):  # a mechanism may let a query see fewer keys than the mask, and windows do
            visible = visible & (weights.any(0) if name in apart else weights.any((0, 2))[:, None])
        shares = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) if sure and padded else weights
        heads = [ALL_HEADS] * len(weights) if name in joint else list(kept.get(name) or range(len(weights)))
        found.append({
            'layer': name, 'heads': heads,
            'entropy': entropy(shares).tolist() if sure else None, 'highest_entropy': highest_entropy(visible),
            'confidence': confidence(shares).tolist() if sure else None})
    return layers, found


def keys_of(model: Any, grid: Callable) -> dict[str, np.ndarray]:
    """{layer: [T, t], for each query the numbers of the keys of its group, -1 for padding} of the layers with a partition.

    Args:
      grid: from the name of an attention to the (rows, columns) of its patches.
    """
    found = {layer_of(name, i): stack.partition.of_layer(i).keys(grid(name))
             for name, (stack, *_) in model.attentions.items() for i in range(stack.layers)}
    return {layer: keys for layer, keys in found.items() if keys is not None}


def spread(x: np.ndarray, keys: np.ndarray | None) -> np.ndarray:
    """Arrays [N, T, t] over the keys of groups -> [N, T, T], 0 or False for the other keys; keys = None: those given."""
    if keys is None:
        return x
    out = np.zeros((*x.shape[:2], len(keys) + 1), x.dtype)  # the last column takes the padding
    if len(x):
        np.put_along_axis(out, np.broadcast_to(keys, x.shape), x, -1)
    return out[..., :-1]


def received(weights: np.ndarray, keys: np.ndarray | None = None) -> np.ndarray:
    """The weight of each position, averaged over the queries: [N, T, S] -> [N, S], [N, T, t] with its keys -> [N, T]."""
    if keys is None:
        return weights.mean(-2)
    out = np.zeros((len(weights), len(keys)))
    if len(weights):
        np.add.at(out, (slice(None), keys), weights / len(keys))
    return out


def layer_of(attention: str, number: int) -> str:
    """The name of a layer of an attention: 'block_3' for 'attention', 'decoder/block_3/cross_attention'."""
    front, _, branch = attention.rpartition('/')
    return '/'.join(part for part in (front, f'block_{number}', '' if branch == 'attention' else branch) if part)


def alignment(layers: Mapping) -> np.ndarray:
    """[T, S]: the mean over layers and heads of the weights [N, T, S] of each layer, from each position of the output to each
    of the source. Layers without heads are left out; at least one layer has heads."""
    return np.mean([weights.mean(0) for weights in layers.values() if len(weights)], 0)


def _kind(layer):
    """What layers have in common whose attentions are between the same positions."""
    return re.sub(r'block_\d+', '', layer)


def _order(name):
    return [(int(part), '') if part.isdigit() else (-1, part) for part in re.split(r'(\d+)', name)]


def are_distributions(weights: np.ndarray, padded: bool = False) -> bool:
    """Whether all rows are distributions over the keys, unlike the equivalent matrix of some other mechanisms; padded: over
    the keys and padding that is not among them."""
    total = weights.sum(-1)
    whole = total < 1 + 1e-3 if padded else (np.abs(total - 1) < 1e-3) | (total == 0)
    return bool(np.all(weights >= 0) and np.all(whole))


def _mean_of_rows(values, weights):
    """Means [..] of values [.., T] over the queries that see something."""
    seeing = weights.any(-1)
    return np.where(seeing, values, 0.0).sum(-1) / np.maximum(seeing.sum(-1), 1)


def entropy(weights: np.ndarray) -> np.ndarray:
    """-sum_s w_s ln w_s in nats, averaged over the queries: [..]."""
    weights = np.asarray(weights, np.float64)
    return _mean_of_rows(-(weights * np.log(np.where(weights > 0, weights, 1.0))).sum(-1), weights)


def highest_entropy(visible: np.ndarray) -> float:
    """The entropy in nats of uniform weights over the visible keys, booleans [T, S], averaged over the queries."""
    count = visible.sum(-1)
    return float(_mean_of_rows(np.log(np.maximum(count, 1)), visible))


def confidence(weights: np.ndarray) -> np.ndarray:
    """max_s w_s, averaged over the queries (Voita et al. 2019, section 4): [..]."""
    return _mean_of_rows(weights.max(-1), weights)


def rollout(layers: Sequence, share: np.ndarray | None = None, keys: Sequence | None = None) -> np.ndarray:
    """Attention rollout: the share of each input position in each output position, if layers only mixed positions,

        A_L · .. · A_1   with   A_l = rows of (mean over heads of W_l + I) scaled to sum 1

    (Abnar and Zuidema 2020, section 3; I is the residual connection.) The padding of windows is no position and brings nothing
    from any: rows are scaled without its weights.

    Args:
      layers: weights [N, T, T] of each layer; a layer without heads is only the residual connection.
      share: [T], weights of the output positions, for which those of the input positions are returned, share · A_L · .. · A_1;
        None: [T, T], a row for each output position.
      keys: for each layer None, or its keys from `keys_of`, with weights [N, T, t]; needs `share`.
    """
    share = np.eye(max(layer.shape[1] for layer in layers)) if share is None else np.asarray(share, np.float64)
    for layer, own in reversed([*zip(layers, keys or [None] * len(layers), strict=True)]):
        if not len(layer):
            continue
        mean = layer.mean(0, dtype=np.float64)
        share = share / (1 + mean.sum(-1))
        if own is None:
            share = share + share @ mean
        else:
            brought, share = share[:, None] * mean, share.copy()
            np.add.at(share, own, brought)
    return share
