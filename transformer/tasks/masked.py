"""Pretraining of encoders: masked words, and how two parts of a text belong together."""

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp

from transformer.tasks.base import Prediction, Task, example_weights
from transformer.tasks.reading import told


@dataclasses.dataclass(frozen=True)
class MaskedTokens(Prediction):
    """-log p(word | the words around it), averaged over the masked words (Devlin et al. 2019, section 3.1, task 1).

    Attributes:
      everywhere: compute logits at every position, not only at masked words, to compare the time; the loss is the same.
    """
    everywhere: bool = False

    def inputs(self, batch: Mapping) -> dict:
        return told(batch) | ({} if self.everywhere else {'masked': batch['masked']})

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        logits = outputs['logits']
        if self.everywhere:
            logits = jnp.take_along_axis(logits, batch['masked'][..., None], 1)
        return self.predictions(logits, batch['targets'], batch['weights'])


@dataclasses.dataclass(frozen=True)
class NextSentencePrediction(Prediction):
    """-log p(label | two texts): whether the second follows the first (0) or not (1) (section 3.1, task 2); of data with
    pairs='order' whether they stand in order (0) or have changed places (1) (Lan et al. 2020, section 3.1)."""

    def inputs(self, batch: Mapping) -> dict:
        return told(batch)

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        return self.predictions(outputs['next_logits'], batch['label'], example_weights(batch, len(batch['label'])))


@dataclasses.dataclass(frozen=True)
class BertPretraining(Task):
    """The sum of `MaskedTokens` and of `NextSentencePrediction`, as BERT was trained, and with pairs='order' ALBERT; both are
    reported."""

    @property
    def coefficients(self) -> Mapping[str, float]:
        return {'masked': 1.0, 'pairs': 1.0}

    def inputs(self, batch: Mapping) -> dict:
        return MaskedTokens().inputs(batch)

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        masked, pairs = MaskedTokens().terms(outputs, batch), NextSentencePrediction().terms(outputs, batch)
        return {'masked': masked['loss'], 'pairs': pairs['loss'], 'accuracy': masked['accuracy'],
                'pairs_accuracy': pairs['accuracy']}
