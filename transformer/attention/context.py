"""What attention and blocks work with besides the stream."""

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
    """Another sequence, which a decoder looks at.

    Attributes:
      hidden: [B, S, D]; None in cached decoding after the first call, when the cache has what is needed of it.
      mask: which of its positions are seen.
    """
    hidden: Any
    mask: Mask = Full()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """What blocks, and the attention in them, work with besides the stream.

    Attributes:
      mask: which positions see which.
      encoding: where they are, as the position encoding sees it.
      positions: [B, T], with a cache: where in it the queries are.
      head_mask: {branch: factors of what its heads give}, [layers, N] or [layers, B, 1, N] of a stack, [N] or [B, 1, N] of a
        layer; a branch is 'attention' or 'cross_attention', and one that is not named has ones.
      source: what a decoder looks at.
      capture: names of what is to be returned in `aux` besides: 'attention', the weights of every attention;
        'scores', what they are a softmax of; 'visible', the mask of that.
    """
    mask: Mask = Full()
    encoding: Encoding = Encoding()
    positions: Any = None
    head_mask: Mapping = dataclasses.field(default_factory=dict)
    source: Source | None = None
    capture: tuple = dataclasses.field(default=(), metadata=dict(static=True))

    def of_layer(self, number: int) -> 'Context':
        """That of one layer, with its mask and its factors of heads."""
        return dataclasses.replace(self, mask=self.mask.of_layer(number),
                                   head_mask={branch: factors[number] for branch, factors in self.head_mask.items()})
