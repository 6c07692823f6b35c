"""Evaluators of runs that label texts, tag words and answer questions (see training/contracts.py for the contract)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.contracts import (
    Classified,
    LabelledText,
    QuestionBatches,
    QuestionedText,
    SentenceBatches,
    TaggedText,
    require,
)
from transformer.decoding.spans import best_spans, named_spans
from transformer.evaluators.base import Found, OfExamples
from transformer.evaluators.metrics import exact_matches, word_f1s
from transformer.readers.rows import outputs


@dataclasses.dataclass(frozen=True)
class ClassScores(OfExamples):
    """Scores of classes: the accuracy, a share; the F1 of one class in percent; macro F1, the mean of the F1 of every class
    that occurs or is predicted, in percent; and the correlation of Matthews (1975), for more than two classes R_K (Gorodkin
    2004), which is 0 if all examples or all predictions are of one class.

    Attributes:
      positive: the name of that class; '': of two classes the second, such as '1' of '0' and '1'; of more classes none.
    """
    percent = 'f1', 'macro_f1'
    positive: str = ''

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require(self, run.data, Classified, 'examples with a class', 'leave that evaluator out')
        shape, dtype = run.data.shapes.get('label', ((), None))
        if (len(shape), dtype) != (1, np.int32) or len(run.data.classes) < 2:  # of choices there is one
            raise ValueError('ClassScores needs examples with one class each, but those of this run have another target; leave '
                             'that evaluator out, or set data.target.')
        if self.positive and self.positive not in run.data.classes:
            raise ValueError(f'ClassScores has positive={self.positive!r}, and the classes of this run are '
                             f'{", ".join(run.data.classes[:8])}; name one of these.')
        return ('accuracy', *['f1'] * (self._positive(run.data.classes) is not None), 'macro_f1', 'matthews')

    def _positive(self, classes: Sequence[str]) -> int | None:
        if self.positive:
            return [*classes].index(self.positive)
        return 1 if len(classes) == 2 else None

    def naming(self, data: Any) -> 'ClassScores':
        positive = self._positive(data.classes)
        return self if positive is None else dataclasses.replace(self, positive=data.classes[positive])

    def each(self, snapshot: Any, batches: Any) -> Found:
        rows, classes = list(outputs(snapshot, batches, ['logits'])), snapshot.data.classes
        right = np.array([row['label'] for row in rows])
        said = np.array([row['logits'][:len(classes)].argmax() for row in rows])
        found, positive = {'label': right, 'said': said}, self._positive(classes)
        if positive is None:
            return found
        return found | {'positive': _counts(said == positive, right == positive)}

    def numbers(self, found: Found) -> Mapping[str, float]:
        right, said = found['label'], found['said']
        classes = 1 + int(max(right.max(), said.max()))
        table = np.bincount(classes * right + said, minlength=classes ** 2).reshape(classes, classes).astype(np.float64)
        of_class = {'f1': f1(*found['positive'].sum(0))['f1']} if 'positive' in found else {}
        return {'accuracy': float(np.trace(table) / len(right)), **of_class, 'macro_f1': macro_f1(table),
                'matthews': matthews(table)}

    def right(self, found: Found) -> Mapping[str, np.ndarray]:
        return {'accuracy': found['label'] == found['said']}


def macro_f1(table: np.ndarray) -> float:
    """The mean over the classes of their F1, in percent, from the numbers [C, C] of examples of each class (rows) for which
    each class is predicted (columns). As in scikit-learn, classes that neither occur nor are predicted are left out."""
    both, said, right = np.diag(table), table.sum(0), table.sum(1)
    there = said + right > 0
    return float(100 * np.mean(2 * both[there] / (said + right)[there]))


def matthews(table: np.ndarray) -> float:
    """(c s - p·t) / sqrt((s² - p·p) (s² - t·t)), with s examples, c of them right, p [C] predictions and t [C] examples of each
    class, from a table as of `macro_f1`; 0 if the denominator is."""
    said, right, size = table.sum(0), table.sum(1), table.sum()
    below = (size ** 2 - said @ said) * (size ** 2 - right @ right)
    return float((np.trace(table) * size - said @ right) / np.sqrt(below)) if below > 0 else 0.0


def _counts(said: np.ndarray, right: np.ndarray) -> np.ndarray:
    """[n, 3]: the numbers of true positives, of predictions and of positives of each example, of bool [n] or [n, labels]."""
    return np.stack([one.reshape(len(said), -1).sum(1) for one in (said & right, said, right)], 1)


@dataclasses.dataclass(frozen=True)
class LabelScores(OfExamples):
    """Precision, recall and F1 in percent of the labels with a probability above one half, over all labels of all texts
    (micro-averaged)."""
    percent = 'f1', 'precision', 'recall'

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        _require_real(self, run.data, 2, 'texts with any number of labels')
        return 'f1', 'precision', 'recall'

    def each(self, snapshot: Any, batches: Any) -> Found:
        rows = list(outputs(snapshot, batches, ['logits']))
        right = np.stack([row['label'] for row in rows]) > 0
        said = np.stack([row['logits'] for row in rows])[:, :right.shape[1]] > 0
        return {'labels': _counts(said, right)}

    def numbers(self, found: Found) -> Mapping[str, float]:
        return f1(*found['labels'].sum(0))


@dataclasses.dataclass(frozen=True)
class Correlation(OfExamples):
    """Pearson's and Spearman's correlation between the numbers of texts and their estimates; 0 if one of them is constant."""

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        _require_real(self, run.data, 1, 'texts with a number')
        return 'pearson', 'spearman'

    def each(self, snapshot: Any, batches: Any) -> Found:
        rows = list(outputs(snapshot, batches, ['logits']))
        return {'label': np.float64([row['label'] for row in rows]), 'said': np.float64([row['logits'][0] for row in rows])}

    def numbers(self, found: Found) -> Mapping[str, float]:
        from scipy import stats  # which comes with jax

        said, right = found['said'], found['label']
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
class Entities(OfExamples):
    """Precision, recall and F1 in percent of names that are found whole and with their type, as conlleval counts them (Tjong
    Kim Sang and De Meulder 2003, section 4) and seqeval by default; and `strict_f1`, in which no name begins with I-type, as
    seqeval has it with mode='strict' and scheme=IOB2. No metric if the tags name no spans, such as parts of speech."""
    percent = 'f1', 'precision', 'recall', 'strict_f1'

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require(self, run.data, TaggedText, 'tagged words', 'leave that evaluator out')
        return ('f1', 'precision', 'recall', 'strict_f1') if run.data.has_spans else ()

    def each(self, snapshot: Any, batches: SentenceBatches) -> Found:
        data, sentences = snapshot.data, {}
        if not data.has_spans:
            return {}
        for number, row in zip(batches.sentences, outputs(snapshot, batches, ['logits'])):
            there = row['weights'] > 0
            names = lambda tags: [data.classes[tag] for tag in tags]
            said, right = sentences.setdefault(int(number), ([], []))
            said += names(row['logits'][there, :len(data.classes)].argmax(-1))
            right += names(row['targets'][there])
        found = {'names': [], 'strict': []}
        for said, right in sentences.values():
            for kind, counts in found.items():
                a, b = (named_spans(tags, strict=kind == 'strict') for tags in (said, right))
                counts.append((len(a & b), len(a), len(b)))
        return {kind: np.array(counts) for kind, counts in found.items()}

    def numbers(self, found: Found) -> Mapping[str, float]:
        if not found:
            return {}
        return f1(*found['names'].sum(0)) | {'strict_f1': f1(*found['strict'].sum(0))['f1']}


@dataclasses.dataclass(frozen=True)
class AnswerScores(OfExamples):
    """Exact match and F1 of the answers' words, in percent, as the script of SQuAD counts them (Rajpurkar et al. 2016,
    section 6.1).

    Attributes:
      longest: the most tokens of an answer.
    """
    percent = 'exact_match', 'f1'
    longest: int = 30

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require(self, run.data, QuestionedText, 'questions with answers', 'leave that evaluator out')
        if self.longest < 1:
            raise ValueError(f'AnswerScores has longest={self.longest}; expected a number of tokens, 1 or more.')
        return 'exact_match', 'f1'

    def each(self, snapshot: Any, batches: QuestionBatches) -> Found:
        data = snapshot.data
        rows = list(outputs(snapshot, batches, ['start_logits', 'end_logits']))
        null = 0.0 if data.unanswerable else None
        found = best_spans([row['start_logits'] for row in rows], [row['end_logits'] for row in rows], batches.windows,
                           longest=self.longest, null=null)
        said, right = [best.text for best, *_ in found], [question.accepted for question in batches.questions]
        return {'exact_match': np.array(exact_matches(said, right)), 'f1': np.array(word_f1s(said, right))}

    def numbers(self, found: Found) -> Mapping[str, float]:
        return {name: float(scores.mean()) for name, scores in found.items()}

    def right(self, found: Found) -> Mapping[str, np.ndarray]:
        return {'exact_match': found['exact_match'] > 0}
