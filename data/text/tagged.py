"""Sentences with a tag for each word, in the format of CoNLL or in tables: names, parts of speech and the like.

    opened = Tagged(path='wnut17', train='wnut17train.conll', valid='emerging.dev.conll', test='').open(None)
    for batch in opened.train(seed=0): ...

Rows hold `inputs`, `segments`, `positions` and `types` [B, T], and `targets` and `weights` [B, T]: the tag of a word is
predicted at its first token (Devlin et al. 2019, section 5.3). Each word is encoded by itself; all but the first of a sentence
have a space before them, which changes the tokens of byte-level BPE and SentencePiece, but not of WordPiece.
"""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data import cache, fields
from data.sources import files as sources
from data.sources.tables import Table, blank, lines_of, require_distinct, whole
from data.text import examples, frames

_FILE = 'tags.json'
# Usual names of columns, of words and of tags.
_COLUMNS = (('tokens', 'words', 'token', 'word', 'form'),
            ('ner_tags', 'tags', 'labels', 'pos_tags', 'ner_tag', 'ner', 'tag', 'label', 'pos', 'upos'))
_SENTENCES = 'sentence #', 'sentence', 'sentence_id', 'sent_id', 'sentence_number'  # those that number sentences
_MANY = 20  # words, from which on more tags than words are a mistake
_LONGEST = 100  # words of a file with a single sentence
_UNIVERSAL = 10  # columns of CoNLL-U, the format of Universal Dependencies


@dataclasses.dataclass(frozen=True)
class Tagged(examples.Examples):
    """Files of CoNLL: a word a line, the word in the first column and its tag in the last, blank lines between sentences.

    Columns are separated by tabs, or in a file without tabs by spaces; in .csv as in data/sources/tables.py. A first line that
    names the columns is found by its names, and a column such as `sentence_id` then begins sentences too. Lines that begin with
    -DOCSTART- are skipped. In files of CoNLL-U (ten columns with tabs) words are in the second column, tags, the
    universal parts of speech, in the fourth, and comments, ranges and empty nodes are skipped. Tables of JSON Lines or Parquet
    have a sentence a row, as a list of words and a list of tags. A sentence longer than a row of a batch is split between words
    into several rows; of a word longer than a row the first tokens are kept.

    Each example is a sentence. Attributes are those of Examples, and:
      columns: the columns of the words and of the tags in a table, by name or by number from 1; (): as above, in tables tokens
        or words, and ner_tags, tags or labels.
    """

    columns: tuple = ()
    reader: str = 'transformer.readers.tags:WordTags'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenTagged':
        """Opens the sentences. If `folder` is a saved run, no file is read before train() or evaluation().

        `source` is a run to start from: its tokenizer is used, and its classes if they include all of this training part.
        Raises ValueError or FileNotFoundError, in one sentence, for a field or a file that cannot be used.
        """
        return OpenTagged(self, folder, source)

    def check(self) -> None:
        super().check()
        if self.columns and len({*fields.columns('columns', self.columns)}) != 2:
            raise ValueError(f'data.columns={self.columns} are not two columns; write that of the words and that of the tags.')

    def form(self) -> tuple:
        return (self.columns,)

    def examples(self, file: sources.File) -> list['Sentence']:
        table = Table(file)
        if table.format in ('json', 'parquet'):
            return self._of_table(table)
        return self._of_lines(table)

    def described(self) -> str:
        """What is read from which column, for the log."""
        table = Table(self.part('train').files[0])
        if table.format in ('json', 'parquet'):
            words, tags = self._of_lists(table)
            return table.described(words=[words], tags=[tags])
        columns = self._columns(table)
        first = next(filter(None, (_split(line, table) for _, line in _lines(table))), ())
        shown = [repr(cell) if columns.named else f'{number}' for number, cell in enumerate(first, 1)]
        sentence = '' if columns.sentence is None else f', sentences from {shown[columns.sentence]}'
        found = f'header: {", ".join(shown)} (line {columns.named})' if columns.named else 'no header'
        return f'{found}; words from {shown[columns.word]}, tags from {shown[columns.tag]}{sentence}'

    def _of_lines(self, table: Table) -> list['Sentence']:
        columns, found, begun, last = self._columns(table), [], [], ''
        for number, line in itertools.chain(_lines(table), ((-1, ''),)):
            if number == columns.named:
                continue
            cells = _split(line, table)
            key = '' if columns.sentence is None else ''.join(cells[columns.sentence:][:1])
            if begun and (not cells or key not in ('', last)):
                found.append(Sentence(*map(tuple, zip(*begun))))
                begun = []
            last = key or last
            if cells:
                place = f'{table.file.path}:{number}'
                begun.append((*_word(cells, columns, line, place), place))
        if len(found) == 1 and len(found[0].words) > _LONGEST:
            raise ValueError(f'{table.file.path} is one sentence of {len(found[0].words):,} words; expected a word and its tag '
                             'a line, and an empty line between sentences, or a column named sentence.')
        return found

    def _columns(self, table: Table) -> '_Columns':
        """Where the lines of a file have the word and the tag."""
        number, line = next(((number, line) for number, line in _lines(table) if _split(line, table)), (1, ''))
        names = _split(line, table)
        low = [name.lower() for name in names]
        usual = [next((low.index(name) for name in known if name in low), None) for known in (*_COLUMNS, _SENTENCES)]
        named, sentence = None not in usual[:2], usual[2]
        if not self.columns:
            require_distinct([names[column] for column in usual if named and column is not None], names, table.file.path,
                             'data.columns')
            universal = line.count('\t') == _UNIVERSAL - 1 and names[0].isdigit()
            return _Columns(*usual, number) if named else _Columns(word=1, tag=3) if universal else _Columns()
        wanted = fields.columns('columns', self.columns)
        if unknown := [column for column in wanted if not whole(column) and column not in names]:
            raise ValueError(f'data.columns names the column {unknown[0]!r}, which line {number} of {table.file.path} does not '
                             f'name; it is {", ".join(map(repr, names[:20]))}.')
        require_distinct([column for column in wanted if not whole(column)], names, table.file.path, 'data.columns')
        word, tag = (int(column) - 1 if whole(column) else names.index(column) for column in wanted)
        named = named or not all(map(whole, wanted))
        if named and max(word, tag) >= len(names):
            raise ValueError(f'{table.file.path}:{number} names {len(names)} columns, {", ".join(map(repr, names[:20]))}, and '
                             f'data.columns asks for {max(word, tag) + 1}; correct the line, or name other columns.')
        return _Columns(word, tag, sentence if named else None, number if named else 0)

    def _of_lists(self, table: Table) -> list[int]:
        """The columns of the lists of words and of tags."""
        usual = [next((name for name in names if name in table.names), names[0]) for names in _COLUMNS]
        return [table.column(name, 'data.columns') for name in fields.columns('columns', self.columns) or usual]

    def _of_table(self, table: Table) -> list['Sentence']:
        columns = self._of_lists(table)
        found, names = [], table.classes.get(table.names[columns[1]], ()) if columns[1] < len(table.names) else ()
        for row in table.rows():
            place, (words, tags) = row[0], table.cells(row, columns, 'data.columns')
            if not (isinstance(words, list) and isinstance(tags, list) and len(words) == len(tags)):
                raise ValueError(f'{place} has the words {words!r:.40} and the tags {tags!r:.40}; expected two lists of one '
                                 'length.')
            for word, tag in zip(words, tags):
                if blank(word) or blank(tag):
                    raise ValueError(f'{place} has the word {word!r:.40} with the tag {tag!r:.40}; expected a word and its '
                                     'tag: fill in what is missing, or leave both out.')
            if words:
                named = (names[tag] if isinstance(tag, int) and 0 <= tag < len(names) else str(tag) for tag in tags)
                found.append(Sentence(tuple(map(str, words)), tuple(named), (place,) * len(words)))
        return found


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The words of a sentence, their tags, and the places where they stand."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    places: tuple[str, ...]

    @property
    def place(self) -> str:
        return self.places[0]

    @property
    def texts(self) -> tuple[str]:
        return (' '.join(self.words),)


class _Columns(NamedTuple):
    """The columns of lines with a word each.

    Attributes:
      sentence: the column in which another value begins another sentence; None: blank lines alone begin one.
      named: the number of the line that names the columns, the first; 0: none does.
    """

    word: int = 0
    tag: int = -1
    sentence: int | None = None
    named: int = 0


def _lines(table: Table) -> Iterator[tuple[int, str]]:
    """(number, line) of each, without those of CoNLL-U that are no words: comments, ranges (1-2) and empty nodes (1.1). Raises
    ValueError for a line without tabs among others that have some."""
    tabs = iter(() if table.format == 'csv' else (
        (number, line) for number, line in enumerate(lines_of(table.file), 1) if '\t' in line and line.strip()))
    first, shown = next(tabs, (0, ''))
    while shown.startswith('#'):  # a comment, or a hashtag
        _, shown = next(tabs, (0, ''))
    universal = shown.count('\t') == _UNIVERSAL - 1
    for number, line in enumerate(lines_of(table.file), 1):
        comment = line.startswith('#') and line.count('\t') != _UNIVERSAL - 1
        if universal and (comment or re.match(r'\d+[-.]\d+\t', line)):
            continue
        if first and '\t' not in line and _split(line, table):
            raise ValueError(f'{table.file.path}:{number} is {line[:40]!r}, without a tab, and line {first} has some; separate '
                             'words and tags by tabs in all lines or in none, or take the line out.')
        yield number, line


def _split(line: str, table: Table) -> list[str]:
    """The cells of a line; [] of one between sentences: blank, of separators alone, or with -DOCSTART- in its first cell."""
    cells = table.split(line) if table.format == 'csv' or '\t' in line else filter(None, line.split(' '))
    stripped = [cell.strip() for cell in cells]
    return stripped if any(stripped) and not stripped[0].startswith('-DOCSTART-') else []


def _word(cells: list[str], columns: _Columns, line: str, place: str) -> tuple[str, str]:
    if len(cells) > max(1, columns.word, columns.tag, columns.sentence or 0):
        word, tag = cells[columns.word], cells[columns.tag]
        if word and tag and ' ' not in tag:
            return word, tag
    raise ValueError(f'{place} is {line[:40]!r}; expected a word and its tag, with a tab, spaces or, in .csv, a comma '
                     'between them (or JSON lines or Parquet with lists of words and of tags; docs/data.md shows all forms).')


@dataclasses.dataclass(frozen=True, repr=False)
class _TaggedRows:
    """Framed pieces of sentences.

    Attributes:
      places: int [words of the row], the places of the first tokens of its words.
      tags: int32 [words of the row], the tags of the same words.
      sentences: int [rows], the number of the sentence of a row.
    """

    framed: list[tuple[np.ndarray, np.ndarray]]
    places: list[np.ndarray]
    tags: list[np.ndarray]
    sentences: np.ndarray

    def __len__(self) -> int:
        return len(self.framed)

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        return frames.sizes(self.framed)

    def batch(self, numbers: np.ndarray, length: int) -> dict[str, np.ndarray]:
        batch = frames.rows([self.framed[number] for number in numbers], length)
        batch['targets'] = np.zeros(batch['inputs'].shape, np.int32)
        batch['weights'] = np.zeros(batch['inputs'].shape, np.float32)
        for row, number in enumerate(numbers):
            batch['targets'][row, self.places[number]] = self.tags[number]
            batch['weights'][row, self.places[number]] = 1
        return batch


class OpenTagged(examples.OpenExamples):
    """Sentences with their tokenizer and tags: training batches, evaluation, and reading a line.

    Attributes:
      classes: the tags, 'O' first and then sorted.
      has_spans: whether the tags name spans, as those of BIO, IOBES and BILOU ('O', 'B-type', 'I-type', ..) and unlike parts of
        speech.
    """

    classes: tuple[str, ...]
    has_spans: bool
    unit = 'words'

    def __init__(self, config: Tagged, folder: str | os.PathLike | None, source: str | os.PathLike | None = None):
        super().__init__(config, folder, source)
        if folder is None:
            sentences = config.part('train').examples
            tags, words = ({one for sentence in sentences for one in getattr(sentence, side)} for side in ('tags', 'words'))
            if len(tags) > len(words) and sum(len(sentence.words) for sentence in sentences) >= _MANY:
                raise ValueError(f'The training part has {len(tags):,} tags and {len(words):,} words (such as the tag '
                                 f'{sentences[0].tags[0]!r} for {sentences[0].words[0]!r}, at {sentences[0].place}), so that '
                                 'the columns seem to be swapped; set data.columns=2,1, those of the words and of the tags.')
            found = sorted(tags, key=lambda tag: (tag != 'O', tag))
            self.classes = examples.classes(found, source, _FILE)
        else:
            self.classes = tuple(examples.read(folder, _FILE, 'classes', list))
        if len(self.classes) < 2:
            raise ValueError(f'All words of data.train={config.train!r} have the tag {self.classes[0]!r}; widen it.')
        self.has_spans = all(re.fullmatch('O|[BIESLU]-.+', tag) for tag in self.classes)
        self.facts = {**self.facts, 'classes': len(self.classes)}
        self.meanings = {**self.meanings, 'classes': cache.key(*self.classes)}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer and the tags, so that opening with this folder needs no text."""
        self.tokenizer.save(folder)
        examples.write(folder, _FILE, classes=self.classes)

    def _shapes(self, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
        shapes = self._row_shapes(length)
        shape = shapes['inputs'][0]
        return shapes | {'targets': (shape, np.int32), 'weights': (shape, np.float32)}

    def describe(self) -> str:
        """One line about the training part, the tags and the tokenizer, for the log."""
        facts = self._facts(self._training)
        return (f'{self.config.path}, {self.config.described()}; {facts["sentences"]:,} sentences in {facts["rows"]:,} rows, '
                f'{facts["words"]:,} words to train on; '
                f'{len(self.classes)} tags ({", ".join(self.classes[:5])}{", .." * (len(self.classes) > 5)})'
                f'{self._once()}{"" if self.has_spans else ", which name no spans (B-type, I-type): there is no F1"}; '
                f'{self._vocabulary}')

    def _once(self) -> str:
        """A warning of tags that occur once, which may be typing mistakes."""
        found = self.config.part('train').examples
        tags = ((tag, place) for sentence in found for tag, place in zip(sentence.tags, sentence.places))
        return examples.once(tags, 'name its columns in data.columns', 'set data.columns to those of the words and the tags')

    def count(self, batch: dict[str, np.ndarray]) -> int:
        """The number of words to tag in a batch."""
        return int(np.count_nonzero(batch['weights']))

    def read_words(self, line: str) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[np.ndarray]]:
        """The rows of words that are separated by white space.

        Returns: (ids, types), int32 [n], of each row, and int [words of the row], the places of their first tokens: the
          predictions there, row after row, are the tags of the words.
        """
        words = tuple(line.split())
        if not words:
            raise ValueError(f'{line[:60]!r} has no words; expected some, separated by spaces.')
        return self._split(words, self._pieces([words]))

    def _evaluate(self, part: examples.ExampleSplit, batch_size: int, view: dict):
        """As in OpenExamples; `sentences`, int [rows], are the numbers of the sentences; one may have several rows."""
        batches = super()._evaluate(part, batch_size, view)
        batches.sentences = self._encoded(part).sentences
        return batches

    def _pieces(self, sentences: Sequence[tuple[str, ...]]) -> dict[str, np.ndarray]:
        """{word, with a space before it unless it begins a sentence: its ids}."""
        texts = list(dict.fromkeys(text for words in sentences for text in _spaced(words)))
        return dict(zip(texts, examples.encoded(self.tokenizer, texts)))

    def _split(self, words: tuple[str, ...], pieces: dict[str, np.ndarray]):
        """As `read_words`, for words whose ids are in `pieces`."""
        room, rows, size = self.frame.room(self.config.length), [[]], 0
        for text in _spaced(words):
            ids = pieces[text][:room] if len(pieces[text]) else self._unknown
            if size + len(ids) > room:
                rows.append([])
                size = 0
            rows[-1].append(ids)
            size += len(ids)
        framed = [self.frame.framed(np.concatenate(row)) for row in rows]
        before = len(self.frame.before)
        return framed, [before + np.cumsum([0, *map(len, row[:-1])]) for row in rows]

    @property
    def _unknown(self) -> np.ndarray:
        """int32 [1]: the token of a word that has none, such as a variation selector alone."""
        roles = self.tokenizer.roles
        return np.array([max(0, roles.of('end') if roles.unknown < 0 else roles.unknown)], np.int32)

    def _encode(self, part: examples.ExampleSplit) -> _TaggedRows:
        numbers = {tag: number for number, tag in enumerate(self.classes)}
        pieces = self._pieces([sentence.words for sentence in part.examples])
        framed, places, tags, owners = [], [], [], []
        for owner, sentence in enumerate(part.examples):
            for place, tag in zip(sentence.places, sentence.tags):
                if tag not in numbers:
                    raise ValueError(
                        f'{place} has the tag {tag!r}, which the training part does not have (it has '
                        f'{", ".join(self.classes[:8])}{", .." * (len(self.classes) > 8)}); widen data.train, or correct the '
                        'line.'
                    )
            row_framed, row_places = self._split(sentence.words, pieces)
            framed += row_framed
            places += row_places
            owners += [owner] * len(row_framed)
            ends = np.cumsum([len(row) for row in row_places])
            tags += np.split(np.array([numbers[tag] for tag in sentence.tags], np.int32), ends[:-1])
        return _TaggedRows(framed, places, tags, np.array(owners))

    def _facts(self, rows: _TaggedRows) -> dict[str, int]:
        return {'words': sum(map(len, rows.tags)), 'sentences': int(rows.sentences[-1]) + 1, 'rows': len(rows)}


def _spaced(words: Sequence[str]) -> list[str]:
    return [words[0], *(' ' + word for word in words[1:])]
