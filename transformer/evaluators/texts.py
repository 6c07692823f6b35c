"""Evaluators of texts that a model writes for a source: answers of several tasks, and summaries."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.contracts import TaskBatches
from transformer.decoding.strategies import Greedy, Strategy
from transformer.decoding.translate import best_texts, written
from transformer.evaluators.base import Found, OfExamples
from transformer.evaluators.metrics import rouge_scores
from transformer.evaluators.reading import Correlation
from transformer.evaluators.translations import require_translation

_FEW = 20  # different targets of a task that has classes
_NO_NUMBER = -1.0  # for an output that is none, as in T5's code
_NUMBERS = 'numbers'
_NAMES = {_NUMBERS: ('pearson', 'spearman')}  # the metrics of what is found under another name


@dataclasses.dataclass(frozen=True)
class Answers(OfExamples):
    """How often the text that the model writes is the target, for each task of a split: `NAME_exact_match`, the accuracy of a
    task of classes; of classes also `NAME_other`, the share of outputs that are none of the targets of the part measured; if
    all targets are numbers `NAME_pearson` and `NAME_spearman`, where an output that is no number counts as -1; and
    `NAME_pairs`, the number of pairs that these are of. Pairs of one task alone have no NAME. Targets are as the tokenizer
    writes them, which may differ in case, accents and white space.

    Attributes:
      limit: the number of pairs of each task, from the start of the split; 0: all.
      shown: the number of outputs of each task that are written to samples/.
    """
    strategy: Strategy = Greedy()
    limit: int = 0
    shown: int = 5

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require_translation(run, self)
        if self.limit < 0 or self.shown < 0:
            raise ValueError(f'Answers has limit={self.limit} and shown={self.shown}; both must be 0 or more.')
        tasks = self._tasks(run, batches)
        return [*(f'{front}{name}' for front, (_, known) in tasks.items() for kind in _kinds(known)
                  for name in _NAMES.get(kind, (kind,))), *(f'{front}pairs' for front in tasks)]

    def each(self, snapshot: Any, batches: TaskBatches) -> Found:
        tasks = self._tasks(snapshot, batches)
        return _found(tasks, self._texts(snapshot, tasks))

    def numbers(self, found: Found) -> Mapping[str, float]:
        """The numbers but those of pairs; 0 for a task of whose pairs none is drawn."""
        numbers = {}
        for name, rows in found.items():
            own = rows[rows[:, -1] > 0] if rows[:, -1].any() else np.zeros((1, rows.shape[1]))
            if (front := name.removesuffix(_NUMBERS)) != name:
                both = Correlation().numbers({'said': own[:, 0], 'label': own[:, 1]})
                numbers |= {f'{front}{measure}': both[measure] for measure in _NAMES[_NUMBERS]}
            else:
                numbers[name] = float(own[:, 0].mean())
        return numbers

    def right(self, found: Found) -> Mapping[str, np.ndarray]:
        return {name: rows[:, 0] > 0 for name, rows in found.items() if not name.endswith(_NUMBERS)}

    def __call__(self, snapshot: Any, batches: TaskBatches) -> Mapping[str, float]:
        tasks = self._tasks(snapshot, batches)
        texts = self._texts(snapshot, tasks)
        snapshot.text('answers', '\n'.join(
            f'source:  {source}\ntarget:  {target}\noutput:  {text}\n' for front, (pairs, _) in tasks.items()
            for (source, target), text in list(zip(pairs, texts[front]))[:self.shown]))
        return self.numbers(_found(tasks, texts)) | {f'{front}pairs': len(pairs) for front, (pairs, _) in tasks.items()}

    def _tasks(self, run, batches):
        """{the beginning of the names of a task's numbers: (its pairs, all of its targets)}."""
        sources, targets = zip(*batches.pairs())
        found = {}
        for task, *pair in zip(batches.tasks or [''] * len(sources), sources, written(run.data, targets)):
            found.setdefault(f'{task}_' if task else '', []).append(pair)
        return {front: (own[:self.limit or None], {target for _, target in own}) for front, own in found.items()}

    def _texts(self, snapshot, tasks):
        """{the beginning of the names: the outputs}."""
        return {front: best_texts(snapshot, [source for source, _ in pairs], self.strategy)
                for front, (pairs, _) in tasks.items()}


def _kinds(known):
    """{what is found for an example of a task with these targets: function of (text, target) to its values}."""
    found = {'exact_match': lambda text, target: [text == target]}
    if len(known) > 2 and all(_number(target) is not None for target in known):
        return found | {_NUMBERS: lambda text, target: [_number(text, _NO_NUMBER), _number(target)]}
    if len(known) <= _FEW:
        found['other'] = lambda text, target: [text not in known]
    return found


def _found(tasks, texts):
    """{TASK_KIND: float [examples of all tasks, values + 1]}; the last column is 1 for the examples of the task, whose rows
    have the values, and 0 for the others."""
    size, first, found = sum(map(len, texts.values())), 0, {}
    for front, (pairs, known) in tasks.items():
        for kind, values in _kinds(known).items():
            own = np.array([[*values(text, target), 1] for text, (_, target) in zip(texts[front], pairs, strict=True)], float)
            found[f'{front}{kind}'] = np.pad(own, ((first, size - first - len(own)), (0, 0)))
        first += len(pairs)
    return found


def _number(text, otherwise=None):
    try:
        found = float(''.join(text.split()))  # a tokenizer may write '3. 8'
    except ValueError:
        return otherwise
    return found if math.isfinite(found) else otherwise


@dataclasses.dataclass(frozen=True)
class Summaries(OfExamples):
    """ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004; F1 of stemmed words, in percent, averaged over the texts) of the model's outputs,
    and as a baseline `first_rouge1`, .. of the first sentence, or line, of each source. For texts in Latin letters.

    Attributes:
      prefix: what stands before the text in every source, and is not part of it.
      limit: the number of pairs, from the start of the split; 0: all.
      shown: the number of outputs that are written to samples/.
    """
    percent = tuple(f'{front}{name}' for front in ('', 'first_') for name in ('rouge1', 'rouge2', 'rougeL'))
    strategy: Strategy = Greedy()
    prefix: str = 'summarize: '
    limit: int = 0
    shown: int = 5

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require_translation(run, self)
        if self.limit < 0 or self.shown < 0:
            raise ValueError(f'Summaries has limit={self.limit} and shown={self.shown}; both must be 0 or more.')
        names = rouge_scores(['a'], ['a'])
        return [*names, *(f'first_{name}' for name in names), 'pairs']

    def each(self, snapshot: Any, batches: Any) -> Found:
        sources, targets = self._sides(batches)
        return rouge_scores(best_texts(snapshot, sources, self.strategy), targets)

    def numbers(self, found: Found) -> Mapping[str, float]:
        """ROUGE; the baseline is not the run's."""
        return {name: float(scores.mean()) for name, scores in found.items()}

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        sources, targets = self._sides(batches)
        texts = best_texts(snapshot, sources, self.strategy)
        snapshot.text('summaries', '\n'.join(
            f'source:  {source}\ntarget:  {target}\noutput:  {text}\n'
            for source, target, text in list(zip(sources, targets, texts))[:self.shown]))
        firsts = [first_sentence(source.removeprefix(self.prefix)) for source in sources]
        baseline = self.numbers(rouge_scores(firsts, targets))
        return self.numbers(rouge_scores(texts, targets)) | {f'first_{name}': x for name, x in baseline.items()} | {
            'pairs': len(texts)}

    def _sides(self, batches):
        return zip(*batches.pairs()[:self.limit or None])


def first_sentence(text: str) -> str:
    """A text up to the first '.', '!' or '?' before a space, or to its first line end."""
    line = text.strip().partition('\n')[0]
    ends = [place + 1 for sign in '.!?' if (place := line.find(f'{sign} ')) >= 0]
    return line[:min(ends)] if ends else line
