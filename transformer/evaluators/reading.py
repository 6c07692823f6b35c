"""Evaluators of runs that tag words and that find answers (see training/contracts.py for the contract)."""

import dataclasses

from transformer.contracts import QuestionBatches, QuestionedText, SentenceBatches, TaggedText, require
from transformer.decoding.spans import best_spans, named_spans
from transformer.evaluators.base import Evaluator
from transformer.evaluators.metrics import answers_exact_match, answers_f1
from transformer.readers.rows import outputs


@dataclasses.dataclass(frozen=True)
class Entities(Evaluator):
    """Precision, recall and F1 of the names that are found whole and with their type, in percent, as conlleval counts them
    (Tjong Kim Sang and De Meulder 2003, section 4); nothing where the tags name no spans, such as parts of speech."""

    def check(self, run, batches):
        require(self, run.data, TaggedText, 'tagged words', 'leave that evaluator out')
        return ('f1', 'precision', 'recall') if run.data.has_spans else ()

    def __call__(self, snapshot, batches: SentenceBatches):
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
        share = lambda part, whole: 100 * part / whole if whole else 0.0
        return {'f1': share(2 * both, said + right), 'precision': share(both, said), 'recall': share(both, right)}


@dataclasses.dataclass(frozen=True)
class AnswerScores(Evaluator):
    """Exact match and F1 of the answers' words, in percent, as the script of SQuAD counts them (Rajpurkar et al. 2016,
    section 6.1).

    Attributes:
      longest: tokens of an answer at most.
    """
    longest: int = 30

    def check(self, run, batches):
        require(self, run.data, QuestionedText, 'questions with answers', 'leave that evaluator out')
        if self.longest < 1:
            raise ValueError(f'AnswerScores has longest={self.longest}; expected the tokens of an answer, 1 or more.')
        return 'exact_match', 'f1'

    def __call__(self, snapshot, batches: QuestionBatches):
        data = snapshot.data
        rows = list(outputs(snapshot, batches, ['start_logits', 'end_logits']))
        null = 0.0 if data.unanswerable else None
        found = best_spans([row['start_logits'] for row in rows], [row['end_logits'] for row in rows], batches.windows,
                           longest=self.longest, null=null)
        said, right = [best.text for best, *_ in found], [question.accepted for question in batches.questions]
        return {'exact_match': answers_exact_match(said, right), 'f1': answers_f1(said, right)}
