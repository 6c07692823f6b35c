"""Multi-head attention (Vaswani et al. 2017, section 3.2.2), with a static cache for decoding."""

import itertools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp

from transformer.attention import alternatives, hashing, linear, nystrom, projected, synthesizer
from transformer.attention.masks import Full
from transformer.attention.mechanism import Given, Mechanism, Softmax
from transformer.attention.positions import Encoding, Positions
from transformer.layers import Dense, Parameters, fold, normal, zeros
from transformer.numerics import Numerics

# Imported, so that a config can name them.
FORMS = alternatives, hashing, linear, nystrom, projected, synthesizer


class MultiHead(nn.Module):
    """concat_n(mechanism(x Wq_n, y Wk_n, z Wv_n)) Wo, with x the queries', y the keys' and z the values' source.

    Attributes:
      heads: number of query heads N.
      key_heads: heads K of keys and values, which N / K query heads share: 1 is multi-query attention (Shazeer 2019), more
        is grouped-query attention (Ainslie et al. 2023); 0 stands for N.
      head_width: width H of queries and keys in a head; 0 stands for D / N.
      key_width: width of keys in a head, for scores that take another than the queries'; 0 stands for H.
      value_width: width of values in a head; 0 stands for H.
      kept: the numbers of the heads that pruning left, each then with keys and values of its own; None: all. Without any,
        the output is its bias.
      mechanism: what mixes the positions.
      bias: biases on the projections.
      dropout: rate on the attention weights.
      kernel_init, value_init, output_init: initialisers of the projections to queries and keys, to values, and of the
        output.
    """
    heads: int
    key_heads: int = 0
    head_width: int = 0
    key_width: int = 0
    value_width: int = 0
    kept: tuple | None = None
    mechanism: Mechanism = Softmax()
    bias: bool = True
    dropout: float = 0.0
    kernel_init: Callable = normal(0.02)
    value_init: Callable = normal(0.02)
    output_init: Callable = normal(0.02)
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, x, y=None, z=None, *, mask=Full(), encoding=Encoding(), key=None, cache=None, positions=None,
                 head_mask=None, projected=None):
        """x [B, T, D], y [B, S, Dy], z [B, S, Dz] -> ([B, T, D], cache); y = None: x, self-attention; z = None: y.

        Args:
          encoding: where queries and keys are, as the position encoding sees it.
          cache: from `Mechanism.empty_cache`; the new positions are written to it, and the new cache is returned. Without
            one, None is returned in its place; where keys have another source, what a cache has of them.
          positions: [B, T], with a cache: where in it the queries are.
          head_mask: [N] or [B, 1, N], factors of what the heads give, before the output projection.
          projected: what an earlier call returned for y and z, in their place. Its rows may be fewer by a factor K: then K
            rows of x that follow each other share one (the hypotheses of a beam).

        With a mutable collection 'attention' the mechanism's weights [B, N, T, S] are put into it, as 'weights', a tuple with
        those of each call.
        """
        width, key_heads = x.shape[-1], self.key_heads or self.heads
        if not self.head_width and width % self.heads:
            raise ValueError(f'The width {width} is not divisible by {self.heads} heads.')
        if key_heads < 1 or self.heads % key_heads:
            raise ValueError(f'{self.heads} query heads cannot share {key_heads} heads of keys and values; choose a divisor.')
        mask.require_length(max(a.shape[1] for a in (x, y, z) if a is not None))
        cross = any(given is not None for given in (y, z, projected))
        self.mechanism.check(mask, cross=cross, cached=cache is not None, shared=key_heads != self.heads)
        if self.kept == ():
            own = Parameters({'bias': (zeros, (width,))} if self.bias else {}, name='output')()
            return self.numerics.cast(jnp.broadcast_to(own.get('bias', 0.0), x.shape)), {} if cross else cache
        heads, key_heads = (self.heads, key_heads) if self.kept is None else (len(self.kept),) * 2
        head_width = self.head_width or width // self.heads
        encoding = encoding.in_layer(self.heads, head_width, width, mask.causal, self.kept)
        where = encoding.key if cache is None else encoding.query  # the new keys are; encoding.key tells of all
        own_source = y is None and where is encoding.query
        source = x if y is None else y
        moved = encoding.at_source(x, encoding.query)
        turns = type(encoding.kind).at_heads is not Positions.at_heads
        self.mechanism.check(mask, placed=moved is not x or turns)
        sources = {'query': moved, 'key': moved if own_source else encoding.at_source(source, where),
                   'value': source if z is None else z}
        if projected is not None:
            sources = {'query': moved}
        shapes = {'query': (heads, head_width), 'key': (key_heads, self.key_width or head_width),
                  'value': (key_heads, self.value_width or head_width)}
        queries, keys, values = self._to_heads(sources, shapes)

        own = Parameters(encoding.kind.layer_parameters(encoding.sizes), encoding.fit, name='positions')()
        queries = queries if queries is None else encoding.at_heads(own, queries, encoding.query)
        keys = keys if keys is None else encoding.at_heads(own, keys, where)
        if projected is not None:
            keys, values = jnp.swapaxes(projected['key'], 1, 2), projected['value'].transpose(0, 3, 1, 2)
            queries = queries.reshape(keys.shape[0], -1, *queries.shape[2:])  # [B/K, K·T, N, H]
        wanted = self.mechanism.parameters(queries, keys, values)
        self.mechanism.check_shapes(wanted, self.variables.get('params', {}).get('mechanism', {}))
        parameters = Parameters(wanted, name='mechanism')()
        bias = encoding.bias(own, cached=cache is not None)
        self.mechanism.check(mask, biased=bool(bias))
        given = Given(mask, bias, None, self.dropout, fold(key, 'weights'), self.numerics)
        if cache is None and self.is_mutable_collection('attention') and not self.is_initializing():
            weights = self.mechanism.weights(parameters, queries, keys, values, given)
            if projected is not None:
                weights = jnp.swapaxes(weights, 1, 2).reshape(*x.shape[:2], *weights.shape[1::2]).swapaxes(1, 2)
            self.sow('attention', 'weights', weights)
        if cache is None:
            out = self.mechanism(parameters, queries, keys, values, given)
        else:
            out, cache = self.mechanism.step(parameters, queries, keys, values, cache, positions, given)
        out = out.reshape(*x.shape[:2], *out.shape[2:])
        if head_mask is not None:
            own_mask = head_mask if self.kept is None else head_mask[..., jnp.array(self.kept)]
            out = out * self.numerics.cast(own_mask)[..., None]
        output = Dense(width, axes=2, bias=self.bias, kernel_init=self.output_init, numerics=self.numerics, name='output')
        return output(out), {'key': jnp.swapaxes(keys, 1, 2), 'value': values.transpose(0, 2, 3, 1)} if cross else cache

    def _to_heads(self, sources, shapes):
        """Queries, keys and values [B, T|S, N|K, H]; None for what the mechanism does not use."""
        inits = {'query': self.kernel_init, 'key': self.kernel_init, 'value': self.value_init}
        layers = {kind: Dense(shapes[kind], bias=self.bias, kernel_init=inits[kind], numerics=self.numerics, name=kind)
                  for kind in sources if kind in self.mechanism.projections}
        weights = {kind: layer.weights(sources[kind].shape[-1:]) for kind, layer in layers.items()}
        found = {}
        # One product is faster than three, and its gradient more so: merge what has one source and one head width.
        groups = {}
        for kind in layers:
            groups.setdefault((id(sources[kind]), shapes[kind][1]), []).append(kind)
        for kinds in groups.values():
            kernel = jnp.concatenate([weights[kind][0] for kind in kinds], 1)  # [D, heads, H]
            out = self.numerics.dense(sources[kinds[0]], kernel)
            if self.bias:
                out = out + self.numerics.cast(jnp.concatenate([weights[kind][1] for kind in kinds]))
            ends = list(itertools.accumulate(shapes[kind][0] for kind in kinds))
            found |= zip(kinds, jnp.split(out, ends[:-1], 2))
        return [found.get(kind) for kind in ('query', 'key', 'value')]
