"""The arguments of blocks, and of the attention in them, besides the residual stream."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from transformer.attention.masks.algebra import Mask
from transformer.attention.masks.patterns import Full
from transformer.attention.positions.base import Encoding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Source:
    """Another sequence, to which a decoder attends.

    Attributes:
      hidden: [B, S, D]; None in cached decoding after the first call, when the cache holds the projected source.
      mask: which of its positions are visible.
    """
    hidden: Any
    mask: Mask = Full()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """The arguments of blocks, and of the attention in them, besides the residual stream.

    Attributes:
      mask: which query may attend to which key.
      encoding: the position encoding with the positions of queries and keys.
      positions: [B, T], with a cache: the positions of the queries in it.
      head_mask: {branch: factors of the outputs of its heads}, [layers, N] or [layers, B, 1, N] for a stack, [N] or [B, 1, N]
        for a layer; a branch is 'attention' or 'cross_attention', and the factors of an absent one are 1.
      source: the sequence to which a decoder attends.
      capture: names of further arrays to return in `aux`: 'attention', the weights of every attention; 'scores', of which they
        are the softmax; 'visible', the mask of these scores; 'hidden', the output of every block.
    """
    mask: Mask = Full()
    encoding: Encoding = Encoding()
    positions: Any = None
    head_mask: Mapping = dataclasses.field(default_factory=dict)
    source: Source | None = None
    capture: tuple = dataclasses.field(default=(), metadata=dict(static=True))

    def of_layer(self, number: int) -> 'Context':
        """The context of one layer, with its mask and its factors of heads."""
        return dataclasses.replace(self, mask=self.mask.of_layer(number),
                                   head_mask={branch: factors[number] for branch, factors in self.head_mask.items()})
