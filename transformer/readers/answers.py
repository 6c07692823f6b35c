"""Answers to questions about a text."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from transformer.contracts import QuestionedText
from transformer.decoding.spans import best_spans
from transformer.readers.rows import TokenRow
from transformer.readers.whole import WholeText, parted

BEST = 5  # number of answers in --json


@dataclasses.dataclass(frozen=True)
class FoundAnswer(WholeText):
    """The answer to 'question<TAB>context', a part of the context, or '' for no answer. A long context takes several rows; a
    long question is cut as in training, which a note says."""
    contract, what = QuestionedText, 'questions with answers'

    def names(self, snapshot: Any) -> tuple[str, ...]:
        return 'start_logits', 'end_logits'

    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        question, context = parted(line, 'a question and a text')
        framed, windows = data.read_question(question, context)
        return [TokenRow(row) for row in framed], (windows, data.cut(question))

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        windows, cut = known
        starts, ends = ([row[name] for row in rows] for name in ('start_logits', 'end_logits'))
        found, = best_spans(starts, ends, windows, count=BEST, null=0.0 if data.unanswerable else None)
        outputs = [{'answer': one.text, 'score': one.score, 'start': one.start, 'stop': one.stop} for one in found]
        note = f'the question is cut as in training; the last {cut:,} of its tokens are not read'
        return outputs[0]['answer'], {'question': line.partition('\t')[0], **outputs[0], 'outputs': outputs} | (
            {'cut': cut, 'note': note} if cut else {})
