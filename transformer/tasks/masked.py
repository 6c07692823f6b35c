"""Pretraining of encoders: masked words, and how two parts of a text belong together."""

import dataclasses
import math
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
class SpanPretraining(Task):
    """lm / n + boundary·sbo / m: `MaskedTokens` over n masked words, and -log p(word | the two boundaries of its span) over the
    m of them that have boundaries (Joshi et al. 2020, section 3.2), which the data gives with `data.boundary_targets`.

    Attributes:
      boundary: the weight of the second term.
    """
    boundary: float = 1.0

    def __post_init__(self):
        if not 0 < self.boundary < math.inf:
            raise ValueError(f'boundary is {self.boundary}; expected a weight above 0.')

    @property
    def coefficients(self) -> Mapping[str, float]:
        return {'masked': 1.0, 'boundary': self.boundary}

    def inputs(self, batch: Mapping) -> dict:
        return MaskedTokens().inputs(batch) | {'boundaries': batch['boundaries']}

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        if 'boundary_logits' not in outputs:
            raise ValueError("SpanPretraining needs logits from the boundaries of spans, and this model gives "
                             f"{', '.join(sorted(outputs))}; set model.head='SpanBoundary()'.")
        masked = MaskedTokens().terms(outputs, batch)
        boundary = MaskedTokens().predictions(outputs['boundary_logits'], batch['targets'], batch['boundary_weights'])
        return {'masked': masked['loss'], 'boundary': boundary['loss'], 'accuracy': masked['accuracy'],
                'boundary_accuracy': boundary['accuracy']}


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
