"""Replaced tokens: ELECTRA's objective (Clark et al. 2020), of transformer/models/electra.py."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer.layers.dropout import fold
from transformer.layers.numerics import real_dtype, wide
from transformer.tasks.base import Task, real
from transformer.tasks.losses import correct, cross_entropy
from transformer.tasks.masked import stuck
from transformer.tasks.reading import told


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(Task):
    """generator·(-log p_G(masked word)) + discriminator·(-log p_D(whether each token was replaced))     (section 2)

    The words at the masked positions, also those that still show the original, are replaced by samples of the generator; no
    gradient goes through them. A sample that is the original counts as not replaced. The first term is averaged over the masked
    positions, by their weights, the second over all that are not padding, special tokens included, as in their code. In
    evaluation the samples of a row depend on its tokens alone.

    Metrics are the accuracies of both and, as shares of all tokens, those that were replaced, those that the discriminator says
    were, and those of which it says so rightly; an evaluation also has their precision and recall.

    Attributes:
      generator, discriminator: the factors (section 3.1, appendix A).
    """
    generator: float = 1.0
    discriminator: float = 50.0

    def __post_init__(self):
        if not (0 <= self.generator < math.inf and 0 < self.discriminator < math.inf):
            raise ValueError(f'task.generator is {self.generator} and task.discriminator {self.discriminator}; expected '
                             'factors of 0 or more, and of the discriminator above 0.')

    @property
    def coefficients(self) -> Mapping[str, float]:
        return {'generator': self.generator, 'discriminator': self.discriminator}

    def inputs(self, batch: Mapping) -> dict:
        """Those of the discriminator; with 'masked' the model applies its generator."""
        return told(batch)

    def loss(self, forward: Callable, batch: Mapping, *, key: jax.Array | None, step: Any, train: bool) -> dict:
        """As in `Task`; `key` also draws the samples of training."""
        batch = real(batch)
        own = fold(key, 'dropout') if train else None
        given = self.inputs(batch)
        generated = forward(**given, masked=batch['masked'], key=own)
        if 'logits' not in generated:
            raise ValueError('This task trains a generator of words together with a discriminator, but the model gives '
                             f'{", ".join(generated)} alone; use transformer.models.electra:Electra.')
        logits, weights = wide(generated['logits']), batch['weights']
        original = placed(batch['inputs'], batch['masked'], batch['targets'], weights)
        sampled = sample(logits, fold(key, 'samples') if train else rows_keys(original))
        corrupted = placed(original, batch['masked'], sampled, weights)
        judged = forward(**given | {'inputs': corrupted}, key=own)
        words = {'generator': cross_entropy(logits, batch['targets']), 'generator_accuracy': correct(logits, batch['targets'])}
        found = {name: ((weights * value).sum(), weights.sum()) for name, value in words.items()}
        return found | self.terms(judged, batch | {'inputs': corrupted, 'original': original})

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        """The terms of the discriminator, from its outputs for `inputs` in place of the `original`."""
        logits, replaced = wide(outputs['replaced_logits']), batch['inputs'] != batch['original']
        there, said = jnp.asarray(batch['segments'] != 0, real_dtype()), logits > 0
        values = {'discriminator': jax.nn.softplus(jnp.where(replaced, -logits, logits)),
                  'discriminator_accuracy': said == replaced, 'replaced': replaced, 'said_replaced': said,
                  'rightly_replaced': said & replaced}
        return {name: ((there * value).sum(), there.sum()) for name, value in values.items()}

    def derived(self, averages: Mapping, facts: Mapping) -> dict:
        """precision and recall of replaced tokens, shares from 0 to 1; nan without any."""
        share = lambda of: averages['rightly_replaced'] / averages[of] if averages[of] else math.nan
        return {'precision': share('said_replaced'), 'recall': share('replaced')}

    def remark(self, rows: Sequence[Mapping], data: Any, steps: int) -> str:
        return stuck(rows, 'generator', data.plateau, steps)


def placed(ids: jax.Array, places: jax.Array, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    """ids [B, T] with tokens [B, M] at the places [B, M], those of weight 0 left out."""
    kept = jnp.where(weights > 0, places, ids.shape[1])
    return jax.vmap(lambda row, at, new: row.at[at].set(new, mode='drop'))(ids, kept, tokens.astype(ids.dtype))


def sample(logits: jax.Array, keys: jax.Array) -> jax.Array:
    """A token [B, M] of softmax(logits) [B, M, V] each, without a gradient, by one key or one for each row."""
    logits = jax.lax.stop_gradient(logits)
    if keys.ndim:
        return jax.vmap(jax.random.categorical)(keys, logits)
    return jax.random.categorical(keys, logits)


def rows_keys(ids: jax.Array) -> jax.Array:
    """Random keys [B] that depend on the tokens [B, T] of each row alone, so that an evaluation gives the same numbers however
    its batches are cut."""
    factors = jnp.arange(1, ids.shape[1] + 1, dtype=jnp.uint32) * jnp.uint32(2654435761) | jnp.uint32(1)  # Knuth's hash
    return jax.vmap(lambda number: jax.random.fold_in(jax.random.key(0), number))((ids.astype(jnp.uint32) * factors).sum(
        1, dtype=jnp.uint32))
