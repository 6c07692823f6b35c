"""Evaluators of runs that answer questions about stories."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.evaluators.base import Averages


@dataclasses.dataclass(frozen=True)
class TaskErrors(Averages):
    """`Averages`, the share of wrong answers in each task of bAbI, error_1 to error_20, and its mean over the tasks, beside
    other tasks also without task 3, whose 10k part is not always available. The text `errors` is a table in percent."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        return *super().check(run, batches), *_named({task: 0.0 for task in batches.facts['tasks']})

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
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
