"""Questions about short stories: bAbI, from its own files to batches (Weston et al. 2015).

    opened = Babi(path='tasks_1-20_v1-2.tar.gz', tasks=(1, 2)).open(None)
    for batch in opened.train(seed=0): ...

Rows are questions with the sentences before them: `label` [B] int32, the number of the answer in the vocabulary, `task` [B]
int32, 1 to 20, `story` [B, M, J] int32, the words of the latest M sentences, the latest first, and `question` [B, J].

Words are lower-cased and have no punctuation; an answer of several words, such as 'apple,milk', is one word. 0 is padding, or
a word that the training part lacks; an answer that it lacks has the label 0, which no model should predict.
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from data import cache, fields, json_files, remote, splits
from data.opened import Opened
from data.sources import stories
from data.sources.stories import Asked, words

TASKS = tuple(range(1, 21))
_FILE = 'vocabulary.json'
_FOLDERS = {'1k': 'en', '10k': 'en-10k'}
_NAME = re.compile(r'.*/(?P<folder>[^/]+)/qa(?P<task>\d+)_(?:[^/]*_)?(?P<part>train|test)(?:_\w+)?\.txt')


@dataclasses.dataclass(frozen=True)
class Babi:
    """Questions of one task, or of several jointly.

    Attributes:
      path: a folder or a .tar.gz with the files qaN_*_train.txt and qaN_*_test.txt in a folder en/ or en-10k/; a folder may
        also hold such archives.
      size: '1k' questions a task in the training part, in en/, or '10k', in en-10k/.
      tasks: their numbers, such as (1, 2); () stands for all 20.
      train, valid, test: 'train' or 'test', or a slice such as 'train[90%:]' of the stories of each task.
      memory: the largest number of sentences before a question; the latest are kept.
      batch_size: questions in a training batch.
      reader: import path of the class that reads inputs for predict.py and draws them for eval.py; '' for none.
    """

    path: str = 'babi'
    size: str = '10k'
    tasks: tuple = ()
    train: str = 'train[:90%]'
    valid: str = 'train[90%:]'
    test: str = 'test'
    memory: int = 50
    batch_size: int = 32
    reader: str = 'transformer.readers.stories:StoryAnswer'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenBabi':
        """Opens the questions. If `folder` is a run with a saved vocabulary, no file is read before train() or evaluation().
        If `source` is a run to start from, its vocabulary and its memory must cover the training part.

        Raises ValueError or FileNotFoundError, in one sentence, for a field or a file that cannot be used.
        """
        fields.one_of('size', self.size, tuple(_FOLDERS))
        fields.positive(memory=self.memory, batch_size=self.batch_size)
        if len(set(self.tasks)) < len(self.tasks) or not set(self.tasks) <= set(TASKS):
            raise ValueError(f'data.tasks={self.tasks!r} does not fit; give different numbers from 1 to 20, such as (1, 2), '
                             'or () for all.')
        return OpenBabi(self, folder, source)


@dataclasses.dataclass(frozen=True)
class _Questions:
    """Questions as arrays.

    Attributes:
      sentences: [sentences, J] words, padded with 0; the sentences of a story follow each other.
      first, stop: [questions], the range of sentences before a question.
      question: [questions, J].
      label, task: [questions].
    """

    sentences: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    question: np.ndarray
    label: np.ndarray
    task: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    def memories(self, numbers: np.ndarray, memory: int) -> dict[str, np.ndarray]:
        latest = self.stop[numbers, None] - 1 - np.arange(memory)
        there = latest >= self.first[numbers, None]
        story = np.where(there[..., None], self.sentences[np.maximum(latest, 0)], 0)
        return {'story': story, 'question': self.question[numbers], 'label': self.label[numbers], 'task': self.task[numbers]}


@dataclasses.dataclass(frozen=True)
class _Ranges:
    """The stories that a split expression names, as OpenBabi._ranges returns them."""

    stories: dict[tuple[int, str], tuple[int, int]]

    def shared(self, other: '_Ranges') -> str:
        """The first file in which both overlap; '' if they do not."""
        found = splits.common(self.stories, other.stories)
        return f'the {found[1]} part of task {found[0]}' if found else ''


class OpenBabi(Opened):
    """Questions with the vocabulary of their training part: training batches, evaluation, and reading stories.

    Attributes:
      vocabulary: the word of each number; '' for 0.
      tasks: their numbers.
    """

    unit = 'questions'

    def __init__(self, config: Babi, folder: str | os.PathLike | None, source: str | os.PathLike | None = None):
        self.config, self.tasks = config, tuple(config.tasks) or TASKS
        self._parts: dict[str, _Questions] = {}
        told = [question for _, story in self._stories(config.train) for question in story] if folder is None else []
        longest = max(1, min(config.memory, max((question.after for question in told), default=1)))
        if folder is None and source is None:
            self.vocabulary, self._memory = self._learnt(told), longest
            self._width = 1  # until it is known from all sentences
        else:
            self._read(Path(source if folder is None else folder, _FILE))
            self._require_known(told, longest, source)
        self._numbers = {word: number for number, word in enumerate(self.vocabulary) if word}
        if folder is None:
            self._width = max(self._width, self._longest())
        self.facts = {'vocab': self._size, 'memory': self._memory}

    @property
    def _size(self) -> int:
        return len(self.vocabulary)

    def _longest(self) -> int:
        """The number of words in the longest sentence or question of all files: evaluation may have longer ones."""
        told = [story for file in self._files.values() for story in file.stories]
        said = {text for story in told for text in (*story[-1].sentences, *(question.text for question in story))}
        return max(len(words(text)) for text in said)

    def _read(self, saved: Path) -> None:
        match json_files.read(saved):
            case {'words': [*words], 'memory': int(memory), 'width': int(width)} if all(isinstance(one, str) for one in words):
                self.vocabulary: tuple[str, ...] = tuple(words)
                self._memory, self._width = memory, width
            case _:
                raise ValueError(f'{saved} describes no vocabulary of stories; restore it, or start a new run.')

    def _require_known(self, told: list[Asked], longest: int, source: str | os.PathLike | None) -> None:
        """Raises ValueError if the training questions need words, or more sentences, that the run to start from lacks."""
        unknown = sorted({*self._learnt(told)} - {*self.vocabulary})
        if unknown:
            raise ValueError(f'{source} has not learnt {len(unknown):,} words of the training part, such as {unknown[0]!r}; '
                             'start from a run that has, or anew without init_from.')
        if longest > self._memory:
            raise ValueError(f'{source} looks at {self._memory} sentences, and data.memory is {self.config.memory}; set it to '
                             f'{self._memory}, which leaves out older ones, or start anew without init_from.')

    def _learnt(self, asked: list[Asked]) -> tuple[str, ...]:
        said = {question.text for question in asked}.union(*(question.story for question in asked))
        known = {word for text in said for word in words(text)} | {question.answer for question in asked}
        return ('', *sorted(known))

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the vocabulary and the sizes of a batch, so that opening with this folder needs no file of bAbI."""
        contents = {'memory': self._memory, 'width': self._width, 'words': self.vocabulary}
        cache.write(Path(folder, _FILE), (json.dumps(contents, indent=1, ensure_ascii=False) + '\n').encode())

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known without the files."""
        rows, memory, width = self.config.batch_size, self._memory, self._width
        shapes = {'story': (rows, memory, width), 'question': (rows, width), 'label': (rows,), 'task': (rows,)}
        return {name: (shape, np.int32) for name, shape in shapes.items()}

    def describe(self) -> str:
        """One line about the training part, for the log."""
        tasks = ', '.join(map(str, self.tasks)) if self.tasks != TASKS else '1 to 20'
        return (f'bAbI {self.config.size}, tasks {tasks}: {len(self._part(self.config.train)):,} questions to train on; '
                f'at most {self._memory} sentences; {self._size:,} words')

    def digest(self, split: str) -> str:
        """A digest of the questions of a split; other data have another digest."""
        name, cut = splits.read(splits.expression(self.config, split))
        files = [self._files.get((task, name)) for task in self.tasks]
        return cache.key(cut, *(file.digest for file in files if file))

    @property
    def batches_per_epoch(self) -> float:
        return len(self._part(self.config.train)) / self.config.batch_size

    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch; get_state and set_state resume exactly."""
        from data import pipeline

        part = self._part(self.config.train)
        order = pipeline.Order(len(part), self.config.batch_size, seed)
        return pipeline.shuffled(functools.partial(self._batch, part), order)

    def evaluation(self, split: str, batch_size: int, **view):
        """Batches that hold every question of a split once, in order.

        Args:
          split: 'train', 'valid', 'test', or a slice such as 'train[:10%]' of the stories of each task.
          batch_size: rows in a batch.

        Returns: an Evaluation; facts 'questions', and 'tasks', their numbers.
        Raises: ValueError for an unknown or empty split, for 'valid' or 'test' if it overlaps with data.train, and for a view,
          which only text has.
        """
        splits.require_apart(self.config, split, lambda named: _Ranges(self._ranges(named)))
        return self._evaluate(self._part(splits.expression(self.config, split)), batch_size, view)

    def score(self, paths: Sequence[str], batch_size: int, **view):
        """Like `evaluation`, over files in bAbI's format; `task` is 0 for a file that is not named after its task."""
        told = []
        for path in map(remote.local, paths):
            if not os.path.isfile(path):
                raise FileNotFoundError(f'{path!r} does not exist; expected a file of stories in the format of bAbI.')
            task = re.match(r'qa(\d+)_', os.path.basename(path))
            file = stories.StoryFile.of(path, Path(path).read_bytes())
            told += [(int(task[1]) if task else 0, story) for story in file.stories]
        return self._evaluate(self._encoded(told), batch_size, view)

    def read_stories(self, text: str | bytes, name: str = 'The input') -> tuple[list[Asked], dict[str, np.ndarray]]:
        """The questions of a text in bAbI's format, with answers or without, and a batch of them as in training.

        Raises ValueError, naming line and word, for a word that the run has not learnt.
        """
        told = [(0, story) for story in stories.read(text, name, answered=False)]
        asked = [question for _, story in told for question in story]
        for question in asked:
            for said in (*question.sentences, question.text):
                for word in words(said):
                    if word not in self._numbers:
                        raise ValueError(f'{name}: the question in line {question.line} is about {word!r}, a word that is '
                                         f'not among the {self._size - 1} that this run has learnt; use others.')
        part = self._encoded(told)
        return asked, self._batch(part, np.arange(len(part)))

    def answer(self, number: int) -> str:
        """The answer with this number."""
        return self.vocabulary[number]

    def _evaluate(self, part: _Questions, batch_size: int, view: dict):
        from data import pipeline

        self.refuse_view(view)
        facts = {'questions': len(part), 'tasks': tuple(sorted(set(part.task.tolist())))}
        return pipeline.Evaluation(len(part), batch_size, functools.partial(self._batch, part), facts)

    def _batch(self, part: _Questions, numbers: np.ndarray) -> dict[str, np.ndarray]:
        return part.memories(numbers, self._memory)

    @functools.cached_property
    def _files(self) -> dict[tuple[int, str], stories.StoryFile]:
        """{(task, 'train' or 'test'): file}."""
        found, places, folder = {}, {}, _FOLDERS[self.config.size]

        def key_of(path: str) -> tuple[int, str] | None:
            match = _NAME.fullmatch(path)
            wanted = match and match['folder'] == folder and int(match['task']) in self.tasks
            return (int(match['task']), match['part']) if wanted else None

        for path, contents in stories.files(remote.local(self.config.path), key_of):
            key = key_of(path)
            if key in found:
                raise ValueError(f'{places[key]} and {path} are both the {key[1]} part of task {key[0]}; remove one, or set '
                                 'data.path to where the other is.')
            found[key], places[key] = stories.StoryFile.of(path, contents), path
        for task in self.tasks:
            if (task, 'train') not in found:
                raise ValueError(f'{self.config.path!r} has no file {folder}/qa{task}_*_train.txt; set data.path to where the '
                                 'files of bAbI are, data.size to 1k or 10k, or data.tasks to those that are there.')
        return found

    def _stories(self, expression: str) -> Iterator[tuple[int, list[Asked]]]:
        """(task, questions) of each story that a split expression names."""
        for (task, name), (start, stop) in self._ranges(expression).items():
            for story in self._files[task, name].stories[start:stop]:
                yield task, story

    def _ranges(self, expression: str) -> dict[tuple[int, str], tuple[int, int]]:
        """{(task, 'train' or 'test'): the range of its stories} that a split expression names."""
        found = {}
        for task in self.tasks:
            sizes = {part: len(file.stories) for (of, part), file in self._files.items() if of == task}
            name, start, stop = splits.parse(expression, sizes)
            found[task, name] = start, stop
        return found

    def _part(self, expression: str) -> _Questions:
        if expression not in self._parts:
            self._parts[expression] = self._encoded(list(self._stories(expression)))
        return self._parts[expression]

    def _encoded(self, told: list[tuple[int, list[Asked]]]) -> _Questions:
        said, first, asked = [], [], []
        for task, story in told:
            first += [len(said)] * len(story)
            asked += [(task, question) for question in story]
            said += story[-1].sentences
        stop = [start + question.after for start, (_, question) in zip(first, asked)]
        ids = functools.cache(lambda text: [self._numbers.get(word, 0) for word in words(text)])
        sentences = [ids(text) for text in said] or [[]]  # a task may have questions without sentences
        questions = [ids(question.text) for _, question in asked]
        width = max(self._width, *map(len, sentences + questions))
        numbers = lambda values: np.array(values, np.int32)
        return _Questions(_padded(sentences, width), numbers(first), numbers(stop), _padded(questions, width),
                          numbers([self._numbers.get(question.answer, 0) for _, question in asked]),
                          numbers([task for task, _ in asked]))


def _padded(rows: list[list[int]], width: int) -> np.ndarray:
    array = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(array, rows):
        row[:len(ids)] = ids
    return array
