"""Softmax attention through a few landmarks, by the Nyström method."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from transformer.attention.kernels.attend import mixed, weights_of
from transformer.attention.masks.analysis import segments_of
from transformer.attention.mechanism import Given, Mechanism


@dataclasses.dataclass(frozen=True)
class Nystrom(Mechanism):
    """softmax(q·K̃ᵀ)·softmax(Q̃·K̃ᵀ)⁺·softmax(Q̃·Kᵀ)·V, all scaled by 1 / sqrt(H) (Xiong et al. 2021, eq. 13).

    The landmarks Q̃ and K̃ are means over equal pieces of the row without its padding, so that there is no causal form, nor one
    for the queries of a decoder to a source. The pseudo-inverse of A is computed iteratively from Z_0 = Aᵀ / (|A|_1·|A|_∞)
    (eq. 11 and section 3.2):

        Z' = Z·(13·I - A·Z·(15·I - A·Z·(7·I - A·Z))) / 4

    The depth-wise convolution of the values in the authors' code is omitted. No weights are dropped: `dropout` acts only on the
    branches.

    Attributes:
      landmarks: m; with as many as positions, and enough iterations, this is softmax attention.
      iterations: the number of iterations of the pseudo-inverse.
    """
    landmarks: int = 32
    iterations: int = 6

    causal = cross = cached = scored = patterns = packed = False

    def __post_init__(self):
        if self.landmarks < 1 or self.iterations < 0:
            raise ValueError(f'{self}: expected at least 1 landmark and at least 0 iterations.')

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        left, right = self._factors(query, key, given)
        of_landmarks = mixed(right, value, numerics=given.numerics)  # [B, M, N, H]
        return mixed(left, of_landmarks, numerics=given.numerics)

    def weights(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                given: Given = Given()) -> jax.Array:
        """The product of the three matrices; entries may be negative."""
        return given.numerics.scores('BNTM,BNMS->BNTS', *self._factors(query, key, given))

    def _factors(self, query, key, given):
        """softmax(q·K̃ᵀ)·softmax(Q̃·K̃ᵀ)⁺ [B, N, T, M] and softmax(Q̃·Kᵀ) [B, N, M, S]."""
        numerics, documents = given.numerics, segments_of(given.mask, query.shape[1], key.shape[1])
        there = jnp.ones(key.shape[:2], bool) if documents is None else jnp.broadcast_to(documents[1] != 0, key.shape[:2])
        (queries, full), (keys, _) = (self._means(x, there, numerics) for x in (query, key))
        bias = lambda visible: (jnp.where(visible[:, None, None], 0.0, -jnp.inf),)
        far = weights_of(query, keys, bias=bias(full), numerics=numerics)
        near = jnp.where(full[:, None, :, None], weights_of(queries, keys, bias=bias(full), numerics=numerics), 0.0)
        last = weights_of(queries, key, bias=bias(there), numerics=numerics)
        return numerics.scores('BNTM,BNML->BNTL', far, self._inverse(near)), last

    def _means(self, x, there, numerics):
        """(means [B, M, N, H] of x [B, T, N, H] over pieces of the real positions, which pieces are not empty [B, M])."""
        count = there.sum(1, keepdims=True)
        piece = (jnp.cumsum(there, 1) - 1) * self.landmarks // jnp.maximum(count, 1)  # [B, T]
        among = (piece[:, None] == jnp.arange(self.landmarks)[:, None]) & there[:, None]  # [B, M, T]
        size = among.sum(-1)
        return numerics.scores('BMT,BTNH->BMNH', among / jnp.maximum(size, 1)[..., None], x), size > 0

    def _inverse(self, matrix):
        """The pseudo-inverse of [..., M, M], in at least float32."""
        product = lambda a, b: jnp.einsum('...ij,...jk->...ik', a, b, precision='highest')
        columns, rows = (jnp.abs(matrix).sum(axis, keepdims=True).max((-1, -2), keepdims=True) for axis in (-2, -1))
        size, identity = columns * rows, jnp.eye(matrix.shape[-1])
        inverse = jnp.swapaxes(matrix, -1, -2) / jnp.where(size > 0, size, 1.0)  # 0: all is padding
        for _ in range(self.iterations):
            near = product(matrix, inverse)
            inner = 15 * identity - product(near, 7 * identity - near)
            inverse = 0.25 * product(inverse, 13 * identity - product(near, inner))
        return inverse
