"""ViT: a Transformer encoder over image patches (Dosovitskiy et al. 2021)."""

from functools import partial

import flax.linen as nn
import jax.numpy as jnp

from transformer.attention.multi_head import MultiHead
from transformer.block import Block, FeedForward
from transformer.initial import Initial, Xavier
from transformer.layers import Dense, LayerNorm, dropout, fold, normal, zeros
from transformer.numerics import Numerics
from transformer.residual import PreNorm, Residual
from transformer.stack import stack

POOLS = ('cls', 'mean')


def patches(images, size):
    """Cuts [B, height, width, C] into non-overlapping squares: [B, patches, size·size·C], row by row (eq. 1)."""
    batch, height, width, channels = images.shape
    if height % size or width % size:
        raise ValueError(f'Images of {height}x{width} cannot be cut into patches of {size}x{size}; '
                         'choose a patch that divides both sides.')
    x = images.reshape(batch, height // size, size, width // size, size, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, size * size * channels)


class Vit(nn.Module):
    """logits = W·pool(norm(blocks([class token; patches·E] + P))) (eq. 1-4); the head starts at zero. The norm is there
    if the residual asks for one at the end.

    Attributes:
      classes: number of classes; left out of a config, it is the data's.
      patch: side of a square patch in pixels; it divides both sides of the images.
      inner: inner width of the feed-forward; 0 stands for 4·width.
      pool: 'cls' reads the class token; 'mean' averages the patches and has no class token.
      position_scale: standard deviation of the initial position table; with few, small patches a larger one than the
        paper's tells positions apart from the start.
      dropout: rate on the embedding, the attention weights and the residual branches.
      residual: where the norms stand: 'PreNorm()', 'PostNorm()', 'ReZero()' or 'NoNorm()'.
      initial: how the matrices of the blocks begin: 'Xavier()', 'Scaled(scale=0.02)' or 'TFixup()'.
      scan, remat: how layers are stacked and what of them is kept for the gradient, as in `transformer.stack`.
    """
    classes: int
    patch: int = 16
    layers: int = 12
    heads: int = 12
    width: int = 768
    inner: int = 0
    activation: str = 'gelu'
    dropout: float = 0.0
    pool: str = 'cls'
    position_scale: float = 0.02
    residual: Residual = PreNorm()
    initial: Initial = Xavier()
    dense_gradient: bool = True
    scan: bool = False
    remat: str = 'none'
    dtype: str = 'float32'

    @nn.compact
    def __call__(self, image, *, key=None):
        """image [B, height, width, C] -> {'logits' [B, classes], 'hidden' [B, T, D], 'pooled' [B, D]}; key=None: no dropout."""
        if self.pool not in POOLS:
            raise ValueError(f'pool is {self.pool!r}; expected one of {", ".join(POOLS)}.')
        numerics = Numerics(self.dtype, self.dense_gradient)
        # A patch of p·p·C inputs in place of D: keep the variance of the embedding independent of the patch.
        embed = Dense(self.width, kernel_init=nn.initializers.lecun_normal(), numerics=numerics, name='patches')
        x = embed(patches(image, self.patch))  # [B, T, D]
        if self.pool == 'cls':
            token = self.param('class_token', zeros, (self.width,))
            x = jnp.concatenate([jnp.broadcast_to(numerics.cast(token), (x.shape[0], 1, self.width)), x], axis=1)
        table = self.param('positions', normal(self.position_scale), x.shape[1:])
        x = dropout(x + numerics.cast(table), self.dropout, fold(key, 'embedding'))

        norm = partial(LayerNorm, numerics=numerics)
        block = partial(
            Block, norm=norm, residual=self.residual, dropout=self.dropout,
            attention=partial(MultiHead, self.heads, dropout=self.dropout, numerics=numerics,
                              **self.initial.attention(self.layers)),
            feed_forward=partial(FeedForward, self.inner or 4 * self.width, self.activation, numerics=numerics,
                                 **self.initial.feed_forward(self.layers)))
        x, _ = stack(block, self.layers, x, key=key, scan=self.scan, remat=self.remat)
        if self.residual.final_norm:
            x = norm(name='norm')(x)
        pooled = x[:, 0] if self.pool == 'cls' else x.mean(1)  # [B, D]
        logits = Dense(self.classes, kernel_init=zeros, numerics=numerics, name='head')(pooled)
        return {'logits': logits, 'hidden': x, 'pooled': pooled}
