"""The shifting task, of which only the attention is of interest."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from transformer.contracts import ShiftedText
from transformer.explain import attention
from transformer.readers.base import Reader


@dataclasses.dataclass(frozen=True)
class ShiftedWords(Reader):
    """The attention between the words of a text; the outputs themselves, the words from the second on, need no model."""
    contract, what = ShiftedText, 'words to copy'

    def answers(self, snapshot: Any, lines: Sequence[str], name: str) -> Iterator[tuple[str, dict]]:
        """Refuses to copy words."""
        raise ValueError('This run copies the words of a text, so predict.py has nothing to predict; use eval.py.')

    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        self.data_of(snapshot)
        return attention.of_shift(snapshot, given, steps=steps)
