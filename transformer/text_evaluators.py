"""Evaluators of runs that tag words and that find answers (see transformer/evaluators.py for the contract)."""

import dataclasses

import numpy as np

from transformer.evaluators import Evaluator


def require_kind(evaluator, run, kind, what):
    if run.data.kind != kind:
        raise ValueError(f'{type(evaluator).__name__} needs {what}, and {type(run.data.config).__name__} has none; leave that '
                         'evaluator out.')


def outputs(snapshot, batches, names):
    """For each row of a split, in order, its batch's arrays and the outputs of these names, as one dict."""
    for batch in batches:
        found = snapshot.apply(**snapshot.run.task.inputs(batch))
        rows = batch | {name: np.asarray(found[name], np.float32) for name in names}
        for row in np.flatnonzero(batch['example_weights']):
            yield {name: x[row] for name, x in rows.items()}


@dataclasses.dataclass(frozen=True)
class Entities(Evaluator):
    """Precision, recall and F1 of the names that are found whole and with their type, in percent, as conlleval counts them
    (Tjong Kim Sang and De Meulder 2003, section 4); nothing where the tags name no spans, such as parts of speech."""

    def check(self, run, batches):
        require_kind(self, run, 'tagged', 'tagged words')
        return ('f1', 'precision', 'recall') if run.data.has_spans else ()

    def __call__(self, snapshot, batches):
        data, sentences = snapshot.data, {}
        if not data.has_spans:
            return {}
        for number, row in zip(batches.sentences, outputs(snapshot, batches, ['logits'])):
            there = row['weights'] > 0
            names = lambda tags: [data.classes[tag] for tag in tags]
            said, right = sentences.setdefault(int(number), ([], []))
            said += names(row['logits'][there, :len(data.classes)].argmax(-1))
            right += names(row['targets'][there])
        found = [(data.spans(said), data.spans(right)) for said, right in sentences.values()]
        both, said, right = (sum(map(len, sets)) for sets in (
            [a & b for a, b in found], [a for a, _ in found], [b for _, b in found]))
        share = lambda part, whole: 100 * part / whole if whole else 0.0
        return {'f1': share(2 * both, said + right), 'precision': share(both, said), 'recall': share(both, right)}


@dataclasses.dataclass(frozen=True)
class Answers(Evaluator):
    """Exact match and F1 of the answers' words, in percent, as the script of SQuAD counts them (Rajpurkar et al. 2016,
    section 6.1).

    Attributes:
      longest: tokens of an answer at most.
    """
    longest: int = 30

    def check(self, run, batches):
        require_kind(self, run, 'questions', 'questions with answers')
        if self.longest < 1:
            raise ValueError(f'Answers has longest={self.longest}; expected the tokens of an answer, 1 or more.')
        return 'exact_match', 'f1'

    def __call__(self, snapshot, batches):
        data = snapshot.data
        rows = list(outputs(snapshot, batches, ['start_logits', 'end_logits']))
        null = 0.0 if data.unanswerable else None
        found = data.best_spans([row['start_logits'] for row in rows], [row['end_logits'] for row in rows], batches.windows,
                                longest=self.longest, null=null)
        said, right = [best.text for best, *_ in found], [question.accepted for question in batches.questions]
        return {'exact_match': data.exact_match(said, right), 'f1': data.f1(said, right)}
