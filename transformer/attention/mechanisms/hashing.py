"""Attention between positions that a hash assigns to the same bucket."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.masks.analysis import parts, segments_of
from transformer.attention.mechanism import Given, Mechanism
from transformer.layers.dropout import dropout, fold
from transformer.layers.numerics import real_dtype, wide

_ITSELF = -1e5  # the score of a position with itself, which matters only if it sees no other


@dataclasses.dataclass(frozen=True)
class Hashing(Mechanism):
    """LSH attention of the Reformer (Kitaev et al. 2020, section 2): the keys are the normalised queries, k = q / |q|, and a
    position sees those in its bucket, in time L·log L.

    In each round bucket(x) = argmax([x·R; -x·R]) with a random R [H, buckets / 2]. Positions are sorted by bucket, then by
    place, and split into chunks; each sees its bucket within its chunk and the one before, and itself only if there is no
    other. The rounds are weighted by a softmax over their log sum exp; a key that is seen in several rounds counts several
    times (as in the authors' code).

    There is no causal form here: the number of later tokens in lower buckets decides where chunks end, and so which earlier
    tokens a position sees, even if all later ones are masked; a test shows it. The same holds for documents packed in one row.

    Attributes:
      buckets: an even number, or 1.
      chunk: the number of positions in a chunk.
      rounds: the number of hashes, each with its own R.
      seed: the seed of R, which all layers and heads share.
    """
    buckets: int = 16
    chunk: int = 64
    rounds: int = 4
    seed: int = 0

    causal = cross = cached = scored = packed = False
    projections = ('query', 'value')

    def __post_init__(self):
        if self.buckets != 1 and (self.buckets < 1 or self.buckets % 2):
            raise ValueError(f'{self}: buckets is {self.buckets}; expected an even number, or 1.')
        if self.chunk < 1 or self.rounds < 1 or self.seed < 0:
            raise ValueError(f'{self}: expected a chunk and rounds of at least 1, and a seed of 0 or more.')

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        return given.numerics.cast(self._mixed(query, value, given))

    def weights(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                given: Given = Given()) -> jax.Array:
        """The weight of every value: the output for one-hot values."""
        length = query.shape[1]
        one_hot = jnp.broadcast_to(jnp.eye(length)[:, None], (len(query), length, 1, length))
        return jnp.swapaxes(self._mixed(query, one_hot, dataclasses.replace(given, rate=0.0)), 1, 2)

    def _mixed(self, query, value, given):
        """The output [B, T, N, H], in at least float32."""
        batch, length, heads, _ = query.shape
        chunk = min(self.chunk, length)
        more = -length % chunk
        documents = segments_of(given.mask, length, length)
        there = jnp.ones((1, length), bool) if documents is None else documents[1] != 0
        there = jnp.pad(jnp.broadcast_to(there, (batch, length)), ((0, 0), (0, more)))
        by_head = lambda x: jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (0, more), (0, 0)))
        query, value = by_head(query), by_head(jnp.repeat(value, heads // value.shape[2], 2))  # [B, N, T, H]
        there = jnp.broadcast_to(there[:, None], query.shape[:3])

        outs, sums = [], []
        for number in range(self.rounds):
            buckets = jnp.where(there, self._bucket(query, number), self.buckets)
            out, total = self._round(query, value, buckets, there, chunk, given, number)
            outs.append(out)
            sums.append(total)
        share = jax.nn.softmax(jnp.stack(sums), 0)[..., None]  # [rounds, B, N, T, 1]
        out = (share * jnp.stack(outs)).sum(0)
        return jnp.swapaxes(out[:, :, :length], 1, 2)

    def _bucket(self, query, number):
        """The bucket of each query [B, N, T]."""
        if self.buckets == 1:
            return jnp.zeros(query.shape[:3], jnp.int32)
        random = np.random.default_rng((self.seed, number))
        rotation = random.normal(size=(query.shape[-1], self.buckets // 2)).astype(real_dtype())
        turned = jnp.einsum('BNTH,HR->BNTR', wide(query), rotation, precision=jax.lax.Precision.HIGHEST)
        return jnp.concatenate([turned, -turned], -1).argmax(-1)

    def _round(self, query, value, buckets, there, chunk, given, number):
        """(output [B, N, T, H], log sum exp of the scores [B, N, T]) of one hash."""
        batch, heads, length, width = query.shape
        order = jnp.argsort(buckets, axis=-1, stable=True)
        back = jnp.argsort(order, axis=-1)
        take = lambda x, at: jnp.take_along_axis(x, at[..., None] if x.ndim == 4 else at, 2)
        cut = lambda x: take(x, order).reshape(batch, heads, length // chunk, chunk, *x.shape[3:])
        query, value, buckets, there = cut(query), cut(value), cut(buckets), cut(there)
        place = order.reshape(buckets.shape)
        norm = jax.lax.rsqrt(jnp.square(wide(query)).sum(-1, keepdims=True) + 1e-12)
        key = query * norm

        def with_last(x):
            """Each chunk with the one before it, [..., chunks, 2·chunk, ...]."""
            return jnp.concatenate([jnp.roll(x, 1, 2), x], 3)

        scores = given.numerics.scores('BNCTH,BNCSH->BNCTS', query * width ** -0.5, with_last(key))
        scores = jnp.where(place[..., None] == with_last(place)[..., None, :], _ITSELF, scores)
        visible = (buckets[..., None] == with_last(buckets)[..., None, :]) & with_last(there)[..., None, :]
        rolled = (np.arange(length // chunk)[:, None] == 0) & (np.arange(2 * chunk) < chunk)  # chunk 0 has no chunk before it
        visible = visible & ~rolled[:, None] & parts(given.mask)[0](place, with_last(place))
        scores = jnp.where(visible, scores, -jnp.inf)
        top = jax.lax.stop_gradient(jnp.maximum(scores.max(-1, keepdims=True), -1e30))
        weights = jnp.exp(scores - top)
        total = weights.sum(-1, keepdims=True)
        total = jnp.where(total > 0, total, 1.0)
        weights = dropout(weights / total, given.rate, fold(given.dropout_key, number))
        out = given.numerics.scores('BNCTS,BNCSH->BNCTH', weights, with_last(value))
        flat = lambda x: take(x.reshape(batch, heads, length, *x.shape[4:]), back)
        return flat(out), flat((top + jnp.log(total))[..., 0])
