"""Answers to questions about stories."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from transformer.contracts import ToldStories
from transformer.explain import attention
from transformer.readers.base import Reader, chances
from transformer.readers.rows import output_rows


@dataclasses.dataclass(frozen=True)
class StoryAnswer(Reader):
    """An answer for each question of a text in bAbI's format, from the latest sentences; a note says how many earlier ones are
    not read."""
    contract, what, several = ToldStories, 'stories with questions', True

    def answers(self, snapshot: Any, lines: Sequence[str], name: str) -> Iterator[tuple[str, dict]]:
        data = self.data_of(snapshot)
        asked, batch = data.read_stories('\n'.join(lines), f'The input {name!r}')
        for question, row in zip(asked, output_rows(snapshot, snapshot.run.task.inputs(batch), 'logits')):
            p = chances(row)
            best = int(row[1:].argmax()) + 1  # 0 is no word
            answer = data.answer(best)
            details = {'line': question.line, 'question': question.text, 'answer': answer, 'probability': float(p[best])}
            if (unread := len(question.sentences) - batch['story'].shape[1]) > 0:
                details['note'] = f'the first {unread:,} of {len(question.sentences):,} sentences are not read, as in training'
            yield answer, details

    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        self.data_of(snapshot)
        return attention.of_story(snapshot, given, steps=steps)
