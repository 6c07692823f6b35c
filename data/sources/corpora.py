"""Texts of several places as one: documents of files, a column of a table, the contexts of questions, tagged words.

    corpus = (Documents(path='wiki', documents='article'), Column(path='reviews.tsv', column='sentence', valid=''))
    joined(corpus, 'train').chunks()  # the documents of the first, then those of the second
"""

import abc
import dataclasses
import difflib
import functools
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import ClassVar

from data import cache, fields, json_files, splits
from data.sources import files as sources
from data.sources.tables import Table, blank, data_files, lines_of, require_text

_FORMAT = 2  # part of every digest: another way to read makes other texts


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
    """A place that a corpus has texts from.

    Attributes:
      path: a file, a folder or a glob; .gz and .zst are read too.
      train, valid, test: as in data.text.documents:Text; '' for no such split. Slices count documents.
      encoding: that of the files.
    """

    path: str
    train: str = 'train[:90%]'
    valid: str = 'train[90%:95%]'
    test: str = 'train[95%:]'
    encoding: str = 'utf-8'

    def field(self, name: str) -> str:
        """The name of a field, for messages."""
        return f'{name} of {type(self).__name__} in data.corpus'

    @abc.abstractmethod
    def part(self, expression: str) -> 'sources.Split | Cut':
        """The documents that a split expression names. Raises ValueError if it names none."""


@dataclasses.dataclass(frozen=True)
class Read(Source):
    """Base of the sources whose files hold more than text."""

    distinct = False  # whether of equal documents only the first is kept

    @abc.abstractmethod
    def items(self, file: sources.File) -> Iterator[Sequence[str]]:
        """The documents of each thing in a file that slices count. Raises ValueError if the file has another form."""

    def digest(self, file: sources.File) -> str:
        """A digest of the contents of a file and of how they are read."""
        return file.digest

    def part(self, expression: str) -> 'Cut':
        name, cut = splits.read(expression)
        found = data_files(self.path, self.field('path'), self.encoding)
        if not (chosen := sources.named(found, name)):
            raise ValueError(f'The split {expression!r} names no file of {self.path!r} in data.corpus; known are train, all, '
                             f'{", ".join(file.name for file in found[:5])}.')
        return Cut(self, tuple(chosen), cut, expression)


@dataclasses.dataclass(frozen=True)
class Documents(Source):
    """Plain text.

    Attributes:
      documents: what a document is, as in data.text.documents:Text, but for 'stream'.
    """

    documents: str = 'file'

    def part(self, expression: str) -> sources.Split:
        fields.one_of('corpus: documents', self.documents, [one for one in sources.DOCUMENTS if one != 'stream'])
        return sources.Split.of(expression, sources.files(self.path, self.field('path'), self.encoding), self.documents)


@dataclasses.dataclass(frozen=True)
class Column(Read):
    """The texts of columns of a table (data/sources/tables.py), each a document; of texts that occur several times the first.
    Slices count rows.

    Attributes:
      column: a name or a number from 1, or several separated by commas: the texts of a row, one after the other.
    """

    column: str = 'text'
    distinct = True

    def digest(self, file: sources.File) -> str:
        return Table(file).digest

    def items(self, file: sources.File) -> Iterator[Sequence[str]]:
        table = Table(file)
        columns = [table.column(name.strip(), self.field('column')) for name in self.column.split(',')]
        for row in table.rows():
            cells = table.cells(row, columns, self.field('column'), optional=columns)
            for cell in cells:
                require_text(cell, row[0], self.field('column'))
            yield ['' if blank(cell) else str(cell).strip() for cell in cells]


@dataclasses.dataclass(frozen=True)
class Contexts(Read):
    """The contexts of the questions in a file of SQuAD (Rajpurkar et al. 2016), each a document."""

    def items(self, file: sources.File) -> Iterator[Sequence[str]]:
        try:
            text = b''.join(file.read()).decode('utf-8-sig')
            whole = json.loads(text)
            found = [[part['context'].strip()] for article in whole['data'] for part in article['paragraphs']]
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f'{file.path} is not in the format of SQuAD ({type(error).__name__}: {error}); Contexts expects '
                             'data[].paragraphs[] with a context.') from None
        json_files.require_whole(found, text, file.path)
        yield from found


@dataclasses.dataclass(frozen=True)
class Words(Read):
    """The words of sentences in files of CoNLL, a word a line in the first column, each sentence a document."""

    def items(self, file: sources.File) -> Iterator[Sequence[str]]:
        for filled, lines in itertools.groupby(lines_of(file), key=lambda line: bool(line.strip())):
            if filled:
                yield [' '.join(line.split()[0] for line in lines if not line.startswith('-DOCSTART-'))]


@dataclasses.dataclass(frozen=True)
class Cut:
    """The documents of a source that one split expression names (like data/sources/files.py:Split)."""

    documents: ClassVar[str] = 'file'

    source: Read
    files: Sequence[sources.File]
    cut: splits.Slice
    expression: str

    @functools.cached_property
    def digest(self) -> str:
        form = dataclasses.replace(self.source, path='', train='', valid='', test='')
        return cache.key(_FORMAT, repr(form), self.cut, *map(self.source.digest, self.files))

    @functools.cached_property
    def bounds(self) -> tuple[int, int]:
        """The range of things that the slice takes."""
        if not str(self.cut):
            return 0, sys.maxsize
        size = sum(1 for _ in self._items())
        start, stop = self.cut.bounds(size)
        if start == stop:
            raise ValueError(f'The split {self.expression!r} of {self.source.path!r} in data.corpus is empty: there are {size} '
                             'to slice; widen the slice.')
        return start, stop

    def chunks(self) -> Iterator[tuple[str, bool]]:
        """The texts in order, each with True: a document ends with it."""
        known: set[str] = set()
        for text in itertools.chain.from_iterable(itertools.islice(self._items(), *self.bounds)):
            if text and text not in known:
                yield text, True
                if self.source.distinct:
                    known.add(text)

    def shared(self, other: 'Cut') -> str:
        """A file in which this part and another one of the same source overlap; '' if there is none."""
        return sources.shared(self, other, lambda file: sum(1 for _ in self.source.items(file)))

    def raw(self) -> Iterator[bytes]:
        """The bytes of the texts in order."""
        return (text.encode() for text, _ in self.chunks())

    def _items(self) -> Iterator[Sequence[str]]:
        return itertools.chain.from_iterable(map(self.source.items, self.files))


def joined(corpus: Sequence[Source], split: str) -> sources.Joined:
    """The texts of 'train', 'valid', 'test' or a slice of these, such as 'valid[:50%]', of all sources that have that split.

    Raises ValueError for another name, if no source has the split, and for 'valid' or 'test' if it overlaps with 'train'.
    """
    name, known = splits.read(split)[0], ('train', 'valid', 'test')
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        raise ValueError(f'A corpus has no split {name!r}; ' + (f'did you mean {close[0]!r}?' if close else
                         f'known are {", ".join(known)}, and slices of them.'))
    having = [source for source in corpus if getattr(source, name)]
    for source in having:
        splits.require_apart(source, split, source.part, source.field('{}'))
    if not having:
        raise ValueError(f'No source of data.corpus has a split {name!r}; give one of them {name}=.')
    return sources.Joined(tuple(source.part(splits.expression(source, split)) for source in having), 'file', split)
