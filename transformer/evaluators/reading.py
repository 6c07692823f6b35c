"""Evaluators of runs that label texts, tag words and answer questions (see training/contracts.py for the contract)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.contracts import LabelledText, QuestionBatches, QuestionedText, SentenceBatches, TaggedText, require
from transformer.decoding.spans import best_spans, named_spans
from transformer.evaluators.base import Evaluator
from transformer.evaluators.metrics import answers_exact_match, answers_f1
from transformer.readers.rows import outputs


@dataclasses.dataclass(frozen=True)
class LabelScores(Evaluator):
    """Precision, recall and F1 in percent of the labels with a probability above one half, over all labels of all texts
    (micro-averaged)."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        _require_real(self, run.data, 2, 'texts with any number of labels')
        return 'f1', 'precision', 'recall'

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        rows = list(outputs(snapshot, batches, ['logits']))
        right = np.stack([row['label'] for row in rows]) > 0
        said = np.stack([row['logits'] for row in rows])[:, :right.shape[1]] > 0
        return f1((said & right).sum(), said.sum(), right.sum())


@dataclasses.dataclass(frozen=True)
class Correlation(Evaluator):
    """Pearson's and Spearman's correlation between the numbers of texts and their estimates; 0 if one of them is constant."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        _require_real(self, run.data, 1, 'texts with a number')
        return 'pearson', 'spearman'

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        from scipy import stats  # which comes with jax

        rows = list(outputs(snapshot, batches, ['logits']))
        said, right = (np.array(one, np.float64) for one in zip(*((row['logits'][0], row['label']) for row in rows)))
        if min(np.ptp(said), np.ptp(right)) == 0:
            return {'pearson': 0.0, 'spearman': 0.0}
        return {'pearson': float(stats.pearsonr(said, right).statistic),
                'spearman': float(stats.spearmanr(said, right).statistic)}


def _require_real(asking, data, axes, what):
    """Raises ValueError unless the labels of texts are real numbers with `axes` axes."""
    require(asking, data, LabelledText, what, 'leave that evaluator out')
    shape, dtype = data.shapes['label']
    if (len(shape), dtype) != (axes, np.float32):
        raise ValueError(f'{type(asking).__name__} needs {what}, but those of this run have another target; leave that '
                         'evaluator out, or set data.target.')


def f1(both: int, said: int, right: int) -> dict[str, float]:
    """F1, precision and recall in percent, from the numbers of true positives, of predictions and of positives."""
    share = lambda part, whole: float(100 * part / whole) if whole else 0.0
    return {'f1': share(2 * both, said + right), 'precision': share(both, said), 'recall': share(both, right)}


@dataclasses.dataclass(frozen=True)
class Entities(Evaluator):
    """Precision, recall and F1 in percent of names that are found whole and with their type, as conlleval counts them (Tjong
    Kim Sang and De Meulder 2003, section 4); no metric if the tags name no spans, such as parts of speech."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require(self, run.data, TaggedText, 'tagged words', 'leave that evaluator out')
        return ('f1', 'precision', 'recall') if run.data.has_spans else ()

    def __call__(self, snapshot: Any, batches: SentenceBatches) -> Mapping[str, float]:
        data, sentences = snapshot.data, {}
        if not data.has_spans:
            return {}
        for number, row in zip(batches.sentences, outputs(snapshot, batches, ['logits'])):
            there = row['weights'] > 0
            names = lambda tags: [data.classes[tag] for tag in tags]
            said, right = sentences.setdefault(int(number), ([], []))
            said += names(row['logits'][there, :len(data.classes)].argmax(-1))
            right += names(row['targets'][there])
        found = [(named_spans(said), named_spans(right)) for said, right in sentences.values()]
        both, said, right = (sum(map(len, sets)) for sets in (
            [a & b for a, b in found], [a for a, _ in found], [b for _, b in found]))
        return f1(both, said, right)


@dataclasses.dataclass(frozen=True)
class AnswerScores(Evaluator):
    """Exact match and F1 of the answers' words, in percent, as the script of SQuAD counts them (Rajpurkar et al. 2016,
    section 6.1).

    Attributes:
      longest: the most tokens of an answer.
    """
    longest: int = 30

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require(self, run.data, QuestionedText, 'questions with answers', 'leave that evaluator out')
        if self.longest < 1:
            raise ValueError(f'AnswerScores has longest={self.longest}; expected a number of tokens, 1 or more.')
        return 'exact_match', 'f1'

    def __call__(self, snapshot: Any, batches: QuestionBatches) -> Mapping[str, float]:
        data = snapshot.data
        rows = list(outputs(snapshot, batches, ['start_logits', 'end_logits']))
        null = 0.0 if data.unanswerable else None
        found = best_spans([row['start_logits'] for row in rows], [row['end_logits'] for row in rows], batches.windows,
                           longest=self.longest, null=null)
        said, right = [best.text for best, *_ in found], [question.accepted for question in batches.questions]
        return {'exact_match': answers_exact_match(said, right), 'f1': answers_f1(said, right)}
