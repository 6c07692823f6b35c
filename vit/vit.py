"""ViT: a Transformer encoder over image patches (Dosovitskiy et al. 2021)."""

import dataclasses
import math

import flax.linen as nn
import jax.numpy as jnp

from transformer.attention.positions import Encoding, Learned, Positions, Sizes
from transformer.block import Context
from transformer.initial import Initial, Xavier
from transformer.layers import Dense, Parameters, zeros
from transformer.outputs import pooled as tanh_pooled
from transformer.tower import Tower

POOLS = ('cls', 'mean')


def patches(images, size):
    """Cuts [B, height, width, C] into non-overlapping squares: [B, patches, size·size·C], row by row (eq. 1)."""
    batch, height, width, channels = images.shape
    if height % size or width % size:
        raise ValueError(f'Images of {height}x{width} cannot be cut into patches of {size}x{size}; '
                         'choose a patch that divides both sides.')
    x = images.reshape(batch, height // size, size, width // size, size, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height * width // size ** 2, size * size * channels)


class Vit(Tower, kw_only=True):
    """logits = W·pool(norm(blocks([class token; patches·E] + P))) (eq. 1-4); the head starts at zero.

    Attributes:
      classes: number of classes; left out of a config, it is the data's. 0: there is no head.
      patch: side of a square patch in pixels; it divides both sides of the images.
      pool: 'cls' reads the class token; 'mean' averages the patches and has no class token.
      pooler: what is read goes through tanh(x·W + b), as in transformers' model without a head.
      positions: how a patch knows where it stands, such as 'Sinusoidal2d()' or 'Swin()'; with few, small patches a larger
        scale than the paper's, such as 'Learned(scale=0.2)', tells positions apart from the start. Images may have another
        size than those of training where tables can be resized, or there are none.
      mask: which patches see which; rows of patches follow each other, after the class token.
      kept: the heads that pruning left (eval.py --heads), such as ((0, 2), (1,)) in two layers; () stands for all.
      initial: how the matrices of the blocks begin: 'Xavier()', 'Scaled(scale=0.02)' or 'TFixup()'.

    The others are those of `Tower`.
    """
    classes: int
    patch: int = 16
    pool: str = 'cls'
    pooler: bool = False
    positions: Positions = Learned(scale=0.02)
    initial: Initial = Xavier()
    kept: tuple = ()

    @nn.compact
    def __call__(self, image, *, key=None, head_mask=None):
        """image [B, height, width, C] -> {'hidden' [B, T, D], 'pooled' [B, D], 'logits' [B, classes]}; key=None: no dropout.

        head_mask: [layers, N] or [layers, B, 1, N], factors of what each head gives; None: ones.
        """
        if self.pool not in POOLS:
            raise ValueError(f'pool is {self.pool!r}; expected one of {", ".join(POOLS)}.')
        numerics = self.numerics
        # A patch of p·p·C inputs in place of D: keep the variance of the embedding independent of the patch.
        embed = Dense(self.width, bias=self.bias, kernel_init=nn.initializers.lecun_normal(), numerics=numerics, name='patches')
        x = embed(patches(image, self.patch))  # [B, T, D]
        if self.pool == 'cls':
            token = self.param('class_token', zeros, (self.width,))
            x = jnp.concatenate([jnp.broadcast_to(numerics.cast(token), (x.shape[0], 1, self.width)), x], axis=1)
        encoding = self._encoding(image)
        wanted = self.positions.parameters(encoding.sizes)
        encoding = dataclasses.replace(encoding, parameters=Parameters(wanted, encoding.fit, name='positions')())
        x, _, more = self.through_blocks(x, Context(self.mask, encoding, head_mask=head_mask), key=key)
        pooled = x[:, 0] if self.pool == 'cls' else x.mean(1)  # [B, D]
        if self.pooler:
            pooled = tanh_pooled(self, pooled)
        outputs = {'hidden': x, 'pooled': pooled} | more
        if self.classes:
            head = Dense(self.classes, bias=self.bias, kernel_init=zeros, numerics=numerics, name='head')
            outputs['logits'] = head(pooled)
        return outputs

    def _encoding(self, image):
        """The position encoding for images of this size, without parameters."""
        grid, extra = tuple(side // self.patch for side in image.shape[1:3]), int(self.pool == 'cls')
        row = jnp.arange(extra + math.prod(grid))
        sizes = Sizes(len(row), self.width, self.heads, self.each_head, grid=grid, extra=extra)
        return Encoding(self.positions, {}, row, row, sizes)

    def fitted(self, path, parameter, image):
        """A parameter of this model for images of another size -> for images like this: that of positions is resized."""
        *parents, name = path.split('/')
        return self._encoding(image).fit(name, parameter) if parents[-1:] == ['positions'] else parameter
