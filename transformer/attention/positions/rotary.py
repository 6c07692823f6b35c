"""Rotary position encoding."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from transformer.attention.positions.absolute import frequencies
from transformer.attention.positions.base import Positions
from transformer.layers.numerics import real_dtype, wide


@dataclasses.dataclass(frozen=True)
class Rotary(Positions):
    """Rotates queries and keys by angles that grow with their position (Su et al. 2021, eq. 34): the feature pair i of a head
    at t by t·θ_i, with θ_i = base^(-2i/H). The score then depends on the positions through t - s alone.

    Attributes:
      base: the slowest pair has a period of 2π·base^(1 - 2/H) positions.
      scaling: for rows `factor` times as long as those of training: 'none'; 'linear', positions divided by the factor (Chen
        et al. 2023); or 'ntk', base·factor^(H / (H - 2)), which keeps the fast pairs and divides the slowest (bloc97 2023,
        in Peng et al. 2023, section 3.1).
      factor: the factor of the scaling.
      interleaved: pairs are features (2i, 2i + 1), as in the paper and GPT-J; False: (i, i + H/2), as in GPT-NeoX and Llama.
    """
    base: float = 10000.0
    scaling: str = 'none'
    factor: float = 1.0
    interleaved: bool = False
    free_length = True

    def __post_init__(self):
        if self.scaling not in ('none', 'linear', 'ntk'):
            raise ValueError(f'{self}: scaling is {self.scaling!r}; expected none, linear or ntk.')
        if not 1 <= self.factor <= 1e9 or not 1 < self.base <= 1e30:
            raise ValueError(f'{self}: expected a factor from 1 to 1e9, and a base above 1 and up to 1e30.')
        if self.scaling == 'none' and self.factor != 1:
            raise ValueError(f"{self}: a factor does nothing without scaling; give scaling='linear' or 'ntk'.")

    def frequencies(self, width: int) -> jax.Array:
        """θ [H/2] in radians per position."""
        if self.scaling == 'ntk' and width > 2:
            return frequencies(width, self.base * self.factor ** (width / (width - 2)))
        return frequencies(width, self.base) / (self.factor if self.scaling == 'linear' else 1.0)

    def at_heads(self, parameters: Mapping, own: Mapping, x: jax.Array, positions: jax.Array | None) -> jax.Array:
        width = x.shape[-1]
        if width % 2:
            raise ValueError(f'positions={self} rotates pairs of features, but a head is {width} wide; choose an even width '
                             'of the heads.')
        angles = positions[..., None, None].astype(real_dtype()) * self.frequencies(width)  # [.., T, 1, H/2]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        exact = wide(x)
        a, b = (exact[..., ::2], exact[..., 1::2]) if self.interleaved else jnp.split(exact, 2, -1)
        turned = a * cos - b * sin, a * sin + b * cos
        if self.interleaved:
            return jnp.stack(turned, -1).reshape(x.shape).astype(x.dtype)
        return jnp.concatenate(turned, -1).astype(x.dtype)
