"""Several tasks as text: every example of each is a pair of texts, and rows of a batch hold examples of all of them.

    opened = Tasks(parts={
        'sst2': Part(path='SST-2', inputs='sst2 sentence: {sentence}', target='{label}', words=('negative', 'positive')),
        'translate': Part(path='fra.txt', inputs='translate French to English: {2}', target='{1}', apart='both')}).open(None)

Batches are those of data/seq2seq/parallel.py. The split `valid` is that of all tasks in sequence, `sst2.valid` that of one.
"""

import dataclasses
import functools
import os
import zlib
from collections.abc import Callable, Mapping

import numpy as np

from data import cache, fields, pipeline, splits
from data.seq2seq import pairs
from data.seq2seq.parallel import OpenParallel, Parallel, check_rows
from data.sources import files as sources
from data.sources import pairs as pair_sources
from data.sources import templates
from data.sources.tables import CHOICES
from data.text import tokens
from data.text.documents import saved_tokenizer
from data.tokenizers.specs import SentencePiece, TokenizerSpec

_ORDER = 4  # last word of the seeds of orders


@dataclasses.dataclass(frozen=True)
class Part:
    """A task.

    Attributes:
      source: 'table' (see path), or 'docstrings', the functions of the running Python's standard library, with the columns
        `name`, `code`, `summary`, the first sentence of the docstring, and `rest`, what follows it there.
      path: for 'table' a file of TSV, CSV, JSON Lines or Parquet (data/sources/tables.py), a folder or a glob; '': this task is
        left out.
      inputs, target: texts with columns in braces, by name or by number from 1.
      words: the words for the values 0, 1, .. of the target, such as ('negative', 'positive'); (): the values themselves.
      step: numbers of the target are rounded to multiples of it, such as 0.2; 0: they are not.
      apart: what training and held-out examples do not share with order='hash': their 'inputs', or 'both', for targets that
        are texts of their own and no classes. Examples to train on that share it with one of valid or test, slices of the same
        part, are left out.
      header, quotes, encoding, order, train, valid, test: as in data.seq2seq.parallel:Parallel.
    """

    source: str = 'table'
    path: str = ''
    inputs: str = ''
    target: str = ''
    words: tuple = ()
    step: float = 0.0
    apart: str = 'inputs'
    header: str = 'auto'
    quotes: str = 'auto'
    encoding: str = 'utf-8'
    order: str = 'hash'
    train: str = 'train[:90%]'
    valid: str = 'train[90%:]'
    test: str = ''


@dataclasses.dataclass(frozen=True)
class _Task(Parallel):
    """The pairs of one task.

    Attributes:
      task: its part.  task_name: the name of it, for messages.
    """

    task: Part = Part()
    task_name: str = ''

    @property
    def _compared(self) -> tuple[int, ...]:
        return (0, 1) if self.task.apart == 'both' else (0,)

    @functools.cached_property
    def _origins(self) -> Callable[[str], pair_sources.Origin]:
        part = self.task
        template = templates.Template(part.inputs, part.target, part.words, part.step)
        if part.source == 'docstrings':
            return templates.docstrings(template)
        field = f'data.parts.{self.task_name}.path'
        return templates.tables(part.path, template, part.header, part.quotes, field, part.encoding)


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Several tasks as text, for an encoder and a decoder (Raffel et al. 2020, section 2.4).

    A task with e examples to train on is drawn in proportion to min(e, limit)^(1 / temperature) (section 3.5.2); its examples
    are shuffled anew whenever all of them were drawn.

    Attributes:
      parts: {name: Part}.
      limit: K, the most examples that count; 0: there is no limit.
      temperature: T; 1: in proportion to the examples, more: closer to equal shares.
      text, tokenizer, start, framing, source_length, length, long, batch_size, reader: as in data.seq2seq.parallel:Parallel.
      packing: 'first_fit' (pairs of any tasks share rows) or 'none' (a pair a row).
    """

    parts: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    limit: int = 65536
    temperature: float = 1.0
    text: str = 'nfc'
    tokenizer: TokenizerSpec = SentencePiece(vocab=4096)
    start: int = -1
    framing: str = 't5'
    source_length: int = 128
    length: int = 32
    long: str = 'truncate'
    packing: str = 'first_fit'
    batch_size: int = 32
    reader: str = 'transformer.readers.translation:Translation'
    # What data.seq2seq.parallel:OpenParallel reads of a config, and is the same for all tasks.
    source, encoding, target_tokenizer = 'table', 'utf-8', None
    form = pair_sources.Form()

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenTasks':
        """As Parallel.open. Raises ValueError, naming the task, for fields that are invalid, and if no task has a path."""
        fields.one_of('packing', self.packing, ('first_fit', 'none'))
        check_rows(self)
        if self.limit < 0 or not self.temperature > 0:
            raise ValueError(f'data.limit={self.limit} and data.temperature={self.temperature} are out of range; expected a '
                             'number of examples, 0 for no limit, and a temperature above 0.')
        if not self.tasks:
            names = ', '.join(self.parts) or 'none'
            raise ValueError(f'No task has data: of data.parts ({names}) set the path of one or more, as in '
                             f'--config.data.parts.{next(iter(self.parts), "NAME")}.path=FOLDER.')
        saved = saved_tokenizer(folder, source, self.tokenizer)
        if saved is None:
            sides = [part.side(number) for part in self.part('train').parts.values() for number in (0, 1)]
            saved = tokens.learn(sources.Joined(sides, 'line', 'train'), self.tokenizer)
        return OpenTasks(self, saved, saved)

    @functools.cached_property
    def tasks(self) -> dict[str, _Task]:
        """The pairs of every task that has data."""
        return {name: self._task(name, part) for name, part in self.parts.items() if part.path or part.source != 'table'}

    def _task(self, name: str, part: Part) -> _Task:
        for field, choices in (('source', ('table', 'docstrings')), ('apart', ('inputs', 'both')), ('header', CHOICES),
                               ('quotes', CHOICES)):
            fields.one_of(f'parts.{name}.{field}', getattr(part, field), choices)
        if part.path and part.source != 'table':
            raise ValueError(f'data.parts.{name}.path={part.path!r} is not read with data.parts.{name}.source={part.source!r}; '
                             'leave it empty.')
        if '.' in name or not (part.inputs and part.target):
            raise ValueError(f'data.parts.{name} needs a name without a dot, inputs such as {name + ": {text}"!r} and a target '
                             "such as '{label}'.")
        made = _Task(source='table', path=part.path or part.source, order=part.order, text=self.text, train=part.train,
                     valid=part.valid, test=part.test, task=part, task_name=name)
        try:
            made.check()
        except ValueError as error:
            raise ValueError(f'In the task {name!r}: {error}') from None
        return made

    @functools.cached_property
    def _parts(self) -> dict[str, 'TaskPairs']:
        return {}

    def part(self, split: str) -> 'TaskPairs':
        """The pairs of a split: of all tasks that have it, or of the one before a dot."""
        if split not in self._parts:
            name, dot, own = split.partition('.')
            if dot and name in self.tasks:
                chosen = {name: own}
            else:
                base = splits.read(split)[0] if split else ''
                chosen = {name: split for name, task in self.tasks.items()
                          if base not in ('train', 'valid', 'test') or getattr(task, base)}
            if not split or not chosen:
                one = next(iter(self.tasks))
                raise ValueError(f'No task has a split {split!r}; set it, as in data.parts.{one}.valid.')
            found = {}
            for name, own in chosen.items():
                try:
                    found[name] = self.tasks[name].part(own)
                except ValueError as error:
                    raise ValueError(f'In the task {name!r}: {error}') from None
            self._parts[split] = TaskPairs(found, split)
        return self._parts[split]


@dataclasses.dataclass(frozen=True, eq=False)
class TaskPairs:
    """The pairs of several tasks in sequence, used as those of one.

    Attributes:
      parts: {task: its pairs}.
    """

    parts: Mapping[str, pairs.Pairs]
    expression: str

    @functools.cached_property
    def digest(self) -> str:
        return cache.key(*self.parts, *(part.digest for part in self.parts.values()))

    @property
    def left_out(self) -> int:
        """The number of pairs that are left out for a held-out side."""
        return sum(part.left_out for part in self.parts.values())

    @functools.cached_property
    def texts(self) -> list[pairs.Pair]:
        """All pairs, kept in memory."""
        return [pair for part in self.parts.values() for pair in part.texts]

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """{task: how many pairs it has}."""
        return {name: len(part.texts) for name, part in self.parts.items()}

    def place(self, number: int) -> str:
        """The place of a pair of `texts`, such as its file and line."""
        for part in self.parts.values():
            if number < len(part.texts):
                return part.place(number)
            number -= len(part.texts)
        raise IndexError(number)

    def side(self, number: int) -> sources.Joined:
        """The sources (0) or the targets (1)."""
        return sources.Joined([part.side(number) for part in self.parts.values()], 'line', self.expression)


class OpenTasks(OpenParallel):
    """Tasks as text, with their tokenizer."""

    def describe(self) -> str:
        """One line about the tasks, their shares of the training examples and the tokenizer, for the log."""
        order, ends = self._order(1, 0), np.cumsum([0, *self._sizes.values()])
        told = [f'{name} {share:.1%} of {int(stop - start):,}' for name, share, start, stop in zip(
            self._sizes, order.shares, ends, ends[1:])]
        long, left_out = int(ends[-1]) - len(self._kept), self.config.part('train').left_out
        return (f'{len(told)} tasks as text: {", ".join(told)} examples to train on'
                + (f', without {left_out:,} that share a side with held-out ones' if left_out else '')
                + (f', without {long:,} that are too long' if long else '')
                + f'; {type(self.config.tokenizer).__name__} vocabulary of {self.tokenizer.vocab:,}')

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        return self.config.part('train').sizes

    def _order(self, size: int, seed: int) -> 'Mixing':
        """Draws of examples of all tasks, as numbers of `_kept`."""
        ends = np.searchsorted(self._kept, np.cumsum([*self._sizes.values()]))
        counts = np.diff(ends, prepend=0)
        for name, count in zip(self._sizes, counts):
            if not count:
                raise ValueError(f'No example of the task {name!r} is within data.source_length={self.lengths[0]} and '
                                 f'data.length={self.lengths[1]}; raise them.')
        return Mixing.of(tuple(counts.tolist()), self.config.limit, self.config.temperature, size, seed)

    def _evaluate(self, part: TaskPairs, batch_size: int, view: dict):
        found = super()._evaluate(part, batch_size, view)
        if isinstance(part, TaskPairs):
            found.tasks = tuple(name for name, size in part.sizes.items() for _ in range(size))
        return found


@dataclasses.dataclass(frozen=True)
class Mixing:
    """Numbers of examples of several tasks, in consecutive draws of `size`; a task has consecutive numbers.

    An epoch has `count` examples: of a task with the share w, floor(w·count·(epoch + 1)) - floor(w·count·epoch) of them, in an
    order that is drawn anew. A draw depends on the fields and its number alone, as those of data.pipeline.Order do.

    Attributes:
      counts: how many examples each task has.
      shares: the share of each among the examples that are drawn.
    """

    counts: tuple[int, ...]
    shares: tuple[float, ...]
    count: int
    size: int
    seed: int

    @classmethod
    def of(cls, counts: tuple[int, ...], limit: int, temperature: float, size: int, seed: int) -> 'Mixing':
        """Shares in proportion to min(count, limit)^(1 / temperature)."""
        sizes = np.minimum(counts, limit) if limit else np.array(counts)
        weights = sizes ** (1 / temperature)
        return cls(counts, tuple((weights / weights.sum()).tolist()), int(sizes.sum()), size, seed)

    def __call__(self, draw: int) -> np.ndarray:
        """int64 [size]: the draw with this number."""
        first, parts, left = draw * self.size, [], self.size
        epoch = max(0, first // self.count - 1)  # an epoch has `count` examples but for the rounding of each task
        while self._before(epoch + 1).sum() <= first:
            epoch += 1
        place = first - int(self._before(epoch).sum())
        while left:
            parts.append(_epoch(self, epoch)[place : place + left])
            left, epoch, place = left - len(parts[-1]), epoch + 1, 0
        return np.concatenate(parts)

    def _before(self, epoch: int) -> np.ndarray:
        """Examples of each task before an epoch."""
        return np.floor(np.array(self.shares) * self.count * epoch + 1e-9).astype(np.int64)

    def epoch(self, number: int) -> np.ndarray:
        """int64: all numbers of an epoch, in order."""
        before, after = self._before(number), self._before(number + 1)
        task = np.random.default_rng([self.seed, number, _ORDER]).permutation(np.repeat(np.arange(len(before)), after - before))
        found, offset = np.empty(len(task), np.int64), 0
        for index, count in enumerate(self.counts):
            own = pipeline.Order(count, 1, zlib.crc32(f'{self.seed} {index}'.encode()))
            found[task == index] = offset + own.between(int(before[index]), int(after[index]))
            offset += count
        return found


@functools.lru_cache(maxsize=4)
def _epoch(mixing: Mixing, number: int) -> np.ndarray:
    return mixing.epoch(number)
