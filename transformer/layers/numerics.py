"""The number policy: the types of computation and storage, and the gradient of a dense layer.

Matrix products take their operands in `dtype` and accumulate in float32; `dtype='float32'` means full float32 products
(precision `highest`), even where an accelerator uses TF32 or bfloat16 passes by default. Softmax, norms and losses
are in at least float32 (`wide`). Parameters are stored in `parameter_dtype` and read in at least float32.

`dtype='float64'` is for proofs on a CPU. All numbers of a program are then float64, constants and positions included
(`real_dtype`), which needs `jax.config.update('jax_enable_x64', True)` or, around a part of a program, `jax.enable_x64(True)`.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

DTYPES = ('float32', 'bfloat16', 'float64')


def wide(x: jax.Array) -> jax.Array:
    """x in at least float32: the type of softmax, norms, losses and activations."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def real_dtype() -> jnp.dtype:
    """The type of constants, positions and counts that become real numbers: float64 if JAX has 64-bit types enabled, else
    float32."""
    return jnp.result_type(float)


@dataclasses.dataclass(frozen=True)
class Numerics:
    """How products are computed, and how parameters are stored.

    Attributes:
      dtype: type of the operands and results of matrix products: 'float32', 'bfloat16', or 'float64' for proofs on a CPU.
      dense_gradient: form dW of a dense layer as xᵀ·dy (see `_dense`); False leaves it to JAX's transpose rule.
      parameter_dtype: type in which parameters are stored, one of the same. They are drawn in float32 and rounded once.
    """
    dtype: str = 'float32'
    dense_gradient: bool = True
    parameter_dtype: str = 'float32'

    def __post_init__(self):
        for name in ('dtype', 'parameter_dtype'):
            if getattr(self, name) not in DTYPES:
                raise ValueError(f'{name} is {getattr(self, name)!r}; expected one of {", ".join(DTYPES)}.')

    @property
    def precision(self) -> Any:
        return lax.Precision.DEFAULT if self.dtype == 'bfloat16' else lax.Precision.HIGHEST

    def cast(self, x: jax.Array) -> jax.Array:
        """x in `dtype`."""
        return x.astype(_there(self.dtype))

    def parameter(self, module: Any, name: str, initialiser: Callable, shape: tuple[int, ...]) -> jax.Array:
        """A parameter of a Flax module: drawn by initialiser(key, shape, float32), stored in `parameter_dtype`, and read in at
        least float32 and `dtype`. Raises ValueError if the stored shape differs."""
        stored = _there(self.parameter_dtype)
        if not module.has_variable('params', name):
            return self.read(module.param(name, lambda key: initialiser(key, shape, jnp.float32).astype(stored)))
        held = module.get_variable('params', name)  # `module.param` would trace the initialiser again to compare shapes
        if held.shape != tuple(shape):
            path = '/'.join((*module.path, name))
            raise ValueError(f'The parameter {path} has the shape {held.shape}, but the model needs {tuple(shape)}.')
        return self.read(held)

    def read(self, x: jax.Array) -> jax.Array:
        """A stored parameter for computation: in at least float32 and `dtype`."""
        return x.astype(jnp.result_type(x.dtype, jnp.float32, _there(self.dtype)))

    def einsum(self, equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
        """jnp.einsum under the policy."""
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
        y = (_dense if self.dense_gradient else _product)(x, kernel, self.precision)
        return y.reshape(*batch, *out)


def _there(dtype):
    """The type, if the settings of JAX allow it; JAX itself would only warn and use float32 in place of float64."""
    if dtype == 'float64' and real_dtype() != jnp.dtype(dtype):
        raise ValueError('Numbers in float64 need the 64-bit types of JAX, which are switched off; call '
                         "jax.config.update('jax_enable_x64', True) first.")
    return dtype


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
