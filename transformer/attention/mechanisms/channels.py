"""Attention between channels instead of positions (DaViT, Ding et al. 2022, section 3.3)."""

import dataclasses
from collections.abc import Mapping

import jax

from transformer.attention.masks.algebra import Mask
from transformer.attention.masks.patterns import Full
from transformer.attention.mechanism import Given
from transformer.attention.mechanisms.alternatives import Alternative
from transformer.layers.numerics import wide


@dataclasses.dataclass(frozen=True)
class ChannelGroups(Alternative):
    """The channels of a head are its tokens, and what they hold at the T positions their vectors. With queries, keys and values
    Q, K, V [T, H] of a head, a group of channels:

        version 2    V·Aᵀ with A = softmax(Qᵀ·K / sqrt(T)) [H, H], as in Florence-2 (Xiao et al. 2023)
        version 1    Q·Aᵀ with A = softmax(Kᵀ·V / sqrt(H)), as in the code of DaViT and in timm: the paper's with other roles,
                     softmax(Qᵀ·K / sqrt(H)) times V (eq. 5)

    All positions are mixed alike, so that the order of the tokens does not matter, and the cost is linear in T.

    Attributes:
      version: 1 or 2.
    """
    version: int = 1

    causal = cross = cached = packed = False
    projections = ('query', 'key', 'value')

    def __post_init__(self):
        if self.version not in (1, 2):
            raise ValueError(f'{self}: version is {self.version}; expected 1 or 2.')

    def __call__(self, parameters: Mapping, query: jax.Array | None, key: jax.Array | None, value: jax.Array,
                 given: Given = Given()) -> jax.Array:
        numerics, tokens, width = given.numerics, query.shape[1], query.shape[3]
        if self.version == 1:
            query, key, value, scale = key, value, query, width ** -0.5
        else:
            scale = tokens ** -0.5
        weights = jax.nn.softmax(wide(numerics.scores('BTNH,BTNG->BNHG', query * scale, key)), -1)
        return numerics.einsum('BNHG,BTNG->BTNH', weights, value)

    def check(self, mask: Mask, *, cross: bool = False, cached: bool = False, biased: bool = False, placed: bool = False,
              shared: bool = False) -> None:
        if mask != Full():
            raise ValueError(f'attention={self} mixes all positions, but the mask is {mask}; use Full(), or another attention.')
        if placed:
            raise ValueError(f'attention={self} has no scores between positions that an encoding could change; use one that '
                             'enters at the input, such as Learned() or Sinusoidal2d(), or NoPositions().')
        if shared:
            raise ValueError(f'attention={self} cannot share heads of keys between queries; leave out key_heads.')
        super().check(mask, cross=cross, cached=cached, biased=biased)
