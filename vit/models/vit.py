"""ViT: a Transformer encoder over image patches (Dosovitskiy et al. 2021), also with a distillation token (DeiT, Touvron et al.
2021) and with registers (Darcet et al. 2024)."""

import dataclasses
import math
import re
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.context import Context
from transformer.attention.masks.patterns import Full
from transformer.attention.partition import Whole
from transformer.attention.positions.absolute import Learned
from transformer.attention.positions.base import Encoding
from transformer.layers.dense import Dense, Parameters
from transformer.layers.heads import body_of, pooler
from transformer.layers.initial import Xavier, normal, zeros
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import Wanted, declare, table, vector
from transformer.layers.stack import Heads, Stack, inlined
from vit.layers import windows  # noqa: F401  so that a config finds its partitions by name
from vit.layers.patches import patches

POOLS, DISTILLATIONS = ('cls', 'mean', 'both'), ('none', 'token', 'logits', 'probabilities')


def rows_of(x: jax.Array, numbers: jax.Array) -> jax.Array:
    """x [B, T, D], numbers [B, K] -> [B, K, D], the rows of these numbers of every example."""
    return jnp.take_along_axis(x, numbers[..., None], axis=1, mode='clip')


class Vit(nn.Module):
    """logits = W·pool(norm(blocks([class token; patches·E] + P))) (eq. 1-4); heads start at zero.

    The tokens are ordered [class, distillation, registers, patches], where a model has these, and patches row by row. Registers
    are learnt tokens without positions, whose outputs nothing reads.

    Attributes:
      classes: number of classes; by default that of the data. 0: no head.
      patch: side of a square patch in pixels; it divides both sides of the images.
      pool: 'cls' reads the class token; 'mean' averages the patches and has no class token; 'both' reads the class token and,
        beside it, the mean of the patches.
      distillation: a token that learns from a teacher (Touvron et al. 2021, section 4). 'none'; 'token', which only attends;
        or with a head of its own, whose prediction is averaged with that of the class token: 'logits' their logits, as in
        transformers, 'probabilities' their softmaxes, as in the paper.
      registers: the number of registers.
      pooler: the pooled vector passes through tanh(x·W + b), as in transformers' model without a head.
      stack: the blocks; in a config their fields are the model's own, such as `model.layers`. With few, small patches,
        positions of a larger scale than the paper's, such as 'Learned(scale=0.2)', can be distinguished from the start;
        'Sinusoidal2d()' and 'SwinBias()' encode rows and columns. Images may have another size than in training if position
        tables can be resized, or there are none.
      patch_bias: adds a bias to the embedding of patches.
      dense_gradient: the gradient of dense layers as in `transformer.layers.numerics`, instead of JAX's rule.
    """
    classes: int
    patch: int = 16
    pool: str = 'cls'
    distillation: str = 'none'
    registers: int = 0
    pooler: bool = False
    stack: Stack = inlined(Stack(positions=Learned(scale=0.02), initial=Xavier()))
    patch_bias: bool = True
    dense_gradient: bool = True
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    @property
    def attentions(self) -> dict:
        """{name: `Heads`} of the attentions whose heads `head_mask` can switch off."""
        return {'attention': Heads(self.stack)}

    @property
    def filters(self) -> str:
        """The name of the filters on the pixels (`vit.contracts.Filtering`)."""
        return 'patches/kernel'

    @property
    def front(self) -> tuple[str, ...]:
        """The names of the tokens before the patches, in order."""
        return (*(['class'] if self.pool != 'mean' else []), *(['distillation'] if self.distillation != 'none' else []),
                *(f'register {number + 1}' for number in range(self.registers)))

    @nn.compact
    def __call__(self, image: jax.Array, *, kept: jax.Array | None = None, key: jax.Array | None = None,
                 head_mask: Mapping | None = None, capture: tuple = ()) -> dict:
        """image [B, height, width, C] -> {'hidden' [B, T, D], 'pooled' [B, D], 'logits' [B, classes]}, and the stack's aux.
        With two heads also 'cls_logits' and 'distillation_logits', of which 'logits' is the average.

        Args:
          kept: [B, K], the numbers of the patches that the blocks see, in any order and each at its own position; None: all.
          key: random key of training; None switches dropout off.
          head_mask, capture: as in `Context`.
        """
        self._check()
        numerics, stack = Numerics(self.dtype, self.dense_gradient, self.parameter_dtype), self.stack
        # A patch has p·p·C inputs: LeCun's scale makes the variance of the embedding independent of its size.
        embed = Dense(stack.width, bias=self.patch_bias, role=table(), kernel_init=nn.initializers.lecun_normal(),
                      numerics=numerics, name='patches')
        x = patches(image, self.patch)
        x = embed(x if kept is None else rows_of(x, kept))  # [B, T, D]
        if front := self._front(numerics):
            rows = numerics.cast(jnp.concatenate(front))
            x = jnp.concatenate([jnp.broadcast_to(rows, (len(x), *rows.shape)), x], axis=1)
        encoding = self._encoding(image, kept)
        wanted = stack.positions.parameters(encoding.sizes)
        shared = Parameters(wanted, encoding.fit, numerics, name='positions')()
        encoding = dataclasses.replace(encoding, parameters=shared)
        context = Context(stack.mask, encoding, head_mask=head_mask or {}, capture=capture)
        x, _, aux = stack(x, context, numerics=numerics, key=key)
        read = {'cls': lambda: [x[:, 0]], 'mean': lambda: [x[:, len(self.front):].mean(1)]}
        read['both'] = lambda: read['cls']() + read['mean']()
        pooled = jnp.concatenate(read[self.pool](), -1)  # [B, D], of 'both' [B, 2·D]
        if self.pooler:
            pooled = pooler(pooled, body_of(stack, numerics))
        outputs = {'hidden': x, 'pooled': pooled} | aux
        if self.classes:
            readout = body_of(stack, numerics).readout
            head = lambda name: Dense(self.classes, role=table(1), kernel_init=zeros, numerics=numerics, name=name)
            outputs['logits'] = head('head')(readout(pooled))
            if self.distillation in ('logits', 'probabilities'):
                outputs |= self._averaged(outputs['logits'], head('distillation_head')(readout(x[:, 1])))
        return outputs

    def _check(self):
        for name, known in (('pool', POOLS), ('distillation', DISTILLATIONS)):
            if getattr(self, name) not in known:
                raise ValueError(f'{name} is {getattr(self, name)!r}; expected one of {", ".join(known)}.')
        if self.distillation != 'none' and self.pool == 'mean':
            raise ValueError(f'distillation={self.distillation!r} is a token beside the class token, which pool={self.pool!r} '
                             "does not have; set pool='cls', or distillation='none'.")
        if self.registers < 0:
            raise ValueError(f'registers is {self.registers}; expected 0 or more.')

    def _front(self, numerics):
        """The learnt tokens before the patches, each [count, D]. Those that nothing else distinguishes start at random."""
        width, found = self.stack.width, []
        if self.pool != 'mean':
            found.append(declare(self, 'class_token', Wanted(zeros, (width,)), numerics)[None])
        if self.distillation != 'none':
            found.append(declare(self, 'distillation_token', Wanted(normal(0.02), (width,)), numerics)[None])
        if self.registers:
            found.append(declare(self, 'registers', Wanted(normal(0.02), (self.registers, width), vector()), numerics))
        return found

    def _averaged(self, one, other):
        """The outputs for the logits of the class token and of the distillation token."""
        if self.distillation == 'logits':
            both = (one + other) / 2
        else:  # the logarithm of the mean of the softmaxes
            both = jnp.logaddexp(jax.nn.log_softmax(wide(one)), jax.nn.log_softmax(wide(other))) - math.log(2)
        return {'logits': both.astype(one.dtype), 'cls_logits': one, 'distillation_logits': other}

    def _encoding(self, image, kept=None, trained=None):
        """The position encoding for images of this size, without parameters; `kept` as in `__call__`, `trained`: the grid of
        parameters of another."""
        extra, row = len(self.front), jnp.arange(len(self.front) + math.prod(self._grid(image)))
        sizes = self.stack.sizes(len(row), grid=self._grid(image), extra=extra, registers=self.registers)
        if kept is not None:
            if self.stack.mask != Full() or self.stack.positions.in_scores:
                raise ValueError(f'positions={self.stack.positions} and mask={self.stack.mask} tell patches apart by their '
                                 'places in the row, of which some are left out here; use Learned() or Sinusoidal2d(), and '
                                 'Full().')
            row = jnp.concatenate([jnp.broadcast_to(row[:extra], (len(kept), extra)), extra + kept], axis=1)
        return Encoding(self.stack.positions, {}, row, row, dataclasses.replace(sizes, trained=trained))

    def _grid(self, image):
        """(rows, columns) of the patches of images."""
        return tuple(side // self.patch for side in image.shape[1:3])

    def fitted(self, path: str, parameter: jax.Array, before: Mapping, image: jax.Array) -> jax.Array:
        """Fits a parameter of this model for images of another size to images like this one: position tables are resized."""
        *parents, name = path.split('/')
        if 'image' not in before or parents[-1:] != ['positions']:
            return parameter
        block = re.match(r'block_(\d+)', parents[0])
        part = self.stack.partition.of_layer(int(block[1])) if block else Whole()
        grid, trained = (part.grid(self._grid(one)) for one in (image, before['image']))
        if grid == trained:
            return parameter
        encoding = self._encoding(image, trained=trained)
        sizes = dataclasses.replace(encoding.sizes, grid=grid, length=encoding.sizes.extra + math.prod(grid))
        return dataclasses.replace(encoding, sizes=sizes).fit(name, parameter)
