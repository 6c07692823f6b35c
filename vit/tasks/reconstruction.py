"""Reconstruction of masked patches (He et al. 2022; see transformer/tasks/base.py for the contract)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.layers.numerics import wide
from transformer.tasks.base import Task, example_weights, real


@dataclasses.dataclass(frozen=True)
class Reconstruction(Task):
    """The mean of (pixel - target)² over the pixels and channels of a patch, averaged over the masked patches (section 3,
    'reconstruction target'); every image has as many of them.

    A batch may bring the `noise` [B, T] that orders the patches of its images. Otherwise it is drawn: in training at random, in
    evaluation by `seeds`.
    """
    keywords = ('seed',)

    def inputs(self, batch: Mapping) -> dict:
        return {name: batch[name] for name in ('image', 'noise') if name in batch}

    def loss(self, forward: Callable, batch: Mapping, *, key: jax.Array | None, step: Any, train: bool) -> dict:
        batch = real(batch)
        given = self.inputs(batch)
        if not train:
            given['seed'] = seeds(batch['image'])
        return self.terms(forward(**given, key=key if train else None), batch)

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        if 'pixels' not in outputs:
            raise ValueError(f'Reconstruction compares pixels, but the model gives {", ".join(outputs)}; choose '
                             'vit.models.mae:Mae with decodes=True.')
        squares = ((wide(outputs['pixels']) - outputs['targets']) ** 2).mean(-1)  # [B, T]
        mask, weights = outputs['mask'], example_weights(batch, len(squares))
        return {'loss': ((weights * (mask * squares).sum(1) / mask.sum(1)).sum(), weights.sum())}


def seeds(image: jax.Array) -> jax.Array:
    """[B] uint32: a hash of the bits of all pixels of an image and their places. The same image has the same mask in every
    evaluation, whatever the batch and its place in it, and other images have others."""
    bits = jax.lax.bitcast_convert_type(image.astype(jnp.float32), jnp.uint32).reshape(len(image), -1)
    places = jnp.arange(1, 2 * bits.shape[1], 2, dtype=jnp.uint32) * jnp.uint32(2654435761)
    return _mixed(_mixed(bits) + places).sum(1, dtype=jnp.uint32)


def _mixed(bits: jax.Array) -> jax.Array:
    """A permutation of uint32 in which high bits, the only ones in which 0 and 1 differ as floats, change low ones."""
    bits ^= bits >> 16
    bits *= jnp.uint32(0x85ebca6b)
    return bits ^ bits >> 13
