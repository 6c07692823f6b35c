"""Texts, or pairs of texts, with a class each: sentiment, paraphrase, entailment and the like.

    opened = Labelled(path='sst2', columns=(2,), label=1, header=True, train='train.tsv', valid='dev.tsv', test='').open(None)
    for batch in opened.train(seed=0): ...

Rows hold `inputs`, `segments`, `positions` and `types` [B, T], and `label` [B]. A text that is too long is cut at its end, of
a pair the longer one first (Devlin et al. 2019, appendix A).
"""

import collections
import dataclasses
import os

import numpy as np

from data import fields
from data.sources import files as sources
from data.sources import pairs as pair_sources
from data.text import examples, frames

_FILE = 'classes.json'


@dataclasses.dataclass(frozen=True)
class Labelled(examples.Examples):
    """Tab-separated files, an example a line; blank lines are skipped, and quotation marks are text.

    Attributes are those of Examples, and:
      columns: that of the text, or those of the two texts, counted from 1; () for all but the last, one or two. White space
        around a text is left out.
      label: the column of the class; with columns=() it is the last.
      header: the first line of each file names the columns, and is skipped.
    """

    columns: tuple = (1,)
    label: int = 2
    header: bool = False
    reader: str = 'transformer.readers.classes:TextClass'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenLabelled':
        """Opens the texts; with what is saved in `folder`, a run, no file is read before train() or evaluation().

        `source` is a run to start from: its tokenizer is used, and its classes if all of this training part are among them.
        Raises ValueError or FileNotFoundError, in one sentence, for a field or a file that cannot be used.
        """
        return OpenLabelled(self, folder, source)

    def check(self) -> None:
        """Raises ValueError for fields of no meaning, or that do not fit together."""
        super().check()
        fields.positive(label=self.label)
        columns = self.columns
        if len(columns) > 2 or not all(isinstance(column, int) and column > 0 for column in columns):
            raise ValueError(f'data.columns={columns} names no text and no two texts; write one column or two, counted from 1, '
                             'as (1,) or (1, 2), or ().')
        if columns and len({*columns, self.label}) <= len(columns):
            raise ValueError(f'data.columns={columns} and data.label={self.label} name a column twice; give each its own.')

    def form(self) -> tuple:
        return self.columns, self.label, self.header

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
        for column in wanted:
            if not cells[column - 1]:
                raise ValueError(f'{place} has nothing in column {column}; fill it in, or take the line out.')
        return Example(tuple(cells[column - 1] for column in columns), cells[label - 1], place)


@dataclasses.dataclass(frozen=True)
class Example:
    """An example: one text or two, and the name of its class."""

    texts: tuple[str, ...]
    label: str
    place: str


@dataclasses.dataclass(frozen=True, repr=False)
class _LabelledRows:
    """Framed examples, with the number of the class of each; `cut` are those that lost tokens."""

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
            found = _sorted({example.label for example in config.part('train').examples})
            self.classes = examples.classes(found, source, _FILE)
        else:
            self.classes = tuple(examples.read(folder, _FILE, 'classes', list))
        if len(self.classes) < 2:
            raise ValueError(f'All examples of data.train={config.train!r} have the class {self.classes[0]!r}; widen it, or '
                             'set data.label to the column of the class.')
        self.facts = {**self.facts, 'classes': len(self.classes)}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer and the names of the classes, so that opening with this folder needs no text."""
        self.tokenizer.save(folder)
        examples.write(folder, _FILE, classes=self.classes)

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known without the text."""
        return self._row_shapes() | {'label': ((self.config.batch_size,), np.int32)}

    def describe(self) -> str:
        """One line about the training part, the classes and the tokenizer, for the log."""
        rows = self._training
        often = collections.Counter(self.classes[number] for number in rows.label.tolist()).most_common(5)
        shares = ', '.join(f'{name} {count / len(rows):.1%}' for name, count in often)
        cut = f', {rows.cut:,} of them cut to {self.config.length} tokens' if rows.cut else ''
        return (f'{self.config.path}, {len(rows):,} {"pairs of texts" if len(self.config.columns) == 2 else "texts"} to train '
                f'on{cut}; {len(self.classes)} classes ({shares}{", .." * (len(self.classes) > 5)}); {self._vocabulary}')

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
            if example.label not in numbers:
                raise ValueError(
                    f'{example.place} has the class {example.label!r}, which the training part does not have (it has '
                    f'{", ".join(self.classes[:8])}{", .." * (len(self.classes) > 8)}); widen data.train, or set data.label to '
                    'the column of the class and data.header to whether there is a header.'
                )
        ids = self._ids([example.texts for example in part.examples])
        label = np.array([numbers[example.label] for example in part.examples], np.int32)
        room = [self.frame.room(self.config.length, pair) for pair in (False, True)]
        cut = sum(len(one) + (0 if two is None else len(two)) > room[two is not None] for one, two in ids)
        framed = [self.frame.fitted(first, second, self.config.length) for first, second in ids]
        return _LabelledRows(framed, label, self.config.length, cut)

    def _facts(self, rows: _LabelledRows) -> dict[str, int]:
        return {'texts': len(rows)}


def _sorted(names: set[str]) -> tuple[str, ...]:
    whole = all(name.removeprefix('-').isdecimal() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name), name) if whole else name))
