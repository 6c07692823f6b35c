"""Where pairs of sentences come from: tables, two aligned files, CLDR, and translation sets of TFDS.

An `Origin` is one part of a source. It yields pairs (source text, target text) as written, in order; its `digest` depends
on their contents.
"""

import abc
import dataclasses
import difflib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data import cache, remote
from data.sources import files as sources
from data.sources import tfds as tfds_sources
from data.sources.tables import Table, data_files, lines_of

Pair = tuple[str, str]

_FORMAT = 1  # version of the CLDR phrases: increased when data/sources/cldr.py makes other phrases
_BLOCK = 1024  # examples of TFDS read at once


class Origin(abc.ABC):
    """Pairs that are read again on every iteration."""

    digest: str

    def described(self) -> str:
        """Where sources and targets come from, for the log; '' if there is nothing to say."""
        return ''

    @abc.abstractmethod
    def placed(self) -> Iterator[tuple[str, Pair]]:
        """(place, such as 'fra.txt:12', pair) of every pair."""

    def __iter__(self) -> Iterator[Pair]:
        return (pair for _, pair in self.placed())

    @functools.cached_property
    def size(self) -> int:
        """The number of pairs, as slices count them."""
        return sum(1 for _ in self)


@dataclasses.dataclass(frozen=True)
class Form:
    """How pairs stand in a table.

    Attributes:
      columns: of the source and of the target, by name or by number from 1; (): the columns named as the languages, or
        source and target, in the table or in objects of its column `translation`; else the first two that are not all
        numbers, as ids are.
      given: whether the languages must name columns, as somebody has set them.
      header, quotes: as in data/sources/tables.py:Table.
    """

    columns: tuple[str, ...] = ()
    languages: tuple[str, str] = ('source', 'target')
    header: str = 'auto'
    quotes: str = 'auto'
    given: bool = False


@dataclasses.dataclass(frozen=True)
class TablePairs(Origin):
    """Tables with a pair a row."""

    files: Sequence[sources.File]
    form: Form

    @functools.cached_property
    def digest(self) -> str:
        return cache.key('table', self.form, *(self._table(file).digest for file in self.files))

    def placed(self) -> Iterator[tuple[str, Pair]]:
        return itertools.chain.from_iterable(map(self._pairs, self.files))

    def described(self) -> str:
        """What is read from which column of the first file, for the log."""
        table = self._table(self.files[0])
        if (columns := self._columns(table)) is None:
            return f"{table.describe()}; {' to '.join(self.form.languages)} from 'translation'"
        return table.described(source=columns[:1], target=columns[1:])

    def _table(self, file: sources.File) -> Table:
        return Table(file, self.form.header, self.form.quotes)

    def _pairs(self, file: sources.File) -> Iterator[tuple[str, Pair]]:
        table = self._table(file)
        columns = self._columns(table)
        for row in table.rows():
            if columns is None:
                yield row[0], self._nested(row[0], row[1][table.names.index('translation')])
            else:
                pair = table.cells(row, columns, 'data.columns')
                if not all(isinstance(text, str) for text in pair):
                    raise ValueError(f'{row[0]} has {pair!r:.60}; expected two texts, in columns that data.columns names.')
                yield row[0], pair

    def _columns(self, table: Table) -> tuple[int, ...] | None:
        """The columns of source and target; None for the objects of a column `translation`."""
        usual = self.form.languages, ('source', 'target'), ('src', 'tgt')
        if names := self.form.columns or next((pair for pair in usual if {*pair} <= {*table.names}), ()):
            return tuple(table.column(name, 'data.columns') for name in names)
        if 'translation' in table.names:
            return None
        if self.form.given:
            raise ValueError(f'data.languages={",".join(self.form.languages)!r} name no columns of {table.file.path} '
                             f'({table.describe()}); set data.columns to those of the source and the target, such as 2,1.')
        table.require_distinct('data.columns')
        texts = [column for column in range(table.width) if column not in table.of_numbers]  # and no ids
        return tuple(texts[:2]) if len(texts) > 1 else (0, 1)

    def _nested(self, place: str, found: Any) -> Pair:
        pair = tuple(found.get(language) for language in self.form.languages) if isinstance(found, dict) else ()
        if not pair or not all(isinstance(text, str) and text.strip() for text in pair):
            known = {name for name, text in found.items() if isinstance(text, str) and text.strip()} if isinstance(
                found, dict) else {*()}
            missing = [language for language in self.form.languages if language not in known]
            ways = ['fill it in, or take the line out'] * (len(known) < 2 or len(missing) < 2)
            mend = ', or '.join(ways + ['set data.languages to two of its names'] * (len(known) > 1))
            raise ValueError(f'{place} has no text{"s" * (len(missing) > 1)} {" and ".join(map(repr, missing))} in its '
                             f'translation {found!r:.60}; {mend}.')
        return pair


@dataclasses.dataclass(frozen=True)
class Aligned(Origin):
    """Two files; line i of one is the translation of line i of the other. Lines that are blank in both are skipped."""

    source: sources.File
    target: sources.File

    def described(self) -> str:
        files = self.source, self.target
        return f'source from {self.source.name}, target from {self.target.name}{sources.misread(files)}'

    @functools.cached_property
    def digest(self) -> str:
        return cache.key('aligned', self.source.digest, self.target.digest)

    def placed(self) -> Iterator[tuple[str, Pair]]:
        files = self.source, self.target
        for number, pair in enumerate(itertools.zip_longest(*map(lines_of, files)), 1):
            if None in pair:
                counts = ' and '.join(f'{file.path} has {sum(1 for _ in lines_of(file)):,} line(s)' for file in files)
                raise ValueError(
                    f'{counts}, but line i of one is the translation of line i of the other; give two files with as many lines.'
                )
            blank = [not text.strip() for text in pair]
            if any(blank) and not all(blank):
                empty, other = files if blank[0] else files[::-1]
                raise ValueError(
                    f'{empty.path}:{number} is blank and line {number} of {other.path} is not; fill it in, or take the line '
                    'out of both.'
                )
            if not all(blank):
                yield f'{self.source.path}:{number} and {self.target.path}:{number}', pair


@dataclasses.dataclass(frozen=True)
class Cldr(Origin):
    """A part of the phrases that Babel renders in two locales (data/sources/cldr.py)."""

    locales: tuple[str, str]
    part: str

    def described(self) -> str:
        return ' to '.join(self.locales)

    @functools.cached_property
    def digest(self) -> str:
        return cache.key('cldr', _FORMAT, _cldr().version(), self.locales, self.part)

    def placed(self) -> Iterator[tuple[str, Pair]]:
        return ((f'phrase {number}', pair) for number, pair in enumerate(_phrases(*self.locales)[self.part], 1))


@dataclasses.dataclass(frozen=True)
class Tfds(Origin):
    """Two text features of the same examples of a prepared set of TFDS. Examples with a blank side, of which the sets have a
    few, are skipped, because a prepared set cannot be corrected."""

    source: tfds_sources.TfdsTexts
    target: tfds_sources.TfdsTexts

    def described(self) -> str:
        return f'source from {self.source.feature!r}, target from {self.target.feature!r}'

    @functools.cached_property
    def digest(self) -> str:
        return cache.key('pairs', self.source.digest, self.target.digest)

    @functools.cached_property
    def size(self) -> int:
        return self.source.stop - self.source.start  # the number of examples, without reading them

    def placed(self) -> Iterator[tuple[str, Pair]]:
        texts = self.source
        for first in range(texts.start, texts.stop, _BLOCK):
            numbers = range(first, min(first + _BLOCK, texts.stop))
            for number, example in zip(numbers, texts.examples.take(numbers), strict=True):
                try:
                    pair = example[self.source.feature].decode(), example[self.target.feature].decode()
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f'Example {number} of {texts.expression!r} in {texts.examples.folder} is not UTF-8; leave it out by '
                        'a slice.'
                    ) from error
                if all(map(str.strip, pair)):
                    yield f'example {number}', pair


def tables(path: str, form: Form, field: str = 'data.path', encoding: str = 'utf-8') -> Callable[[str], TablePairs]:
    """Returns a function from a name, as in data/sources/files.py:named, to the pairs of its files."""
    found = data_files(path, field, encoding)
    return lambda name: TablePairs(sources.Split.of(name, found, 'line').files, form)


def aligned(folder: str, languages: tuple[str, str], encoding: str = 'utf-8') -> Callable[[str], Aligned]:
    """Returns a function from a name to the pairs of FOLDER/NAME.LANGUAGE, .gz and .zst too, of two languages."""
    folder = remote.local(folder)
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"{folder!r} is no folder; with data.source='files' data.path is the folder of aligned files such as "
            f'train.{languages[0]} and train.{languages[1]}.'
        )

    def part(name: str) -> Aligned:
        return Aligned(*(_one(folder, f'{name}.{language}', encoding) for language in languages))

    return part


def cldr(locales: tuple[str, str]) -> Callable[[str], Cldr]:
    """Returns a function from 'train', 'valid' or 'test' to phrases in two locales."""
    for name in locales:
        _cldr().locale(name)
    known = 'train', 'valid', 'test'

    def part(name: str) -> Cldr:
        if name not in known:
            raise ValueError(f"The split {name!r} names no part of the phrases of CLDR; known are {', '.join(known)}.")
        return Cldr(locales, name)

    return part


def tfds(name: str, path: str, languages: tuple[str, str]) -> Callable[[str], Tfds]:
    """Returns a function from a split expression of a prepared set to its pairs; the languages name the features."""
    features = tfds_sources.TfdsExamples(tfds_sources.find(name, path), ()).info.features
    if missing := [language for language in languages if language not in features]:
        raise ValueError(
            f'{name} has no feature {" and no ".join(map(repr, missing))}; set data.languages to two of {", ".join(features)}.'
        )
    both = [tfds_sources.texts(name, path, language) for language in languages]
    return lambda split: Tfds(*(texts(split) for texts in both))


def two_files(paths: Sequence[str], encoding: str = 'utf-8') -> Aligned:
    """The pairs of two aligned files, the source file first."""
    if len(paths) != 2:
        raise ValueError(
            f"--path names {len(paths)} file(s), but with data.source='files' it takes two, the sources and their translations."
        )
    return Aligned(*(sources.files(path, '--path', encoding)[0] for path in paths))


def _one(folder: str, name: str, encoding: str) -> sources.File:
    for written in (name, f'{name}.gz', f'{name}.zst'):
        path = os.path.join(folder, written)
        if os.path.isfile(path):
            return sources.files(path, encoding=encoding)[0]
    there = sorted({sources.uncompressed(file) for file in os.listdir(folder) if not file.startswith('.')})
    close = difflib.get_close_matches(name, there, 1)
    hint = f'did you mean {close[0]}?' if close else f'it holds {", ".join(there[:8]) or "nothing"}.'
    raise FileNotFoundError(f'{folder} has no {name}, {name}.gz or {name}.zst; {hint}')


def _cldr():
    """The module of phrases, which needs Babel."""
    try:
        from data.sources import cldr as module
    except ImportError as error:
        raise ValueError(f"data.source='cldr' needs Babel ({error}); install it with pip.") from error
    return module


@functools.lru_cache(maxsize=2)
def _phrases(source: str, target: str) -> dict[str, list[Pair]]:
    return _cldr().parts(source, target)
