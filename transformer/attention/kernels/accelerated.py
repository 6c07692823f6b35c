"""The fused kernels of accelerators for `attend`: cuDNN's on a GPU, splash attention on a TPU, and what `rows` lacks.

For each there is a function that names the first thing in a call that the kernel does not support, None if there is none.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from transformer.attention.kernels import residuals, rows
from transformer.attention.kernels.terms import arrays_of, terms_of
from transformer.attention.masks.algebra import EMPTY, FULL, Mask, blocks, conjuncts
from transformer.attention.masks.analysis import parts
from transformer.attention.masks.data import Segments
from transformer.attention.masks.patterns import Causal, Full, Window
from transformer.layers.numerics import Numerics
from transformer.layers.sharding import platform, rows_axes, several

SPLASH_BLOCK = 128  # splash attention takes lengths that are a multiple of this


def _lacks(query, value, backend, *, bias, positions):
    """The first thing in a call that no fused kernel supports, or None."""
    if platform() != backend:
        return f'it needs a {backend.upper()}, and this is {platform()}'
    if positions is not None:
        return 'positions other than those of the row'
    if not all(term.additive for term in terms_of(bias)):
        return 'scores other than products'
    return 'values of another width' if value.shape[3] != query.shape[3] else None


def _no_dropout(rate):
    return 'dropout of the weights' if rate else None


def cudnn_lacks(query: Any, key: Any, value: Any, *, mask: Mask, bias: tuple, positions: tuple | None,
                rate: float, numerics: Numerics) -> str | None:
    common = _lacks(query, value, 'gpu', bias=bias, positions=positions) or _no_dropout(rate)
    if common:
        return common
    if numerics.dtype != 'bfloat16':
        return f'{numerics.dtype}, as it has 16-bit types only'
    if query.shape[3] > 128 or query.shape[3] % 8:
        return 'heads that are wider than 128, or not a multiple of 8'
    return None


def cudnn(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask, bias: tuple = (), rate: float = 0.0,
          dropout_key: jax.Array | None = None, numerics: Numerics, implementation: str = 'cudnn') -> jax.Array:
    """`attend` with jax.nn.dot_product_attention: causal masks and causal windows as keywords, others as booleans
    [B|1, 1, T, S].

    Its other `implementation`, 'xla', computes the same from the same keywords."""
    keywords, seen = _keywords(mask, query.shape[1], key.shape[1]), None
    if keywords is None:
        visible = jnp.asarray(mask(jnp.arange(query.shape[1]), jnp.arange(key.shape[1])))
        visible = visible[:, None] if visible.ndim == 3 else visible[None, None]
        visible = jnp.broadcast_to(visible, (*visible.shape[:2], query.shape[1], key.shape[1]))
        seen = visible.any(-1, keepdims=True)
        keywords = {'mask': visible | ~seen}  # a softmax over nothing would be NaN; these rows become zero below
    if bias:
        total = sum(arrays_of(bias, query.shape[1], key.shape[1]))
        shape = (*(1,) * (4 - total.ndim), *total.shape)
        keywords['bias'] = jnp.broadcast_to(numerics.cast(total).reshape(shape), (*shape[:2], query.shape[1], key.shape[1]))
    *arrays, keywords = _even(*map(numerics.cast, (query, key, value)), keywords)
    out = jax.nn.dot_product_attention(*arrays, implementation=implementation, **keywords)[:, :query.shape[1]]
    return out if seen is None else jnp.where(jnp.swapaxes(seen, 1, 2), out, 0)


def _even(query, key, value, keywords):
    """The arrays and keywords with one more query, and one more key that nothing sees, where their number is odd: jax has no
    gradient of cuDNN's attention for such lengths."""
    queries, keys = query.shape[1], key.shape[1]
    if queries % 2 == keys % 2 == 0:
        return query, key, value, keywords
    keywords, rows, columns = dict(keywords), (0, queries % 2), (0, keys % 2)
    if 'mask' in keywords:
        every = jnp.pad(keywords['mask'], [(0, 0), (0, 0), rows, (0, 0)], 'edge')  # no query sees nothing
        keywords['mask'] = jnp.pad(every, [(0, 0), (0, 0), (0, 0), columns])
    if 'bias' in keywords:
        hidden = -0.7 * float(jnp.finfo(keywords['bias'].dtype).max)
        keywords['bias'] = jnp.pad(keywords['bias'], [(0, 0), (0, 0), rows, columns], constant_values=hidden)
    elif keys % 2 and not {'mask', 'is_causal'} & {*keywords}:
        keywords |= {'query_seq_lengths': jnp.full(query.shape[0], queries, jnp.int32),
                     'key_value_seq_lengths': jnp.full(query.shape[0], keys, jnp.int32)}
    longer = lambda x, more: jnp.pad(x, [(0, 0), more, (0, 0), (0, 0)])
    return longer(query, rows), longer(key, columns), longer(value, columns), keywords


def _keywords(mask, queries, keys):
    """The keywords that express a mask; None if no keywords do."""
    if mask == Full():
        return {}
    if queries != keys:
        return None
    if mask == Causal():
        return {'is_causal': True}
    match sorted(conjuncts(mask), key=repr):
        case [Causal(), Window(size=size, block=1)]:
            return {'is_causal': True, 'local_window_size': (size - 1, 0)}
    return None


def rows_lacks(query: Any, key: Any, value: Any, *, mask: Mask, bias: tuple, positions: tuple | None,
               rate: float, numerics: Numerics) -> str | None:
    common = _lacks(query, value, 'tpu', bias=bias, positions=positions)
    return common or rows.lacks(query, key, mask=mask, bias=bias, numerics=numerics)


def splash_lacks(query: Any, key: Any, value: Any, *, mask: Mask, bias: tuple, positions: tuple | None,
                 rate: float, numerics: Numerics) -> str | None:
    common = _lacks(query, value, 'tpu', bias=bias, positions=positions) or _no_dropout(rate)
    return common or _splash_lacks(query, key, mask, bias)


def _splash_lacks(query, key, mask, bias):
    if bias:
        return 'a bias'
    if query.shape[1] % SPLASH_BLOCK or key.shape[1] % SPLASH_BLOCK:
        return f'lengths that are not multiples of {SPLASH_BLOCK}'
    pattern, terms = parts(mask)
    if pattern is None or len(terms) > 1 or not all(isinstance(term, Segments) for term in terms):
        return 'masks of the data other than Segments'
    if not _everyone_sees(pattern, query.shape[1], key.shape[1]):
        return 'masks under which a query sees nothing'
    return None


@functools.lru_cache(maxsize=64)
def _everyone_sees(pattern, queries, keys):
    row, size = np.arange(keys), (SPLASH_BLOCK, SPLASH_BLOCK)
    unsure = np.flatnonzero((blocks(pattern, queries, keys, size) != FULL).all(1))
    return all(np.broadcast_to(pattern(t, row), (len(t), keys)).any(-1).all()
               for t in (np.arange(i * SPLASH_BLOCK, min((i + 1) * SPLASH_BLOCK, queries)) for i in unsure))


def splash(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: Mask, bias: tuple = (), rate: float = 0.0,
           dropout_key: jax.Array | None = None, numerics: Numerics, interpret: bool = False) -> jax.Array:
    """`attend` with the splash attention of jax.experimental.pallas.ops.tpu; each device computes its rows and heads.

    Args:
      interpret: emulate the kernel on any device.
    """
    pattern, terms = parts(mask)
    segments = (terms[0].query, terms[0].key) if terms else ()
    function = functools.partial(_splash, pattern=pattern, interpret=interpret)
    arrays = [jnp.swapaxes(numerics.cast(x), 1, 2) for x in (query * query.shape[3] ** -0.5, key, value)]
    if several():
        heads = 'tensor' if key.shape[2] % jax.sharding.get_abstract_mesh().shape['tensor'] == 0 else None
        of_rows = rows_axes(query.shape[0])
        by_head = PartitionSpec(of_rows, heads)
        function = jax.shard_map(function, in_specs=(*(by_head,) * 3, *(PartitionSpec(of_rows),) * len(segments)),
                                 out_specs=by_head, check_vma=False)
    out = function(*arrays, *segments)
    if segments:
        out = jnp.where((segments[0] != 0)[:, None, :, None], out, 0)  # splash lets padding see padding
    return numerics.cast(jnp.swapaxes(out, 1, 2))


def _splash(query, key, value, *segments, pattern, interpret):
    """query [B, N, T, H], key and value [B, K, S, H] -> [B, N, T, H]: one kernel for the query heads that share a key head."""
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    batch, heads, queries, width = query.shape
    shared, keys = heads // key.shape[1], key.shape[2]
    first = lambda *sizes: next(size for size in sizes if queries % size == 0 and keys % size == 0)
    size = first(512, 384, 256, 128)
    layout = library.QKVLayout.SEQ_MINOR if width % 128 else library.QKVLayout.HEAD_DIM_MINOR  # which fills the tiles of 128
    rows = first(256, 384, 128)  # of every batch and head the kernel also writes what it sums up for a block: small ones
    backward = _backward(pattern, queries, keys, width, query.dtype.itemsize, size)
    kernel = library.make_splash_mqa(
        library.MultiHeadMask([_pattern_class()(pattern, (queries, keys))] * shared), head_shards=1, q_seq_shards=1,
        block_sizes=library.BlockSizes(
            block_q=rows, block_kv=size, block_kv_compute=size, block_kv_dkv_compute=size, **backward,
            q_layout=layout, k_layout=layout, v_layout=layout), residual_checkpoint_name=residuals.NAME,
        interpret=interpret)
    ids = library.SegmentIds(*(x.astype(jnp.int32) for x in segments)) if segments else None
    of_row = jax.vmap(kernel, (0, 0, 0, None))  # over the heads of keys
    with jax.named_scope(_computed(pattern, queries, keys, (rows, size), backward)):
        out = jax.vmap(of_row, (0, 0, 0, 0 if segments else None))(
            query.reshape(batch, key.shape[1], shared, queries, width), key, value, ids)
    return out.reshape(batch, heads, queries, width)


def _backward(pattern, queries, keys, width, itemsize, size):
    """The blocks of the backward pass: one kernel for all gradients, of five products a block, or two kernels of seven.

    The first computes the scores once, but writes the gradients of queries anew for every block of keys. So it has at most
    four of them, and large ones compute more of what the pattern hides.
    """
    count = keys // size
    block = next(size * times for times in range(1, count + 1) if count % times == 0 and count // times <= 4)
    most = 2 ** 19 // (max(width, 128) * itemsize)  # whose arrays fill the 16 MB beside the processor
    rows = size if block < most else math.gcd(size, 256)
    computed = lambda *sizes: np.sum(blocks(pattern, queries, keys, sizes) != EMPTY) * math.prod(sizes)
    if block <= most and 5 * computed(rows, block) <= 7 * computed(size, size):
        return {'use_fused_bwd_kernel': True, 'block_q_dkv': rows, 'block_kv_dkv': block}
    return dict.fromkeys(('block_q_dkv', 'block_kv_dkv', 'block_q_dq', 'block_kv_dq'), size)


def _computed(pattern, queries, keys, forward, backward):
    """The scope that tells training/report/flops.py which share of their grids the three kernels compute.

    A grid is as wide as the row of blocks with the most to compute; that of the kernel for all gradients is whole.
    """
    def share(size, axis):
        seen = blocks(pattern, queries, keys, size) != EMPTY
        return seen.mean() if axis is None else seen.sum(axis).mean() / seen.sum(axis).max()

    fused = 'use_fused_bwd_kernel' in backward
    shares = {'fwd': share(forward, 1), 'dkv': share((backward['block_q_dkv'], backward['block_kv_dkv']), None if fused else 0)}
    if not fused:
        shares['dq'] = share((backward['block_q_dq'], backward['block_kv_dq']), 1)
    return 'computes' + ''.join(f'_{name}={value:.5f}' for name, value in shares.items())


@functools.cache
def _pattern_class():
    """The class of splash-attention masks that slice one of our patterns; made on demand, as Pallas is slow to import."""
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    @dataclasses.dataclass(frozen=True)
    class Pattern(library.Mask):
        pattern: Mask
        size: tuple

        @property
        def shape(self):
            return self.size

        def __getitem__(self, at):
            rows, columns = (np.arange(length)[part] for length, part in zip(self.size, at))
            return np.broadcast_to(self.pattern(rows, columns), (len(rows), len(columns)))

    return Pattern
