"""The analysis of captured attention weights, by numpy: entropy, confidence, alignment and rollout.

Weights are [.., T, S], a row for each query; the row of a query that sees nothing is zero, and excluded from all means.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.attention.masks import analysis
from transformer.attention.masks.data import Marked
from transformer.attention.partition import Whole
from transformer.attention.pruned import kept_heads


def read(model: Any, captured: Mapping, prefix: np.ndarray | None = None) -> tuple[dict, list]:
    """Analyses captured attention, {'block_0/attention': weights [B, N, T, S]}, on the first example: ({'block_0': weights
    [N, T, S]}, [{'layer', 'heads', 'entropy', 'highest_entropy', 'confidence'}]), both in the order of the layers.

    `heads` are the indices of a layer's heads; entropies are in nats. `entropy` and `confidence` have a value for each head;
    they are None if the weights are not distributions but the equivalent matrix of another mechanism. Where windows are padded,
    both are of the weights of the real keys, scaled to sum 1. A layer without heads has weights [0, T, S]; [0, 1, 1] if no
    other layer of its stack tells T and S.

    Args:
      prefix: [B, T], 1 for the tokens that all tokens see, whatever the mask, as the model was given it; None: there are none.
    """
    layers = {name.removesuffix('/attention'): np.asarray(x[0], np.float32) for name, x in captured.items()}
    kept, masks_of, apart = {}, {}, {}
    for name, (stack, _, field) in model.attentions.items():
        for i, row in enumerate(kept_heads(stack, field)):
            layer = layer_of(name, i)
            if stack.partition.of_layer(i) != Whole():
                apart[layer] = stack.attention.of_layer(i).shown
            kept[layer], masks_of[layer] = row, None if name.endswith('cross_attention') else stack.mask.of_layer(i)
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
        sure = are_distributions(weights, padded)
        if mask is not None and weights.shape[1] == weights.shape[2]:
            visible = analysis.dense(mask if prefix is None else mask | Marked(prefix), weights.shape[1])
        if len(weights):  # a mechanism may let a query see fewer keys than the mask, and windows do
            visible = visible & (weights.any(0) if name in apart else weights.any((0, 2))[:, None])
        shares = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) if sure and padded else weights
        found.append({
            'layer': name, 'heads': list(kept.get(name) or range(len(weights))),
            'entropy': entropy(shares).tolist() if sure else None, 'highest_entropy': highest_entropy(visible),
            'confidence': confidence(shares).tolist() if sure else None})
    return layers, found


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


def rollout(layers: Sequence) -> np.ndarray:
    """Attention rollout, [T, T]: the share of each input position in each output position, if layers only mixed positions.

        A_l = rows of (mean over heads of W_l + I) scaled to sum 1;   A_L · .. · A_1

    (Abnar and Zuidema 2020, section 3; I is the residual connection.) The padding of windows is no position and brings nothing
    from any: rows are scaled without its weights.

    Args:
      layers: weights [N, T, T] of each layer; a layer without heads is only the residual connection.
    """
    length = max(layer.shape[-1] for layer in layers)
    total = np.eye(length)
    for layer in layers:
        step = (layer.astype(np.float64).mean(0) if len(layer) else 0.0) + np.eye(length)
        total = step / step.sum(-1, keepdims=True) @ total
    return total
