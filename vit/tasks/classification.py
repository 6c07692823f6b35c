"""Classification of images (see transformer/tasks/base.py for the contract)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from transformer.layers.dropout import fold
from transformer.tasks.base import Prediction, example_weights, real
from vit.tasks.augment import Augment, Unmixed, mixed


@dataclasses.dataclass(frozen=True)
class Classification(Prediction):
    """-log p(label | image), averaged over the examples; labels are class numbers [B] or probabilities [B, classes].

    Attributes:
      augment: mixes the examples of a batch in training, such as 'OneOf(Mixup(alpha=0.8), CutMix())'. The accuracy is then the
        share of the mixed label that the predicted class has.
    """
    augment: Augment = Unmixed()

    def inputs(self, batch: Mapping) -> dict:
        return {'image': batch['image']}

    def loss(self, forward: Callable, batch: Mapping, *, key: jax.Array | None, step: Any, train: bool) -> dict:
        if train:
            batch = self.augment(real(batch), fold(key, 'augment'))
        return super().loss(forward, batch, key=key, step=step, train=train)

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        logits, label = outputs['logits'], self.label(outputs['logits'], batch)
        return self.predictions(logits, label, example_weights(batch, len(label)))

    def label(self, logits: jax.Array, batch: Mapping) -> jax.Array:
        """The labels for logits [B, classes]: numbers [B], or probabilities [B, classes], as they are of mixed examples."""
        label = batch['label']
        if 'kept' in batch:
            label = jax.nn.one_hot(label, logits.shape[-1]) if label.ndim == 1 else label
            label = mixed(label, batch['kept'][:, None])
        return label
