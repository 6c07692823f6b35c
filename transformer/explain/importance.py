"""The importance of heads (Michel et al. 2019, "Are sixteen heads really better than one?").

    I_h = E_x |d L(x) / d ξ_h| at ξ = 1,   ξ_h being a factor of the output of head h (their eq. 2),

divided by the norm of the vector of its layer. x is a row of a batch, L(x) the contribution of its predictions to the task's
loss. Voita et al. 2019 learn such factors; here only the gradients at 1 are used.

Layers are those of all attentions of a model in sequence, each with its heads: in an encoder-decoder the self-attention of the
encoder, that of the decoder, and the cross attention.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from display import progress
from transformer.attention.pruned import kept_heads
from transformer.explain.maps import layer_of


class AttentionLayer(NamedTuple):
    """One layer of one attention of a model.

    Attributes:
      attention: its name in the model's `attentions`.
      number: the index of the layer in its stack.
      heads: the number of heads before pruning; kept: those that remain.
    """
    attention: str
    number: int
    heads: int
    kept: tuple

    @property
    def name(self) -> str:
        return layer_of(self.attention, self.number)


def layers_of(model: Any) -> list[AttentionLayer]:
    """All layers whose heads can be switched off."""
    return [AttentionLayer(name, number, stack.heads, tuple(range(stack.heads)) if row is None else row)
            for name, (stack, _, field) in model.attentions.items() for number, row in enumerate(kept_heads(stack, field))]


def require_heads(model: Any) -> None:
    """Raises ValueError for a model without heads that can be switched off."""
    if not model.attentions:
        raise ValueError(f'{type(model).__name__} has no heads that could be switched off; --heads is for models such as '
                         'transformer.models.gpt:Gpt.')
    for stack, *_ in model.attentions.values():
        if stack.depth.blocks(stack.layers) < stack.layers:
            raise ValueError(f'depth={stack.depth} has layers that share their heads, which cannot be switched off in one; '
                             "--heads is for runs with depth='Own()'.")
    if not all_heads(model):
        raise ValueError(f'This {type(model).__name__} has no head left; give the --workdir of another run.')


def all_heads(model: Any) -> list[tuple[int, int]]:
    """[(layer, head)] of all heads that a model has."""
    return [(number, head) for number, layer in enumerate(layers_of(model)) for head in layer.kept]


def importance(snapshot: Any, batches: Iterable[Mapping]) -> np.ndarray:
    """[layers, N], nan for absent heads: I_h over the rows of all batches, before scaling."""
    model, run = snapshot.model, snapshot.run
    task = run.task

    @jax.jit
    def gradient(variables, batch, frozen):
        def total(masks):
            def apply(**inputs):
                texts = len(next(iter(inputs.values()))) // rows  # of a row, such as the two of a preference
                each = {name: jnp.repeat(mask, texts, 1) for name, mask in masks.items()}
                return model.apply(variables, head_mask=each, **inputs)
            terms = task.loss(run.forward(apply, frozen), batch, key=None, step=None, train=False)
            loss = sum(c * terms[t][0] / jnp.maximum(terms[t][1], 1e-9) for t, c in task.coefficients.items())
            return loss, terms[next(iter(task.coefficients))][1]
        rows = len(next(iter(batch.values())))
        ones = {name: jnp.ones((stack.layers, rows, 1, stack.heads)) for name, (stack, *_) in model.attentions.items()}
        slopes, weight = jax.grad(total, has_aux=True)(ones)
        # A factor for each row gives a gradient for each row.
        return {name: jnp.abs(x).sum((1, 2)) * weight for name, x in slopes.items()}, weight

    sums, weights = {name: 0.0 for name in model.attentions}, 0.0
    for batch in progress.over(batches, 'measuring the importance of the heads', 'batches'):
        slopes, weight = jax.device_get(gradient(snapshot.variables, batch, run.companions.variables))
        sums = {name: x + slopes[name].astype(np.float64) for name, x in sums.items()}
        weights += float(weight)
    if not all(np.isfinite(x).all() for x in sums.values()):
        raise ValueError('The gradients of the heads are not finite, so they have no importance: this run has diverged; '
                         'give an earlier checkpoint with --step=N.')
    layers = layers_of(model)
    found = np.full((len(layers), max(layer.heads for layer in layers)), np.nan)
    for row, layer in zip(found, layers):
        kept = list(layer.kept)
        row[kept] = sums[layer.attention][layer.number][kept] / max(weights, 1e-9)
    return found


def by_layer(scores: np.ndarray) -> np.ndarray:
    """Importance with the vector of each layer scaled to length 1."""
    length = np.sqrt(np.nansum(np.square(scores), 1, keepdims=True))
    return scores / np.where(length > 0, length, 1.0)


def order(scores: np.ndarray) -> list[tuple[int, int]]:
    """[(layer, head)] from the least to the most important, by importance as `by_layer` scales it."""
    there = np.argwhere(~np.isnan(scores))
    return [tuple(map(int, there[i])) for i in np.argsort(scores[tuple(there.T)], kind='stable')]
