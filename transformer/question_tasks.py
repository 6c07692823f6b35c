"""What models of questions about stories learn, and how they are measured (see transformer/tasks.py and evaluators.py)."""

import dataclasses
from collections import Counter

import jax.numpy as jnp
import numpy as np

from transformer.evaluators import Averages
from transformer.losses import correct
from transformer.tasks import Pondering, example_weights


@dataclasses.dataclass(frozen=True)
class Answers(Pondering):
    """-log p(answer | story, question), averaged over the questions."""

    def inputs(self, batch):
        return {name: batch[name] for name in ('story', 'question')}

    def there(self, batch):
        sentences = (batch['story'] != 0).any(-1)
        return jnp.concatenate([jnp.ones_like(sentences[:, :1]), sentences], 1) & (batch['question'] != 0).any(1)[:, None],

    def terms(self, outputs, batch):
        """An answer of number 0, which training did not have, counts as wrong."""
        logits, label = outputs['logits'], batch['label']
        weights = example_weights(batch, len(label))
        right = (weights * correct(logits, label) * (label > 0)).sum()
        terms = self.predictions(logits, label, weights) | {'accuracy': (right, weights.sum())}
        return terms | self.charges(outputs, batch)


@dataclasses.dataclass(frozen=True)
class MemoryAnswers(Answers):
    """The same, of a memory network.

    Attributes:
      linear_steps: steps of training without the softmax over memories, the linear start of Sukhbaatar et al. 2015, section
        4.2 (there, until the validation loss stops falling). Evaluation always has the softmax: what it measures before
        these steps are over is of no use.
    """
    linear_steps: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.linear_steps < 0:
            raise ValueError(f'linear_steps is {self.linear_steps}; expected 0 or more.')

    def loss(self, forward, batch, *, key, step, train):
        linear = train and self.linear_steps > 0
        start = (lambda **inputs: forward(**inputs, linear=step < self.linear_steps)) if linear else forward
        return super().loss(start, batch, key=key, step=step, train=train)


@dataclasses.dataclass(frozen=True)
class TaskErrors(Averages):
    """`Averages`, the share of wrong answers of each task of bAbI, error_1 to error_20, and their mean over the tasks; also
    without task 3, where there are others, as its 10k part is not always to be had. A table of them, in percent, is kept
    and printed at the end."""

    def check(self, run, batches):
        return *super().check(run, batches), *_named({task: 0.0 for task in batches.facts['tasks']})

    def __call__(self, snapshot, batches):
        asked, wrong = Counter(), Counter()
        for batch in batches:
            logits = np.asarray(snapshot.apply(**snapshot.run.task.inputs(batch))['logits'], np.float32)
            right = (logits.argmax(-1) == batch['label']) & (batch['label'] > 0)
            for task, good in zip(batch['task'][batch['example_weights'] > 0], right[batch['example_weights'] > 0]):
                asked[int(task)] += 1
                wrong[int(task)] += not good
        errors = {task: wrong[task] / asked[task] for task in sorted(asked)}
        numbers = _named(errors)
        table = [f'{name:24}{100 * error:6.2f} %' + (f' of {asked[task]:,}' if task else '')
                 for (name, error), task in zip(numbers.items(), [*errors, *[0] * len(numbers)])]
        snapshot.text('errors', '\n'.join(table) + '\n')
        return snapshot.averages(batches) | numbers


def _named(errors):
    """{'error_1': .., 'mean_error': ..} of {task: error}."""
    mean = lambda some: sum(some.values()) / len(some)
    numbers = {f'error_{task}': error for task, error in errors.items()} | {'mean_error': mean(errors)}
    others = {task: error for task, error in errors.items() if task != 3}
    if 0 < len(others) < len(errors):
        numbers['mean_error_without_3'] = mean(others)
    return numbers
