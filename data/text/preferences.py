"""Two responses to a prompt, or two texts, of which people prefer the first: what a reward model learns from.

    opened = Preferences(path='hh', train='train', valid='test', test='').open(None)
    for batch in opened.train(seed=0): ...

Rows hold `inputs`, `segments`, `positions` and `types` [B, 2, T]: in [:, 0] the chosen text, in [:, 1] the rejected one, each
behind the same prompt. What is too long is cut at its end; of prompt and response the longer is cut first. Of two texts without
a prompt the beginning that they share, such as the dialogue before a last turn, is cut first, at its start and as far in both.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from data import fields
from data.sources import files as sources
from data.sources.tables import CHOICES, Row, Table
from data.text import examples, frames

_FILE = 'classes.json'
_USUAL = (('prompt', 'question', 'instruction', 'input', 'context'), ('chosen', 'preferred', 'better'),
          ('rejected', 'dispreferred', 'worse'))  # names of columns


@dataclasses.dataclass(frozen=True)
class Preferences(examples.Examples):
    """Tables (data/sources/tables.py) with a prompt and two responses a row, or two texts.

    A response is a text, or, in JSON and Parquet, a list of messages {"role": .., "content": ..}: the last one is then the
    response, and without a column of prompts those before it are the prompt.

    Attributes are those of Examples, and:
      columns: those of the prompt, the chosen and the rejected text, or of the last two: names of the header or numbers from
        1. (): those with usual names, such as prompt, chosen and rejected, else the first three, or two if there are no more.
      header, quotes: whether the first line of each file names the columns, and whether fields may be quoted as in RFC 4180:
        'true', 'false' or 'auto', which finds out.
    """

    columns: tuple = ()
    header: str = 'auto'
    quotes: str = 'auto'
    reader: str = 'transformer.readers.classes:TextNumber'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenPreferences':
        """Opens the texts. If `folder` is a saved run, no file is read before train() or evaluation().

        `source` is a run to start from: its tokenizer is used. Raises ValueError or FileNotFoundError, in one sentence, for a
        field or a file that cannot be used.
        """
        return OpenPreferences(self, folder, source)

    def check(self) -> None:
        super().check()
        fields.one_of('header', self.header, CHOICES)
        fields.one_of('quotes', self.quotes, CHOICES)
        if self.columns and not 2 <= len(found := fields.columns('columns', self.columns)) == len({*found}) <= 3:
            raise ValueError(f'data.columns={",".join(found)} are not two or three columns; write those of the prompt, the '
                             'chosen and the rejected text, or of the last two.')

    def form(self) -> tuple:
        return self.columns, self.header, self.quotes

    def examples(self, file: sources.File) -> list['Preference']:
        table = self.table(file)
        return [_preference(table, row, columns) for columns in [self._layout(table)] for row in table.rows()]

    def table(self, file: sources.File) -> Table:
        return Table(file, self.header, self.quotes)

    def described(self) -> str:
        """Which columns are read, for the log."""
        table = self.table(self.part('train').files[0])
        *prompt, chosen, rejected = self._layout(table)
        return table.described(prompt=prompt, chosen=[chosen], rejected=[rejected])

    def _layout(self, table: Table) -> tuple[int, ...]:
        """The columns of the prompt, if there are prompts, of the chosen and of the rejected text."""
        if self.columns:
            return tuple(table.column(column, 'data.columns') for column in fields.columns('columns', self.columns))
        table.require_distinct('data.columns')
        low = [name.lower() for name in table.names]
        found = [next((low.index(name) for name in known if name in low), None) for known in _USUAL]
        if None not in found[1:]:
            return tuple(column for column in found if column is not None)
        if low or table.width not in (2, 3):
            have = ', '.join(map(repr, table.names)) or str(table.width)
            raise ValueError(f'{table.file.path} has the columns {have}, which leaves open what is preferred to what; '
                             'name them, such as --config.data.columns=prompt,chosen,rejected or 1,2,3.')
        return tuple(range(table.width))


@dataclasses.dataclass(frozen=True)
class Preference:
    """A prompt, '' for none, and the response that is preferred to the other one."""

    prompt: str
    chosen: str
    rejected: str
    place: str

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.prompt, self.chosen, self.rejected)))


@dataclasses.dataclass(frozen=True, repr=False)
class _PreferenceRows:
    """Framed texts, the chosen and the rejected one of each example in turn; `cut` is the number of those that were cut."""

    framed: list[tuple[np.ndarray, np.ndarray]]
    cut: int

    def __len__(self) -> int:
        return len(self.framed) // 2

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        return frames.sizes(self.framed).reshape(-1, 2).max(1)

    def batch(self, numbers: np.ndarray, length: int) -> dict[str, np.ndarray]:
        found = frames.rows([self.framed[2 * number + i] for number in numbers for i in (0, 1)], length)
        return {name: rows.reshape(len(numbers), 2, length) for name, rows in found.items()}


class OpenPreferences(examples.OpenExamples):
    """Preferences with their tokenizer: training batches, evaluation, and reading a line.

    Attributes:
      classes: the name of the only output, as Hugging Face transformers calls it.
      prompts: whether texts have prompts before them.
    """

    classes = ('LABEL_0',)
    prompts: bool
    unit = 'pairs'

    def __init__(self, config: Preferences, folder: str | os.PathLike | None, source: str | os.PathLike | None = None):
        config.check()
        if folder is None:
            self.prompts = any(example.prompt for example in config.part('train').examples)
        else:
            self.prompts = examples.read(folder, _FILE, 'texts', list, [2]) == [2]
        super().__init__(config, folder, source, pair=self.prompts)
        self.facts = {**self.facts, 'classes': 1}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer and whether there are prompts, so that opening with this folder needs no text."""
        self.tokenizer.save(folder)
        examples.write(folder, _FILE, classes=self.classes, texts=[1 + self.prompts])

    def _shapes(self, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
        shape = self.config.batch_size, 2, length
        return {name: (shape, np.int32) for name in self._row_shapes(length)}

    def describe(self) -> str:
        """One line about the training part and the tokenizer, for the log."""
        rows = self._training
        cut = f', {rows.cut:,} texts of them cut to {self.config.length} tokens' if rows.cut else ''
        return f'{self.config.path}, {self.config.described()}; {len(rows):,} pairs to train on{cut}; {self._vocabulary}'

    def read_text(self, line: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, types), int32 [n], of 'text', or of 'prompt<TAB>response' where the data has prompts; cut at its end."""
        return self._rows_of([self._texts(line)]).framed[0]

    def cut(self, line: str) -> int:
        """The number of tokens that `read_text` leaves out of a line."""
        size = sum(len(ids) for ids in examples.encoded(self.tokenizer, self._texts(line)))
        return max(0, size - self.frame.room(self.config.length, self.prompts))

    def _texts(self, line: str) -> tuple[str, str]:
        """(prompt, text) of a line. Raises ValueError if it has another form."""
        prompt, tab, text = line.strip().rpartition('\t')
        if not text.strip() or bool(tab) != self.prompts or '\t' in prompt:
            expected = 'a prompt and a response with a tab between them' if self.prompts else 'a text without tabs'
            raise ValueError(f'{line[:60]!r} is not what this run rates; expected {expected}.')
        return prompt, text

    def read_orders(self, line: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """The row of a line."""
        return [self.read_text(line)]

    def _encode(self, part: examples.ExampleSplit) -> _PreferenceRows:
        return self._rows_of([(one.prompt, text) for one in part.examples for text in (one.chosen, one.rejected)])

    def _rows_of(self, found: Sequence[tuple[str, str]]) -> _PreferenceRows:
        """The rows of (prompt, text): of one, or of the two of each pair in turn."""
        before, texts = (examples.encoded(self.tokenizer, side) for side in zip(*found))
        room, ends = self.frame.room(self.config.length, self.prompts), [*texts]
        for first in range(0, len(texts) - 1, 2):
            if not len(before[first]):
                start = _start(*texts[first : first + 2], room)
                ends[first : first + 2] = (ids[start:] for ids in texts[first : first + 2])
        framed = [self.frame.fitted(*((first, second) if self.prompts else (second, None)), self.config.length)
                  for first, second in zip(before, ends)]
        extra = self.frame.extra(self.prompts)
        return _PreferenceRows(framed, sum(len(a) + len(b) + extra > len(ids) for a, b, (ids, _) in zip(before, texts, framed)))

    def _facts(self, rows: _PreferenceRows) -> dict[str, int]:
        return {'pairs': len(rows), 'cut': rows.cut}


def _preference(table: Table, row: Row, columns: Sequence[int]) -> Preference:
    cells = table.cells(row, columns, 'data.columns', columns[:-2])
    (before, chosen), (_, rejected) = (_response(cell, row[0]) for cell in cells[-2:])
    prompt = '\n'.join(_response(cells[0], row[0])) if len(cells) == 3 and cells[0] else before
    if chosen == rejected:
        raise ValueError(f'{row[0]} prefers {chosen[:40]!r} to itself; take it out, or name other columns in data.columns.')
    return Preference(prompt.strip(), chosen, rejected, row[0])


def _start(chosen: np.ndarray, rejected: np.ndarray, room: int) -> int:
    """How much of the beginning that two texts share is cut so that the longer one fits in `room`, or all of it."""
    least, most = sorted((len(chosen), len(rejected)))
    if most <= room or not least:
        return 0
    differs = chosen[: least - 1] != rejected[: least - 1]  # the last token stays, so that no row is empty
    return min(most - room, int(differs.argmax()) if differs.any() else least - 1)


def _response(cell: Any, place: str) -> tuple[str, str]:
    """(what is before it, a response) of a text, or of a list of messages."""
    found = [one.get('content') if isinstance(one, dict) else None for one in cell] if isinstance(cell, list) else [cell]
    if not found or not all(isinstance(text, str) for text in found):
        raise ValueError(f'{place} has {str(cell)[:60]!r}; expected a text, or a list of messages '
                         '{"role": .., "content": ..}.')
    return '\n'.join(found[:-1]), found[-1].strip()
