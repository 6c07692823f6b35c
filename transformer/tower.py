"""What all Transformers here have in common: a tower of blocks, and one over tokens in rows."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from transformer.attention.heads import kept_heads
from transformer.attention.mask_algebra import Mask
from transformer.attention.masks import Full, Padding, Segments
from transformer.attention.mechanism import Mechanism, Softmax
from transformer.attention.multi_head import MultiHead
from transformer.attention.positions import Encoding, Learned, Positions, Sizes
from transformer.block import Block, Context, FeedForward
from transformer.initial import Initial, Scaled
from transformer.layers import LayerNorm, Parameters, RMSNorm, dropout, fold
from transformer.numerics import Numerics
from transformer.residual import PreNorm, Residual
from transformer.stack import stack
from transformer.universal import Depth, Own, Universal, steps

NORMS = {'layer': LayerNorm, 'rms': RMSNorm}


class Tower(nn.Module):
    """Base of the Transformers: norm(blocks(x + P)); the norm is there if the residual asks for one at the end.

    Attributes:
      head_width: width H of a head; 0 stands for width / heads.
      inner: inner width of the feed-forward; 0 stands for 4·width.
      gated: whether the feed-forward has a gate.
      dropout: rate on the embedding and the residual branches.
      attention_dropout, inner_dropout, last_dropout: rates on the attention weights, the inner activations of the
        feed-forward, and what leaves the last norm; -1: as `dropout`.
      bias: biases in dense layers and norms.
      embedding_norm: a norm stands behind the embedding too, as in BERT and BART.
      normalization: the kind of norm: 'layer' or 'rms'.
      epsilon: of the norms.
      activation: 'gelu', 'gelu_tanh' (that of GPT-2's code) or 'relu'.
      attention: what mixes positions, such as 'Softmax(score=Additive())'.
      key_heads: heads of keys and values, shared by groups of query heads; 0 stands for `heads`.
      positions: how a position knows where it stands, such as 'Learned()' or 'Rotary()'.
      mask: which positions see which, such as 'Causal() & Window(size=256)'.
      residual: where the norms stand: 'PreNorm()' as GPT-2, 'PostNorm()', 'ReZero()', or 'NoNorm()'.
      initial: how parameters begin: 'Scaled(scale=0.02)' as GPT-2, 'Xavier()', or 'TFixup()' (for 'NoNorm()').
      dense_gradient: the gradient of dense layers as in `transformer.numerics`, instead of JAX's rule.
      depth: 'Own()', every layer has its parameters; 'Universal()', all have the same, with adaptive halting or without.
      scan, remat: how layers are stacked and what of them is kept for the gradient, as in `transformer.stack`.
    """
    layers: int = 12
    heads: int = 12
    width: int = 768
    head_width: int = 0
    inner: int = 0
    gated: bool = False
    activation: str = 'gelu'
    dropout: float = 0.0
    attention_dropout: float = -1.0
    inner_dropout: float = 0.0
    last_dropout: float = 0.0
    bias: bool = True
    embedding_norm: bool = False
    normalization: str = 'layer'
    epsilon: float = 1e-5
    attention: Mechanism = Softmax()
    key_heads: int = 0
    positions: Positions = Learned()
    mask: Mask = Full()
    residual: Residual = PreNorm()
    initial: Initial = Scaled()
    depth: Depth = Own()
    dense_gradient: bool = True
    scan: bool = False
    remat: str = 'none'
    dtype: str = 'float32'
    kept = ()  # a field of the models whose heads can be pruned

    @property
    def numerics(self):
        return Numerics(self.dtype, self.dense_gradient)

    @property
    def each_head(self):
        """The width of a head."""
        return self.head_width or self.width // self.heads

    def rate(self, given):
        """The rate that a field for dropout stands for."""
        return self.dropout if given < 0 else given

    def through_blocks(self, x, context, *, key=None, cache=None, cross=None):
        """(x [B, T, D] after all blocks, cache, {'ponder': [B, T]} or {}: what depth='Universal(halting=True)' tells); a
        subclass calls it in its own scope, whose names are then block_0, .., norm.

        Args:
          cross: what mixes positions with those of `source`, in a third branch of every block; None: there is none.
        """
        common, branches = dict(bias=self.bias, numerics=self.numerics), 3 if cross else 2
        norm = self.norm_layer()
        attention = partial(MultiHead, self.heads, self.key_heads, self.head_width, dropout=self.rate(self.attention_dropout),
                            **self.initial.attention(self.layers, branches), **common)
        block = partial(
            Block, norm=norm, residual=self.residual, dropout=self.dropout,
            cross_attention=cross and partial(attention, mechanism=cross),
            feed_forward=partial(FeedForward, self.inner or 4 * self.width, self.activation, self.gated,
                                 dropout=self.rate(self.inner_dropout),
                                 **self.initial.feed_forward(self.layers, branches), **common))
        blocks = [partial(block, attention=partial(attention, mechanism=self.attention, kept=kept))
                  for kept in kept_heads(self)]
        x = context.encoding.at_input(x)
        x = dropout(norm(name='embedding_norm')(x) if self.embedding_norm else x, self.dropout, fold(key, 'embedding'))
        if isinstance(self.depth, Universal):
            x, cache, more = self._universal(blocks, x, context, key=key, cache=cache)
        else:
            x, cache = stack(blocks, self.layers, x, context, key=key, cache=cache, scan=self.scan, remat=self.remat)
            more = {}
        x = norm(name='norm')(x) if self.residual.final_norm else x
        return dropout(x, self.rate(self.last_dropout), fold(key, 'last')), cache, more

    def norm_layer(self):
        """The constructor of a norm, called with a name."""
        if self.normalization not in NORMS:
            raise ValueError(f'normalization is {self.normalization!r}; expected {" or ".join(NORMS)}.')
        bias = {'bias': self.bias} if self.normalization == 'layer' else {}
        return partial(NORMS[self.normalization], epsilon=self.epsilon, numerics=self.numerics, **bias)

    def _universal(self, blocks, x, context, **given):
        if self.scan or self.remat != 'none' or self.kept or context.head_mask is not None:
            raise ValueError(f'depth={self.depth} has one block, whose heads cannot be pruned or scanned over; leave out scan, '
                             'remat and --heads.')
        return steps(self.depth, blocks[0], self.layers, x, context, numerics=self.numerics, **given)


class Sequence(Tower):
    """A tower over embedded tokens in rows.

    Attributes:
      length: the longest row; positions that mean something beyond it (Alibi(), Rotary(), ...) can be evaluated on longer ones.
    """
    length: int = 1024

    @nn.compact
    def __call__(self, x, **given):
        """As `sequence`."""
        return self.sequence(x, **given)

    def sequence(self, x, *, segments=None, positions=None, cache=None, head_mask=None, source=None, what='sequence',
                 field='model.length', **given):
        """x [B, T, D] -> ([B, T, D], cache, more), as `through_blocks`.

        Args:
          segments: [B, T], packed documents (0 = padding); None: each row is one document. With a cache: 0 = padding behind a
            prompt, which a state that runs along must not take up.
          positions: [B, T], where in its document each token is; None: 0..T-1.
          cache: from `empty_cache`; x is then of the next tokens, at `positions`.
          head_mask, source: as in `Context`.
          what, field: what a row that is too long is called, and the field of the config that it exceeds.
          given: key and cross, as in `through_blocks`.
        """
        batch, length = x.shape[:2]
        for part in (self.mask, self.attention):
            part.require_length(self.length)  # up to that prompts and sources are padded
        if length > self.length and not (cache is None and self.positions.free_length and self.attention.free_length):
            raise ValueError(f'A {what} of {length} tokens is longer than the {self.length} that this model takes; '
                             f'shorten it or train with {field}={length}.')
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(length), (batch, length))
        mask = self.mask
        if segments is not None and cache is None:
            mask = mask & Segments(segments, segments)
        elif segments is not None:
            mask = mask & Padding(jnp.where(segments != 0, positions + 1, 0).max(1))
        sizes = Sizes(self.length, self.width, self.heads, self.each_head, self.initial.embedding(self.layers))
        shared = Parameters(self.positions.parameters(sizes), name='positions')()
        encoding = Encoding(self.positions, shared, positions, positions, sizes)
        return self.through_blocks(x, Context(mask, encoding, positions, head_mask, source), cache=cache, **given)

    def require_causal(self):
        """Raises ValueError for a mask that lets a token see what it has to predict."""
        if not self.mask.causal:
            raise ValueError(f'The mask {self.mask} lets a token see later ones, so what it has to predict; use one such as '
                             'Causal() or Causal() & Window(size=256).')

    def empty_cache(self, batch, length):
        """The caches of all blocks, for `batch` rows of up to `length` tokens."""
        def layer(kept):
            heads, key_heads = (self.heads, self.key_heads or self.heads) if kept is None else (len(kept),) * 2
            return self.attention.empty_cache(batch, length, heads, key_heads, self.each_head, self.dtype)
        return {f'block_{i}': layer(kept) if kept != () else {} for i, kept in enumerate(kept_heads(self))}
