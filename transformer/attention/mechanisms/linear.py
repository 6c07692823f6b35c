"""Attention in time linear in the length: with a kernel φ(q)·φ(k) instead of exp(q·k), all queries share the sums over keys.

    o_t = φ(q_t)·S_t / φ(q_t)·z_t,    S_t = sum over the visible s of φ(k_s)⊗v_s,    z_t = sum of φ(k_s)

Without a causal mask S is the same for all queries of a document. With one it is a recurrent state: over chunks of the row,
whose queries see the keys of their own chunk besides the state before it; or, in decoding, over single positions. Where queries
and keys are of two sequences with documents (`Segments`), and in shifted windows, the weights are computed: time and memory are
quadratic.
"""

import abc
import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.kernels import attend as kernels
from transformer.attention.masks import analysis
from transformer.attention.masks.analysis import real, require_next, segments_of
from transformer.attention.mechanism import Given, Mechanism
from transformer.layers.numerics import Numerics, real_dtype, wide

_LOWEST = -1e30  # the initial running maximum: -inf would give -inf - -inf
_TINY = float(np.finfo(np.float32).tiny)


class Kernelised(Mechanism):
    """Base of mechanisms, each with its own φ. There are no weights to drop: `dropout` acts only on the branches."""

    patterns = scored = False
    chunk: int

    @abc.abstractmethod
    def feature_map(self, x: jax.Array, numerics: Numerics) -> tuple[jax.Array, jax.Array | None]:
        """x [B, T, N, H] -> (φ [B, T, N, F], scale [B, T, N]), which represent φ·exp(scale); None for a scale of 0."""

    def __post_init__(self):
        if self.chunk < 1:
            raise ValueError(f'{self}: chunk is {self.chunk}; expected at least 1.')

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        documents = segments_of(given.mask, query.shape[1], key.shape[1])
        separate = analysis.documents(given.mask)
        if given.mask.causal and query.shape[1] != key.shape[1]:
            raise ValueError(f'attention={self} runs along one sequence under a causal mask, but got {query.shape[1]} '
                             f'queries and {key.shape[1]} keys; use attention=Softmax().')
        if not all(one.runs and one.query is one.key for one in separate):
            # No recurrent state covers two sequences, or regions that are not runs of positions.
            weights = self.weights(parameters, query, key, value, given)
            return kernels.mixed(given.numerics.cast(weights), value, numerics=given.numerics)
        if given.mask.causal:
            out, *_ = self._running(query, key, value, documents, given.numerics)
        elif separate:
            out = _divided(self._both_ways(query, key, value, documents, given.numerics))
        else:
            out = _divided(self._whole(query, key, value, documents, given.numerics))
        return given.numerics.cast(_by_position(out))

    def weights(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array | None,
                given: Given = Given()) -> jax.Array:
        """φ(q_t)·φ(k_s) / sum over r of φ(q_t)·φ(k_r), in time and memory quadratic in the length."""
        (query, _), (key, scale) = self.feature_map(query, given.numerics), self.feature_map(key, given.numerics)
        visible = jnp.asarray(given.mask(jnp.arange(query.shape[1]), jnp.arange(key.shape[1])))
        visible = visible[:, None, None] if visible.ndim == 3 else visible  # -> [B, K, G, T, S]
        scores = given.numerics.scores('BTKGF,BSKF->BKGTS', _grouped(query, key.shape[2]), key)
        if scale is not None:
            scale = jnp.swapaxes(scale, 1, 2)[:, :, None, None]
            top = jnp.where(visible, scale, _LOWEST).max(-1, keepdims=True)
            scores = scores * jnp.exp(jnp.minimum(scale - top, 0.0))
        scores = jnp.where(visible, scores, 0.0)
        weights = _scaled(scores, scores.sum(-1, keepdims=True))
        return weights.reshape(len(weights), query.shape[2], *weights.shape[3:])

    def empty_cache(self, batch: int, length: int, heads: int, key_heads: int, width: int, dtype: str) -> dict:
        """S and z, side by side: their size does not depend on the length."""
        key = jax.ShapeDtypeStruct((1, 1, 1, width), dtype)
        features, scale = jax.eval_shape(lambda key: self.feature_map(key, Given().numerics), key)
        state = jnp.zeros((batch, key_heads, features.shape[-1], width + 1))
        cache = {'state': state, 'count': jnp.zeros(batch, jnp.int32)}
        return cache if scale is None else cache | {'top': jnp.full((batch, key_heads), _LOWEST, real_dtype())}

    def step(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array, cache: dict,
             positions: jax.Array, given: Given) -> tuple[jax.Array, dict]:
        there = real(given.mask, positions)
        documents = jnp.ones_like(there, jnp.int32), there.astype(jnp.int32)
        start = cache['state'], cache.get('top'), jnp.ones(len(query), jnp.int32)
        out, _, (state, top, _) = self._running(query, key, value, documents, given.numerics, start=start)
        out = require_next(_by_position(out), cache['count'], positions)
        new = {'state': state, 'count': cache['count'] + there.sum(1)} | ({} if top is None else {'top': top})
        return given.numerics.cast(out), new

    def _sides(self, query, key, value, numerics):
        """φ(q) [B, K, G, T, F], φ(k) [B, K, S, F], its scale [B, K, S] or None, and values with an appended 1, for z:
        [B, K, S, Hv + 1]. Heads come first, as products over positions are several times slower on a CPU otherwise."""
        query, _ = self.feature_map(query, numerics)  # a scale of the query divides out
        key, scale = self.feature_map(key, numerics)
        value = wide(value)
        value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], -1)
        query = _grouped(query, key.shape[2]).transpose(0, 2, 3, 1, 4)
        return query, *(x if x is None else jnp.swapaxes(x, 1, 2) for x in (key, scale, value))

    def _whole(self, query, key, value, documents, numerics):
        """Every query sees all keys of the row."""
        query, key, scale, value = self._sides(query, key, value, numerics)
        if documents is not None:
            there = (documents[1] != 0)[:, None]  # [B, 1, S]
            value = jnp.where(there[..., None], value, 0.0)
            scale = scale if scale is None else jnp.where(there, scale, _LOWEST)
        if scale is not None:
            key = key * jnp.exp(scale - scale.max(-1, keepdims=True))[..., None]
        state = numerics.scores('BKSF,BKSH->BKFH', key, value)
        return numerics.scores('BKGTF,BKFH->BKGTH', query, state)

    def _both_ways(self, query, key, value, documents, numerics):
        """Every query sees all keys of its document: those up to itself, and those after it."""
        forward, top, _ = self._running(query, key, value, documents, numerics, sums=True)
        flip = functools.partial(jnp.flip, axis=1)
        behind, other, _ = self._running(flip(query), flip(key), flip(value), tuple(map(flip, documents)), numerics,
                                         strict=True, sums=True)
        behind = jnp.flip(behind, 3)
        if top is None:
            return forward + behind
        other = jnp.flip(other, 2)
        most = jnp.maximum(top, other)
        scaled = lambda x, own: x * jnp.exp(own - most)[:, :, None, :, None]
        return scaled(forward, top) + scaled(behind, other)

    def _running(self, query, key, value, documents, numerics, *, strict=False, sums=False, start=None):
        """Every query sees the keys up to itself; with `strict` only those before itself.

        The scale of the sums is the largest of the keys that a query sees, so that no later key can make it underflow.

        Args:
          start: (state [B, K, F, Hv + 1], its scale [B, K] or None, its document [B]) before the row.
        Returns:
          (outputs [B, K, G, T, Hv], None, the state after the row as in `start`); with `sums`, instead of the outputs and
          None, their numerators and denominators [B, K, G, T, Hv + 1] and the scale of these [B, K, T] or None.
        """
        query, key, scale, value = self._sides(query, key, value, numerics)
        batch, heads, length, features = key.shape
        size = min(self.chunk, length)
        if start is None:
            start = (jnp.zeros((batch, heads, features, value.shape[-1])),
                     None if scale is None else jnp.full((batch, heads), _LOWEST), jnp.zeros(batch, jnp.int32))
        bare = documents is None and scale is None  # all factors below except `before` are then 1
        documents = (jnp.ones((1, length), jnp.int32),) * 2 if documents is None else documents
        documents = tuple(_chunks(jnp.broadcast_to(x, (batch, length)), 1, size) for x in documents)
        scale = scale if scale is None else _chunks(scale, 2, size, _LOWEST)
        row = np.arange(size)
        before = row[:, None] > row if strict else row[:, None] >= row

        def step(carry, given):
            (state, top, document), (query, key, value, scale, (own, other)) = carry, given
            last = jnp.where(other != 0, jnp.arange(size), -1).max(1)
            number = jnp.where(last < 0, document, jnp.take_along_axis(other, jnp.maximum(last, 0)[:, None], 1)[:, 0])
            visible = (before & (own[:, :, None] == other[:, None]) & (other != 0)[:, None])[:, None]  # [B, 1, T, S]
            old = (own == document[:, None])[:, None]  # [B, 1, T]: which queries see the state
            new = (other == number[:, None])[:, None]  # [B, 1, S]: which keys enter the new state
            keep = (number == document)[:, None]  # [B, 1]
            level = peak = None
            if scale is None:
                factors, from_state, add, stay = (x.astype(real_dtype()) for x in (visible, old, new, keep))
            else:
                hidden = lambda seen, x: jnp.where(seen, x, _LOWEST)
                share = lambda seen, exponent: jnp.where(seen, jnp.exp(jnp.minimum(exponent, 0.0)), 0.0)
                level = jnp.maximum(hidden(visible, scale[:, :, None]).max(-1), hidden(old, top[..., None]))  # [B, K, T]
                peak = jnp.maximum(hidden(keep, top), hidden(new, scale).max(-1))
                factors, from_state = share(visible, scale[:, :, None] - level[..., None]), share(old, top[..., None] - level)
                add, stay = share(new, scale - peak[..., None]), share(keep, top - peak)
            scores = numerics.scores('BKGTF,BKSF->BKGTS', query, key) * (before if bare else factors[:, :, None])
            rest = numerics.scores('BKGTF,BKFH->BKGTH', query, state)
            if not bare:
                rest, state = rest * from_state[:, :, None, :, None], state * stay[..., None, None]
                key = key * add[..., None]
            mixed = numerics.scores('BKGTS,BKSH->BKGTH', scores, value) + rest
            state = state + numerics.scores('BKSF,BKSH->BKFH', key, value)
            return (state, peak, number), ((mixed, level) if sums else (_divided(mixed), None))

        inputs = _chunks(query, 3, size), _chunks(key, 2, size), _chunks(value, 2, size), scale, documents
        # The backward pass keeps only the state of each chunk and computes the products again.
        end, (mixed, level) = jax.lax.scan(jax.checkpoint(step, prevent_cse=False), start, inputs)
        return _row(mixed, 3, length), level if level is None else _row(level, 2, length), end


def _grouped(query, heads):
    """[B, T, N, F] -> [B, T, K, N / K, F]."""
    batch, length, all_heads, width = query.shape
    return query.reshape(batch, length, heads, all_heads // heads, width)


def _divided(mixed):
    """Sums of values and of ones [.., Hv + 1] -> [.., Hv]; zeros for a query that sees nothing."""
    return _scaled(mixed[..., :-1], mixed[..., -1:])


def _scaled(x, total):
    """x / total, 0 where the total is 0. First scales both to a total near 1, whose square in the gradient cannot underflow."""
    near = jax.lax.stop_gradient(1.0 / jnp.where(total > _TINY, total, 1.0))
    return x * near / jnp.where(total > _TINY, total * near, 1.0)


def _by_position(out):
    """[B, K, G, T, Hv] -> [B, T, N, Hv]."""
    batch, heads, shared, length, width = out.shape
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, length, heads * shared, width)


def _chunks(x, axis, size, fill=0):
    """Splits an axis of positions, padded at its end, into chunks: [.., T, ..] -> [chunks, .., size, ..]."""
    missing = -x.shape[axis] % size
    x = jnp.pad(x, [(0, missing if a == axis else 0) for a in range(x.ndim)], constant_values=fill)
    return jnp.moveaxis(x.reshape(*x.shape[:axis], x.shape[axis] // size, size, *x.shape[axis + 1:]), axis, 0)


def _row(x, axis, length):
    """The inverse of `_chunks`: [chunks, .., size, ..] -> [.., T, ..], with positions on `axis` of the result."""
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2:])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)


@dataclasses.dataclass(frozen=True)
class Linear(Kernelised):
    """φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, eq. 7); decoding uses its recurrent form (eq. 16-20).

    Attributes:
      chunk: positions that the causal form computes at once; the result does not depend on it.
    """
    chunk: int = 64

    def feature_map(self, x: jax.Array, numerics: Numerics) -> tuple[jax.Array, jax.Array | None]:
        return jax.nn.elu(wide(x)) + 1.0, None


@dataclasses.dataclass(frozen=True)
class Performer(Kernelised):
    """Softmax attention, estimated by positive random features (FAVOR+; Choromanski et al. 2021, eq. 5 and section 2.3):

        φ(x)_i = exp(w_i·x - |x|²/2) / sqrt(features),   x = q or k over H^(1/4),   w_i drawn from N(0, I)

    so that φ(q)·φ(k) has the mean exp(q·k / sqrt(H)) and a variance that falls as 1 / features. The largest exponent is
    factored out of each query, where it cancels, and of each key, where it is kept as a scale: no key changes earlier outputs.

    Attributes:
      features: the number of w_i.
      orthogonal: w_i are orthogonal to each other in groups of H (section 2.4), which lowers the variance.
      seed: the seed of w_i, which all layers and heads share.
      chunk: as in `Linear`.
    """
    features: int = 256
    orthogonal: bool = True
    seed: int = 0
    chunk: int = 64

    def __post_init__(self):
        super().__post_init__()
        if self.features < 1 or self.seed < 0:
            raise ValueError(f'{self}: expected at least 1 feature, and a seed of 0 or more.')

    def feature_map(self, x: jax.Array, numerics: Numerics) -> tuple[jax.Array, jax.Array | None]:
        x = wide(x) * x.shape[-1] ** -0.25
        exponents = jnp.einsum('BTNH,FH->BTNF', x, _directions(self, x.shape[-1], x.dtype), precision=jax.lax.Precision.HIGHEST)
        exponents = exponents - 0.5 * jnp.square(x).sum(-1, keepdims=True)
        top = jax.lax.stop_gradient(exponents.max(-1))
        return jnp.exp(exponents - top[..., None]) * self.features ** -0.5, top


@functools.lru_cache(maxsize=64)
def _directions(performer, head_width, dtype):
    """[features, H]: w_i, constants."""
    random = np.random.default_rng(performer.seed)
    drawn = random.normal(size=(performer.features, head_width))
    if performer.orthogonal:
        groups = -(-performer.features // head_width)
        bases = np.linalg.qr(random.normal(size=(groups, head_width, head_width)))[0]
        turned = bases.reshape(-1, head_width)[:performer.features]
        # Haar measure: the signs that QR fixes are drawn too. Lengths are those of independent draws.
        turned = turned * random.choice([-1.0, 1.0], size=(len(turned), 1))
        drawn = turned * np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn.astype(dtype)
