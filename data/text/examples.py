"""The base of all data for fine-tuning: examples from files, their tokenizer, and rows with one example each."""

import collections
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from data import cache, epochs, fields, json_files, splits
from data.opened import Opened
from data.sources import files as sources
from data.sources import tfds_tables
from data.sources.tables import data_files
from data.text import frames, tokens
from data.text.documents import saved_tokenizer
from data.text.frames import Frame, parse
from data.tokenizers.specs import TokenizerSpec, WordPiece
from data.tokenizers.tokenizer import Tokenizer

_FORMAT = 1  # part of every digest: another way to read makes other examples
_PLACES = 'place', 'places'  # fields of an example that say where it stands
_AT_ONCE = 4096  # texts that are encoded together: more take memory and save no time


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples from files: the base class of all data for fine-tuning.

    Attributes:
      path: a file, a folder or a glob; .gz and .zst are read too.
      encoding: that of the files, as in data.text.documents:Text.
      train, valid, test: NAME or NAME[start:stop], '' for no such split; NAME is 'all' (every file), a file name or a glob, or
        'train', 'valid' or 'test': the files with that word in their names (without such files 'train' is all). Slices
        count examples, as whole numbers or percentages. Train shares no example with valid or test.
      tokenizer: as in data.text.documents:Text; one that is learnt is learnt from the training part alone.
      framing: the special tokens around a text or two, a template or its name, such as 'bert' (data/text/frames.py); '':
        the framing of the tokenizer.
      length: tokens in a row, special ones included.
      packing: 'none' (rows of this length) or 'buckets': batches of rows of 1/8, 1/4, 1/2 or all of this length, the least that
        holds their texts, as many rows in each (data/buckets.py).
      batch_size: rows in a training batch.
      reader: import path of the class that reads inputs for predict.py and draws them for eval.py; '' for none.
    """

    path: str = ''
    encoding: str = 'utf-8'
    train: str = 'train[:90%]'
    valid: str = 'train[90%:95%]'
    test: str = 'train[95%:]'
    tokenizer: TokenizerSpec = WordPiece(vocab=4096)
    framing: str = ''
    length: int = 128
    packing: str = 'none'
    batch_size: int = 32
    reader: str = ''

    def check(self) -> None:
        """Raises ValueError for invalid field values."""
        if self.framing:
            parse(self.framing)
        fields.positive(length=self.length, batch_size=self.batch_size)
        fields.one_of('packing', self.packing, ('none', 'buckets'))

    def examples(self, file: sources.File) -> list:
        """The examples of a file; each has a `place`, such as 'train.tsv:12', and `texts`."""
        raise NotImplementedError

    def form(self) -> tuple:
        """The fields that determine how a file is read."""
        return ()

    def part(self, split: str) -> 'ExampleSplit':
        """The examples that 'train', 'valid', 'test' or a split expression names.

        Raises ValueError if there are none, and for a training part that shares some with data.valid or data.test.
        """
        return self._training if split == 'train' else self._part(splits.expression(self, split), self._files)

    def scored(self, paths: Sequence[str]) -> 'ExampleSplit':
        """All examples of files given by path."""
        return self._part('all', [file for path in paths for file in data_files(path, '--path', self.encoding)])

    def _part(self, expression: str, files: Sequence[sources.File]) -> 'ExampleSplit':
        return ExampleSplit(sources.Split.of(expression, files, 'line'), self._read, (type(self).__name__, *self.form()))

    @functools.cached_property
    def _files(self) -> list[sources.File]:
        if not self.path:
            raise ValueError('data.path is empty; set it to a file, a folder or a glob.')
        return data_files(self.path, encoding=self.encoding)

    @functools.cached_property
    def _read(self) -> Callable[[sources.File], list]:
        return functools.cache(self.examples)  # splits share files

    @functools.cached_property
    def _training(self) -> 'ExampleSplit':
        part = self._part(splits.expression(self, 'train'), self._files)
        for field in ('valid', 'test'):
            try:
                other = self.part(field)
                held_out = other.examples if {*part.files} & {*other.files} else []
            except (ValueError, FileNotFoundError):  # reported where that split is used
                continue
            trained = {id(example) for example in part.examples} if held_out else ()  # a file is read once
            if shared := [example.place for example in held_out if id(example) in trained]:
                raise ValueError(
                    f'data.train={self.train!r} and data.{field}={getattr(self, field)!r} share {len(shared):,} examples, the '
                    f'first of them {shared[0]}; give each its own file, or slices that do '
                    'not overlap, such as train[:90%] and train[90%:].'
                )
        return part


@dataclasses.dataclass(frozen=True)
class ExampleSplit:
    """The examples that one split expression names, read on demand. `data.text.tokens.learn` takes it as a text."""

    named: sources.Split
    read: Callable[[sources.File], list]
    form: tuple
    documents = 'line'

    @property
    def files(self) -> Sequence[sources.File]:
        return self.named.files

    @property
    def expression(self) -> str:
        return self.named.expression

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the contents of the files and of how they are read."""
        return cache.key(_FORMAT, self.form, self.named.cut, *(tfds_tables.table(file).digest for file in self.files))

    @functools.cached_property
    def contents(self) -> str:
        """A digest of the examples, wherever they stand."""
        return cache.key(*({name: value for name, value in vars(example).items() if name not in _PLACES}
                           for example in self.examples))

    @functools.cached_property
    def examples(self) -> list:
        found = [example for file in self.files for example in self.read(file)]
        start, stop = self.named.cut.bounds(len(found))
        if start == stop:
            why = f'it names none of the {len(found):,} in its files; widen the slice' if found else 'its files have no example'
            raise ValueError(f'The split {self.expression!r} is empty: {why}.')
        return found[start:stop]

    def chunks(self) -> Iterator[tuple[str, bool]]:
        """(text, True) of every text."""
        return ((text, True) for example in self.examples for text in example.texts)


class Rows(Protocol):
    """Encoded examples.

    Attributes:
      sizes: int [rows], the number of tokens of each.
    """

    sizes: np.ndarray

    def __len__(self) -> int:
        """The number of rows."""

    def batch(self, numbers: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """The rows with these numbers, padded to a length that holds them."""


class OpenExamples(Opened):
    """Examples with their tokenizer: training batches, evaluation, encoding and decoding.

    Subclasses define `_encode(part)`, which makes `Rows` of an ExampleSplit, `_shapes(length)` and `_facts(rows)`.

    Attributes:
      frame: the special tokens.
      length: tokens in a row.
    """

    frame: Frame
    length: int

    def __init__(self, config: Any, folder: str | os.PathLike | None, source: str | os.PathLike | None, pair: bool = False):
        config.check()
        self.config = config
        saved = saved_tokenizer(folder, source, config.tokenizer)
        self.tokenizer = saved or tokens.learn(config.part('train'), config.tokenizer)
        self.frame = Frame.of(config.framing, self.tokenizer)
        self.frame.room(config.length, pair)
        self.length = config.length
        self.facts = {'vocab': self.tokenizer.vocab, 'types': self.frame.types}
        self.meanings = {'tokenizer': self.tokenizer.fingerprint}

    def encode(self, text: str) -> np.ndarray:
        """int32 [n], without special tokens."""
        return self.tokenizer.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids."""
        return self.tokenizer.decode(ids)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each token id as text for display."""
        return [self.tokenizer.piece(int(i)) for i in ids]

    def rows(self, framed: Sequence[tuple[np.ndarray, np.ndarray]], length: int) -> dict[str, np.ndarray]:
        """inputs, segments (0 = padding), positions and types, int32 [rows, length], of the (ids, types) of each row."""
        return frames.rows(framed, length)

    def digest(self, split: str) -> str:
        """A digest of the files of a split and of how they are read; other data have another digest."""
        return self.config.part(split).digest

    def contents(self, split: str) -> str:
        """A digest of the examples of a split, however they are read."""
        return self.config.part(split).contents

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch of full length, known without the text."""
        return self._shapes(self.config.length)

    @property
    def buckets(self) -> list[dict[str, tuple[tuple[int, ...], type]]]:
        """The shapes of all training batches, the longest last."""
        return [self._shapes(length) for length in self._lengths]

    @property
    def batches_per_epoch(self) -> float:
        return len(self._training) / self.config.batch_size

    @property
    def specs(self) -> dict[str, TokenizerSpec]:
        """{attribute: the spec of the tokenizer in it}."""
        return {'tokenizer': self.config.tokenizer}

    @epochs.anew
    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch; get_state and set_state resume exactly."""
        from data import pipeline

        rows = self._training
        if self.config.packing == 'buckets':
            buckets = self._buckets(rows)
            return pipeline.numbered(lambda number: rows.batch(*buckets.training(number, seed)))
        order = pipeline.Order(len(rows), self.config.batch_size, seed)
        return pipeline.shuffled(lambda numbers: rows.batch(numbers, self.config.length), order)

    def evaluation(self, split: str, batch_size: int, **view):
        """Batches that hold every row of a split once, in order; in buckets the shortest rows first, and then `row` [B] has the
        number of each row in that order.

        Args:
          split: 'train', 'valid', 'test', or an expression such as 'train[:1%]'.
          batch_size: rows in a batch.

        Returns: an Evaluation; facts are the numbers of 'texts', of 'words', 'sentences' and 'rows', or of 'questions' and
          'windows'. For tagged words it also has `sentences`, for questions `windows` and `questions` (see their `_evaluate`).
        Raises: ValueError for an unknown or empty split, and for a view, which only text has.
        """
        return self._evaluate(self.config.part(split), batch_size, view)

    def score(self, paths: Sequence[str], batch_size: int, **view):
        """Like `evaluation`, over files of the same format, given by path."""
        return self._evaluate(self.config.scored(paths), batch_size, view)

    def _evaluate(self, part: ExampleSplit, batch_size: int, view: dict):
        from data import pipeline

        self.refuse_view(view)
        rows = self._encoded(part)
        buckets = self._buckets(rows)
        order = buckets.sorted

        def batch(places: np.ndarray) -> dict[str, np.ndarray]:
            numbers = order[places]
            named = {'row': numbers.astype(np.int32)} if len(self._lengths) > 1 else {}
            return rows.batch(numbers, buckets.length(numbers)) | named

        return pipeline.Evaluation(len(rows), batch_size, batch, self._facts(rows))

    @property
    def _training(self):
        return self._encoded(self.config.part('train'))

    @functools.cached_property
    def _rows(self) -> dict[str, Rows]:
        return {}

    def _encoded(self, part: ExampleSplit):
        if part.digest not in self._rows:
            self._rows[part.digest] = self._encode(part)
        return self._rows[part.digest]

    @property
    def _vocabulary(self) -> str:
        return f'{type(self.config.tokenizer).__name__} vocabulary of {self.tokenizer.vocab:,}'

    @property
    def _lengths(self) -> tuple[int, ...]:
        """The lengths of rows, the longest last."""
        from data import buckets

        longest = self.config.length
        return buckets.lengths(longest) if self.config.packing == 'buckets' else (longest,)

    def _buckets(self, rows: Rows):
        from data import buckets

        return buckets.Buckets(rows.sizes, self._lengths, self.config.batch_size)

    def _shapes(self, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch of rows of this length."""
        raise NotImplementedError

    def _row_shapes(self, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of what every training batch holds."""
        shape = self.config.batch_size, length
        return {name: (shape, np.int32) for name in ('inputs', 'segments', 'positions', 'types')}


def encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """int32 [n] of each text."""
    found = []
    for first in range(0, len(texts), _AT_ONCE):
        found += tokenizer.encode_many(texts[first : first + _AT_ONCE])
    return found


def write(folder: str | os.PathLike, name: str, **known: Any) -> None:
    """Writes what a run has learnt from its training part."""
    cache.write(Path(folder, name), (json.dumps(known, indent=1, ensure_ascii=False) + '\n').encode())


def once(found: Iterable[tuple[str, str]], header: str, column: str) -> str:
    """A warning of classes that occur once, which may be typing mistakes or a header; '' for none.

    Args:
      found: (class, place) of every example.
      header, column: what to do if the first line is a header, and how to name the column of the classes.
    """
    found = list(found)
    counts = collections.Counter(name for name, _ in found)
    single = [(name, place) for name, place in found if counts[name] == 1]
    if not single or len(found) < 20:
        return ''
    name, place = single[0]
    mend = f'if line 1 is a header, {header}' if place.endswith(':1') else f'correct it if it is mistyped, or {column}'
    more = f'; {len(single) - 1:,} more do' if len(single) > 1 else ''
    return f' (CAUTION: {name[:40]!r}, at {place}, occurs once{more}: {mend})'


def joined(found: Iterable[tuple[str, str]], separator: str) -> str:
    """A warning of labels that are several, joined by another separator than this one: most of their parts are labels, or
    parts of other ones. '' for none. `found` has (label, place) of every example."""
    places = dict(reversed([*found]))  # the first place of each
    for mark in (mark for mark in ',;|' if mark != separator):
        parts = {name: {part.strip() for part in name.split(mark)} for name in places if mark in name}
        counts = collections.Counter(part for several in parts.values() for part in several)
        if 2 * sum(part in places or counts[part] > 1 for part in counts) > len(counts):
            name = min(parts)
            return (f' (CAUTION: {name[:40]!r}, at {places[name]}, looks like several labels joined by {mark!r}; if so, set '
                    f'--config.data.target="Labels(separator={mark!r})")')
    return ''


def classes(found: Sequence[str], source: str | os.PathLike | None, name: str) -> tuple[str, ...]:
    """The classes of a training part: `found`, or the classes of `source`, a run to start from, in its file of this name if
    they include all of `found`, so that the head of that run still fits."""
    try:
        known = tuple(read(source, name, 'classes', list)) if source is not None else ()
    except ValueError:
        known = ()
    return known if {*found} <= {*known} else tuple(found)


def read(folder: str | os.PathLike, name: str, key: str, of: type, missing: Any = None) -> Any:
    """A value of a type that `write` wrote; `missing` if it wrote none, None: that is an error too.

    Raises ValueError if the file is missing, damaged or holds something else.
    """
    path = Path(folder, name)
    known = json_files.read(path)
    if known is not None and isinstance(known.get(key, missing), of):
        return known.get(key, missing)
    raise ValueError(f'{path} does not hold the {key} of this run; restore it, or start a new run.')
