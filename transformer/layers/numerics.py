"""The number policy: the types of computation and storage, and the gradient of a dense layer.

Matrix products take their operands in `dtype` and accumulate in float32; `dtype='float32'` means full float32 products
(precision `highest`), even where an accelerator uses TF32 or bfloat16 passes by default. Softmax, norms and losses
are in at least float32 (`wide`), and so are the sums of gradients over all that share a bias, a scale or a row of a table.
Parameters are stored in `parameter_dtype` and read in at least float32.

`dtype='mixed'` is float32 but for the operands of matrix products and of their gradients, which are rounded to bfloat16;
convolutions and the terms of relative positions stay in float32. It is for GPUs, and for a CPU that has instructions for such
products (AMX), and none for other numbers in bfloat16; there products whose layout XLA cannot multiply so stay in float32 too.
XLA (jaxlib 0.10) may end the process where gradients in 'mixed' are batched by jax.vmap on a CPU; under scan and on a mesh it
does not.

`dtype='float64'` is for proofs on a CPU. All numbers of a program are then float64, constants and positions included
(`real_dtype`), which needs `jax.config.update('jax_enable_x64', True)` or, around a part of a program, `jax.enable_x64(True)`.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from transformer.layers.sharding import constrain, platform

STORED = ('float32', 'bfloat16', 'float64')
DTYPES = (*STORED, 'mixed')


def wide(x: jax.Array) -> jax.Array:
    """x in at least float32: the type of softmax, norms, losses and activations."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def real_dtype() -> jnp.dtype:
    """The type of constants, positions and counts that become real numbers: float64 if JAX has 64-bit types enabled, else
    float32."""
    return jnp.result_type(float)


def array_type(dtype: str) -> str:
    """The type of arrays under the policy `dtype`. Raises ValueError for float64 where the settings of JAX do not allow it; JAX
    itself would only warn and use float32."""
    if dtype == 'float64' and real_dtype() != jnp.dtype(dtype):
        raise ValueError('Numbers in float64 need the 64-bit types of JAX, which are switched off; call '
                         "jax.config.update('jax_enable_x64', True) first.")
    return 'float32' if dtype == 'mixed' else dtype


@dataclasses.dataclass(frozen=True)
class Numerics:
    """How products are computed, and how parameters are stored.

    Attributes:
      dtype: type of the operands and results of matrix products: 'float32', 'bfloat16', 'mixed' (above), or 'float64'
        for proofs on a CPU.
      dense_gradient: form dW of a dense layer as xᵀ·dy (see `_dense`); False leaves it to JAX's transpose rule, but for
        'mixed', which has rules of its own.
      parameter_dtype: type in which parameters are stored, one of the same but 'mixed'. They are drawn in float32 and
        rounded once.
    """
    dtype: str = 'float32'
    dense_gradient: bool = True
    parameter_dtype: str = 'float32'

    def __post_init__(self):
        for name, known in (('dtype', DTYPES), ('parameter_dtype', STORED)):
            if getattr(self, name) not in known:
                raise ValueError(f'{name} is {getattr(self, name)!r}; expected one of {", ".join(known)}.')

    @property
    def precision(self) -> Any:
        return lax.Precision.DEFAULT if self.dtype == 'bfloat16' else lax.Precision.HIGHEST

    def cast(self, x: jax.Array) -> jax.Array:
        """x in `dtype`."""
        return x.astype(array_type(self.dtype))

    def parameter(self, module: Any, name: str, initialiser: Callable, shape: tuple[int, ...]) -> jax.Array:
        """A parameter of a Flax module: drawn by initialiser(key, shape, float32), stored in `parameter_dtype`, and read in at
        least float32 and `dtype`. Raises ValueError if the stored shape differs."""
        stored = array_type(self.parameter_dtype)
        if not module.has_variable('params', name):
            return self.read(module.param(name, lambda key: initialiser(key, shape, jnp.float32).astype(stored)))
        held = module.get_variable('params', name)  # `module.param` would trace the initialiser again to compare shapes
        if held.shape != tuple(shape):
            path = '/'.join((*module.path, name))
            raise ValueError(f'The parameter {path} has the shape {held.shape}, but the model needs {tuple(shape)}.')
        return self.read(held)

    def read(self, x: jax.Array) -> jax.Array:
        """A stored parameter for computation: in at least float32 and `dtype`."""
        return x.astype(jnp.result_type(x.dtype, jnp.float32, array_type(self.dtype)))

    def plus(self, y: jax.Array, bias: jax.Array) -> jax.Array:
        """y + b in `dtype`, [..., *B] and [*B]; the gradient of b is summed in at least float32."""
        return _plus(y, bias) if self.dtype == 'bfloat16' else y + self.cast(bias)

    def times(self, x: jax.Array, factors: jax.Array) -> jax.Array:
        """a·x in the type of x, [..., *A] and a [*A]; the gradient of a is summed in at least float32."""
        return _times(x, factors) if self.dtype == 'bfloat16' else factors.astype(x.dtype) * x

    def rows(self, table: jax.Array, ids: jax.Array) -> jax.Array:
        """table[ids] in `dtype`: [R, D] and ints [...] -> [..., D]; the gradient of the table is summed in at least float32. In
        bfloat16 a row of which there are many would stop growing after about 256 like terms."""
        return lookup(table, ids, array_type(self.dtype))

    def einsum(self, equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
        """jnp.einsum under the policy."""
        if self.dtype == 'mixed':
            return _mixed(equation, self.cast(a), self.cast(b))
        return jnp.einsum(equation, self.cast(a), self.cast(b), precision=self.precision)

    def scores(self, equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
        """`einsum`, whose result keeps the type of accumulation, at least float32; the gradient is computed in `dtype`."""
        if self.dtype == 'bfloat16':
            return _wide(equation, self.cast(a), self.cast(b))
        return self.einsum(equation, a, b)

    def dense(self, x: jax.Array, kernel: jax.Array, axes: int = 1) -> jax.Array:
        """Contracts the last `axes` dimensions of x with the first `axes` of kernel: [..., D] x [D, F] -> [..., F]."""
        if x.shape[x.ndim - axes:] != kernel.shape[:axes]:
            raise ValueError(f'A dense layer with kernel {kernel.shape} got an input of shape {x.shape}; its last '
                             f'{axes} dimensions must be {kernel.shape[:axes]}.')
        batch, inner, out = x.shape[:x.ndim - axes], kernel.shape[:axes], kernel.shape[axes:]
        x = self.cast(x).reshape(math.prod(batch), math.prod(inner))
        kernel = self.cast(kernel).reshape(math.prod(inner), math.prod(out))
        if self.dtype == 'mixed':
            y = _mixed('RD,DF->RF', x, kernel)
        else:
            y = (_dense if self.dense_gradient else _product)(x, kernel, self.precision)
        return y.reshape(*batch, *out)

    def across(self, x: jax.Array, table: jax.Array) -> jax.Array:
        """x·Tᵀ: [..., D] x [F, D] -> [..., F]."""
        if self.dtype != 'mixed' or x.shape[-1] != table.shape[1]:
            return self.dense(x, table.T)
        rows = self.cast(x).reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return _mixed('RD,FD->RF', rows, self.cast(table)).reshape(*x.shape[:-1], len(table))


def _over_others(x, shape):
    """The sum over the first axes of x, in at least float32, down to `shape`."""
    return wide(x).sum(tuple(range(x.ndim - len(shape))))


@jax.custom_vjp
def _plus(y, bias):
    return y + bias.astype(y.dtype)


_plus.defvjp(lambda y, bias: (_plus(y, bias), bias),
             lambda bias, dy: (dy, _over_others(dy, bias.shape).astype(bias.dtype)))


@jax.custom_vjp
def _times(x, factors):
    return factors.astype(x.dtype) * x


_times.defvjp(lambda x, factors: (_times(x, factors), (x, factors)),
              lambda given, dy: (given[1].astype(dy.dtype) * dy,
                                 _over_others(wide(given[0]) * wide(dy), given[1].shape).astype(given[1].dtype)))


def lookup(table: jax.Array, ids: jax.Array, dtype: Any) -> jax.Array:
    """`Numerics.rows` in a type."""
    return _rows(table, ids) if jnp.dtype(dtype) == jnp.bfloat16 else _read(table.astype(dtype), ids)


def _read(table, ids):
    # The whole table on every device: a lookup in a split one would give rows split by width, not by batch.
    return constrain(table, None, None)[ids]


@jax.custom_vjp
def _rows(table, ids):
    return _read(table.astype(jnp.bfloat16), ids)


def _rows_backward(given, dy):
    table, ids = given  # each device sums over its own part of the batch
    summed = constrain(jnp.zeros_like(wide(table)).at[ids].add(wide(dy)), None, None)
    return summed.astype(table.dtype), None


_rows.defvjp(lambda table, ids: (_rows(table, ids), (table, ids)), _rows_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _wide(equation, a, b):
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _wide_forward(equation, a, b):
    return _wide(equation, a, b), (a, b)


def _wide_backward(equation, operands, dy):
    # JAX's own rule would widen the operands to the float32 of dy.
    return jax.vjp(partial(jnp.einsum, equation), *operands)[1](dy.astype(operands[0].dtype))


_wide.defvjp(_wide_forward, _wide_backward)


def _product(a, b, precision, axes=(1, 0)):
    """Contracts axis axes[0] of a with axis axes[1] of b, both matrices."""
    return lax.dot_general(a, b, (((axes[0],), (axes[1],)), ((), ())), precision=precision)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dense(x, kernel, precision):
    """y = x·W with dW = xᵀ·dy contracted over the token axes.

    JAX's own rule computes dW as (dyᵀ·x)ᵀ. XLA on CPU then writes dyᵀ in a strided loop, into which it fuses, and so
    recomputes, whatever produced dy; contracting x with dy avoids the transpose and the recomputation.
    """
    return _product(x, kernel, precision)


def _dense_forward(x, kernel, precision):
    return _product(x, kernel, precision), (x, kernel)


def _dense_backward(precision, residuals, dy):
    x, kernel = residuals
    return _product(dy, kernel, precision, (1, 1)), _product(x, dy, precision, (0, 0))


_dense.defvjp(_dense_forward, _dense_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mixed(equation, a, b):
    """jnp.einsum in float32 of operands rounded to bfloat16. An index of a stands in b or in the result; so does one of b."""
    return _narrow(equation, a, b)


def _mixed_forward(equation, a, b):
    if _multiplies_narrow(equation):
        a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return _narrow(equation, a, b), (a, b)


def _mixed_backward(equation, operands, dy):
    (a, b), (of_a, of_b, of_y) = operands, _letters(equation)
    return _narrow(f'{of_y},{of_b}->{of_a}', dy, b), _narrow(f'{of_a},{of_y}->{of_b}', a, dy)


_mixed.defvjp(_mixed_forward, _mixed_backward)


def _narrow(equation, a, b):
    if platform() == 'cpu' and equation in ('RD,RF->DF', 'RD,RF->FD'):  # of dense layers; not narrow as it stands
        if equation.endswith('FD'):
            a, b = b, a
        a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
        if a.size <= b.size + 2 * a.shape[1] * b.shape[1]:  # what is moved, in units of bfloat16
            return _narrow('DR,RF->DF', _transposed(a), b)
        return _transposed(_narrow('DR,RF->DF', _transposed(b), a))
    if not _multiplies_narrow(equation):
        return jnp.einsum(equation, wide(a), wide(b), precision=lax.Precision.HIGHEST)
    y = jnp.einsum(equation, a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    # Without the barrier XLA merges a transposition of y into the product, and then cannot compute it (jaxlib 0.10).
    return lax.optimization_barrier(y) if platform() == 'cpu' else y


def _multiplies_narrow(equation):
    """Whether a product is done in bfloat16: everywhere but on a CPU, and there if it is one of matrices as they lie in memory,
    the second of them perhaps across. XLA on a CPU computes all others in float32, and fails at some."""
    of_a, of_b, of_y = _letters(equation)
    batch = len([*itertools.takewhile(lambda letters: len({*letters}) == 1, zip(of_a, of_b, of_y))])
    contracted, rest = of_a[-1], of_b[batch:]
    return platform() != 'cpu' or (len(of_a) > batch + 1 and len(rest) == 2 and contracted in rest and
                                   of_y == of_a[:-1] + rest.replace(contracted, ''))


def _letters(equation):
    return equation.replace('->', ',').split(',')


def _transposed(x):
    """The transposition of a matrix, in a form that XLA does not merge into a product."""
    rows, columns = x.shape
    parts = 1 if columns % 2 else 2
    return x.reshape(rows, parts, columns // parts).transpose(1, 2, 0).reshape(columns, rows)
