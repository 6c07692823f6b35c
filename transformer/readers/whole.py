"""The base of readers of whole texts: each line becomes rows of tokens, and their outputs become an answer."""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from transformer.explain import attention
from transformer.readers.base import Reader, place
from transformer.readers.rows import TokenRow, outputs, token_batches


@dataclasses.dataclass(frozen=True)
class WholeText(Reader):
    """Base of these readers. The answer to a blank line is blank."""

    def names(self, snapshot: Any) -> tuple[str, ...]:
        """The names of the outputs that the reader needs. Raises ValueError if the model has none of them."""
        return 'logits',

    @abc.abstractmethod
    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        """(the rows of a line, what `answer` needs as `known`). Raises ValueError for a line that cannot be answered."""

    @abc.abstractmethod
    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        """(text, details) for a line, from the arrays and outputs {name: array} of each of its rows."""

    def answers(self, snapshot: Any, lines: Sequence[str], name: str) -> Iterator[tuple[str, dict]]:
        """As in `Reader`; reads all lines before the first answer."""
        read = lambda data, names, line: self.read(data, names, line) if line.strip() else ([], None)
        return self.answered(snapshot, lines, name, read)

    def answered(self, snapshot: Any, lines: Sequence[str], name: str, read: Callable) -> Iterator[tuple[str, dict]]:
        """`answers` to lines that `read` reads, in the place of the method of this name; to one without rows it is blank."""
        data, names, asked = self.data_of(snapshot), self.names(snapshot), []
        for number, line in enumerate(lines, 1):
            try:
                asked.append(read(data, names, line))
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
        """(ids, types) of the text to draw. Raises ValueError if it takes several rows."""
        rows, _ = self.read(snapshot.data, self.names(snapshot), text)
        if len(rows) > 1:
            raise ValueError(f'{text[:40]!r} takes {len(rows)} rows of this run, and a picture shows one; shorten it.')
        return rows[0].framed


def parted(line: str, what: str) -> tuple[str, str]:
    """The two texts of a line, split at the first tab; an error calls them `what`."""
    first, tab, second = line.partition('\t')
    if not tab:
        raise ValueError(f'{line.strip()[:40]!r} has no tab; expected {what} with a tab between them.')
    return first, second
