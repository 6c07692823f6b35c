"""Attention of short rows on a TPU: a step of the kernel has all keys of some heads in the memory beside the processor.

Every query sees all of its keys at once. So the softmax needs no running maximum (as in `blockwise`), and the backward pass
computes the weights anew from queries and keys alone: no scores, and no statistics of the softmax, go through the main memory,
only a bias if there is one. With the weights w = softmax(s) and their gradients dw

    s = q·kᵀ / sqrt(H) + bias;  ds = w (dw - sum(dw w));  dq = ds·k / sqrt(H);  dk = dsᵀ·q / sqrt(H);  dbias = sum ds

where a bias that all rows share is read once for each head, and its gradient is summed there. Queries, keys and values stay as
the projections write them, [B, T, N·H]; a step takes as many heads as fill the 128 lanes of the processor.
"""

import dataclasses
import functools
import math
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from transformer.attention.kernels.residuals import residual
from transformer.attention.kernels.terms import arrays_of
from transformer.attention.masks.algebra import EMPTY, FULL, Mask, blocks, conjuncts, static
from transformer.attention.masks.patterns import Full
from transformer.layers.numerics import Numerics
from transformer.layers.sharding import rows_axes, several

LONGEST = 1024  # keys of a row in bfloat16
MEMORY = 16 << 20  # bytes beside the processor that the compiler gives a kernel
_LANES, _SCORES = 128, 1 << 18  # scores that are computed at once: a megabyte
_ODD = tuple(int(np.uint32(x).astype(np.int32)) for x in (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35))


class _Span(NamedTuple):
    """A slice of the queries, the slice of the keys that they see, and whether the pattern shows all of these to all."""
    first: int
    stop: int
    low: int
    high: int
    full: bool

    @property
    def queries(self):
        return slice(self.first, self.stop)

    @property
    def keys(self):
        return slice(self.low, self.high)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The static arguments.

    Attributes:
      width, shared: width of a head, and how many heads of queries share one of keys and values.
      masks, patterned: the number of arrays of masks, and whether the last is that of the pattern.
    """
    width: int
    shared: int
    spans: tuple
    masks: int
    patterned: bool
    rate: float
    numerics: Numerics
    interpret: bool


def lacks(query: Any, key: Any, *, mask: Mask, bias: tuple, numerics: Numerics) -> str | None:
    """What this kernel does not support of a call that a fused kernel may compute, or None."""
    (batch, queries, heads, width), (_, keys, key_heads, _) = query.shape, key.shape
    if numerics.dtype not in ('float32', 'bfloat16'):
        return f'numbers in {numerics.dtype}'
    bytes_of = jnp.dtype(numerics.dtype).itemsize
    if keys > LONGEST * 2 // bytes_of:  # products in float32 have copies of their operands there, in parts of bfloat16
        return f'rows of more than {LONGEST * 2 // bytes_of} keys in {numerics.dtype}'
    rows, group = _rows_of_step(queries, keys, batch), _heads_of_step(width, key_heads)
    shared = group * (heads // key_heads)
    masks = jax.eval_shape(lambda mask: _masks(mask, queries, keys)[2], mask)
    total = jax.eval_shape(lambda bias: _total(bias, queries, keys), bias) if bias else None
    lanes = lambda heads: -(-heads * width // _LANES) * _LANES
    # A block and the next, of 3 arrays of queries, 4 of keys, masks, a bias, its gradient; sums for keys; 5 MB of scores.
    need = 2 * bytes_of * rows * (3 * queries * lanes(shared) + 4 * keys * lanes(group)) + 8 * keys * lanes(group)
    need += 2 * sum(math.prod(x.shape[1:]) * min(x.shape[0], rows) for x in masks) + 20 * _SCORES
    need += 16 * queries * keys * shared * min(total.shape[0], rows) if bias else 0
    return f'a step needs {need >> 20} MB beside the processor, and has {MEMORY >> 20}' if need > MEMORY else None


def rows(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask, bias: tuple = (), rate: float = 0.0,
         dropout_key: jax.Array | None = None, numerics: Numerics, interpret: bool = False) -> jax.Array:
    """`attend` with this kernel; each device computes its rows and heads. Dropout drops other weights than `plain`.

    Args:
      interpret: emulate the kernel on any device.
    """
    (batch, queries, heads, width), (_, keys, key_heads, _) = query.shape, key.shape
    spans, patterned, masks = _masks(mask, queries, keys)
    total = [_total(bias, queries, keys)] if bias else []
    total = tuple(jnp.broadcast_to(x, (len(x), heads, queries, keys)) for x in total)
    seeds = (jax.random.bits(dropout_key, (2,), jnp.uint32).astype(jnp.int32),) if rate else ()
    plan = _Plan(width, heads // key_heads, spans, len(masks), patterned, rate, numerics, interpret)
    arrays = tuple(map(numerics.cast, (query, key, value)))
    if not several():
        return _of_device(plan, (), *arrays, masks, total, seeds)
    by_row, by_head = rows_axes(batch), 'tensor' if key_heads % jax.sharding.get_abstract_mesh().shape['tensor'] == 0 else None
    of = lambda x, *more: PartitionSpec(by_row if len(x) > 1 else None, *more)
    spec = PartitionSpec(by_row, None, by_head)
    specs = spec, spec, spec, tuple(map(of, masks)), tuple(of(x, by_head) for x in total), (PartitionSpec(),) * len(seeds)
    local = functools.partial(_of_device, plan, (by_row, by_head))
    function = jax.shard_map(local, in_specs=specs, out_specs=spec, check_vma=False)
    return function(*arrays, masks, total, seeds)


def _masks(mask, queries, keys):
    """(the spans of the pattern, whether one of them needs it, [1|B, 1|T, S] int8, 1 where a query sees a key: of each term of
    the data, and then of the pattern if it is needed)."""
    terms = conjuncts(mask)
    pattern = functools.reduce(operator.and_, filter(static, terms), Full())
    spans = _spans(pattern, queries, keys)
    patterned = not all(span.full for span in spans)
    return spans, patterned, tuple(_visible(one, queries, keys) for one in [
        *(one for one in terms if not static(one)), *[pattern] * patterned])


def _visible(mask, queries, keys):
    """[1|B, 1|T, S] int8, 1 where a query sees a key."""
    seen = jnp.asarray(mask(np.arange(queries), np.arange(keys)), jnp.int8)
    seen = seen if seen.ndim == 3 else seen[None]
    return jnp.broadcast_to(seen, (*seen.shape[:2], keys))


def _total(bias, queries, keys):
    """[1|B, 1|N, 1|T, 1|S] float32, the sum of the entries."""
    total = sum(entry.astype(jnp.float32) for entry in arrays_of(bias, queries, keys))
    return total.reshape((1,) * (4 - total.ndim) + total.shape)


def _spans(pattern, queries, keys):
    """The spans of a row; queries that see nothing have a block of keys all the same, which the pattern hides."""
    state = blocks(pattern, queries, keys, (_LANES, _LANES))
    size = max(_SCORES // (len(state[0]) * _LANES) // _LANES, 1)  # in blocks
    size = size if (state == FULL).all() else min(size, 2)
    found = []
    for first in range(0, len(state), size):
        part = state[first:first + size]
        seen = np.flatnonzero((part != EMPTY).any(0))
        low, high = (int(seen[0]), int(seen[-1]) + 1) if len(seen) else (0, 1)
        found.append(_Span(first * _LANES, min((first + size) * _LANES, queries), low * _LANES, min(high * _LANES, keys),
                           bool((part[:, low:high] == FULL).all())))
    return tuple(found)


def _heads_of_step(width, key_heads):
    """How many heads of keys fill the lanes; the last step has fewer if their number is not divisible."""
    return min(_LANES // math.gcd(width, _LANES), key_heads)


def _rows_of_step(queries, keys, batch):
    """Short rows share a step."""
    return next(rows for rows in range(min(max(512 // max(queries, keys), 1), batch), 0, -1) if batch % rows == 0)


def _of_device(plan, axes, query, key, value, masks, bias, seeds):
    """The arrays of one device, whose rows and heads are split over the axes of the mesh -> [B, T, N, H]."""
    first = [jax.lax.axis_index(axis) * size if axis else 0 for axis, size in zip(axes, query.shape[::2])] or [0, 0]
    seeds = tuple(jnp.concatenate([x, jnp.array(first, jnp.int32)]) for x in seeds)
    flat = [x.reshape(*x.shape[:2], -1) for x in (query, key, value)]
    return _attend(plan, *flat, masks, bias, seeds).reshape(query.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan, query, key, value, masks, bias, seeds):
    return _forward(plan, query, key, value, masks, bias, seeds)[0]


def _forward(plan, query, key, value, masks, bias, seeds):
    out, = _call(_forward_kernel, plan, (query, key, value), masks, bias, seeds, [query])
    # Named for the gradient of what follows, so that the kernel does not run again where that policy is used.
    return residual(out), (query, key, value, masks, bias, seeds)


def _backward(plan, residuals, dout):
    query, key, value, masks, bias, seeds = residuals
    dquery, dkey, dvalue, *dbias = _call(_backward_kernel, plan, (query, key, value, dout), masks, bias, seeds,
                                         [query, key, value, *bias])
    return dquery, dkey, dvalue, None, tuple(dbias), None


_attend.defvjp(_forward, _backward)


def _call(kernel, plan, arrays, masks, bias, seeds, like):
    """The outputs, in the shapes of the arrays `like`, of a kernel that runs over groups of heads, for each over rows."""
    from jax.experimental import pallas  # slow to import
    from jax.experimental.pallas import tpu

    (batch, queries, _), (_, keys, wide) = arrays[0].shape, arrays[1].shape
    key_heads, shared_bias = wide // plan.width, any(len(x) == 1 for x in bias)
    rows, heads = _rows_of_step(queries, keys, batch), _heads_of_step(plan.width, key_heads)

    def of_heads(x):
        shared = heads if x.shape[2] == wide else heads * plan.shared
        return pallas.BlockSpec((rows, x.shape[1], shared * plan.width), lambda group, row, *_: (row, 0, group))

    def of_mask(x):
        return pallas.BlockSpec((rows if x.shape[0] > 1 else 1, *x.shape[1:]),
                                lambda group, row, *_: (row if x.shape[0] > 1 else 0, 0, 0))

    def of_bias(x):
        return pallas.BlockSpec((rows if x.shape[0] > 1 else 1, heads * plan.shared, *x.shape[2:]),
                                lambda group, row, *_: (row if x.shape[0] > 1 else 0, group, 0, 0))

    scratch = [tpu.VMEM((keys, heads * plan.width), jnp.float32)] * 2 if len(like) > 1 else []
    return pallas.pallas_call(
        functools.partial(kernel, plan, shared_bias if bias else None), [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like],
        grid_spec=tpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(seeds), grid=(-(-key_heads // heads), batch // rows),
            in_specs=[*map(of_heads, arrays), *map(of_mask, masks), *map(of_bias, bias)],
            out_specs=[of_heads(x) if x.ndim == 3 else of_bias(x) for x in like], scratch_shapes=scratch),
        compiler_params=tpu.CompilerParams(dimension_semantics=(  # the gradient of a shared bias is summed over the rows
            'parallel', 'arbitrary' if shared_bias and len(like) > 1 else 'parallel')),
        interpret=plan.interpret)(*seeds, *arrays, *masks, *bias)


def _forward_kernel(plan, shared_bias, *refs):
    step, (query, key, value), (out,) = _Step.of(plan, shared_bias, refs, 3)

    def row(b, _):
        for head, span in step.parts():
            at, of_keys = (b, span.queries, step.columns(head)), (b, span.keys, step.columns(head // plan.shared))
            weights, total = step.weights(span, query[at], key[of_keys], b, head)
            dropped = plan.numerics.cast(step.dropped(span, b, head, weights)[0])
            out[at] = (step.product(dropped, value[of_keys], 1, 0) / total).astype(out.dtype)

    step.each_row(row)


def _backward_kernel(plan, shared_bias, *refs):
    from jax.experimental import pallas

    step, (query, key, value, dout), (dquery, dkey, dvalue, *dbias, sum_key, sum_value) = _Step.of(plan, shared_bias, refs, 4)
    scale = plan.width ** -0.5

    def row(b, _):
        sum_key[...], sum_value[...] = jnp.zeros_like(sum_key), jnp.zeros_like(sum_value)
        for of_bias in dbias:  # that of all rows is summed over the steps
            @pallas.when(jnp.logical_or(not shared_bias, step.first_row + b == 0))
            def _(of_bias=of_bias):
                of_bias[0 if shared_bias else b] = jnp.zeros(of_bias.shape[1:], of_bias.dtype)
        for head, span in step.parts():
            at, of_keys = (b, span.queries, step.columns(head)), (b, span.keys, step.columns(head // plan.shared))
            weights, total = step.weights(span, query[at], key[of_keys], b, head)
            weights = weights * (1.0 / total)
            dropped, dweights = step.dropped(span, b, head, weights, step.product(dout[at], value[of_keys], 1, 1))
            dscores = weights * (dweights - (weights * dweights).sum(-1, keepdims=True))
            for of_bias in dbias:
                of_bias[0 if shared_bias else b, head, span.queries, span.keys] += dscores
            dscores = plan.numerics.cast(dscores)
            sum_value[of_keys[1:]] += step.product(plan.numerics.cast(dropped), dout[at], 0, 0)
            sum_key[of_keys[1:]] += step.product(dscores, query[at], 0, 0)
            dquery[at] = (step.product(dscores, key[of_keys], 1, 0) * scale).astype(dquery.dtype)
        dkey[b], dvalue[b] = (sum_key[...] * scale).astype(dkey.dtype), sum_value[...].astype(dvalue.dtype)

    step.each_row(row)


@dataclasses.dataclass(frozen=True)
class _Step:
    """What both kernels do in a step, with the references of masks, bias and seeds.

    Attributes:
      rows, heads: of queries in a step.
      first_row, first_head: their places.
    """
    plan: _Plan
    masks: tuple
    bias: tuple
    seeds: tuple
    rows: int
    heads: int
    first_row: jax.Array
    first_head: jax.Array

    @classmethod
    def of(cls, plan, shared_bias, refs, arrays):
        """(the step, the arrays, the other references) of those of a kernel."""
        from jax.experimental import pallas

        ends = list(np.cumsum([plan.rate > 0, arrays, plan.masks, shared_bias is not None]))
        seeds, inputs, masks, bias, rest = (refs[a:b] for a, b in zip([0, *ends], [*ends, None]))
        rows, heads = inputs[0].shape[0], inputs[0].shape[2] // plan.width
        step = cls(plan, masks, bias, seeds, rows, heads, pallas.program_id(1) * rows, pallas.program_id(0) * heads)
        return step, inputs, rest

    def parts(self):
        return [(head, span) for head in range(self.heads) for span in self.plan.spans]

    def each_row(self, row):
        if self.rows > 1:
            jax.lax.fori_loop(0, self.rows, row, None)
        else:
            row(0, None)

    def columns(self, head):
        return slice(head * self.plan.width, (head + 1) * self.plan.width)

    def product(self, a, b, of_a, of_b):
        """The product over an axis of a and one of b, in float32."""
        return jax.lax.dot_general(a, b, (((of_a,), (of_b,)), ((), ())), precision=self.plan.numerics.precision,
                                   preferred_element_type=jnp.float32)

    def weights(self, span, query, key, row, head):
        """(exp(s - max s) of a span, the sums of its rows; 1 where a query sees nothing)."""
        of_row = lambda x: row if x.shape[0] > 1 else 0
        scores = self.product(query, key, 1, 1) * self.plan.width ** -0.5
        for array in self.bias:
            scores = scores + array[of_row(array), head, span.queries, span.keys]
        masks = self.masks[:-1] if self.plan.patterned and span.full else self.masks
        unsure = bool(masks or self.bias)  # whether a query may see nothing
        for mask in masks:
            seen = mask[of_row(mask), span.queries if mask.shape[1] > 1 else slice(None), span.keys]
            scores = jnp.where(seen.astype(jnp.int32) != 0, scores, -jnp.inf)
        top = scores.max(-1, keepdims=True)
        weights = jnp.exp(scores - (jnp.where(top > -jnp.inf, top, 0.0) if unsure else top))
        total = weights.sum(-1, keepdims=True)
        return weights, jnp.where(total > 0.0, total, 1.0) if unsure else total

    def dropped(self, span, row, head, *arrays):
        """Arrays [T, S] of a span, with the same dropout."""
        if not self.seeds:
            return arrays
        queries, keys = (jax.lax.broadcasted_iota(jnp.int32, (span.stop - span.first, span.high - span.low), axis) + first
                         for axis, first in enumerate((span.first, span.low)))
        first, second, *place = (self.seeds[0][i] for i in range(4))
        place = [a + b + c for a, b, c in zip(place, (self.first_row, self.first_head), (row, head))]
        kept = hashed(queries * LONGEST + keys, *of_cell(first, second, *place)) >= least_kept(self.plan.rate)
        return [jnp.where(kept, x / (1.0 - self.plan.rate), 0.0) for x in arrays]


def of_cell(first: jax.Array, second: jax.Array, row: jax.Array, head: jax.Array) -> tuple:
    """Two seeds for a row and head of two for all."""
    return hashed(head, hashed(row, first, second), second), hashed(row, hashed(head, second, first), first)


def least_kept(rate: float) -> int:
    """The smallest hash of a weight that is not dropped."""
    return min(round(rate * 2 ** 31), 2 ** 31 - 1)


def hashed(places: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """int32 from 0 to 2^31 - 1: a hash of int32 and of two seeds, mixed as at the end of MurmurHash3 (Appleby 2011)."""
    x = places * _ODD[0] + first
    x = (x ^ jax.lax.shift_right_logical(x, 16)) * _ODD[1]
    x = (x ^ second ^ jax.lax.shift_right_logical(x, 13)) * _ODD[2]
    return jax.lax.shift_right_logical(x ^ jax.lax.shift_right_logical(x, 16), 1)
