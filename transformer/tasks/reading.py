"""Tasks of models that read whole texts: classes, labels, numbers, preferences, tags, answers (transformer/tasks/base.py)."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from transformer.layers.numerics import real_dtype, wide
from transformer.tasks.base import Prediction, Task, example_weights
from transformer.tasks.losses import cross_entropy

ENCODED = 'inputs', 'segments', 'positions', 'types'


def told(batch: Mapping, names: Sequence[str] = ENCODED) -> dict:
    return {name: batch[name] for name in names}


@dataclasses.dataclass(frozen=True)
class Reading(Task):
    """Base of the tasks of models that read whole texts.

    Attributes:
      types: the model takes the types of tokens, like BERT.
      start: the first input of a decoder that reads the text again, like BART's; -1: the model has no decoder.
    """
    types: bool = True
    start: int = -1

    def inputs(self, batch: Mapping) -> dict:
        found = told(batch, ENCODED if self.types else ENCODED[:3])
        if self.start >= 0:
            found |= {'decoder_inputs': jnp.pad(batch['inputs'][:, :-1], ((0, 0), (1, 0)), constant_values=self.start),
                      'decoder_segments': batch['segments'], 'decoder_positions': batch['positions']}
        return found


@dataclasses.dataclass(frozen=True)
class TextClasses(Reading, Prediction):
    """-log p(class | text)."""

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        return self.predictions(outputs['logits'], batch['label'], example_weights(batch, len(batch['label'])))


@dataclasses.dataclass(frozen=True)
class MultiLabel(Reading):
    """The mean over the labels of their binary cross-entropies, -log p(the text has the label) or -log(1 - p), with a sigmoid
    each. The accuracy is the share of texts with all labels right."""

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        logits, label = wide(outputs['logits']), batch['label']
        logits = logits[:, :label.shape[1]]  # a model may have more labels than its data
        weights = example_weights(batch, len(label))
        losses = -(label * jax.nn.log_sigmoid(logits) + (1 - label) * jax.nn.log_sigmoid(-logits)).mean(-1)
        right = ((logits > 0) == (label > 0)).all(-1)
        return {'loss': ((weights * losses).sum(), weights.sum()), 'accuracy': ((weights * right).sum(), weights.sum())}


@dataclasses.dataclass(frozen=True)
class TextNumbers(Reading):
    """(number - logit)², where the only logit estimates the number of a text; |number - logit| is a metric."""

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        missing = wide(outputs['logits'])[:, 0] - batch['label']
        weights = example_weights(batch, len(missing))
        return {'loss': ((weights * missing ** 2).sum(), weights.sum()),
                'absolute_error': ((weights * jnp.abs(missing)).sum(), weights.sum())}


@dataclasses.dataclass(frozen=True)
class Preferred(Reading):
    """-log sigmoid(chosen - rejected), where the only logit of a text is its reward (Ouyang et al. 2022, equation 1).

    The accuracy is the share of pairs whose chosen text has the higher reward; `margin` is the difference.
    """

    def inputs(self, batch: Mapping) -> dict:
        return super().inputs({name: batch[name].reshape(-1, batch[name].shape[-1]) for name in ENCODED})  # [2 B, T]

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        rewards = wide(outputs['logits'])[:, 0].reshape(-1, 2)
        margin = rewards[:, 0] - rewards[:, 1]
        weights = example_weights(batch, len(margin))
        terms = {'loss': -jax.nn.log_sigmoid(margin), 'accuracy': margin > 0, 'margin': margin}
        return {name: ((weights * value).sum(), weights.sum()) for name, value in terms.items()}


@dataclasses.dataclass(frozen=True)
class Tags(Reading, Prediction):
    """-log p(tag | text), averaged over the words, each tagged where it begins (section 5.3)."""

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        return self.predictions(outputs['logits'], batch['targets'], batch['weights'])


@dataclasses.dataclass(frozen=True)
class Spans(Reading):
    """The mean of -log p(first position of the answer) and of -log p(last position) (section 4.2); a text without the answer
    has it at position 0."""

    @property
    def coefficients(self) -> Mapping[str, float]:
        return {'start': 0.5, 'end': 0.5}

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        weights, found = example_weights(batch, len(batch['start'])), {}
        both = jnp.ones((), real_dtype())
        for name in ('start', 'end'):
            logits = jnp.where(batch['segments'] != 0, wide(outputs[f'{name}_logits']), -1e9)
            found[name] = (weights * cross_entropy(logits, batch[name])).sum(), weights.sum()
            both = both * (logits.argmax(-1) == batch[name])
        return found | {'accuracy': ((weights * both).sum(), weights.sum())}


@dataclasses.dataclass(frozen=True)
class Hidden(Task):
    """The task of models without a head, whose hidden states predict.py shows: nothing is learnt, and the loss is nan.

    Attributes:
      image: whether the model takes images.
    """
    image: bool = False

    def inputs(self, batch: Mapping) -> dict:
        return {'image': batch['image']} if self.image else told(batch)

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        return {'loss': (0.0 * wide(outputs['hidden']).sum(), jnp.zeros((), real_dtype()))}
