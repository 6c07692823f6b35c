"""The one number policy: what is computed in which type, and how the gradient of a dense layer is formed.

Parameters, softmax, norms and losses are float32. Matrix products take their operands in `dtype` and accumulate in
float32; `dtype='float32'` means full float32 products (precision `highest`), also where an accelerator would round to
TF32 or bfloat16 passes by default.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True)
class Numerics:
    """How products are computed.

    Attributes:
      dtype: type of the operands and results of matrix products, 'float32' or 'bfloat16'.
      dense_gradient: form dW of a dense layer as xᵀ·dy (see `_dense`); False leaves it to JAX's transpose rule.
    """
    dtype: str = 'float32'
    dense_gradient: bool = True

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise ValueError(f'dtype is {self.dtype!r}; expected one of {", ".join(DTYPES)}.')

    @property
    def precision(self):
        return lax.Precision.HIGHEST if self.dtype == 'float32' else lax.Precision.DEFAULT

    def cast(self, x):
        return x.astype(self.dtype)

    def einsum(self, equation, a, b):
        """jnp.einsum under the policy."""
        return jnp.einsum(equation, self.cast(a), self.cast(b), precision=self.precision)

    def scores(self, equation, a, b):
        """The same, but what comes out keeps the float32 it was accumulated in; its gradient is taken in `dtype`."""
        if self.dtype == 'float32':
            return self.einsum(equation, a, b)
        return _wide(equation, self.cast(a), self.cast(b))

    def dense(self, x, kernel, axes=1):
        """Contracts the last `axes` dimensions of x with the first `axes` of kernel: [..., D] x [D, F] -> [..., F]."""
        if x.shape[x.ndim - axes:] != kernel.shape[:axes]:
            raise ValueError(f'A dense layer of kernel {kernel.shape} got an input of shape {x.shape}; its last '
                             f'{axes} dimensions must be {kernel.shape[:axes]}.')
        batch, inner, out = x.shape[:x.ndim - axes], kernel.shape[:axes], kernel.shape[axes:]
        x = self.cast(x).reshape(math.prod(batch), math.prod(inner))
        kernel = self.cast(kernel).reshape(math.prod(inner), math.prod(out))
        y = (_dense if self.dense_gradient else _product)(x, kernel, self.precision)
        return y.reshape(*batch, *out)


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
