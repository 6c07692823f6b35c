"""Texts, or pairs of texts, with one class each (sentiment, paraphrase, entailment), with any number of labels (topics), or
with a number (similarity).

    opened = Labelled(path='sst2', columns=(2,), label=1, header=True, train='train.tsv', valid='dev.tsv', test='').open(None)
    for batch in opened.train(seed=0): ...

Rows hold `inputs`, `segments`, `positions` and `types` [B, T], and `label`, whose shape the `Target` determines. A text that
is too long is cut at its end; of a pair the longer text is cut first (Devlin et al. 2019, appendix A).
"""

import abc
import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from data import fields
from data.sources import files as sources
from data.sources import pairs as pair_sources
from data.text import examples, frames

_FILE = 'classes.json'


@dataclasses.dataclass(frozen=True)
class Target(abc.ABC):
    """What is predicted for a text: it reads the column and makes `label` of a batch.

    Attributes:
      least: the smallest number of classes.
      optional: whether the column may be empty.
      plural: the name of the classes in the log.
    """

    least = 1
    optional = False
    plural = 'classes'

    def value(self, cell: str, place: str) -> Any:
        """The value in the column of the example at `place`. Raises ValueError if it cannot be read."""
        return cell

    @abc.abstractmethod
    def names(self, value: Any) -> Sequence[str]:
        """The classes that a value names."""

    @abc.abstractmethod
    def labels(self, values: Sequence, numbers: dict[str, int]) -> np.ndarray:
        """`label` [n, ..] of examples with these values; `numbers` maps the classes to their numbers."""

    @abc.abstractmethod
    def shape(self, rows: int, classes: int) -> tuple[tuple[int, ...], type]:
        """(shape, dtype) of `label`."""

    def shares(self, label: np.ndarray, classes: Sequence[str]) -> str:
        """The distribution of the labels in the training part, for the log."""
        counts = label.sum(0) if label.ndim > 1 else np.bincount(label, minlength=len(classes))
        often = np.argsort(-counts, kind='stable')
        shares = ', '.join(f'{classes[number]} {counts[number] / len(label):.1%}' for number in often[:5])
        return f'{len(classes)} {self.plural} ({shares}{", .." * (len(classes) > 5)})'

    def classes(self, values: Iterable, source: str | os.PathLike | None) -> tuple[str, ...]:
        """The names of the classes of a training part, in the order of a run to start from if it has them all."""
        return examples.classes(_sorted({name for value in values for name in self.names(value)}), source, _FILE)


@dataclasses.dataclass(frozen=True)
class OneClass(Target):
    """One of several classes: int32 [B]."""

    least = 2

    def names(self, value: str) -> Sequence[str]:
        return (value,)

    def labels(self, values: Sequence[str], numbers: dict[str, int]) -> np.ndarray:
        return np.array([numbers[value] for value in values], np.int32)

    def shape(self, rows: int, classes: int) -> tuple[tuple[int, ...], type]:
        return (rows,), np.int32


@dataclasses.dataclass(frozen=True)
class Labels(Target):
    """Any number of labels, or none: float32 [B, classes], 1 for the labels of a text.

    Attributes:
      separator: the string between two labels.
    """

    separator: str = ','
    optional = True
    plural = 'labels'

    def value(self, cell: str, place: str) -> tuple[str, ...]:
        return tuple(name for name in map(str.strip, cell.split(self.separator)) if name)

    def names(self, value: tuple[str, ...]) -> Sequence[str]:
        return value

    def labels(self, values: Sequence[tuple[str, ...]], numbers: dict[str, int]) -> np.ndarray:
        found = np.zeros((len(values), len(numbers)), np.float32)
        for row, names in zip(found, values):
            row[[numbers[name] for name in names]] = 1.0
        return found

    def shape(self, rows: int, classes: int) -> tuple[tuple[int, ...], type]:
        return (rows, classes), np.float32


@dataclasses.dataclass(frozen=True)
class Number(Target):
    """A number: float32 [B]. The only class is its name."""

    def value(self, cell: str, place: str) -> float:
        try:
            found = float(cell)
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            raise ValueError(f'{place} has {cell!r} where data.label names a column of numbers; correct the line, or take it '
                             'out.')
        return found

    def names(self, value: float) -> Sequence[str]:
        return ()

    def labels(self, values: Sequence[float], numbers: dict[str, int]) -> np.ndarray:
        return np.array(values, np.float32)

    def shape(self, rows: int, classes: int) -> tuple[tuple[int, ...], type]:
        return (rows,), np.float32

    def shares(self, label: np.ndarray, classes: Sequence[str]) -> str:
        return f'numbers from {label.min():g} to {label.max():g}, {label.mean():.4g} on average'

    def classes(self, values: Iterable, source: str | os.PathLike | None) -> tuple[str, ...]:
        known = examples.classes((), source, _FILE)
        return known if len(known) == 1 else ('LABEL_0',)  # as Hugging Face transformers calls it


@dataclasses.dataclass(frozen=True)
class Labelled(examples.Examples):
    """Tab-separated files, an example a line; blank lines are skipped, and quotation marks are text.

    Attributes are those of Examples, and:
      columns: the column of the text, or those of the two texts, counted from 1; () for all columns but the last, one or
        two. White space around a text is removed.
      label: the column of the class; with columns=() it is the last.
      target: what that column holds: 'OneClass()', 'Labels(separator=",")' or 'Number()'.
      header: whether the first line of each file names the columns; it is skipped.
    """

    columns: tuple = (1,)
    label: int = 2
    target: Target = OneClass()
    header: bool = False
    reader: str = 'transformer.readers.classes:TextClass'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenLabelled':
        """Opens the texts. If `folder` is a saved run, no file is read before train() or evaluation().

        `source` is a run to start from: its tokenizer is used, and its classes if they include all of this training part.
        Raises ValueError or FileNotFoundError, in one sentence, for a field or a file that cannot be used.
        """
        return OpenLabelled(self, folder, source)

    def check(self) -> None:
        """Raises ValueError for field values that are invalid or do not fit together."""
        super().check()
        fields.positive(label=self.label)
        columns = self.columns
        if len(columns) > 2 or not all(isinstance(column, int) and column > 0 for column in columns):
            raise ValueError(f'data.columns={columns} names no text and no two texts; write one column or two, counted from 1, '
                             'as (1,) or (1, 2), or ().')
        if columns and len({*columns, self.label}) <= len(columns):
            raise ValueError(f'data.columns={columns} and data.label={self.label} name a column twice; give each its own.')

    def form(self) -> tuple:
        return self.columns, self.label, self.target, self.header

    def examples(self, file: sources.File) -> list['Example']:
        lines = enumerate(pair_sources.lines(file), 1)
        return [self._example(line, f'{file.path}:{number}')
                for number, line in lines if line.strip() and not (self.header and number == 1)]

    def _example(self, line: str, place: str) -> 'Example':
        cells = [cell.strip() for cell in line.split('\t')]
        columns, label = (self.columns, self.label) if self.columns else (range(1, min(len(cells), 3)), len(cells))
        wanted = *columns, label
        if len(cells) < max(wanted) or (not self.columns and len(cells) not in (2, 3)):
            raise ValueError(
                f'{place} has {len(cells)} column(s), and data.columns={self.columns} with data.label={self.label} ask for '
                f'{max(wanted) if self.columns else "2 or 3"}, separated by tabs; correct the line, or take it out.'
            )
        for column in columns if self.target.optional else wanted:
            if not cells[column - 1]:
                raise ValueError(f'{place} has nothing in column {column}; fill it in, or take the line out.')
        return Example(tuple(cells[column - 1] for column in columns), self.target.value(cells[label - 1], place), place)


@dataclasses.dataclass(frozen=True)
class Example:
    """An example: one text or two, and their `Target.value`."""

    texts: tuple[str, ...]
    label: Any
    place: str


@dataclasses.dataclass(frozen=True, repr=False)
class _LabelledRows:
    """Framed examples, with the label of each; `cut` is the number of examples that were cut."""

    framed: list[tuple[np.ndarray, np.ndarray]]
    label: np.ndarray
    length: int
    cut: int

    def __len__(self) -> int:
        return len(self.framed)

    def batch(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        return {**frames.rows([self.framed[number] for number in numbers], self.length), 'label': self.label[numbers]}


class OpenLabelled(examples.OpenExamples):
    """Texts with their tokenizer and classes: training batches, evaluation, and reading a line.

    Attributes:
      classes: their names, sorted; by value if all are whole numbers.
    """

    classes: tuple[str, ...]
    unit = 'texts'

    def __init__(self, config: Labelled, folder: str | os.PathLike | None, source: str | os.PathLike | None = None):
        super().__init__(config, folder, source, pair=len(config.columns) != 1)
        if folder is None:
            self.classes = config.target.classes([example.label for example in config.part('train').examples], source)
        else:
            self.classes = tuple(examples.read(folder, _FILE, 'classes', list))
        if len(self.classes) < config.target.least:
            have = f'have the class {self.classes[0]!r}' if self.classes else 'are without labels'
            raise ValueError(f'All examples of data.train={config.train!r} {have}; widen it, or set data.label to the column '
                             f'of the {"class" if self.classes else "labels"}.')
        self.facts = {**self.facts, 'classes': len(self.classes)}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer and the names of the classes, so that opening with this folder needs no text."""
        self.tokenizer.save(folder)
        examples.write(folder, _FILE, classes=self.classes)

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known without the text."""
        return self._row_shapes() | {'label': self.config.target.shape(self.config.batch_size, len(self.classes))}

    def describe(self) -> str:
        """One line about the training part, the classes and the tokenizer, for the log."""
        rows = self._training
        cut = f', {rows.cut:,} of them cut to {self.config.length} tokens' if rows.cut else ''
        return (f'{self.config.path}, {len(rows):,} {"pairs of texts" if len(self.config.columns) == 2 else "texts"} to train '
                f'on{cut}; {self.config.target.shares(rows.label, self.classes)}; {self._vocabulary}')

    def read_text(self, line: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, types), int32 [n], of 'text', or of 'text<TAB>second text' where the data has pairs; cut as in training."""
        texts, count = tuple(text.strip() for text in line.split('\t')), len(self.config.columns)
        if len(texts) not in ((count,) if count else (1, 2)) or not all(texts):
            two = 'two texts with a tab between them'
            expected = (f'one text, or {two}', 'a text without tabs', two)[count]
            raise ValueError(f'{line[:60]!r} is not what this run classifies; expected {expected}.')
        return self.frame.fitted(*self._ids([texts])[0], self.config.length)

    def _ids(self, all_texts: list[tuple[str, ...]]) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """The tokens of each first and second text; None where there is no second."""
        first = examples.encoded(self.tokenizer, [texts[0] for texts in all_texts])
        second = iter(examples.encoded(self.tokenizer, [texts[1] for texts in all_texts if len(texts) == 2]))
        return [(one, next(second) if len(texts) == 2 else None) for one, texts in zip(first, all_texts)]

    def _encode(self, part: examples.ExampleSplit) -> _LabelledRows:
        numbers = {name: number for number, name in enumerate(self.classes)}
        for example in part.examples:
            for name in self.config.target.names(example.label):
                if name not in numbers:
                    raise ValueError(
                        f'{example.place} has the class {name!r}, which the training part does not have (it has '
                        f'{", ".join(self.classes[:8])}{", .." * (len(self.classes) > 8)}); widen data.train, or set '
                        'data.label to the column of the class and data.header to whether there is a header.'
                    )
        ids = self._ids([example.texts for example in part.examples])
        label = self.config.target.labels([example.label for example in part.examples], numbers)
        room = [self.frame.room(self.config.length, pair) for pair in (False, True)]
        cut = sum(len(one) + (0 if two is None else len(two)) > room[two is not None] for one, two in ids)
        framed = [self.frame.fitted(first, second, self.config.length) for first, second in ids]
        return _LabelledRows(framed, label, self.config.length, cut)

    def _facts(self, rows: _LabelledRows) -> dict[str, int]:
        return {'texts': len(rows)}


def _sorted(names: set[str]) -> tuple[str, ...]:
    whole = all(name.removeprefix('-').isdecimal() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name), name) if whole else name))
