"""Layers that pruning left with some of their heads (Michel et al. 2019; Voita et al. 2019); `transformer.explain.pruning`
selects the heads."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.context import Context
from transformer.attention.positions.base import Positions
from transformer.layers.initial import zeros
from transformer.layers.numerics import Numerics
from transformer.layers.roles import Wanted, declare


def kept_heads(stack: Any, field: str = 'kept', turns: int = 0) -> list:
    """For each layer of a stack, the numbers of its heads according to the field 'kept' or 'cross_kept', or None for all heads.

    turns: after how many layers the layers that are built repeat, which then have to fit into a scan; 0: none are built."""
    kept, layers, heads = getattr(stack, field), stack.layers, stack.heads
    if kept == ():
        return [None] * layers
    rows = [row for row in kept if isinstance(row, tuple) and all(type(h) is int and 0 <= h < heads for h in row)
            and list(row) == sorted(set(row))]
    if not len(kept) == len(rows) == layers:
        raise ValueError(f'{field} is {kept!r}; expected for each of {layers} layers the numbers of the heads it keeps, '
                         f'in order and from 0 to {heads - 1}, such as ((0,), ()) for two layers, or () for all heads of all.')
    # Scanned layers are one program, which cannot depend on the numbers of the heads.
    told_apart = type(stack.positions).bias is not Positions.bias
    same = (lambda row: row) if told_apart else len
    if stack.scan and turns and any(same(row) != same(rows[i % turns]) for i, row in enumerate(rows)):
        what = f'the same heads, as {stack.positions} tells them apart,' if told_apart else 'as many heads'
        raise ValueError(f'scan: layers with the heads {kept!r} cannot be scanned; keep {what} in every layer, or set '
                         'scan=False.')
    return rows


def of_kept(context: Context, kept: dict) -> Context:
    """The context of a layer with the heads `kept`, {branch: numbers, or None for all}."""
    factors = {branch: x if kept.get(branch) is None else x[..., np.array(kept[branch], int)]
               for branch, x in context.head_mask.items()}
    return dataclasses.replace(context, head_mask=factors, encoding=context.encoding.of_heads(kept.get('attention')))


class NoHeads(nn.Module):
    """Attention with no heads left: its output is the bias."""
    bias: bool = True
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x: jax.Array, *given: Any, cache: dict | None = None, **others: Any) -> tuple:
        """As `MultiHead`."""
        bias = Bias(self.numerics, name='output')(x.shape[-1]) if self.bias else jnp.zeros(x.shape[-1])
        cross = any(x is not None for x in (*given[:2], others.get('projected')))
        return self.numerics.cast(jnp.broadcast_to(bias, x.shape)), {} if cross else cache, {}


class Bias(nn.Module):
    """A bias and nothing else."""
    numerics: Numerics

    @nn.compact
    def __call__(self, width: int) -> jax.Array:
        return declare(self, 'bias', Wanted(zeros, (width,)), self.numerics)
