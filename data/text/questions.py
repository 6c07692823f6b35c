"""Questions that a span of a text answers, in the format of SQuAD v1.1 and v2.0 (Rajpurkar et al. 2016, 2018) or in tables.

    opened = Questions(path='squad', train='train-v1.1.json', valid='dev-v1.1.json', test='').open(None)
    for batch in opened.train(seed=0): ...

Rows are windows, [CLS] question [SEP] piece of the context [SEP]: `inputs`, `segments`, `positions` and `types` [B, T], `start`
and `end` [B], the places of the answer's first and last token. A window without the whole answer, and a
question without one, have start = end = 0 (Devlin et al. 2019, sections 4.2 and 4.3).
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
from typing import Any, NamedTuple

import numpy as np

from data import fields, json_files
from data.sources import files as sources
from data.sources.tables import Table, blank, require_distinct
from data.text import examples, frames
from data.tokenizers import specs

_FILE = 'questions.json'
_HEAD = 1 << 20  # bytes that tell a table from SQuAD
_WITH_OFFSETS = specs.Json, specs.WordPiece, specs.Ids


@dataclasses.dataclass(frozen=True)
class Questions(examples.Examples):
    """Files of SQuAD, or tables (data/sources/tables.py) with the columns context, question and answers or answer.

    `answers` is {"text": [..], "answer_start": [..]}; `answer` is a text, whose place is `answer_start` or where it first
    occurs; an empty one says that the context has no answer. Each example is a question; a slice may cut through an article.
    Attributes are those of Examples, and:
      stride: tokens from the start of a window of a context to the start of the next.
      question_length: tokens of a question; longer ones are cut.
    """

    length: int = 384
    stride: int = 128
    question_length: int = 64
    reader: str = 'transformer.readers.answers:FoundAnswer'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenQuestions':
        """Opens the questions. If `folder` is a saved run, no file is read before train() or evaluation().

        `source` is a run to start from, whose tokenizer is used. Raises ValueError or FileNotFoundError, in one sentence, for a
        field or a file that cannot be used.
        """
        return OpenQuestions(self, folder, source)

    def check(self) -> None:
        """Raises ValueError for invalid field values."""
        super().check()
        fields.positive(stride=self.stride, question_length=self.question_length)
        if not isinstance(self.tokenizer, _WITH_OFFSETS):
            raise ValueError(
                f"data.tokenizer='{self.tokenizer}' does not say where its tokens are in a text, which answers need; use "
                "Json(path='tokenizer.json'), or WordPiece(vocab=N)."
            )

    def examples(self, file: sources.File) -> list['Question']:
        table = Table(file)
        if not _is_squad(file, table):
            return _of_table(table)
        try:
            text = b''.join(file.read()).decode('utf-8-sig')
            whole = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f'{file.path} is no JSON in UTF-8 ({error}); give a file of SQuAD.') from error
        json_files.require_whole(whole, text, file.path)
        try:
            return [_question(asked, paragraph['context'], file.path)
                    for article in whole['data'] for paragraph in article['paragraphs'] for asked in paragraph['qas']]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f'{file.path} is not in the format of SQuAD ({type(error).__name__}: {error}); expected '
                'data[].paragraphs[] with context and qas[], and in each of these id, question and answers[].'
            ) from error


    def described(self) -> str:
        """What is read from which column, for the log."""
        file = self.part('train').files[0]
        if _is_squad(file, table := Table(file)):
            return "SQuAD's form"
        (context, question, answer), starts = _columns(table)
        return table.described(context=[context], question=[question], answer=[answer], answer_start=starts)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a text.

    Attributes:
      answers: (first character in the context, text) of each accepted answer; () where the context holds none.
    """

    question: str
    context: str
    answers: tuple[tuple[int, str], ...]
    place: str

    @property
    def texts(self) -> tuple[str, str]:
        return self.question, self.context

    @property
    def accepted(self) -> tuple[str, ...]:
        """The texts of the answers; '' where there is none."""
        return tuple(text for _, text in self.answers) or ('',)


def _question(asked: dict, context: str, path: str) -> Question:
    place, question = f'{path}, question {asked["id"]}', asked['question']
    _require_texts(context, question, place)
    given = [] if asked.get('is_impossible') else asked['answers']
    answers = _answers(given if isinstance(given, list | dict) else [given], None, context, place)
    return _checked(Question(question, context, answers, place))


def _require_texts(context: Any, question: Any, place: str) -> None:
    if not isinstance(context, str) or not isinstance(question, str):
        raise ValueError(f'{place} has the context {context!r:.40} and the question {question!r:.40}; expected two texts.')


def _checked(asked: Question) -> Question:
    """The question. Raises ValueError if a text is empty, or an answer does not stand where it says."""
    place, context = asked.place, asked.context
    if not context.strip() or not asked.question.strip():
        raise ValueError(f'{place} has no {"question" if context.strip() else "context"}; fill it in, or take it out.')
    for start, text in asked.answers:
        if not text.strip() or start < 0 or context[start : start + len(text)] != text:
            raise ValueError(
                f'{place} has the answer {text[:40]!r} at character {start}, where its context has '
                f'{context[max(0, start) : max(0, start) + len(text)][:40]!r}; correct answer_start, or take it out.'
            )
    return asked


class ContextWindow(NamedTuple):
    """The part of a context that a row holds.

    Attributes:
      question: the number of its question.
      first: the place in the row of the first token of the context.
      ranges: int32 [n, 2], the characters of the context that each of its n tokens in the row stands for.
      context: the whole text.
    """

    question: int
    first: int
    ranges: np.ndarray
    context: str


@dataclasses.dataclass(frozen=True, repr=False)
class _QuestionRows:
    """Windows of questions.

    Attributes:
      asked: the ids of each question.
      passages: (ids [n], ranges [n, 2]) of the context of each.
      spans: int [questions, 2], the first and the last token of the answer in the context; -1 for none.
      number, start: int [rows], the question of a row, and the token of the context that its window begins with.
    """

    frame: frames.Frame
    length: int
    questions: list[Question]
    asked: list[np.ndarray]
    passages: list[tuple[np.ndarray, np.ndarray]]
    spans: np.ndarray
    number: np.ndarray
    start: np.ndarray

    def __len__(self) -> int:
        return len(self.number)

    def window(self, row: int) -> ContextWindow:
        question, start = int(self.number[row]), int(self.start[row])
        asked, room, before = len(self.asked[question]), *self._places
        ranges = self.passages[question][1][start : start + room - asked]
        return ContextWindow(question, asked + before, ranges, self.questions[question].context)

    @functools.cached_property
    def _places(self) -> tuple[int, int]:
        """Tokens of a question and a context in a row, and special tokens before the context."""
        return self.frame.room(self.length, pair=True), self.frame.second(0)

    def framed(self, row: int, window: ContextWindow) -> tuple[np.ndarray, np.ndarray]:
        question, start = self.number[row], self.start[row]
        return self.frame.framed(self.asked[question], self.passages[question][0][start : start + len(window.ranges)])

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        of = lambda row: len(self.window(row).ranges) + len(self.asked[self.number[row]]) + self.frame.extra(pair=True)
        return np.array([of(row) for row in range(len(self))], np.int64)

    def batch(self, numbers: np.ndarray, length: int) -> dict[str, np.ndarray]:
        windows = [self.window(row) for row in numbers]
        batch = frames.rows([self.framed(row, window) for row, window in zip(numbers, windows)], length)
        start, end = np.zeros((2, len(numbers)), np.int32)
        for i, (row, window) in enumerate(zip(numbers, windows)):
            first, last = self.spans[self.number[row]] - self.start[row]
            if 0 <= first <= last < len(window.ranges):
                start[i], end[i] = window.first + first, window.first + last
        return {**batch, 'start': start, 'end': end}


class OpenQuestions(examples.OpenExamples):
    """Questions with their tokenizer: training batches of windows, evaluation, and reading a question.

    Attributes:
      unanswerable: whether questions of the training part have no answer in their context, as in SQuAD v2.0.
    """

    unanswerable: bool
    unit = 'windows'  # of which a question may have several

    def __init__(self, config: Questions, folder: str | os.PathLike | None, source: str | os.PathLike | None = None):
        super().__init__(config, folder, source, pair=True)
        left = self.frame.room(config.length, pair=True) - config.question_length
        if left < config.stride:
            raise ValueError(
                f'data.length={config.length} leaves {max(left, 0)} tokens of a context beside a question of '
                f'data.question_length={config.question_length}, and windows move on by data.stride={config.stride}; raise the '
                'length, or lower the others.'
            )
        if folder is None:
            self.unanswerable = not all(asked.answers for asked in config.part('train').examples)
        else:
            self.unanswerable = examples.read(folder, _FILE, 'unanswerable', bool)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer and whether there are questions without an answer, so that opening needs no file of SQuAD."""
        self.tokenizer.save(folder)
        examples.write(folder, _FILE, unanswerable=self.unanswerable)

    def _shapes(self, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
        shapes, rows = self._row_shapes(length), (self.config.batch_size,)
        return shapes | {'start': (rows, np.int32), 'end': (rows, np.int32)}

    def describe(self) -> str:
        """One line about the training part and the tokenizer, for the log."""
        rows = self._training
        without = sum(not question.answers for question in rows.questions)
        about = f' ({without:,} without an answer)' if without else ''
        return (f'{self.config.path}, {self.config.described()}; '
                f'{len(rows.questions):,} questions{about} in {len(rows):,} windows to train on; '
                f'{self._vocabulary}')

    def read_question(self, question: str, context: str) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[ContextWindow]]:
        """The rows of a question about a text: (ids, types), int32 [n], of each, and its ContextWindow."""
        if not question.strip() or not context.strip():
            raise ValueError(f'The question {question[:60]!r} about {context[:60]!r} is empty; give a question and a text.')
        rows = self._rows_of([Question(question, context, (), 'The input')])
        windows = [rows.window(row) for row in range(len(rows))]
        return [rows.framed(row, window) for row, window in enumerate(windows)], windows

    def cut(self, question: str) -> int:
        """The number of tokens of a question that `read_question` leaves out."""
        return max(0, len(self._ids([question])[0]) - self.config.question_length)

    def _ids(self, questions: list[str]) -> list[np.ndarray]:
        return examples.encoded(self.tokenizer, [question.strip() for question in questions])

    def _evaluate(self, part: examples.ExampleSplit, batch_size: int, view: dict):
        """As in OpenExamples; `windows` are the ContextWindow of each row, `questions` the Question of each number."""
        batches = super()._evaluate(part, batch_size, view)
        rows = self._encoded(part)
        batches.windows, batches.questions = [rows.window(row) for row in range(len(rows))], rows.questions
        return batches

    def _encode(self, part: examples.ExampleSplit) -> _QuestionRows:
        return self._rows_of(part.examples)

    def _rows_of(self, questions: list[Question]) -> _QuestionRows:
        config, passages = self.config, {}
        asked = [ids[: config.question_length] for ids in self._ids([question.question for question in questions])]
        numbers, starts = [], []
        for number, question in enumerate(questions):
            if question.context not in passages:
                passages[question.context] = self.tokenizer.offsets(question.context)
            if not self.frame.before and not len(asked[number]):
                raise ValueError(f'{question.place}: {question.question[:40]!r} has no token; take it out.')
            room = self.frame.room(config.length, pair=True) - len(asked[number])
            beyond = len(passages[question.context][0]) - room
            windows = 1 + max(0, -(-beyond // config.stride))
            numbers += [number] * windows
            starts += [config.stride * window for window in range(windows)]
        found = [passages[question.context] for question in questions]
        spans = [_tokens(question, ranges) for question, (_, ranges) in zip(questions, found)]
        return _QuestionRows(
            self.frame, config.length, questions, asked, found, np.array(spans), np.array(numbers), np.array(starts)
        )

    def _facts(self, rows: _QuestionRows) -> dict[str, int]:
        return {'questions': len(rows.questions), 'windows': len(rows)}


def _is_squad(file: sources.File, table: Table) -> bool:
    """Whether a file is one object of JSON, and not an object a line."""
    if table.format in ('csv', 'parquet') or sources.uncompressed(file.name).endswith(('.jsonl', '.ndjson')):
        return False
    head = b''.join(file.read(0, _HEAD))
    line, *more = re.split(rb'[\r\n]', head.removeprefix(b'\xef\xbb\xbf').lstrip(), maxsplit=1)
    if table.format != 'json' or not line.startswith(b'{'):
        return line.startswith(b'{')
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):  # an object of several lines, or of one that is longer than the head
        return bool(more or len(head) < _HEAD or re.search(rb'"paragraphs"\s*:', line))
    return not first or (isinstance(first.get('data'), list) and not {'context', 'question'} & first.keys())


def _columns(table: Table) -> tuple[list[int], list[int]]:
    """The columns of contexts, questions and answers, and that of `answer_start`, if there is one."""
    if not table.names:
        raise ValueError(f'{table.file.path} has no header; a table of questions needs one, with context, question and answer.')
    given = 'answers' if 'answers' in table.names else 'answer'
    names = 'context', 'question', given
    require_distinct(names, table.names, table.file.path)
    columns = [table.column(name, 'A table of questions') for name in names]
    return columns, [column for column, name in enumerate(table.names) if name == 'answer_start'][:1]


def _of_table(table: Table) -> list[Question]:
    """The questions of a table. Raises ValueError for a column that it lacks, or a row that cannot be used."""
    columns, starts = _columns(table)
    found = []
    for row in table.rows():
        place, cells = row
        context, question, answers = table.cells(row, columns, 'a table of questions', columns[2:])
        _require_texts(context, question, place)
        start = next((cells[column] for column in starts if column < len(cells)), None)
        found.append(_checked(Question(question, context, _answers(answers, start, context, place), place)))
    return found


def _answers(given: Any, start: Any, context: str, place: str) -> tuple[tuple[int, str], ...]:
    """(first character, text) of the answers in a cell; `start` is what `answer_start` has. Raises ValueError for none."""
    if isinstance(given, str) and given.lstrip().startswith('{'):
        with contextlib.suppress(ValueError, RecursionError):  # an answer that begins with a brace
            given = json.loads(given)
    try:
        if isinstance(given, dict):
            return tuple(zip(map(_start, given['answer_start']), map(_text, given['text']), strict=True))
        if isinstance(given, list):
            return tuple((_start(one['answer_start']), _text(one['text'])) for one in given)
        if not (text := _text('' if blank(given) else given).strip()):
            return ()
        stated = not blank(start)
        found = (_start(start) if stated else context.find(text)), text
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f'{place} has the answers {str(given)[:40]!r} and the answer_start {str(start)[:20]!r}; expected '
                         'a text and a number of characters, or {"text": [..], "answer_start": [..]}.') from None
    if found[0] < 0 and not stated:
        raise ValueError(f'{place} has the answer {text[:40]!r}, which its context does not hold; correct it, or take it out.')
    return (found,)


def _start(given: Any) -> int:
    """The number of characters before an answer. pandas writes 3.0 in a column with gaps."""
    if not float(given).is_integer():
        raise ValueError('a part of a character')
    return int(float(given))


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError('no text')
    return given


def _tokens(question: Question, ranges: np.ndarray) -> tuple[int, int]:
    """The first and the last token that share characters with the first answer; -1 for none."""
    if not question.answers:
        return -1, -1
    start, text = question.answers[0]
    inside = np.flatnonzero((np.minimum(ranges[:, 1], start + len(text)) - np.maximum(ranges[:, 0], start)) > 0)
    return (int(inside[0]), int(inside[-1])) if len(inside) else (-1, -1)
