"""Multi-head attention (Vaswani et al. 2017, section 3.2.2), with a static cache for decoding."""

import itertools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.context import Context
from transformer.attention.mechanism import Given, Mechanism, Softmax
from transformer.attention.mechanisms import alternatives, channels, hashing, linear, nystrom, projected, synthesizer
from transformer.attention.positions.base import Positions
from transformer.attention.scores import ScaledDot
from transformer.layers.dense import Dense, Parameters
from transformer.layers.dropout import fold
from transformer.layers.initial import normal
from transformer.layers.numerics import Numerics
from transformer.layers.roles import matrix
from transformer.layers.sharding import platform

# Imported, so that a config can name them.
FORMS = alternatives, channels, hashing, linear, nystrom, projected, synthesizer


class MultiHead(nn.Module):
    """concat_n(mechanism(x Wq_n, y Wk_n, z Wv_n)) Wo, with sources x of the queries, y of the keys and z of the values.

    Attributes:
      heads: number of query heads N.
      key_heads: number of heads K of keys and values, each shared by N / K query heads: 1 is multi-query attention (Shazeer
        2019), more is grouped-query attention (Ainslie et al. 2023); 0 stands for N.
      head_width: width H of queries and keys in a head; 0 stands for D / N.
      key_width: width of keys in a head, for scores that take another than the queries'; 0 stands for H.
      value_width: width of values in a head; 0 stands for H.
      mechanism: mixes the positions.
      bias: add biases in the projections to queries, keys and values.
      output_bias: add a bias to the output.
      dropout: rate on the attention weights.
      kernel_init, value_init, output_init: initialisers of the projections to queries and keys, to values, and of the
        output.
      query_init: from the head width to the initialiser of the projection to queries; None: `kernel_init`.
      query_scale: from the head width to a factor of the scores, for `ScaledDot`; None: 1.
    """
    heads: int
    key_heads: int = 0
    head_width: int = 0
    key_width: int = 0
    value_width: int = 0
    mechanism: Mechanism = Softmax()
    bias: bool = True
    output_bias: bool = True
    dropout: float = 0.0
    kernel_init: Callable = normal(0.02)
    value_init: Callable = normal(0.02)
    output_init: Callable = normal(0.02)
    query_init: Callable | None = None
    query_scale: Callable | None = None
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x: jax.Array, y: jax.Array | None = None, z: jax.Array | None = None, context: Context = Context(), *,
                 key: jax.Array | None = None, cache: dict | None = None, projected: dict | None = None,
                 head_mask: jax.Array | None = None) -> tuple:
        """x [B, T, D], y [B, S, Dy], z [B, S, Dz] -> ([B, T, D], cache, aux); y = None: x, self-attention; z = None: y.

        Reads mask, encoding, positions and capture of the context. If 'attention' is captured, `aux` holds the mechanism's
        'weights' [B, N, T, S]; if 'scores' or 'visible' are, it holds these.

        Args:
          key: random key of training; None switches dropout off.
          cache: from `Mechanism.empty_cache`; the call writes the new positions and returns the updated cache. Without a cache
            it returns None, and for cross attention the projected source.
          projected: the projected source that an earlier call returned, in place of y and z. It may have fewer rows, by a
            factor K: then K consecutive rows of x (the hypotheses of a beam) share one.
          head_mask: [N] or [B, 1, N], factors of the outputs of the heads, before the output projection; None: ones.
        """
        cross = any(given is not None for given in (y, z, projected))
        self._check(x, y, z, context, cross, cache)
        width = x.shape[-1]
        encoding = context.encoding.in_layer(self.heads, self.head_width or width // self.heads, width, context.mask.causal)
        own = Parameters(encoding.kind.layer_parameters(encoding.sizes), encoding.fit, self.numerics,
                         name='positions')()
        places = encoding.query, encoding.key if cache is None else encoding.query  # of queries and of the new keys
        moved = encoding.at_source(x, encoding.query)
        turns = type(encoding.kind).at_heads is not Positions.at_heads
        self.mechanism.check(context.mask, placed=moved is not x or turns)
        sources = {'query': moved} if projected is not None else {
            'query': moved, 'key': self._key_source(x, y, moved, encoding, places),
            'value': next(a for a in (z, y, x) if a is not None)}
        queries, keys, values = self._project(sources, width)
        queries, keys = (a if a is None else encoding.at_heads(own, a, place) for a, place in zip((queries, keys), places))
        queries = self._scaled(queries)
        if projected is not None:
            queries, keys, values = self._cross(queries, projected)
        bias = encoding.bias(own, cached=cache is not None)
        self.mechanism.check(context.mask, biased=bool(bias))
        given = Given(context.mask, bias, None, self.dropout, fold(key, 'weights'), self.numerics)
        out, cache, aux = self._mix(queries, keys, values, given, context, cache)
        out = self._output(out.reshape(*x.shape[:2], *out.shape[2:]), head_mask, width)
        if projected is not None and aux:  # unfold the rows that share a source
            folded = {name: a.swapaxes(1, 2) for name, a in aux.items()}
            aux = {name: a.reshape(*x.shape[:2], *a.shape[2:]).swapaxes(1, 2) for name, a in folded.items()}
        return out, _source_of(keys, values) if cross else cache, aux

    def _check(self, x, y, z, context, cross, cache):
        """Raises ValueError for impossible sizes, and for uses that the mechanism does not support."""
        width, key_heads = x.shape[-1], self.key_heads or self.heads
        if not self.head_width and width % self.heads:
            raise ValueError(f'The width {width} is not divisible by {self.heads} heads; choose a divisor of it as heads.')
        if key_heads < 1 or self.heads % key_heads:
            raise ValueError(f'{self.heads} query heads cannot share {key_heads} heads of keys and values; choose a divisor.')
        if self.query_scale and (not isinstance(self.mechanism, Softmax) or self.mechanism.score != ScaledDot()
                                 or context.encoding.kind.by_content):
            raise ValueError(f'initial=MuP(..) has scores for Softmax() and for positions that do not look at content, such as '
                             f'Learned(), Rotary() and Alibi(), but this attention is {self.mechanism} with '
                             f'{context.encoding.kind}; use these, or another initial.')
        context.mask.require_length(max(a.shape[1] for a in (x, y, z) if a is not None))
        self.mechanism.check(context.mask, cross=cross, cached=cache is not None, shared=key_heads != self.heads)

    def _key_source(self, x, y, moved, encoding, places):
        """The source of the keys; where possible the same array as for queries, so that one product projects both."""
        return moved if y is None and places[0] is places[1] else encoding.at_source(x if y is None else y, places[1])

    def _project(self, sources, width):
        """Queries, keys and values [B, T|S, N|K, H]; None for those that the mechanism does not use."""
        key_heads, head_width = self.key_heads or self.heads, self.head_width or width // self.heads
        shapes = {'query': (self.heads, head_width), 'key': (key_heads, self.key_width or head_width),
                  'value': (key_heads, self.value_width or head_width)}
        queries = self.query_init(head_width) if self.query_init else self.kernel_init
        inits = {'query': queries, 'key': self.kernel_init, 'value': self.value_init}
        layers = {kind: Dense(shapes[kind], bias=self.bias, kernel_init=inits[kind], numerics=self.numerics, name=kind,
                              role=matrix((0,), (1, 2), heads=1, shared=kind != 'query'))
                  for kind in sources if kind in self.mechanism.projections}
        weights = {kind: layer.weights(sources[kind].shape[-1:]) for kind, layer in layers.items()}
        found = {}
        # One product is faster than three, and its gradient even more so: merge projections of one source and head width. On a
        # TPU the gradients of the three would have to be joined in the memory.
        groups, apart = {}, platform() == 'tpu'
        for kind in layers:
            groups.setdefault((id(sources[kind]), shapes[kind][1], kind if apart else ''), []).append(kind)
        for kinds in groups.values():
            kernel = jnp.concatenate([weights[kind][0] for kind in kinds], 1)  # [D, heads, H]
            out = self.numerics.dense(sources[kinds[0]], kernel.reshape(kernel.shape[0], -1))
            if self.bias:  # added before the heads are apart, which are laid out in another way on a TPU
                out = self.numerics.plus(out, jnp.concatenate([weights[kind][1] for kind in kinds]).reshape(-1))
            out = out.reshape(*out.shape[:-1], *kernel.shape[1:])
            ends = list(itertools.accumulate(shapes[kind][0] for kind in kinds))
            found |= zip(kinds, jnp.split(out, ends[:-1], 2))
        return [found.get(kind) for kind in ('query', 'key', 'value')]

    def _scaled(self, queries):
        factor = self.query_scale(queries.shape[-1]) if self.query_scale and queries is not None else 1.0
        return queries if factor == 1 else queries * factor

    def _cross(self, queries, projected):
        """Queries [B, T, N, H] folded into the rows of the projected source, [B / K, K·T, N, H], with its keys and values."""
        keys, values = jnp.swapaxes(projected['key'], 1, 2), projected['value'].transpose(0, 3, 1, 2)
        return queries.reshape(keys.shape[0], -1, *queries.shape[2:]), keys, values

    def _mix(self, queries, keys, values, given, context, cache):
        """(the output of the mechanism, the updated cache, the captured arrays)."""
        wanted = self.mechanism.parameters(queries, keys, values)
        self.mechanism.check_shapes(wanted, self.variables.get('params', {}).get('mechanism', {}))
        parameters = Parameters(wanted, numerics=self.numerics, name='mechanism')()
        if cache is not None:
            out, cache = self.mechanism.step(parameters, queries, keys, values, cache, context.positions, given)
            return out, cache, {}
        aux = {}
        if 'attention' in context.capture:
            aux['weights'] = self.mechanism.weights(parameters, queries, keys, values, given)
        if {'scores', 'visible'} & {*context.capture} and (
                found := self.mechanism.scores(parameters, queries, keys, values, given)) is not None:
            shown = dict(zip(('scores', 'visible'), jnp.broadcast_arrays(*found)))
            aux |= {name: x for name, x in shown.items() if name in context.capture}
        return self.mechanism(parameters, queries, keys, values, given), None, aux

    def _output(self, out, head_mask, width):
        """[B, T, N, H] -> [B, T, D]."""
        if head_mask is not None:
            out = out * self.numerics.cast(head_mask)[..., None]
        return Dense(width, axes=2, bias=self.output_bias, role=matrix((0, 1), (2,), heads=0), kernel_init=self.output_init,
                     numerics=self.numerics, name='output')(out)


def _source_of(keys, values):
    """The projected source in a cache: keys [B, K, S, H] and values [B, K, H, S], the layouts of the products of a step."""
    return {'key': jnp.swapaxes(keys, 1, 2), 'value': values.transpose(0, 2, 3, 1)}
