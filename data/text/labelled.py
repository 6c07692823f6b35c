"""Texts, or pairs of texts, with one class each (sentiment, paraphrase, entailment), with any number of labels (topics), or
with a number (similarity).

    opened = Labelled(path='sst2', train='train', valid='valid', test='').open(None)  # sst2/train.tsv and sst2/dev.tsv
    for batch in opened.train(seed=0): ...

Rows hold `inputs`, `segments`, `positions` and `types` [B, T], and `label`, whose shape the `Target` determines. A text that
is too long is cut at its end; of a pair the longer text is cut first (Devlin et al. 2019, appendix A).
"""

import dataclasses
import functools
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from data import cache, fields
from data.sources import files as sources
from data.sources import tfds_tables
from data.sources.tables import CHOICES, Row, Table, blank, require_text
from data.text import examples, frames
from data.text.targets import FILE, Labels, Number, OneClass, Target, text_of

# Columns that are found by their names where the config names none.
_TEXTS = (('sentence1', 'sentence2'), ('premise', 'hypothesis'), ('question1', 'question2'), ('question', 'sentence'),
          ('#1 string', '#2 string'),
          ('text',), ('sentence',), ('review',), ('content',))
_LABELS = ('label', 'labels', 'gold_label', 'quality', 'is_duplicate', 'class', 'category', 'sentiment', 'score', 'target',
           'similarity')
_NUMBERS = 'idx', 'id', 'index', ''
_MANY = 20  # examples, from which on a class that occurs once, or a column whose values differ, is a mistake


@dataclasses.dataclass(frozen=True)
class Labelled(examples.Examples):
    """Tables (data/sources/tables.py) with an example a row.

    Attributes are those of Examples, and:
      columns: the column of the text, or those of the two texts: names of the header or numbers from 1. (): those with a
        usual name, such as text or sentence1 and sentence2, else all but the label and a column of ids, one or two. White
        space around a text is removed.
      label: the column of the class, a name or a number; '': one with a usual name, such as label, else the last.
      target: what that column holds: 'OneClass()', 'Labels(separator=",")' or 'Number()'.
      header: whether the first line of each file names the columns: 'true', 'false' or 'auto', which finds out.
      quotes: whether fields may be quoted as in RFC 4180: 'true', 'false' or 'auto', which finds out.
      incomplete: what happens to a row without a text or a class: 'refuse', or 'skip', which leaves it out.
      both: whether pairs come in both orders, inputs [B, 2, T], first and second, second and first, as for similarity in
        Radford et al. 2018 (section 3.3).
      name: a set of TFDS, such as glue/mrpc, that `python -m data.prepare NAME` has prepared, instead of files; data.path is
        then the folder of prepared sets ('': $TFDS_DATA_DIR or ~/tensorflow_datasets).
      numbered: the names of the classes 0, 1, .., whose numbers predict.py writes for a table without labels, as some tasks of
        GLUE take them; (): it writes their names.
    """

    columns: tuple = ()
    label: str = ''
    target: Target = OneClass()
    header: str = 'auto'
    quotes: str = 'auto'
    incomplete: str = 'refuse'
    both: bool = False
    name: str = ''
    numbered: tuple = ()
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
        fields.one_of('header', self.header, CHOICES)
        fields.one_of('quotes', self.quotes, CHOICES)
        fields.one_of('incomplete', self.incomplete, ('refuse', 'skip'))
        columns = fields.columns('columns', self.columns)
        fields.columns('label', self.label or ())
        if len(columns) > 2:
            raise ValueError(f'data.columns={",".join(columns)} names more than two texts; write one column or two, by name '
                             'or counted from 1, such as text or 1,2.')
        if len({*map(str, columns), self.label}) <= len(columns):
            raise ValueError(f'data.columns={",".join(columns)} and data.label={self.label} name a column twice; give each its '
                             'own.')

    def form(self) -> tuple:
        return self.columns, self.label, self.target, self.header, self.quotes, self.incomplete

    def table(self, file: sources.File) -> Table:
        return tfds_tables.table(file, self.header, self.quotes)

    def examples(self, file: sources.File) -> list['Example']:
        table = self.table(file)
        if not table.width:
            return []
        layout = self._layout(table)
        names = table.classes.get(table.names[layout[-1]], ()) if layout and layout[-1] < len(table.names) else ()
        found = [self._example(table, row, layout, names) for row in table.rows()]
        self.skipped[file.path] = found.count(None)
        return [example for example in found if example]

    @functools.cached_property
    def skipped(self) -> dict[str, int]:
        """{path: the number of incomplete rows} of the files that were read."""
        return {}

    @functools.cached_property
    def _files(self) -> Sequence:
        return tfds_tables.files(self.name, self.path) if self.name else super()._files

    def _example(self, table: Table, row: Row, layout: tuple[int, ...], names: Sequence[str]) -> 'Example | None':
        """The example of a row; None if the row is incomplete and such rows are left out."""
        width = 1 + max(layout, default=1)
        optional = self.target.optional
        needed = (layout or range(len(row[1])))[:-1 if optional else None]
        if self.incomplete == 'skip' and (len(row[1]) < width or any(
                blank(row[1][column]) or row[1][column] in ([], {}) for column in needed)):
            return None
        if not layout and len(row[1]) not in (2, 3):
            raise ValueError(f'{row[0]} has {table.counted(row[1])}, and expected are one text or two and the label; correct '
                             'the line, or name the columns with data.columns and data.label.')
        columns = layout or range(len(row[1]))
        *texts, label = table.cells(row, columns, 'data.columns with data.label', columns[-1:] if optional else (),
                                    'data.incomplete=skip')
        for text in texts:
            require_text(text, row[0], 'data.columns')
        return Example(tuple(map(text_of, texts)), self.target.value(label, row[0], names), row[0])

    def _layout(self, table: Table) -> tuple[int, ...]:
        """The columns of the texts, and that of the label; () without any name, number or column of ids: all but the last, and
        that."""
        names = [name.lower() for name in table.names]
        texts = tuple(table.column(column, 'data.columns') for column in fields.columns('columns', self.columns))
        if not (texts and self.label):
            table.require_distinct('data.columns and data.label')
        if not (texts or self.label or names):
            ids = {*range(table.width - 1)} & table.of_numbers if table.width > 2 else ()
            found = *(column for column in range(table.width) if column not in ids),
            return found if ids and 1 < len(found) < 4 else ()
        free = [column for column in range(table.width) if not names or names[column] not in _NUMBERS]
        label = table.column(self.label, 'data.label') if self.label else next(
            (names.index(name) for name in _LABELS if name in names and names.index(name) not in texts),
            max({*free} - {*texts}, default=-1))
        if not texts:
            usual = (tuple(map(names.index, pair)) for pair in _TEXTS if {*pair} <= {*names})
            texts = next((columns for columns in usual if label not in columns),
                         tuple(column for column in free if column != label))
            texts = tuple(column for column in texts if column not in table.of_numbers) or texts
        if label < 0 or not 1 <= len(texts) <= 2:
            columns = ', '.join(map(repr, table.names)) or str(table.width)
            raise ValueError(f'{table.file.path} has the column{"s" * (table.width > 1)} {columns}, which leaves open what '
                             'is the text and what the label; name them, such as --config.data.columns=1 and '
                             '--config.data.label=2.')
        flags = [column for column in free if column in table.flags]
        if not self.label and names and names[label] not in _LABELS and len(flags) > 1 and label in flags:
            shown = ', '.join(repr(table.names[one]) for one in flags[:5])
            raise ValueError(
                f'{table.file.path} has a column of 0 and 1 for each of {shown}, and expected is one column with the '
                'names of the classes, or of the labels with commas between them; write that, or '
                f'set data.label={shlex.quote(table.names[label])} to predict this one alone.')
        return *texts, label

    def described(self) -> str:
        """What is read from which column, for the log."""
        table = self.table(self.part('train').files[0])
        *texts, label = self._layout(table) or range(table.width)
        return table.described(text=texts, label=[label])

    @property
    def column(self) -> str:
        """The column of the label, by name or by number from 1."""
        table = self.table(self.part('train').files[0])
        *_, label = self._layout(table) or range(table.width)
        return table.names[label] if table.names else str(label + 1)


@dataclasses.dataclass(frozen=True)
class Example:
    """An example: one text or two, and their `Target.value`."""

    texts: tuple[str, ...]
    label: Any
    place: str


@dataclasses.dataclass(frozen=True, repr=False)
class _LabelledRows:
    """Framed examples in one order or in both, [(ids, types), ..] of each, with its label; `cut` counts those that were cut."""

    framed: list[list[tuple[np.ndarray, np.ndarray]]]
    label: np.ndarray
    cut: int

    def __len__(self) -> int:
        return len(self.framed)

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        return np.array([frames.sizes(orders).max() for orders in self.framed], np.int64)

    def batch(self, numbers: np.ndarray, length: int) -> dict[str, np.ndarray]:
        orders = len(self.framed[0])
        rows = frames.rows([framed for number in numbers for framed in self.framed[number]], length)
        if orders > 1:
            rows = {name: x.reshape(len(numbers), orders, length) for name, x in rows.items()}
        return {**rows, 'label': self.label[numbers]}


class OpenLabelled(examples.OpenExamples):
    """Texts with their tokenizer and classes: training batches, evaluation, and reading a line.

    Attributes:
      classes: their names, sorted; by value if all are whole numbers.
      counts: how many texts an example has: (1,), (2,) or (1, 2).
    """

    classes: tuple[str, ...]
    counts: tuple[int, ...]
    unit = 'texts'

    def __init__(self, config: Labelled, folder: str | os.PathLike | None, source: str | os.PathLike | None = None):
        config.check()
        if folder is None:
            found = config.part('train').examples
            _require_classes(found, config)
            self.classes = config.target.classes([example.label for example in found], source)
            self.counts = tuple(sorted({len(example.texts) for example in found}))
        else:
            self.classes = tuple(examples.read(folder, FILE, 'classes', list))
            self.counts = tuple(examples.read(folder, FILE, 'texts', list, [1, 2]))
        if config.both and self.counts != (2,):
            raise ValueError('data.both=True is for pairs of texts, and the training part has single ones; leave it out.')
        super().__init__(config, folder, source, pair=2 in self.counts)
        if len(self.classes) < config.target.least:
            have = f'have the class {self.classes[0]!r}' if self.classes else 'are without labels'
            raise ValueError(f'All examples of data.train={config.train!r} {have}; widen it, or set data.label to the column '
                             f'of the {"class" if self.classes else "labels"}.')
        self.facts = {**self.facts, 'classes': len(self.classes)}
        self.meanings = {**self.meanings, 'classes': cache.key(*self.classes)}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer and the names of the classes, so that opening with this folder needs no text."""
        self.tokenizer.save(folder)
        examples.write(folder, FILE, classes=self.classes, texts=self.counts)

    def _shapes(self, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
        rows = self._row_shapes(length)
        if self.config.both:
            rows = {name: ((shape[0], 2, length), kind) for name, (shape, kind) in rows.items()}
        return rows | {'label': self.config.target.shape(self.config.batch_size, len(self.classes))}

    def describe(self) -> str:
        """One line about the training part, the classes and the tokenizer, for the log."""
        rows, found = self._training, self.config.described()
        cut = f', {rows.cut:,} of them cut to {self.config.length} tokens' if rows.cut else ''
        cut += self._left_out()
        return (f'{self.config.name or self.config.path}, {found}; {len(rows):,} '
                f'{"pairs of texts" if self.counts == (2,) else "texts"} to train on{cut}; '
                f'{self.config.target.shares(rows.label, self.classes)}{self._once()}{self._joined()}; {self._vocabulary}')

    def _left_out(self) -> str:
        """How many incomplete rows are left out of the files of the training part, and of other files of the held-out parts."""
        said, seen = '', set()
        for field in ('train', 'valid', 'test') if self.config.incomplete == 'skip' else ():
            try:
                part = self.config.part(field)
                _ = part.examples  # read, and so counted
            except (ValueError, FileNotFoundError):  # reported where that split is used
                continue
            paths = {file.path for file in part.files} - seen
            seen |= paths
            if count := sum(self.config.skipped.get(path, 0) for path in paths):
                said += f'{"," if field == "train" else f"; data.{field}"} without {count:,} incomplete row{"s" * (count > 1)}'
        return said

    def _once(self) -> str:
        """A warning of classes that occur once, which may be a header or a typing mistake."""
        found = ((name, example.place) for example in self.config.part('train').examples
                 for name in self.config.target.names(example.label))
        return examples.once(found, 'set data.header=true', 'set data.label to the column of the class')

    def _joined(self) -> str:
        """A warning of labels that are several with another separator between them."""
        if not isinstance(self.config.target, Labels):
            return ''
        found = ((name, example.place) for example in self.config.part('train').examples for name in example.label)
        return examples.joined(found, self.config.target.separator)

    def read_text(self, line: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, types), int32 [n], of 'text', or of 'text<TAB>second text' where the data has pairs; cut as in training."""
        return self.frame.fitted(*self._ids([self._texts(line)])[0], self.config.length)

    def cut(self, line: str, empty: bool = False) -> int:
        """The number of tokens that `read_text` leaves out of a line; `empty` as in `read_orders`."""
        first, second = self._ids([self._texts(line, empty)])[0]
        size = len(first) + (0 if second is None else len(second))
        return max(0, size - self.frame.room(self.config.length, second is not None))

    def _texts(self, line: str, empty: bool = False) -> tuple[str, ...]:
        """The texts of a line. Raises ValueError for another number of them, and unless `empty` for empty ones."""
        texts = tuple(text.strip() for text in line.split('\t'))
        if len(texts) not in self.counts or not (empty or all(texts)):
            two = 'two texts with a tab between them'
            expected = {(1,): 'a text without tabs', (2,): two}.get(self.counts, f'one text, or {two}')
            raise ValueError(f'{line[:60]!r} is not what this run classifies; expected {expected}.')
        return texts

    def read_orders(self, line: str, empty: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
        """`read_text` of a line, and with data.both of its two texts in the other order; `empty`: texts may be so."""
        return self._framed(*self._ids([self._texts(line, empty)])[0])

    def _framed(self, first: np.ndarray, second: np.ndarray | None) -> list[tuple[np.ndarray, np.ndarray]]:
        """The rows of an example."""
        orders = [(first, second), (second, first)] if self.config.both else [(first, second)]
        return [self.frame.fitted(*order, self.config.length) for order in orders]

    def unlabelled(self, lines: Sequence[str]) -> tuple[list[str], list[str]] | None:
        """(index, 'text' or 'text<TAB>second text') of each row of a table with tabs whose first line names `index`, `id` or
        `idx` and the columns of the texts, which may be empty; data.quotes says whether fields may be quoted. None if it does
        not name them. Raises ValueError, naming the line, for a row without them."""
        last = max((number for number, line in enumerate(lines, 1) if line.strip()), default=0)
        lines = lines[:last]  # blank ones at the end are none
        table = Table(sources.Given.of('stdin.tsv', lines), 'true', self.config.quotes)
        names = [name.strip().lower() for name in table.split(lines[0])] if lines else []
        index = next((names.index(name) for name in ('index', 'id', 'idx') if name in names), None)
        given = tuple(name.lower() for name in fields.columns('columns', self.config.columns))
        known = (columns for columns in (given, *_TEXTS) if columns and {*columns} <= {*names})
        texts = next((tuple(map(names.index, columns)) for columns in known), None)
        if index is None or texts is None:
            return None
        rows = [table.split(line) for line in lines[1:]]
        for number, row in enumerate(rows, 2):
            if len(row) <= max(index, *texts):
                raise ValueError(f'Line {number} is {lines[number - 1][:60]!r}, which lacks what line 1 names, '
                                 f'{lines[0][:60]!r}; correct the line.')
        flat = lambda text: text.strip().replace('\t', ' ')  # of a quoted field
        return [row[index] for row in rows], ['\t'.join(flat(row[column]) for column in texts) for row in rows]

    def submitted(self, name: str) -> str:
        """What stands for a class in the predictions for such a table: its number if data.numbered has it, else its name."""
        return str(self.config.numbered.index(name)) if name in self.config.numbered else name

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
                    mend = 'if line 1 is a header, set data.header=true' if example.place.endswith(':1') else (
                        'correct it if it is mistyped, take the line out if it is rare, or widen data.train')
                    raise ValueError(
                        f'{example.place} has the class {name!r}, which the training part does not have (it has '
                        f'{", ".join(self.classes[:8])}{", .." * (len(self.classes) > 8)}); {mend}.'
                    )
        ids = self._ids([example.texts for example in part.examples])
        label = self.config.target.labels([example.label for example in part.examples], numbers)
        room = [self.frame.room(self.config.length, pair) for pair in (False, True)]
        cut = sum(len(one) + (0 if two is None else len(two)) > room[two is not None] for one, two in ids)
        return _LabelledRows([self._framed(*texts) for texts in ids], label, cut)

    def _facts(self, rows: _LabelledRows) -> dict[str, int]:
        return {'texts': len(rows), 'cut': rows.cut}


def _require_classes(found: Sequence[Example], config: Labelled) -> None:
    """Raises ValueError if the values in the column of the class are texts or numbers: nearly all different, or, in a column
    that nobody has named, many or with decimal places."""
    if isinstance(config.target, Number) and len(found) > 1 and len(numbers := {example.label for example in found}) == 1:
        raise ValueError(f'All examples of data.train={config.train!r} have the number {numbers.pop():g} in the column '
                         f'{config.column!r}; widen it, or set data.label to another column.')
    names = [name for example in found for name in config.target.names(example.label)]
    values = {*names}
    if len(found) < _MANY or len(names) > len(found):
        return
    decimals = not config.label and values and all(re.fullmatch(r'[+-]?\d+\.\d+', value) for value in values)
    many = len(values) > (0.9 if config.label else 0.6) * len(found)
    if many or decimals:
        column = config.column
        shown = ', '.join(repr(value[:30]) for value in sorted(values)[:2])
        few = [one for one in config.table(config.part('train').files[0]).of_few_values() if one != column]
        mend = f'set data.label={shlex.quote(few[0])}, which has few' if few else (
            'set data.label to another column' if many else f'set data.label={shlex.quote(column)} if they name classes')
        have = f'{len(values):,} different values in {len(found):,} examples' if many else 'numbers with decimal places'
        raise ValueError(
            f'The column of the {"class" if config.target.least > 1 else "labels"}, {column!r}, has {have} (such as {shown}, '
            f'at {found[0].place}), so it names no class; {mend}, or use configs/rate.py if they are numbers to predict.')
