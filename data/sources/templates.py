"""Pairs of texts that templates make of the columns of tables, or of the functions of the standard library.

    Template('sst2 sentence: {sentence}', '{label}', words=('negative', 'positive'))

makes ('sst2 sentence: a joy', 'positive') of a row whose columns `sentence` and `label` have 'a joy' and 1.
"""

import ast
import copy
import dataclasses
import decimal
import functools
import json
import re
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from data import cache
from data.sources import files as sources
from data.sources.pairs import Origin, Pair
from data.sources.tables import Table, data_files, require_text

_FORMAT = 2  # part of every digest: another way to read makes other pairs
_FEWEST = 3  # words of a summary
_END = re.compile(r'[.!?](?=\s|$)')
_ABBREVIATION = re.compile(r'(?<![\w.])(e\.g|i\.e|a\.k\.a|eg|ie|etc|cf|vs|viz|resp|approx|incl|al)\.$', re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Template:
    """How the cells of a row become a pair of texts.

    Attributes:
      source, target: texts with columns in braces, by name or by number from 1, such as 'question: {question}' and '{2}'.
      words: the words for the values 0, 1, .. of a target; (): the values themselves. A value that is one of the words stays.
      step: numbers of the target are rounded to multiples of it (Raffel et al. 2020, section 2.4: 0.2); 0: they are not.
    """

    source: str
    target: str
    words: tuple = ()
    step: float = 0.0

    def __post_init__(self):
        if (self.words and self.step) or self.step < 0:
            raise ValueError(f'{self} has words for values, or a step of 0 or more to which numbers are rounded, and not both.')
        for text in (self.source, self.target):
            if not _columns(text):
                raise ValueError(f'The template {text!r} names no column; write one in braces, such as {{sentence}} or {{1}}.')

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of both texts."""
        return tuple(dict.fromkeys((*_columns(self.source), *_columns(self.target))))

    def pair(self, place: str, cells: dict[str, object]) -> Pair:
        """The two texts. Raises ValueError, naming the place, for a value without a word, or that is no number."""
        return (_filled(self.source, {name: str(cell) for name, cell in cells.items()}),
                _filled(self.target, {name: self._value(place, cells[name]) for name in _columns(self.target)}))

    def _value(self, place: str, cell: object) -> str:
        value = str(cell).strip()
        if self.step:
            try:
                number = decimal.Decimal(value)
                unit = decimal.Decimal(str(self.step))
                if number.is_nan():
                    raise decimal.InvalidOperation
                steps = (number / unit).quantize(decimal.Decimal(1), decimal.ROUND_HALF_EVEN)
                return str(steps * unit + 0)  # -0 + 0 is 0
            except decimal.InvalidOperation:
                raise ValueError(f'{place} has {value[:40]!r} where a number is rounded to {self.step}; correct it.') from None
        if not self.words or value in self.words:
            return value
        if value.isdecimal() and int(value) < len(self.words):
            return self.words[int(value)]
        raise ValueError(f'{place} has {value[:40]!r}, for which there is no word: 0 to {len(self.words) - 1} are '
                         f'{", ".join(self.words)}; give it one.')


def _columns(text: str) -> list[str]:
    try:
        return [name for _, name, *_ in string.Formatter().parse(text) if name]
    except ValueError as error:
        raise ValueError(f'The template {text!r} cannot be read ({error}); write columns in braces, as {{sentence}}.') from None


def _filled(text: str, cells: dict[str, str]) -> str:
    return ''.join(before + (cells[name] if name else '') for before, name, *_ in string.Formatter().parse(text))


@dataclasses.dataclass(frozen=True)
class TableTemplates(Origin):
    """Rows of tables, by a template.

    Attributes:
      header, quotes: as in data/sources/tables.py:Table.
    """

    files: Sequence[sources.File]
    template: Template
    header: str
    quotes: str

    @functools.cached_property
    def digest(self) -> str:
        return cache.key('templates', _FORMAT, self.template, *(self._table(file).digest for file in self.files))

    def placed(self) -> Iterator[tuple[str, Pair]]:
        names = self.template.columns
        for file in self.files:
            table = self._table(file)
            columns = [table.column(name, 'A template') for name in names]
            for row in table.rows():
                cells = table.cells(row, columns, 'a template')
                for cell in cells:
                    require_text(cell, row[0], 'the template')
                yield row[0], self.template.pair(row[0], dict(zip(names, cells, strict=True)))

    def described(self) -> str:
        """What is read from which column of the first file, for the log."""
        table = self._table(self.files[0])
        return table.described(template=[table.column(name, 'A template') for name in self.template.columns])

    def _table(self, file: sources.File) -> Table:
        return Table(file, self.header, self.quotes)


@dataclasses.dataclass(frozen=True)
class Docstrings(Origin):
    """Functions of the running Python's standard library that have a docstring, by a template with their `name`, `code`
    (without docstrings), `summary` (the first sentence of the docstring, of three words or more) and `rest` (what follows
    it)."""

    template: Template

    @functools.cached_property
    def digest(self) -> str:
        return cache.key('docstrings', self.template, self._key)

    @functools.cached_property
    def _key(self) -> str:
        return cache.key('docstrings', _FORMAT, sys.version, *(file.digest for file in sources.stdlib()))

    def placed(self) -> Iterator[tuple[str, Pair]]:
        def build(folder: Path) -> None:
            rows = (json.dumps(row) for file in sources.stdlib() for row in _functions(file))
            (folder / 'functions.jsonl').write_text('\n'.join(rows))

        entry = cache.entry('docstrings', self._key, build, lambda folder: (folder / 'functions.jsonl').is_file())
        names = self.template.columns
        with open(entry / 'functions.jsonl') as lines:
            for place, cells in map(json.loads, lines):
                if missing := [name for name in names if name not in cells]:
                    raise ValueError(f'Functions of the standard library have no {missing[0]!r}; a template may name '
                                     f'{", ".join(cells)}.')
                if all(cells[name].strip() for name in names):
                    yield place, self.template.pair(place, cells)


def _functions(file: sources.File) -> Iterator[tuple[str, dict[str, str]]]:
    """(place, cells) of each function of a file."""
    try:
        tree = ast.parse(''.join(file.texts()))
    except (SyntaxError, ValueError):  # templates of lib2to3 and the like
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)) and node.body[1:]:
            summary, rest = first_sentence(text)
            if len(summary.split()) >= _FEWEST:
                code = ast.unparse(ast.Module([_without_docstrings(node)], []))
                yield f'{file.name}:{node.lineno}', {'name': node.name, 'code': code, 'summary': summary, 'rest': rest}


def _without_docstrings(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
    """A copy of a function without its docstring and those of the functions and classes in it."""
    function = copy.deepcopy(function)
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return function


def first_sentence(text: str) -> tuple[str, str]:
    """(the first sentence, what follows it) of a text: it ends with '.', '!' or '?' before white space, but not with the '.' of
    an abbreviation such as 'e.g.', or with the paragraph; both with single spaces."""
    first, _, others = text.strip().partition('\n\n')
    first = ' '.join(first.split())
    ends = (match.end() for match in _END.finditer(first) if not _ABBREVIATION.search(first[:match.end()]))
    sentence = first[:next(ends, len(first))]
    return sentence, ' '.join((first[len(sentence):] + ' ' + others).split())


def tables(path: str, template: Template, header: str, quotes: str, field: str,
           encoding: str = 'utf-8') -> Callable[[str], TableTemplates]:
    """Returns a function from a name, as in data/sources/files.py:named, to the pairs of its files."""
    found = data_files(path, field, encoding)
    return lambda name: TableTemplates(sources.Split.of(name, found, 'line').files, template, header, quotes)


def docstrings(template: Template) -> Callable[[str], Docstrings]:
    """Returns a function from 'all' or 'train', which are the same, to pairs of the standard library's functions."""
    def part(name: str) -> Docstrings:
        if name not in ('all', 'train'):
            raise ValueError(f"The split {name!r} names no part of the standard library's functions; take slices of 'all'.")
        return Docstrings(template)

    return part
