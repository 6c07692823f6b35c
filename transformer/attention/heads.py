"""Heads that pruning left (Michel et al. 2019; Voita et al. 2019): which they are, and what position encodings give them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.positions import Positions


def kept_heads(model):
    """For each layer of a model, the numbers of the heads in its field `kept`, or None: all of them."""
    kept, layers, heads = model.kept, model.layers, model.heads
    if kept == ():
        return [None] * layers
    rows = [row for row in kept if isinstance(row, tuple) and all(type(h) is int and 0 <= h < heads for h in row)
            and list(row) == sorted(set(row))]
    if not len(kept) == len(rows) == layers:
        raise ValueError(f'model.kept is {kept!r}; expected for each of {layers} layers the numbers of the heads it keeps, in '
                         f'order and from 0 to {heads - 1}, such as ((0,), ()) for two layers, or () for all heads of all.')
    period = model.mask.period
    # Scanned layers are one program: what they share cannot depend on which heads they are.
    told_apart = type(model.positions).bias is not Positions.bias
    same = (lambda row: row) if told_apart else len
    if model.scan and any(same(row) != same(rows[i % period]) for i, row in enumerate(rows)):
        what = f'the same heads, as {model.positions} tells them apart,' if told_apart else 'as many heads'
        raise ValueError(f'model.scan: layers with the heads {kept!r} cannot be scanned; keep {what} in every layer, or set '
                         'scan=False.')
    return rows


def of_heads(bias, kept, heads):
    """The entries for the scores (see `kernels`) of `heads` heads, for those in `kept` alone."""
    return tuple(_chosen(entry, kept, heads) for entry in (bias if isinstance(bias, tuple) else (bias,)))


def _chosen(entry, kept, heads):
    if callable(entry):
        return _OfHeads(entry, kept, heads)
    return entry[..., list(kept), :, :] if entry.ndim >= 3 and entry.shape[-3] == heads else entry


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _OfHeads:
    """A term that knows `heads` heads, on the scores of those in `kept`: the others are zeros that nobody looks at."""
    term: Any
    kept: tuple = dataclasses.field(metadata=dict(static=True))
    heads: int = dataclasses.field(metadata=dict(static=True))

    def _spread(self, x, axis):
        shape = *x.shape[:axis], self.heads, *x.shape[axis + 1:]
        return jnp.zeros(shape, x.dtype).at[(slice(None),) * axis + (list(self.kept),)].set(x)

    def __call__(self, scores, query, key, t, s):
        return self.term(self._spread(scores, 1), self._spread(query, 2), self._spread(key, 2), t, s)[:, list(self.kept)]

    @property
    def values(self):
        values = getattr(self.term, 'values', None)
        return values and (lambda weights, t, s: values(self._spread(weights, 1), t, s)[:, list(self.kept)])
