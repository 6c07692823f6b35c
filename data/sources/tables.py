"""Rows of tables: CSV, TSV, JSON Lines and Parquet, also compressed with gzip or Zstandard.

    table = Table(file)                       # a File of data/sources/files.py
    table.names                               # ('sentence', 'label'), or () without a header
    column = table.column('label', 'data.label')
    for place, cells in table.rows(): ...     # 'train.tsv:2', ('a joy', '1')

The ending of the name says the format: .csv, .tsv, .jsonl or .json, .parquet; any other file is tab-separated. The fields of
.csv are separated by commas, semicolons or tabs, whichever its first lines have throughout.

A first line is a header if its fields look like names, and a column of numbers or of few values has none of them further down.
Quotes follow RFC 4180 in .csv. Elsewhere they are text (the sets of GLUE have single ones), unless one column is quoted in
every line.
"""

import csv
import dataclasses
import functools
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data import json_files
from data.sources import contents
from data.sources import files as sources

CHOICES = 'auto', 'true', 'false'  # of the fields `header` and `quotes`
_HEAD = 1000  # rows that header, quotes and separator are found in
_ROWS = 10_000_000  # that any file of Parquet may have
_LONGEST = 1 << 26  # bytes in a line or in a whole .json
_CARD = 1 << 17  # characters of a card that are read
_FORMATS = {'.csv': 'csv', '.jsonl': 'json', '.ndjson': 'json', '.json': 'json', '.parquet': 'parquet', '.pq': 'parquet'}
_STATED = re.compile(r'"?sep=([,;\t])"?', re.IGNORECASE)  # the separator in a first line for Excel
_PAGE = re.compile(r'\s*(<!doctype html|<html)\b.*>\s*', re.IGNORECASE)
_NAME = re.compile(r'(#\d* ?)?[^\W\d][\w .()/#-]{0,39}|')  # of a column; '' is what pandas calls its index
_KNOWN = frozenset((  # names of columns
    'label', 'labels', 'class', 'classes', 'category', 'sentiment', 'target', 'score', 'quality', 'similarity', 'tag',
    'tags', 'text', 'texts', 'sentence', 'sentence1', 'sentence2', 'premise', 'hypothesis', 'question', 'question1',
    'question2', 'answer', 'context', 'review', 'content', 'title', 'id', 'idx', 'index', 'source', 'src', 'tgt', 'en',
    'gold_label', 'is_duplicate', '#1 string', '#2 string', 'de', 'fr', 'es', 'it', 'pt', 'ru', 'zh', 'english', 'german',
    'french', 'spanish', 'prompt', 'chosen', 'rejected'))

csv.field_size_limit(_LONGEST)
Row = tuple[str, tuple]  # (place, cells)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table that is read as a stream. Cells are strings, or values of JSON and Parquet; blank lines are skipped.

    Attributes:
      header, quotes: 'auto', 'true' or 'false': whether the first line names the columns, and whether fields may be quoted.
    """

    file: sources.File
    header: str = 'auto'
    quotes: str = 'auto'

    def rows(self) -> Iterator[Row]:
        """(place, cells) of each row below the header. Raises ValueError for what cannot be read."""
        rows = itertools.islice(self._rows(self._quoted), int(self._has_header), None)
        if self.format in ('json', 'parquet'):
            return rows
        used = max((len(cells) for _, cells in self._head), default=0)
        trimmed = ((place, cells if any(map(str.strip, cells[used:])) else cells[:used]) for place, cells in rows)
        return map(functools.partial(self._within, len(self.names)), trimmed) if self._has_header else trimmed

    def _within(self, names: int, row: Row) -> Row:
        """The row. Raises ValueError if it has more fields than the header has names, as then they are shifted."""
        place, cells = row
        if not any(map(str.strip, cells[names:])):
            return row
        quote = f'quote a field that has {self._separated_by} in it' if self._quoted else f'take {self._separated_by} out'
        raise ValueError(f'{place} has {len(cells)} columns, and the header has {names}, separated by '
                         f'{self._separated_by}; {quote}, or set data.header=false if line 1 is no header.')

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns; () if there are none."""
        if self.format in ('json', 'parquet'):
            return self._keys
        return tuple(str(cell).strip() for cell in self._head[0][1]) if self._has_header else ()

    @property
    def width(self) -> int:
        """The number of columns of the first row."""
        return len(self.names or (self._head[0][1] if self._head else ()))

    def column(self, wanted: int | str, field: str) -> int:
        """The index of a column, given by name or by number from 1. Raises ValueError, which names the config's `field`."""
        if isinstance(wanted, str) and wanted in self.names:
            require_distinct([wanted], self.names, self.file.path, field[0].lower() + field[1:])
            return self.names.index(wanted)
        if isinstance(wanted, int) or whole(wanted):
            if int(wanted) < 1:
                raise ValueError(f'{field} names the column {wanted}, which is none; write names of the header, or numbers '
                                 'from 1, such as 1,2.')
            return int(wanted) - 1
        known = f'its columns are {", ".join(map(repr, self.names[:20]))}' if self.names else (
            "it has no header, so columns are numbers from 1; if line 1 is one, set data.header=true")
        raise ValueError(f'{field} names the column {wanted!r}, which {self.file.path} does not have; {known}.')

    def require_distinct(self, field: str) -> None:
        """Raises ValueError, which names the config's `field`, if two columns have one name and so are not told apart."""
        require_distinct(self.names, self.names, self.file.path, field)

    def split(self, line: str) -> list[str]:
        """The fields of one line of text."""
        return _cells(line, self._separator) if self._quoted else line.split(self._separator)

    def cells(self, row: Row, columns: Sequence[int], field: str, optional: Sequence[int] = (),
              skip: str = '') -> tuple:
        """The cells of a row in these columns. Raises ValueError if the row is too short, or if one is empty and not in
        `optional`; `skip` is the setting that leaves such rows out, '' for none."""
        place, cells = row
        if len(cells) <= max(columns):
            raise ValueError(f'{place} has {self.counted(cells)}, and {field} asks for {max(columns) + 1}; correct the line, '
                             'or take it out.')
        for column in columns:
            if column not in optional and blank(cells[column]):
                name = f'{self.names[column]!r}' if self.names else column + 1
                out = f'take the line out, or leave all such lines out with {skip}' if skip else 'or take the line out'
                raise ValueError(f'{place} has nothing in column {name}; fill it in, {out}.')
        return tuple(cells[column] for column in columns)

    def counted(self, cells: Sequence) -> str:
        """The number of fields of a row, and what another separator could be, for messages."""
        count = f'{len(cells)} column{"s" * (len(cells) != 1)} separated by {self._separated_by}'
        other = next((mark for mark in (',;' if self.format == 'tsv' else '|') if cells and mark in str(cells[0])), '')
        if len(cells) != 1 or not other:
            return count
        mend = 'name the file .csv if commas or semicolons do' if self.format == 'tsv' else 'write commas if other signs do'
        return f'{count} ({mend})'

    @functools.cached_property
    def of_numbers(self) -> set[int]:
        """The columns that hold nothing but numbers in the first rows."""
        columns = itertools.zip_longest(*(cells for _, cells in self._head[int(self._has_header):]))
        return {i for i, column in enumerate(columns) if all(_is_number(str(cell).strip()) for cell in column)}

    @functools.cached_property
    def flags(self) -> set[int]:
        """The columns that hold nothing but 0 and 1, and both, in the first rows."""
        columns = itertools.zip_longest(*(cells for _, cells in self._head[int(self._has_header):]))
        return {i for i, column in enumerate(columns) if {str(cell).strip() for cell in column} == {'0', '1'}}

    def of_few_values(self) -> list[str]:
        """The columns, by name or number from 1, with few different values in the first rows, as those of classes have."""
        columns = list(itertools.zip_longest(*(map(str, cells) for _, cells in self._head[int(self._has_header):])))
        return [str(self.names[i] if i < len(self.names) else i + 1) for i, column in enumerate(columns)
                if 1 < len({*column}) <= len(column) / 5]

    @functools.cached_property
    def classes(self) -> dict[str, list[str]]:
        """{column: the names of its classes 0, 1, ..}, from the metadata of Parquet or the card of the data set."""
        if self.format != 'parquet':
            return _of_card(self.file.path)
        info = (self._parquet.schema_arrow.metadata or {}).get(b'huggingface', b'{}')
        try:
            found = {name: kind.get('feature', kind)  # of a list
                     for name, kind in json.loads(info)['info']['features'].items() if isinstance(kind, dict)}
            return {name: kind['names'] for name, kind in found.items() if 'names' in kind} or _of_card(self.file.path)
        except (ValueError, KeyError, TypeError, AttributeError):
            return _of_card(self.file.path)

    def described(self, **columns: Sequence[int]) -> str:
        """What was found and what is read from which column, for the log: "header: 'review', 'stars' (line 1); text from
        'review', label from 'stars'", or "no header; text from 1, label from 2"."""
        name = lambda column: repr(self.names[column]) if column < len(self.names) else str(column + 1)
        read = ', '.join(f'{what} from {" and ".join(map(name, found))}' for what, found in columns.items() if found)
        return f'{self.describe()}; {read}{sources.misread([self.file])}'

    def describe(self) -> str:
        """What was found, for the log: "header: 'sentence', 'label' (line 1)", or "no header"."""
        names = ', '.join(map(repr, self.names[:8])) + ', ..' * (len(self.names) > 8)
        if self.format in ('json', 'parquet'):
            return f'columns: {names}'
        apart = f'; separated by {self._separated_by}' if self.format == 'csv' and self._separator != ',' else ''
        line = self._head[0][0].rpartition(':')[2] if self.names else ''
        return (f'header: {names} (line {line})' if self.names else 'no header') + apart

    @property
    def format(self) -> str:
        """'csv', 'tsv', 'json' or 'parquet'."""
        return _FORMATS.get(os.path.splitext(sources.uncompressed(self.file.path))[1].lower(), 'tsv')

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the contents and of how they are read."""
        return f'{self.format} {self.header} {self.quotes} {self.file.digest}'

    @functools.cached_property
    def _head(self) -> list[Row]:
        """The first rows, without columns at the end that are empty in all of them."""
        rows = list(itertools.islice(self._rows(self._quoted), _HEAD))
        if self.format in ('json', 'parquet'):
            return rows
        used = max((i for _, cells in rows for i, cell in enumerate(cells, 1) if cell.strip()), default=0)
        return [(place, cells[:max(2, used)]) for place, cells in rows]

    @functools.cached_property
    def _has_header(self) -> bool:
        if self.format in ('json', 'parquet') or self.header == 'false' or not self._head:
            return False
        return self.header == 'true' or _is_header([cells for _, cells in self._head])

    @functools.cached_property
    def _quoted(self) -> bool:
        if self.quotes != 'auto' or self.format == 'csv':
            return self.quotes != 'false'
        if self.format != 'tsv':
            return False
        rows = [cells for _, cells in itertools.islice(self._rows(quoted=False), 1, _HEAD)]
        columns = itertools.zip_longest(*rows, fillvalue='')
        return len(rows) > 1 and any(all(map(_is_quoted, column)) for column in columns)

    @functools.cached_property
    def _separator(self) -> str:
        if self.format != 'csv':
            return '\t'
        if self._stated:
            return self._stated[1]
        lines = list(itertools.islice((line for line in self._lines() if line.strip()), 20))
        found = {mark: [_cells(line, mark) for line in lines] for mark in ',;\t'}
        count = {mark: [len(cells) for cells in rows] for mark, rows in found.items()}
        even = [mark for mark in found if lines and min(count[mark]) == max(count[mark]) > 1]
        # A comma of a text has a space behind it, unlike one between fields.
        spaces = lambda mark: sum(cell.startswith(' ') for cells in found[mark] for cell in cells[1:])
        decimal = not any(re.search(r'(?<!\d),|,(?!\d)', line) for line in lines)  # all commas stand within numbers
        if even:
            return min(even, key=lambda mark: (spaces(mark), mark == ',' and decimal))
        return max(count, key=lambda mark: sum(count[mark]))

    @property
    def _separated_by(self) -> str:
        return {',': 'commas', ';': 'semicolons', '\t': 'tabs'}[self._separator]

    @functools.cached_property
    def _keys(self) -> tuple[str, ...]:
        if self.format == 'parquet':
            return tuple(self._parquet.schema_arrow.names)
        return tuple(dict.fromkeys(key for _, found in itertools.islice(self._objects(), _HEAD) for key in found))

    def _rows(self, quoted: bool) -> Iterator[Row]:
        if self.format == 'json':
            return ((place, tuple(found.get(key) for key in self._keys)) for place, found in self._objects())
        if self.format == 'parquet':
            return self._of_parquet()
        return self._of_quoted() if quoted else self._of_lines()

    @functools.cached_property
    def _stated(self) -> re.Match | None:
        """The first line of a .csv, if it is one for Excel that states the separator."""
        return _STATED.fullmatch(next(lines_of(self.file), '')) if self.format == 'csv' else None

    def _lines(self) -> Iterator[str]:
        """The lines, blank for one that states the separator. Raises ValueError for a page of HTML but with header='false'."""
        for number, line in enumerate(lines_of(self.file)):
            if not number and self.header != 'false' and _PAGE.fullmatch(line):
                raise ValueError(f'{self.file.path} is a page of HTML, not a table; download the file itself, or set '
                                 'data.header=false if its lines are texts.')
            yield '' if not number and self._stated else line

    def _of_lines(self) -> Iterator[Row]:
        for number, line in enumerate(self._lines(), 1):
            if line.strip():
                yield f'{self.file.path}:{number}', tuple(line.split(self._separator))

    def _of_quoted(self) -> Iterator[Row]:
        # A carriage return within a line, which the reader refuses outside of quotes, is white space.
        lines = (line.replace('\r', ' ') + '\n' for line in self._lines())
        reader, first = csv.reader(lines, delimiter=self._separator, strict=True), 1
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise ValueError(f'{self.file.path}:{first} cannot be read as quoted fields ({error}); close the quote, write '
                                 'quotes inside of it twice, or set data.quotes=false if quotes are text.') from None
            if cells is None:
                return
            if any(cell.strip() for cell in cells):
                yield f'{self.file.path}:{first}', tuple(cells)
            first = reader.line_num + 1

    def _objects(self) -> Iterator[tuple[str, dict]]:
        """(place, object) of each line, or of each item of one list."""
        first = next((line for line in lines_of(self.file) if line.strip()), '')
        if first.lstrip().startswith('['):
            whole = b''.join(self.file.read(0, _LONGEST + 1))
            if len(whole) > _LONGEST:
                raise ValueError(f'{self.file.path} is one list of more than {_LONGEST >> 20} MB; write an object a line.')
            try:
                found = enumerate(_json(whole.decode('utf-8-sig'), self.file.path), 1)
            except UnicodeDecodeError as error:
                raise ValueError(f'{self.file.path} is not UTF-8 at byte {error.start}; convert the file to UTF-8.') from None
            placed = ((f'{self.file.path}, item {number}', one) for number, one in found)
        else:
            numbered = ((f'{self.file.path}:{number}', line) for number, line in enumerate(lines_of(self.file), 1))
            placed = ((place, _json(line, place)) for place, line in numbered if line.strip())
        for place, one in placed:
            lists = [key for key, value in one.items() if isinstance(value, list) and value and isinstance(value[0], dict)] \
                if isinstance(one, dict) and len(one) == 1 and self.file.name.endswith('.json') else ()
            if lists:
                raise ValueError(f'{place} is one object with the rows in {lists[0]!r}; expected the list alone, '
                                 f'such as jq .{lists[0]} writes it, or an object a line.')
            if not isinstance(one, dict):
                raise ValueError(f'{place} is {str(one)[:40]!r}; expected an object with a name for each column, such as '
                                 '{"text": "..", "label": ".."}.')
            yield place, one

    def _of_parquet(self) -> Iterator[Row]:
        from pyarrow import lib

        path, size = self.file.path, 0
        if self._parquet.metadata.num_rows > max(contents.RATIO * os.path.getsize(path), _ROWS):
            raise ValueError(f'{path} has {self._parquet.metadata.num_rows:,} rows, more than {contents.RATIO} for each of its '
                             'bytes; write it again without repeated rows.')
        try:
            numbers = itertools.count(1)
            for batch in self._parquet.iter_batches(_HEAD):
                if (size := size + batch.nbytes) > contents.most(path):
                    break
                for cells in zip(*(column.to_pylist() for column in batch.columns)):
                    yield f'{self.file.path}, row {next(numbers)}', cells
        except (lib.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
            raise ValueError(f'{self.file.path} is damaged ({_first(error)}); expected a complete file of Parquet.') from None
        if size > contents.most(path):
            raise ValueError(f'{path} has, unpacked, more than {contents.RATIO} times its own size; write it again without '
                             'repeated rows.')

    @functools.cached_property
    def _parquet(self):
        from pyarrow import lib, parquet

        try:
            return parquet.ParquetFile(self.file.path)
        except (lib.ArrowException, OSError) as error:
            raise ValueError(f'{self.file.path} is no file of Parquet ({_first(error)}); name files by what they '
                             'hold.') from None


def lines_of(file: sources.File) -> Iterator[str]:
    """All lines of a file without their ends; ValueError, with the line's number, if one is not UTF-8 or endless."""
    for number, line in enumerate(_split(file), 1):
        try:
            text = line.decode('utf-8-sig' if number == 1 else 'utf-8')
        except UnicodeDecodeError as error:
            raise ValueError(f'{file.path}:{number} is not UTF-8 ({error.reason}); {contents.ANOTHER}.') from error
        yield text.removesuffix('\r')


def data_files(path: str, field: str = 'data.path', encoding: str = 'utf-8') -> list[sources.File]:
    """The files that a path names, without what only tells about them: README.md and other notes, a licence, a loader."""
    found = sources.files(path, field, encoding)
    about = re.compile(r'(^|/)((licen[sc]e|readme|_about)[^/]*|source(\.txt)?)$|\.(md|py|rst)$', re.IGNORECASE)
    return [file for file in found if not about.search(file.name)] or found


def require_distinct(wanted: Sequence[str], names: Sequence[str], path: str, field: str = '') -> None:
    """Raises ValueError if two of the columns with these `names` have one of the names that are wanted; `field` is what takes
    numbers of columns too, '' for nothing."""
    twice = next((name for name in wanted if name and names.count(name) > 1), None)
    if twice is not None:
        places = ' and '.join(f'{number}' for number, name in enumerate(names, 1) if name == twice)
        numbers = f'name columns by numbers from 1 in {field}, or ' if field else ''
        raise ValueError(f'{path} has the name {twice!r} for the columns {places}; {numbers}rename one.')


def whole(text: str) -> bool:
    """Whether a text is a whole number that is not negative, and short enough for int()."""
    return text.isdecimal() and len(text) < 19


def _split(file: sources.File) -> Iterator[bytes]:
    held, end = b'', b''
    for block in file.read():
        # Lines end with \n or \r\n, or, in files of old Macintoshes and of Excel for them, with \r.
        end = end or (b'\r' if b'\r' in block and b'\n' not in block else b'\n')
        *lines, held = (held + block).split(end)
        yield from lines
        if len(held) > _LONGEST:
            raise ValueError(f'{file.path} has a line of more than {_LONGEST >> 20} MB; break it into lines.')
    if held:
        yield held


def _is_header(rows: Sequence[tuple[str, ...]]) -> bool:
    """Whether the first of these rows names the columns of the others."""
    if not rows:
        return False
    first, rest = [cell.strip() for cell in rows[0]], rows[1:]
    if len(first) < 2 or not all(map(_NAME.fullmatch, first)):
        return False
    known = {cell.lower() for cell in first} & _KNOWN
    if len(known) >= 2:
        return True
    if len({*first}) < len(first):
        return False
    columns = [[cell.strip() for cell in column] for column in itertools.zip_longest(*rest, fillvalue='')][:len(first)]
    numeric = any(any(column) and all(map(_is_number, filter(None, column))) for column in columns)
    # Single words, one of which is a name or is written like one, above texts.
    words = all(map(str.isidentifier, first)) and (known or any('_' in cell for cell in first))
    if words and len(rest) > 1 and all(sum(' ' in cell for cell in column) > 0.9 * len(column) for column in columns):
        return True
    return numeric or any(name not in column and len({*column}) <= len(column) / 5 for name, column in zip(first, columns))


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line.replace('\r', ' ')], delimiter=separator), [])
    except csv.Error:  # a field that is too long
        return []


def blank(cell: Any) -> bool:
    """Whether a cell has nothing in it: None, white space, or NaN, which stands for a missing value in pandas."""
    return cell is None or (isinstance(cell, float) and math.isnan(cell)) or not str(cell).strip()


def require_text(cell: Any, place: str, field: str) -> None:
    """Raises ValueError for a list or an object where a text is expected; `field` is what names its column."""
    if isinstance(cell, (list, dict)):
        raise ValueError(f'{place} has {"a list" if isinstance(cell, list) else "an object"}, {cell!r:.40}, where a text is '
                         f'expected; write the text alone, or name another column with {field}.')


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r'[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?', cell))


def _is_quoted(cell: str) -> bool:
    return bool(re.fullmatch(r'\s*"([^"]|"")*"\s*', cell))


def _json(text: str, place: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{place} is no JSON ({_first(error)}); correct the line, or take it out.') from None
    json_files.require_whole(found, text, place)
    return found


def _first(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip('.')


@functools.lru_cache(maxsize=64)
def _of_card(path: str) -> dict[str, list[str]]:
    """The names of classes in the card of the data set, the README.md in the folder of a file or the folder above.

    A card begins with YAML between lines of ---, in which `dataset_info` has `features`, as on Hugging Face; of several
    configurations those of the one that the folder of the file is named after, or else those on which all agree.
    """
    import yaml

    for folder in Path(path).absolute().parents[:2]:
        try:
            with open(folder / 'README.md', encoding='utf-8') as opened:
                parts = re.split(r'^---\s*$', opened.read(_CARD), maxsplit=2, flags=re.MULTILINE)
            if not _is_plain(yaml.parse(parts[1], yaml.SafeLoader)):
                continue
            infos = yaml.safe_load(parts[1])['dataset_info']
            infos = [info for info in ([infos] if isinstance(infos, dict) else infos) if 'features' in info]
            own = [info for info in infos if info.get('config_name') == Path(path).absolute().parent.name]
            first, *others = (_of_features(info['features']) for info in own or infos)
            return {column: names for column, names in first.items() if all(other.get(column) == names for other in others)}
        except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, yaml.YAMLError):
            continue
    return {}


def _of_features(features: Sequence[dict]) -> dict[str, list[str]]:
    """{column: the names of its classes, or of those in its lists} of the features in a card."""
    found = {}
    for one in features:
        for kind in (one.get('dtype'), one.get('sequence'), one.get('list')):
            if isinstance(kind, dict) and 'class_label' in kind:
                names = kind['class_label']['names']
                found[one['name']] = [str(names[key]) for key in sorted(names, key=int)]
    return found


def _is_plain(events: Iterator) -> bool:
    """Whether YAML is without aliases, by which a few lines stand for more than any memory holds, and deep nesting."""
    from yaml import events as kinds

    depth = 0
    for event in events:
        depth += isinstance(event, kinds.CollectionStartEvent) - isinstance(event, kinds.CollectionEndEvent)
        if depth > 32 or isinstance(event, kinds.AliasEvent):
            return False
    return True
