"""What runs on whole texts learn: masked words, classes, tags, answers (see transformer/tasks/base.py for the contract)."""

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
    """Base of the tasks about texts that are read whole.

    Attributes:
      types: the model gets the types of tokens, as BERT does.
      start: the id that stands before the text where a decoder reads it once more, as BART's does; -1: the model is one stack.
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
    """The mean over the labels of -log p(the text has it, or has it not), each a sigmoid of its own. The accuracy counts texts
    all of whose labels are right."""

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        logits, label = wide(outputs['logits']), batch['label']
        logits = logits[:, :label.shape[1]]  # a model may have more of them than its data
        weights = example_weights(batch, len(label))
        losses = -(label * jax.nn.log_sigmoid(logits) + (1 - label) * jax.nn.log_sigmoid(-logits)).mean(-1)
        right = ((logits > 0) == (label > 0)).all(-1)
        return {'loss': ((weights * losses).sum(), weights.sum()), 'accuracy': ((weights * right).sum(), weights.sum())}


@dataclasses.dataclass(frozen=True)
class TextNumbers(Reading):
    """The square of what is missing to the number of a text, whose estimate is the only logit; and its absolute value."""

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        missing = wide(outputs['logits'])[:, 0] - batch['label']
        weights = example_weights(batch, len(missing))
        return {'loss': ((weights * missing ** 2).sum(), weights.sum()),
                'absolute_error': ((weights * jnp.abs(missing)).sum(), weights.sum())}


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
    """For models without a head, whose hidden states predict.py shows: nothing is learnt, and the loss is not a number.

    Attributes:
      image: the model is one of images.
    """
    image: bool = False

    def inputs(self, batch: Mapping) -> dict:
        return {'image': batch['image']} if self.image else told(batch)

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        return {'loss': (0.0 * wide(outputs['hidden']).sum(), jnp.zeros((), real_dtype()))}
