"""Floating point operations of a function, counted from its jaxpr: the numerator of "percent of peak"."""

import math
import re

import jax
import numpy as np
from jax.extend import core


def count(function, *args) -> int:
    """Floating point operations of the matrix products and convolutions in one call `function(*args)`.

    A product of [m,k] and [k,n] is 2·m·k·n operations; a convolution counts the kernel taps that meet an input element,
    so padding and dilation holes cost nothing and each transposed convolution costs what its forward does. Elementwise
    work, reductions and gathers are left out, as in the usual figures of model FLOPs utilisation (PaLM, appendix B).

    Nothing runs or is compiled: `args` are pytrees of arrays or `jax.ShapeDtypeStruct`s. The count is of what the program
    executes, over all devices: `scan` times its length, `cond` its most expensive branch, `shard_map` times its devices,
    Pallas kernels times their grid, of cuDNN's attention what a causal mask leaves, rematerialised products again; products
    whose result is unused are skipped. The body of a `while` loop counts once, as the program does not tell its number of
    iterations. In a scope `computes_NAME=SHARE_NAME=SHARE` (jax.named_scope) only that share of the grid of a kernel is counted
    whose name has the part NAME: the blocks that it does not skip.
    """
    return count_jaxpr(jax.make_jaxpr(function)(*args))


def count_jaxpr(jaxpr) -> int:
    """`count` of a traced function."""
    return _count(jaxpr)


def products_of_activations(jaxpr) -> int:
    """The part of `count_jaxpr` that is products with two batch dimensions or more, as the scores and the mixing of attention
    are for each row and head."""
    return _count(jaxpr, counted=lambda batch: len(batch) > 1)


def _count(jaxpr, wanted=None, counted=None, shares=()) -> int:
    """Sum over the equations on which the outputs depend; `wanted` tells which outputs are used (None: all), `counted` which
    products count, by their batch dimensions (None: all, and convolutions), `shares` what kernels compute of their grid."""
    jaxpr = getattr(jaxpr, 'jaxpr', jaxpr)  # a ClosedJaxpr holds its Jaxpr
    outputs = jaxpr.outvars if wanted is None else [v for v, used in zip(jaxpr.outvars, wanted) if used]
    live = {v for v in outputs if isinstance(v, core.Var)}
    total = 0
    for equation in reversed(jaxpr.eqns):
        used = [v in live for v in equation.outvars]
        if not any(used) and not equation.effects:
            continue
        live.update(v for v in equation.invars if isinstance(v, core.Var))
        total += _equation(equation, used, counted, _shares(equation, shares))
    return total


def _shares(equation, around):
    """{part of a kernel's name: the share of its grid that it computes}, by the scope of this equation or the calls around."""
    found = re.search(r'computes((_[a-z]+=[\d.]+)+)', str(equation.source_info.name_stack))
    return around if not found else {name: float(share) for name, share in re.findall(r'_([a-z]+)=([\d.]+)', found[1])}


def _equation(equation, used, counted, shares) -> int:
    params = equation.params
    match equation.primitive.name:
        case 'dot_general':
            (contracting, _), (batch, _) = params['dimension_numbers']
            if counted and not counted(batch):
                return 0
            lhs = equation.invars[0].aval.shape
            return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(lhs[i] for i in contracting)
        case 'conv_general_dilated':
            return 0 if counted else _convolution(equation)
        case 'scan':  # a later iteration may use an output that is unused at the end: all count as used
            return params['length'] * _count(params['jaxpr'], counted=counted, shares=shares)
        case 'while':
            return sum(_count(params[part], counted=counted, shares=shares) for part in ('cond_jaxpr', 'body_jaxpr'))
        case 'cond':
            return max(_count(branch, used, counted, shares) for branch in params['branches'])
        case 'shard_map':
            shards = math.prod(params['mesh'].shape[axis] for axis in params['newly_manual_axes'])
            return shards * _count(params['jaxpr'], used, counted, shares)
        case 'dot_product_attention_fwd_wrapper':  # cuDNN's: scores and mixing
            return _attention(equation, 1, 1)
        case 'dot_product_attention_bwd_wrapper':  # the scores again, and two gradients of each product
            return _attention(equation, 3, 2)
        case 'pallas_call':
            share = next((shares[part] for part in shares if f'_{part}_' in f'_{params["name"]}_'), 1.0)
            return round(share * math.prod(params['grid_mapping'].grid) * _count(params['jaxpr'], counted=counted))
    # jit, remat, custom_jvp, custom_vjp and the like are calls, mostly with one output for each output of the callee.
    bodies = [getattr(body, 'jaxpr', body) for body in core.jaxprs_in_params(params)]
    return sum(_count(body, used if len(body.outvars) == len(used) else None, counted, shares) for body in bodies)


def _attention(equation, with_keys, with_values) -> int:
    """So many products of pairs of positions with the width of keys and with that of values, of pairs that are not masked."""
    params = equation.params
    query, key, value = (v.aval.shape for v in equation.invars[:3])  # [B, T, N, H], as jax.nn.dot_product_attention has them
    row, keys = np.arange(query[1]), key[1]
    first, last = np.zeros_like(row), np.full_like(row, keys)
    if 'CAUSAL' in params['mask_type'].name:
        last = np.minimum(row + 1, keys)
        first = np.maximum(0, row + 1 - (params.get('sliding_window_length') or keys))
    pairs = int(np.maximum(0, last - first).sum())
    return 2 * query[0] * query[2] * pairs * (with_keys * key[3] + with_values * value[3])


def _convolution(equation) -> int:
    params = equation.params
    numbers = params['dimension_numbers']
    lhs, rhs = (v.aval.shape for v in equation.invars)
    out = equation.outvars[0].aval.shape
    taps = 1
    for i, (low, _) in enumerate(params['padding']):
        size, kernel, steps = lhs[numbers.lhs_spec[2 + i]], rhs[numbers.rhs_spec[2 + i]], out[numbers.out_spec[2 + i]]
        position = (
            np.arange(steps)[:, None] * params['window_strides'][i]
            + np.arange(kernel)[None, :] * params['rhs_dilation'][i]
            - low
        )  # [output, tap] in the dilated input
        hole = params['lhs_dilation'][i]
        taps *= int(np.sum((position >= 0) & (position <= (size - 1) * hole) & (position % hole == 0)))
    batch, features = (out[axis] for axis in numbers.out_spec[:2])
    return 2 * batch * features * rhs[numbers.rhs_spec[1]] * taps
