"""The base of the readers of texts that are read whole: each line becomes rows of tokens, and their outputs an answer."""

import abc
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer.explain import attention
from transformer.readers.base import Reader, place
from transformer.readers.rows import TokenRow, outputs, token_batches


@dataclasses.dataclass(frozen=True)
class WholeText(Reader):
    """Base of these readers. A blank line has a blank answer."""

    def names(self, snapshot: Any) -> tuple[str, ...]:
        """The outputs of the model that are needed. Raises ValueError if it has none of them."""
        return 'logits',

    @abc.abstractmethod
    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        """(the rows of a line, what `answer` has to know of them). Raises ValueError for a line that cannot be answered."""

    @abc.abstractmethod
    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        """(text, details) of a line whose rows have these arrays and outputs, {name: array}."""

    def answers(self, snapshot: Any, lines: Sequence[str], name: str) -> Iterator[tuple[str, dict]]:
        """All lines are read before the first answer."""
        data, names, asked = self.data_of(snapshot), self.names(snapshot), []
        for number, line in enumerate(lines, 1):
            try:
                asked.append(self.read(data, names, line) if line.strip() else ([], None))
            except ValueError as error:
                raise ValueError(f'In {place(number, name)}: {error}') from None
        found = outputs(snapshot, token_batches(data, [row for rows, _ in asked for row in rows]), names)
        for line, (rows, known) in zip(lines, asked):
            yield self.answer(data, line, known, list(itertools.islice(found, len(rows)))) if rows else ('', {'text': line})

    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        self.data_of(snapshot)
        attention.require_text(given)
        return attention.of_row(snapshot, *self.shown(snapshot, given), steps=steps)

    def shown(self, snapshot: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, types) of a text that is to be looked at. Raises ValueError where it takes several rows."""
        rows, _ = self.read(snapshot.data, self.names(snapshot), text)
        if len(rows) > 1:
            raise ValueError(f'{text[:40]!r} takes {len(rows)} rows of this run, and a picture shows one; shorten it.')
        return rows[0].framed


def parted(line: str, what: str) -> tuple[str, str]:
    """The two texts of a line with one tab, or more in the second; `what` they are is for an error."""
    first, tab, second = line.partition('\t')
    if not tab:
        raise ValueError(f'{line.strip()[:40]!r} has no tab; expected {what} with a tab between them.')
    return first, second
