"""Logits that are never whole in memory: of so many positions of each row at a time, for a loss and its gradient.

The logits of a batch, [B, T, V], and their gradient are the largest arrays of a language model's step. A loss that is a sum
over positions needs them block by block only; and because its gradient is known as soon as a block is, the products are as many
as with whole logits, and none is repeated in the backward pass.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from transformer.layers.numerics import Numerics, wide
from transformer.layers.sharding import BATCH, several


def _static():
    return dataclasses.field(metadata={'static': True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockedLogits:
    """x·W + b [B, T, V], of which only those of `block` positions of every row exist at a time.

    Attributes:
      states: x [B, T, D].
      kernel, bias: W [D, V] and b [V], None for none.
      block: positions of a row.
    """
    states: jax.Array
    kernel: jax.Array
    bias: jax.Array | None
    block: int = _static()
    numerics: Numerics = _static()

    def sums(self, values: Mapping[str, Callable], coefficients: Mapping[str, float], targets: jax.Array,
             weights: jax.Array) -> dict:
        """{term: sum over positions of weight·value}.

        Args:
          values: {term: function of logits [.., V] and targets [..] with values [..]}.
          coefficients: {term: factor} of those that the loss consists of. Only its gradient is computed: all others are 0, and
            a loss with other factors would have a wrong one.
          targets, weights: [B, T].
        """
        how = tuple(values.items()), tuple(coefficients.items()), self.block, self.numerics
        return _sums(how, self.states, self.numerics.cast(self.kernel), self.bias, targets, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(how, states, kernel, bias, targets, weights):
    return _over_blocks(how, False, states, kernel, bias, targets, weights)[0]


def _sums_forward(how, *arrays):
    return _over_blocks(how, True, *arrays)


def _sums_backward(how, gradients, change):
    (term, factor), *_ = how[1]
    scale = change[term] / factor  # the same of every term, as the loss is their sum with these factors
    return *jax.tree.map(lambda x: (scale * x).astype(x.dtype), gradients), None, None


_sums.defvjp(_sums_forward, _sums_backward)


def _over_blocks(how, with_gradient, states, kernel, bias, targets, weights):
    """({term: sum}, gradients of states, kernel and bias, or None); on several devices each adds up its own rows and, where
    they can be divided, positions."""
    local = functools.partial(_local, how, with_gradient)
    if not several():
        return local((), states, kernel, bias, targets, weights)
    tensor = jax.sharding.get_abstract_mesh().shape['tensor']
    split = tensor > 1 and states.shape[1] % tensor == 0
    axes = (*BATCH, 'tensor') if split else BATCH
    of_rows, whole = PartitionSpec(BATCH, 'tensor' if split else None), PartitionSpec()
    return jax.shard_map(
        functools.partial(local, axes), in_specs=(of_rows, whole, whole, of_rows, of_rows),
        out_specs=(whole, (of_rows, whole, whole) if with_gradient else whole), check_vma=False)(
        states, kernel, bias, targets, weights)


def _local(how, with_gradient, axes, states, kernel, bias, targets, weights):
    values, coefficients, block, numerics = how
    rows, length, _ = states.shape
    block = min(block, length)
    count = -(-length // block)

    def blocks(x):  # [B, T, ..] -> [count, B·block, ..], with zeros after the end
        x = jnp.pad(x, [(0, 0), (0, count * block - length)] + [(0, 0)] * (x.ndim - 2))
        x = jnp.moveaxis(x.reshape(rows, count, block, *x.shape[2:]), 1, 0)
        return x.reshape(count, rows * block, *x.shape[3:])

    def loss(states, kernel, bias, targets, weights):
        logits = numerics.dense(states, kernel)
        logits = logits if bias is None else logits + numerics.cast(bias)
        found = {term: (weights * value(logits, targets)).sum() for term, value in values}
        return sum(factor * found[term] for term, factor in coefficients), found

    def one(carry, given):
        sums, of_kernel, of_bias = carry
        if not with_gradient:
            return (_added(sums, loss(given[0], kernel, bias, *given[1:])[1]), of_kernel, of_bias), None
        (_, found), (dx, dw, db) = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(given[0], kernel, bias, *given[1:])
        return (_added(sums, found), _added(of_kernel, wide(dw)), None if bias is None else _added(of_bias, wide(db))), dx

    given = blocks(states), blocks(targets), blocks(weights)
    shapes = jax.eval_shape(lambda first: loss(first[0], kernel, bias, *first[1:])[1], jax.tree.map(lambda x: x[0], given))
    zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)), tree)
    begin = zeros(shapes), *((zeros(kernel), zeros(bias)) if with_gradient else (None, None))
    (sums, of_kernel, of_bias), of_states = jax.lax.scan(one, begin, given)
    if axes:
        sums, of_kernel, of_bias = jax.lax.psum((sums, of_kernel, of_bias), axes)
    if not with_gradient:
        return sums, None
    of_states = jnp.moveaxis(of_states.reshape(count, rows, block, -1), 0, 1).reshape(rows, count * block, -1)[:, :length]
    return sums, (of_states, of_kernel.astype(kernel.dtype), None if bias is None else of_bias.astype(bias.dtype))


def _added(before, more):
    return jax.tree.map(jnp.add, before, more)
