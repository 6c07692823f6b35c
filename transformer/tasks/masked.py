"""Pretraining of encoders: masked words, and how two parts of a text belong together."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from transformer.tasks.base import Prediction, Task, example_weights
from transformer.tasks.reading import told

_PATIENCE = 1000  # steps after the warm-up within which masked words are learnt better than by their frequency
_ABOUT = 0.97  # of the plateau: a loss above it is no better
_ROWS = 3  # of the log that are all above it


def stuck(rows: Sequence[Mapping], term: str, plateau: float, steps: int) -> str:
    """What helps if the loss `term` of masked words stays at the plateau that a masked language model has to leave, that of a
    model which knows how frequent words are and copies those that it sees; '' if it does not, or may still leave it."""
    warm = max(row['learning_rate'] for row in rows) * 0.99
    begun = next(row['step'] for row in rows if row['learning_rate'] >= warm)
    latest, step = rows[-_ROWS:], rows[-1]['step']
    short = step - begun < _PATIENCE
    ended = step == steps and latest[0]['step'] >= begun and len(latest) == _ROWS
    if (short and not ended) or not all(row[term] > _ABOUT * plateau for row in latest):
        return ''
    return (f'CAUTION: after {step:,} steps the loss of masked words is {rows[-1][term]:.2f}, no better than '
            f'{plateau:.2f}, that of a model which knows only how frequent words are. Usually '
            f'{"more train.steps, " if short else ""}a lower optimizer.learning_rate or a longer warm-up helps, '
            "on small texts model.positions='Rotary()', in deep models model.residual='PreNorm()', "
            'or a larger data.batch_size; python -m data.show shows whether the tokenizer and the noise are as they should be.')


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

    def remark(self, rows: Sequence[Mapping], data: Any, steps: int) -> str:
        return stuck(rows, next(iter(self.coefficients)), data.plateau, steps)


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
        """Those of `MaskedTokens`, and the boundaries where there are any: a text to be filled in has none."""
        return MaskedTokens().inputs(batch) | {name: batch[name] for name in ('boundaries',) if name in batch}

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        if 'boundary_logits' not in outputs:
            raise ValueError('SpanPretraining predicts words from the boundaries of their spans, and this model gives '
                             f"{', '.join(sorted(outputs))}; set model.head='SpanBoundary()' and data.boundary_targets=20.")
        masked = MaskedTokens().terms(outputs, batch)
        boundary = MaskedTokens().predictions(outputs['boundary_logits'], batch['targets'], batch['boundary_weights'])
        return {'masked': masked['loss'], 'boundary': boundary['loss'], 'accuracy': masked['accuracy'],
                'boundary_accuracy': boundary['accuracy']}

    def remark(self, rows: Sequence[Mapping], data: Any, steps: int) -> str:
        return stuck(rows, 'masked', data.plateau, steps)


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

    def remark(self, rows: Sequence[Mapping], data: Any, steps: int) -> str:
        return stuck(rows, 'masked', data.plateau, steps)
