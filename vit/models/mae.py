"""MAE: a Transformer that sees few patches of an image and predicts the pixels of the others (He et al. 2022)."""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.context import Context
from transformer.attention.positions.absolute import Sinusoidal2d
from transformer.attention.positions.base import Encoding
from transformer.layers.dense import Dense, Parameters
from transformer.layers.dropout import fold
from transformer.layers.heads import body_of
from transformer.layers.initial import Xavier, normal
from transformer.layers.numerics import Numerics, real_dtype, wide
from transformer.layers.roles import Wanted, declare
from transformer.layers.stack import Heads, Stack
from vit.layers.patches import joined, patches
from vit.models.vit import Vit, rows_of

# The code of the paper has the sines and cosines of the columns first, as its released tables do.
POSITIONS = Sinusoidal2d(interleaved=False, columns_first=True)
LEAST = 1e-6  # added to the variance of a patch
BASE = Stack(positions=POSITIONS, initial=Xavier())


def shuffled(noise: jax.Array, keep: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The order of the patches by their noise [B, T]: those with the least noise are kept.

    Returns:
      shuffle [B, T]: the numbers of the patches in this order; the first `keep` are kept.
      restore [B, T]: the place of each patch in it, with which `rows_of` undoes the order.
      mask [B, T]: 1 for masked patches, 0 for those that are kept.
    """
    shuffle = jnp.argsort(noise, axis=1)
    restore = jnp.argsort(shuffle, axis=1)
    return shuffle, restore, jnp.asarray(restore >= keep, real_dtype())


def standardised(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(x̂, mean, deviation) of patches [.., P]: x̂ = (x - mean) / sqrt(variance + 1e-6), with the unbiased variance over the
    pixels and channels of a patch, as in the code of the paper."""
    mean = x.mean(-1, keepdims=True)
    deviation = jnp.sqrt(x.var(-1, keepdims=True, ddof=1) + LEAST)
    return (x - mean) / deviation, mean, deviation


class Mae(nn.Module):
    """pixels = decoder(encoder(kept patches), mask tokens) (section 3).

    The encoder is a `Vit` without a head, whose parameters are under 'encoder/', and sees the kept patches alone. The decoder
    projects its states, has one learnt vector at the places of the others, and adds positions of its own.

    Attributes:
      patch: side of a square patch in pixels; it divides both sides of the images.
      pool: of the encoder, as in `Vit`: 'cls' has a class token, 'mean' averages the patches, and 'both' gives the
        two side by side, [B, 2·D].
      mask_ratio: share of the masked patches; of T patches int(T·(1 - mask_ratio)) are kept.
      normalize: whether the targets are pixels standardised within their patch (section 4.1, 'reconstruction target').
      decodes: whether it has a decoder; False: the encoder alone, as in transformers' ViTMAEModel.
      encoder, decoder: the stacks of blocks, each with its own sizes.
      dense_gradient: the gradient of dense layers as in `transformer.layers.numerics`, instead of JAX's rule.
    """
    patch: int = 16
    pool: str = 'cls'
    mask_ratio: float = 0.75
    normalize: bool = False
    decodes: bool = True
    encoder: Stack = BASE
    decoder: Stack = dataclasses.replace(BASE, layers=8, heads=16, width=512)
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    def __post_init__(self):
        if not 0 <= self.mask_ratio < 1:
            raise ValueError(f'mask_ratio is {self.mask_ratio}; expected a share in [0, 1).')
        super().__post_init__()

    @property
    def attentions(self) -> dict:
        """{name: `Heads`} of the attentions whose heads `head_mask` can switch off."""
        return {f'{name}/attention': Heads(getattr(self, name), name) for name in ('encoder', 'decoder')[:1 + self.decodes]}

    @property
    def filters(self) -> str:
        """The name of the filters on the pixels (`vit.contracts.Filtering`)."""
        return 'encoder/patches/kernel'

    @property
    def front(self) -> tuple[str, ...]:
        """The names of the tokens before the patches."""
        return () if self.pool == 'mean' else ('class',)

    @nn.compact
    def __call__(self, image: jax.Array, *, noise: jax.Array | None = None, seed: jax.Array | None = None,
                 key: jax.Array | None = None, head_mask: Mapping | None = None, capture: tuple = ()) -> dict:
        """image [B, height, width, C] -> {'hidden' [B, T, D], 'pooled' [B, D]} of all patches, as of a `Vit`. With noise, seed
        or key patches are masked: {'hidden' [B, K, D], 'pooled' [B, D]} of the kept ones in the order of their noise, behind a
        class token if there is one; 'mask' [B, T], 1 for masked patches; 'restore' [B, T], as of `shuffled`; and of the decoder
        'pixels' [B, T, P], with P = patch·patch·C, and 'targets' [B, T, P]. Also the aux of the stacks, under 'encoder/' and
        'decoder/'.

        Args:
          noise: [B, T]; the patches with the least noise are kept.
          seed: [B], integers from which the noise of each image is drawn, so that it has the same in any batch.
          key: random key of training, from which the noise is drawn if neither is given; None switches dropout off.
          head_mask, capture: as in `Context`; the names of heads as in `attentions`.
        """
        cut = patches(image, self.patch)  # [B, T, P]
        count = cut.shape[1]
        if self.normalize and cut.shape[2] < 2:
            raise ValueError('model.normalize=True needs the variance within a patch, and a patch of one pixel has none; '
                             'choose a larger model.patch, or leave it out.')
        keep = self._keep(count)
        if seed is not None or key is not None:  # of a task, which learns or measures what is masked
            if keep == count:
                raise ValueError(f'model.mask_ratio={self.mask_ratio} masks none of {count} patches; raise it.')
            noise = _noise(seed, key, cut.shape[:2]) if noise is None else noise
        if noise is None and self.is_initializing():
            noise = jnp.zeros(cut.shape[:2])  # which makes the parameters of the decoder
        if noise is not None and noise.shape != cut.shape[:2]:
            raise ValueError(f'The noise is {list(noise.shape)} for {list(cut.shape[:2])} patches; give a number for each.')
        of = lambda name: {path.removeprefix(f'{name}/'): x for path, x in (head_mask or {}).items()
                           if path.startswith(f'{name}/')}
        encoder = Vit(classes=0, patch=self.patch, pool=self.pool, stack=self.encoder, dense_gradient=self.dense_gradient,
                      dtype=self.dtype, parameter_dtype=self.parameter_dtype, name='encoder')
        encode = lambda kept: _named('encoder', encoder(image, kept=kept, key=fold(key, 'encoder'), head_mask=of('encoder'),
                                                        capture=capture))
        if noise is None:
            return encode(None)
        shuffle, restore, mask = shuffled(noise, keep)
        found = encode(shuffle[:, :keep]) | {'mask': mask, 'restore': restore}
        if self.decodes:
            numerics = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype)
            decoder = Decoder(self.decoder, cut.shape[2], len(self.front), numerics, name='decoder')
            grid = tuple(side // self.patch for side in image.shape[1:3])
            pixels, aux = decoder(found['hidden'], restore, grid, key=fold(key, 'decoder'), head_mask=of('decoder'),
                                  capture=capture)
            found |= {'pixels': pixels, 'targets': self.targets(image)} | _named('decoder', aux)
        return found

    def targets(self, image: jax.Array) -> jax.Array:
        """[B, T, P]: the numbers that the decoder predicts for images."""
        cut = wide(patches(image, self.patch))
        return standardised(cut)[0] if self.normalize else cut

    def images(self, pixels: jax.Array, image: jax.Array) -> jax.Array:
        """Predictions [B, T, P] as images [B, height, width, C]. Where they are standardised, with the mean and the deviation
        of the patches of the true `image`, which alone nobody could predict."""
        if self.normalize:
            _, mean, deviation = standardised(wide(patches(image, self.patch)))
            pixels = mean + deviation * pixels
        return joined(pixels, self.patch, *image.shape[1:3])

    def _keep(self, count):
        keep = int(count * (1 - self.mask_ratio))  # in floats, as in the code of the paper
        if keep < 1:
            raise ValueError(f'model.mask_ratio={self.mask_ratio} keeps none of {count} patches; lower it, or choose smaller '
                             'patches.')
        return keep


class Decoder(nn.Module):
    """pixels = W·norm(blocks(states and mask tokens + P)) (section 3, 'MAE decoder').

    Attributes:
      stack: the blocks.
      features: P, the numbers of a patch.
      extra: tokens in front of the patches, a class token.
    """
    stack: Stack
    features: int
    extra: int
    numerics: Numerics = Numerics()

    @nn.compact
    def __call__(self, hidden: jax.Array, restore: jax.Array, grid: tuple, *, key: jax.Array | None = None,
                 head_mask: Mapping | None = None, capture: tuple = ()) -> tuple[jax.Array, dict]:
        """hidden [B, extra + K, E] of the kept patches, restore [B, T] as of `shuffled`, and the (rows, columns) of all
        patches -> ([B, T, P], aux)."""
        stack, numerics, extra, count = self.stack, self.numerics, self.extra, restore.shape[1]
        x = Dense(stack.width, kernel_init=stack.matrix_init, numerics=numerics, name='embed')(hidden)  # [B, extra + K, D]
        token = declare(self, 'mask_token', Wanted(normal(0.02), (stack.width,)), numerics)
        masked = numerics.plus(jnp.zeros((len(x), extra + count - x.shape[1], stack.width), x.dtype), token)
        unshuffled = rows_of(jnp.concatenate([x[:, extra:], masked], axis=1), restore)  # [B, T, D]
        x = jnp.concatenate([x[:, :extra], unshuffled], axis=1)
        row = jnp.arange(extra + count)
        sizes = stack.sizes(len(row), grid=grid, extra=extra)
        shared = Parameters(stack.positions.parameters(sizes), self._refuse, numerics, name='positions')()
        context = Context(stack.mask, Encoding(stack.positions, shared, row, row, sizes), head_mask=head_mask or {},
                          capture=capture)
        x, _, aux = stack(x, context, numerics=numerics, key=key)
        body = body_of(stack, numerics)
        return body.output(self.features, 'pixels')(body.readout(x))[:, extra:], aux

    def _refuse(self, name, parameter):
        raise ValueError(f'The decoder has positions for images of {parameter.shape[0] - self.extra} patches; give images of '
                         'the size of training.')


def _noise(seed, key, shape):
    """[B, T] uniform in [0, 1)."""
    if seed is None:
        return jax.random.uniform(fold(key, 'masking'), shape)
    return jax.vmap(lambda one: jax.random.uniform(jax.random.fold_in(jax.random.key(0), one), shape[1:]))(seed)


def _named(stack, found):
    """The outputs of a stack, those of its layers under its name."""
    return {f'{stack}/{name}' if '/' in name else name: x for name, x in found.items()}
