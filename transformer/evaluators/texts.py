"""Evaluators of texts that a model writes for a source: answers of several tasks, and summaries."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.contracts import TaskBatches
from transformer.decoding.strategies import Greedy, Strategy
from transformer.decoding.translate import best_texts
from transformer.evaluators.base import Evaluator
from transformer.evaluators.metrics import rouge_scores
from transformer.evaluators.translations import require_translation

_FEW = 20  # different targets of a task that has classes
_NO_NUMBER = -1.0  # for an output that is none, as in T5's code


@dataclasses.dataclass(frozen=True)
class Answers(Evaluator):
    """How often the text that the model writes is the target, for each task of a split: `NAME_exact_match`, the accuracy of a
    task of classes; of classes also `NAME_other`, the share of outputs that are none; if all targets are numbers
    `NAME_pearson` and `NAME_spearman`, where an output that is no number counts as -1. Pairs of one task alone have no NAME.

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
        return [f'{front}{name}' for front, (_, measures) in self._tasks(batches).items() for name in measures]

    def __call__(self, snapshot: Any, batches: TaskBatches) -> Mapping[str, float]:
        numbers, shown = {}, []
        for front, (pairs, measures) in self._tasks(batches).items():
            sources, targets = zip(*pairs)
            texts = best_texts(snapshot, sources, self.strategy)
            numbers |= {f'{front}{name}': float(measure(texts, targets)) for name, measure in measures.items()}
            shown += [f'source:  {source}\ntarget:  {target}\noutput:  {text}\n'
                      for source, target, text in list(zip(sources, targets, texts))[:self.shown]]
        snapshot.text('answers', '\n'.join(shown))
        return numbers

    def _tasks(self, batches):
        """{the beginning of the names of a task's numbers: (its pairs, what `_measures` gives for all of its targets)}."""
        pairs, found = batches.pairs(), {}
        for task, pair in zip(batches.tasks or [''] * len(pairs), pairs):
            found.setdefault(f'{task}_' if task else '', []).append(pair)
        return {task: (own[:self.limit or None], _measures({target for _, target in own})) for task, own in found.items()}


def _measures(known):
    """{name: function of (texts, targets)} for a task with these targets."""
    found = {'exact_match': lambda texts, targets: np.mean([text == target for text, target in zip(texts, targets)])}
    if len(known) > 2 and all(_number(target) is not None for target in known):
        return found | {name: functools.partial(_correlation, name) for name in ('pearson', 'spearman')}
    if len(known) <= _FEW:
        found['other'] = lambda texts, targets: np.mean([text not in known for text in texts])
    return found


def _correlation(name, texts, targets):
    """The correlation of numbers; 0 if all of one side are equal."""
    from scipy import stats

    said, right = [_number(text, _NO_NUMBER) for text in texts], [_number(target) for target in targets]
    measure = {'pearson': stats.pearsonr, 'spearman': stats.spearmanr}[name]
    return measure(said, right).statistic if min(len({*said}), len({*right})) > 1 else 0.0


def _number(text, otherwise=None):
    try:
        return float(text)
    except ValueError:
        return otherwise


@dataclasses.dataclass(frozen=True)
class Summaries(Evaluator):
    """ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004; F1 of stemmed words, in percent, averaged over the texts) of the model's outputs,
    and as a baseline `first_rouge1`, .. of the first sentence, or line, of each source.

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

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        pairs = batches.pairs()[:self.limit or None]
        sources, targets = zip(*pairs)
        texts = best_texts(snapshot, sources, self.strategy)
        firsts = [first_sentence(source.removeprefix(self.prefix)) for source in sources]
        snapshot.text('summaries', '\n'.join(
            f'source:  {source}\ntarget:  {target}\noutput:  {text}\n'
            for source, target, text in list(zip(sources, targets, texts))[:self.shown]))
        baseline = rouge_scores(firsts, targets)
        return rouge_scores(texts, targets) | {f'first_{name}': x for name, x in baseline.items()} | {'pairs': len(pairs)}


def first_sentence(text: str) -> str:
    """A text up to the first '.', '!' or '?' before white space, or to its first line end."""
    line = text.strip().partition('\n')[0]
    ends = [place + 1 for sign in '.!?' if (place := line.find(f'{sign} ')) >= 0]
    return line[:min(ends)] if ends else line
