"""Tasks of models that read whole texts: classes, labels, numbers, preferences, choices, tags, answers
(transformer/tasks/base.py)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from transformer.layers.numerics import real_dtype, wide
from transformer.tasks.base import Prediction, Task, example_weights
from transformer.tasks.losses import correct, cross_entropy

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
class BothOrders(Reading):
    """Base of the tasks that predict something of a whole text, or of a pair in both orders, inputs [B, 2, T], whose logits are
    the sum over the orders: with a last layer without bias that layer of the sum of both states (Radford et al. 2018, 3.3)."""

    def inputs(self, batch: Mapping) -> dict:
        return super().inputs({name: batch[name].reshape(-1, batch[name].shape[-1]) for name in ENCODED})

    def logits(self, outputs: Mapping, batch: Mapping) -> jax.Array:
        """[B, C] in at least float32."""
        logits = wide(outputs['logits'])
        return logits.reshape(len(batch['label']), -1, logits.shape[-1]).sum(1)


@dataclasses.dataclass(frozen=True)
class OfText(BothOrders):
    """Base of those of them that may have the language model as an auxiliary loss.

    Attributes:
      auxiliary: the weight λ of the language model as an auxiliary loss, `words`: -log p(token | tokens before it), averaged
        over the tokens of a text but the first, special ones included, and then over the texts, as in the code of that paper
        (sections 3.2 and 4.1: 0.5). The head needs `word_logits`.
    """
    auxiliary: float = 0.0

    main = 'cross_entropy'  # what the task's own loss is called beside `words`

    def __post_init__(self):
        getattr(super(), '__post_init__', lambda: None)()
        if not 0 <= self.auxiliary < math.inf:
            raise ValueError(f'auxiliary is {self.auxiliary}; expected a weight of 0 or more.')

    @property
    def coefficients(self) -> Mapping[str, float]:
        own = super().coefficients
        if not self.auxiliary:
            return own
        return {self.main if term == 'loss' else term: c for term, c in own.items()} | {'words': self.auxiliary}

    def words(self, outputs: Mapping, batch: Mapping) -> dict:
        """The term of the language model, if it has a weight."""
        if not self.auxiliary:
            return {}
        if 'word_logits' not in outputs:
            raise ValueError(f'task.auxiliary={self.auxiliary} needs a head that also predicts the next words; set model.head='
                             '"ClassesAndWords(at=\'last\', pooler=False)", or leave task.auxiliary out.')
        inputs, segments = (batch[name].reshape(-1, batch[name].shape[-1]) for name in ('inputs', 'segments'))
        there = jnp.asarray(segments[:, 1:] != 0, real_dtype())  # [R, T - 1]
        losses = cross_entropy(outputs['word_logits'][:, :-1], inputs[:, 1:])
        of_text = (there * losses).sum(-1) / jnp.maximum(there.sum(-1), 1.0)
        rows = jnp.asarray(there.any(-1), real_dtype()).reshape(len(batch['label']), -1)  # no padding alone
        of_example = (rows * of_text.reshape(rows.shape)).sum(-1) / jnp.maximum(rows.sum(-1), 1.0)
        weights = example_weights(batch, len(rows))
        return {'words': ((weights * of_example).sum(), weights.sum())}

    def named(self, terms: Mapping) -> dict:
        """The terms, with `loss` by its name beside `words`."""
        return {self.main if self.auxiliary and name == 'loss' else name: term for name, term in terms.items()}


@dataclasses.dataclass(frozen=True)
class TextClasses(OfText, Prediction):
    """-log p(class | text)."""

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        weights = example_weights(batch, len(batch['label']))
        return self.predictions(self.logits(outputs, batch), batch['label'], weights) | self.words(outputs, batch)


@dataclasses.dataclass(frozen=True)
class MultiLabel(OfText):
    """The mean over the labels of their binary cross-entropies, -log p(the text has the label) or -log(1 - p), with a sigmoid
    each. The accuracy is the share of texts with all labels right."""

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        logits, label = self.logits(outputs, batch), batch['label']
        logits = logits[:, :label.shape[1]]  # a model may have more labels than its data
        weights = example_weights(batch, len(label))
        losses = -(label * jax.nn.log_sigmoid(logits) + (1 - label) * jax.nn.log_sigmoid(-logits)).mean(-1)
        right = ((logits > 0) == (label > 0)).all(-1)
        own = {'loss': ((weights * losses).sum(), weights.sum()), 'accuracy': ((weights * right).sum(), weights.sum())}
        return self.named(own) | self.words(outputs, batch)


@dataclasses.dataclass(frozen=True)
class TextNumbers(OfText):
    """(number - logit)², where the only logit estimates the number of a text; |number - logit| is a metric."""

    main = 'squared_error'

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        missing = self.logits(outputs, batch)[:, 0] - batch['label']
        weights = example_weights(batch, len(missing))
        own = {'loss': ((weights * missing ** 2).sum(), weights.sum()),
               'absolute_error': ((weights * jnp.abs(missing)).sum(), weights.sum())}
        return self.named(own) | self.words(outputs, batch)


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
class MultipleChoice(OfText):
    """-log softmax(s)[label] over the answers to a question, inputs [B, C, T], where s [B, C] are the only logits of their rows
    (Radford et al. 2018, section 3.3), or, of a head that also predicts the next words in `logits`, the `choice_logits`.
    Answers that are missing, rows of padding alone, have a probability of 0."""

    def logits(self, outputs: Mapping, batch: Mapping) -> jax.Array:
        """s [B, C] in at least float32."""
        there = (batch['segments'] != 0).any(-1)
        scores = outputs['choice_logits'] if 'choice_logits' in outputs else outputs['logits'][:, 0]
        return jnp.where(there, wide(scores).reshape(there.shape), -1e9)

    def words(self, outputs: Mapping, batch: Mapping) -> dict:
        return super().words({'word_logits': outputs['logits']} if 'choice_logits' in outputs else outputs, batch)

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        scores, label = self.logits(outputs, batch), batch['label']
        weights = example_weights(batch, len(label))
        own = {'loss': cross_entropy(scores, label), 'accuracy': correct(scores, label)}
        own = {name: ((weights * value).sum(), weights.sum()) for name, value in own.items()}
        return self.named(own) | self.words(outputs, batch)


@dataclasses.dataclass(frozen=True)
class Tags(Reading, Prediction):
    """-log p(tag | text), averaged over the words, each tagged where it begins (section 5.3). A decoder reads the text again as
    it is, not moved by one, so that it has the word that it tags (Lewis et al. 2020, section 3.2)."""

    def inputs(self, batch: Mapping) -> dict:
        found = super().inputs(batch)
        return found | ({'decoder_inputs': batch['inputs']} if self.start >= 0 else {})

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
