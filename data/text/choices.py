"""Multiple choice: a context, a question about it, and several answers, of which one is right.

    opened = Choices(path='swag', train='train', valid='valid', test='').open(None)
    for batch in opened.train(seed=0): ...

Rows hold `inputs`, `segments`, `positions` and `types` [B, C, T], a row for each of C answers, each behind the same context
(Radford et al. 2018, figure 1), and `label` int32 [B], the number of the right answer from 0. Of an example with fewer answers
than C the last rows are padding alone, by which `segments` tell them. What is too long is cut: the context first, at its end,
then the question before an answer.
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from data import fields, json_files
from data.sources import files as sources
from data.sources.tables import CHOICES, Row, Table, require_text, whole
from data.text import examples, frames
from data.text.targets import text_of

_FILE = 'classes.json'
# Names of columns that are found where the config names none: of SWAG, HellaSwag, COPA, RACE, ARC, PIQA, Story Cloze, ..
_CONTEXTS = 'context', 'article', 'passage', 'document', 'story', 'premise', 'sent1', 'ctx', 'sentence', 'goal'
_STORY = re.compile(r'input ?_?sentence ?_?\d')  # whose columns together are the context
_QUESTIONS = 'question', 'query', 'sent2', 'question_stem', 'prompt'
_LISTS = 'choices', 'options', 'endings', 'answers', 'alternatives', 'candidates'
_ONE = re.compile(r'(ending|choice|answer|option|solution|sol|alternative|hyp|randomfifthsentencequiz|)[ _]?([a-z]|\d{1,2})')
_LABELS = 'label', 'answer', 'answerkey', 'answer_key', 'gold', 'gold_label', 'correct', 'correct_answer', 'answerrightending'
_WITH = 'answer', 'context'
_COLUMNS = 'context', 'question', 'answers', 'label'  # fields


@dataclasses.dataclass(frozen=True)
class Choices(examples.Examples):
    """Tables (data/sources/tables.py) with a context or a question, or both, several answers and the right one a row.

    Rows may have different numbers of answers, two or more: the last columns of answers may be empty, and lists of any length.

    Attributes are those of Examples, and:
      context: the column of the context; several are joined by spaces. (): one with a usual name, such as context or premise,
        the four sentences of a Story Cloze, or, without a header, the first.
      question: the column of the question; '': one with a usual name, such as question, or none.
      answers: the columns of the answers, or one column of lists: of texts, of objects {"text": .., "label": ..}, or an object
        {"text": [..], "label": [..]}. (): those with usual names, such as ending0, ending1, .. or choices, or, without a
        header, all between the first and the last.
      label: the column of the right answer; '': one with a usual name, such as label or answer, or, without a header, the last.
        It has a number, a letter from A, the label in a list of objects, or the text of the answer.
      first: what number the first answer has: '0', '1' or 'auto', which finds out.
      question_with: where the question stands: 'answer', before each answer, so that the context alone is cut where the two
        are short (as transformers' examples do with SWAG), and then the question at its end, or 'context', behind that,
        [z; q; $; a] (Radford et al. 2018, section 3.3), of which z is cut first.
      header, quotes: whether the first line of each file names the columns, and whether fields may be quoted as in RFC 4180:
        'true', 'false' or 'auto', which finds out.
    """

    context: tuple = ()
    question: str = ''
    answers: tuple = ()
    label: str = ''
    first: str = 'auto'
    question_with: str = 'answer'
    header: str = 'auto'
    quotes: str = 'auto'
    reader: str = 'transformer.readers.classes:TextChoice'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenChoices':
        """Opens the texts. If `folder` is a saved run, no file is read before train() or evaluation().

        `source` is a run to start from: its tokenizer is used. Raises ValueError or FileNotFoundError, in one sentence, for a
        field or a file that cannot be used.
        """
        return OpenChoices(self, folder, source)

    def check(self) -> None:
        super().check()
        for name in ('header', 'quotes'):
            fields.one_of(name, getattr(self, name), CHOICES)
        fields.one_of('first', self.first, ('auto', '0', '1'))
        fields.one_of('question_with', self.question_with, _WITH)
        given = [column for name in _COLUMNS if getattr(self, name)
                 for column in fields.columns(name, getattr(self, name))]
        if twice := next((column for column in given if given.count(column) > 1), None):
            raise ValueError(f'data.context, question, answers and label name the column {twice} twice; give each its own.')

    def form(self) -> tuple:
        return self.context, self.question, self.answers, self.label, self.first, self.header, self.quotes

    def table(self, file: sources.File) -> Table:
        return Table(file, self.header, self.quotes)

    def examples(self, file: sources.File) -> list['Example']:
        found = self._unnumbered(file)
        numbers = _numbers(found, functools.partial(self._first, file, found), self.first != 'auto')
        return [dataclasses.replace(one, number=number) for one, number in zip(found, numbers)]

    def described(self) -> str:
        """Which columns are read, for the log."""
        table = self.table(self.part('train').files[0])
        return table.described(**dataclasses.asdict(self.layout(table)))

    def layout(self, table: Table, labelled: bool = True) -> '_Layout':
        """Which columns are read. Raises ValueError, in one sentence, if that is left open; of a table without labels, for
        predict.py, only names tell."""
        given = {name: tuple(table.column(one, f'data.{name}') for one in fields.columns(name, getattr(self, name)))
                 for name in _COLUMNS if getattr(self, name) and (labelled or name != 'label')}
        if not table.names and labelled:
            free = [column for column in range(table.width) if not any(column in columns for columns in given.values())]
            label = given.get('label') or tuple(free[-1:])
            free = [column for column in free if column not in label]
            context = given.get('context') or (() if given.get('question') else tuple(free[:1]))
            free = [column for column in free if column not in context]
            found = _Layout(context, given.get('question', ()), given.get('answers') or tuple(free), label)
        else:
            if len(given) < 4:
                table.require_distinct('data.context, data.question, data.answers and data.label')
            found = self._named([name.lower() for name in table.names], given, labelled)
        answers = found.answers if len(found.answers) > 1 or table.names else ()
        if not ((found.context or found.question) and answers and (found.label or not labelled)):
            have = ', '.join(map(repr, table.names)) or str(table.width)
            raise ValueError(f'{table.file.path} has the column{"s" * (table.width > 1)} {have}, which leaves open what is the '
                             'context or the question, what the answers and which is right; name them, such as '
                             '--config.data.context=1 --config.data.answers=2,3 --config.data.label=4.')
        return found

    def _named(self, low: list[str], given: dict, labelled: bool) -> '_Layout':
        """The columns with usual names, besides the `given` ones."""
        taken = {column for columns in given.values() for column in columns}
        usual = lambda names: tuple(low.index(name) for name in names if name in low and low.index(name) not in taken)[:1]
        answers = given.get('answers') or usual(_LISTS)
        if not answers:
            groups = {}
            for column, match in enumerate(map(_ONE.fullmatch, low)):
                if match and column not in taken and (match[1] or match[2].isalpha()):
                    place = int(match[2]) if match[2].isdecimal() else match[2]
                    groups.setdefault((match[1], match[2].isalpha()), []).append((place, column))
            rows = [sorted(group) for group in groups.values()]
            rows = [[one for i, one in enumerate(row) if one[0] == chr(ord('a') + i)] if isinstance(row[0][0], str) else row
                    for row in rows]  # letters from A on
            answers = next((tuple(column for _, column in row) for row in rows if len(row) > 1), ())
        taken |= {*answers}
        story = tuple(column for column, name in enumerate(low) if _STORY.fullmatch(name) and column not in taken)
        context, question = given.get('context') or story or usual(_CONTEXTS), given.get('question') or usual(_QUESTIONS)
        return _Layout(context, question, answers, (given.get('label') or usual(_LABELS)) if labelled else ())

    def _unnumbered(self, file: sources.File) -> list['Example']:
        table = self.table(file)
        if not table.width:
            return []
        layout = self.layout(table)
        return [example_of(table, row, layout) for row in table.rows()]

    def _first(self, file: sources.File, found: Sequence['Example']) -> int:
        """The number of the first answer: 0 if that occurs, 1 if the number of the answers does; in the file, else in those of
        data.path. Raises ValueError if neither occurs."""
        if self.first != 'auto':
            return int(self.first)
        try:
            others = [one for one in self._files if one.path != file.path]
        except (ValueError, FileNotFoundError):  # of a run, whose files are elsewhere
            others = []
        for part in ([file], others):
            for one in part:
                try:
                    rows = found if one is file else self._unnumbered(one)
                except ValueError:  # of a part without labels
                    continue
                if any(row.label == '0' for row in rows):
                    return 0
                if any(row.label == str(len(row.answers)) for row in rows):
                    return 1
        raise ValueError(f'{file.path} has numbers of right answers that are neither 0 nor as high as the number of answers, '
                         'which leaves open what number the first has; set data.first=0 or data.first=1.')


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The columns of the context, of the question, of the answers and of the right one."""

    context: tuple[int, ...]
    question: tuple[int, ...]
    answers: tuple[int, ...]
    label: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Example:
    """A context and a question, '' for none, but not both, and answers.

    Attributes:
      label: the right answer as the table has it; own: the labels of the answers in it, () for none.
      number: that of the right answer, from 0.
    """

    context: str
    question: str
    answers: tuple[str, ...]
    place: str
    label: str = ''
    own: tuple[str, ...] = ()
    number: int = -1

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.context, self.question, *self.answers)))


@dataclasses.dataclass(frozen=True, repr=False)
class _ChoiceRows:
    """The framed answers of each example, and the number of the right one; `cut` is the number of those that were cut."""

    framed: list[list[tuple[np.ndarray, np.ndarray]]]
    label: np.ndarray
    answers: int
    cut: int

    def __len__(self) -> int:
        return len(self.framed)

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        return np.array([frames.sizes(rows).max() for rows in self.framed], np.int64)

    def batch(self, numbers: np.ndarray, length: int) -> dict[str, np.ndarray]:
        none = [(np.zeros(0, np.int32),) * 2] * self.answers
        found = frames.rows([row for number in numbers for row in [*self.framed[number], *none][:self.answers]], length)
        found = {name: x.reshape(len(numbers), self.answers, length) for name, x in found.items()}
        return found | {'label': self.label[numbers]}


class OpenChoices(examples.OpenExamples):
    """Choices with their tokenizer: training batches, evaluation, and reading a line.

    Attributes:
      classes: the name of the only output, as Hugging Face transformers calls it.
      answers: C, the most answers of an example of the training part; a batch of another part has more if one there has.
      asked: whether an example has a context and a question.
    """

    classes = ('LABEL_0',)
    answers: int
    asked: bool
    unit = 'questions'

    def __init__(self, config: Choices, folder: str | os.PathLike | None, source: str | os.PathLike | None = None):
        config.check()
        if folder is None:
            found = config.part('train').examples
            self.answers = max(len(example.answers) for example in found)
            self.asked = any(example.context and example.question for example in found)
        else:
            self.answers = examples.read(folder, _FILE, 'answers', int, 2)
            self.asked = examples.read(folder, _FILE, 'texts', list, [2]) == [3]
        super().__init__(config, folder, source, pair=True)
        self.facts = {**self.facts, 'classes': 1}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer, the number of answers and whether there are questions, so that opening with this folder needs
        no text."""
        self.tokenizer.save(folder)
        examples.write(folder, _FILE, classes=self.classes, texts=[2 + self.asked], answers=self.answers)

    def _shapes(self, length: int) -> dict[str, tuple[tuple[int, ...], type]]:
        shape = self.config.batch_size, self.answers, length
        return {name: (shape, np.int32) for name in self._row_shapes(length)} | {'label': (shape[:1], np.int32)}

    def describe(self) -> str:
        """One line about the training part and the tokenizer, for the log."""
        rows = self._training
        cut = f', {rows.cut:,} answers of them cut to {self.config.length} tokens' if rows.cut else ''
        counts = sorted({len(one) for one in rows.framed})
        of = f'{counts[0]}' + f' to {counts[-1]}' * (len(counts) > 1)
        shares = np.bincount(rows.label, minlength=counts[-1]) / len(rows)
        right = ', '.join(f'{number} {share:.1%}' for number, share in enumerate(shares[:5], 1)) + ', ..' * (len(shares) > 5)
        return (f'{self.config.path}, {self.config.described()}; {len(rows):,} examples of {of} answers to train on{cut}; '
                f'right is answer {right}; {self._vocabulary}')

    def read_choices(self, line: str) -> tuple[tuple[str, ...], list[tuple[np.ndarray, np.ndarray]], int]:
        """(answers, the (ids, types), int32 [n], of the row of each, the number of tokens that are cut) of a line: a context,
        a question where the data has both, and answers, with tabs between them. Raises ValueError for another form."""
        texts = [text.strip() for text in line.split('\t')]
        before, answers = texts[:1 + self.asked], texts[1 + self.asked:]
        if not any(before) or not answers or not all(answers):
            what = 'a context, a question' if self.asked else 'a context or a question'
            raise ValueError(f'{line[:60]!r} is not what this run answers; expected {what} and two or more answers, with tabs '
                             'between them.')
        example = Example(before[0], before[1] if self.asked else '', tuple(answers), line)
        (framed,), (cut,) = self._framed([example])
        return example.answers, framed, cut

    def unanswered(self, lines: Sequence[str], name: str) -> list[str] | None:
        """The lines, as `read_choices` takes them, of the rows of a table with or without labels, whose name says its format as
        in training; of stdin, '-', the first sign tells JSON. Tabs within a text become spaces. None if no header names the
        columns. Raises ValueError for a row that cannot be read."""
        begun = next((line.lstrip() for line in lines if line.strip()), '')
        given = (*self.config.context, self.config.question, *self.config.answers)
        path = name if name != '-' else 'stdin.jsonl' if begun.startswith('{') else 'stdin.tsv'
        table = Table(sources.Given.of(path, lines), 'true', self.config.quotes)
        plain = table.format not in ('json', 'parquet')
        if plain and any(whole(str(column)) for column in given):
            return None
        try:
            layout = self.config.layout(table, labelled=False)
        except ValueError:
            if plain:
                return None
            raise
        flat = lambda text: text.replace('\t', ' ')
        return ['\t'.join(map(flat, self._parts(example_of(table, row, layout)))) for row in table.rows()]

    def _parts(self, one: Example) -> tuple[str, ...]:
        """The parts of a line with an example; of a run that knows no questions apart the question stands where its row has
        it."""
        if self.asked or not (one.context and one.question):
            return *((one.context, one.question) if self.asked else (one.context or one.question,)), *one.answers
        if self.config.question_with == 'answer':
            return one.context, *(f'{one.question} {answer}' for answer in one.answers)
        return f'{one.context} {one.question}', *one.answers

    def _encode(self, part: examples.ExampleSplit) -> _ChoiceRows:
        framed, cut = self._framed(part.examples)
        label = np.array([example.number for example in part.examples], np.int32)
        return _ChoiceRows(framed, label, max(self.answers, *map(len, framed)), sum(count > 0 for count in cut))

    def _framed(self, found: Sequence[Example]) -> tuple[list[list[tuple[np.ndarray, np.ndarray]]], list[int]]:
        """(the rows of each example, the most tokens that one of them lacks)."""
        with_answer = self.config.question_with == 'answer'
        asked = [one.question if one.context else '' for one in found]  # a question alone stands for the context
        before = examples.encoded(self.tokenizer, [one.context or one.question for one in found])
        behind = [np.zeros(0, np.int32)] * len(found) if with_answer else examples.encoded(
            self.tokenizer, [question and f' {question}' for question in asked])
        answers = iter(examples.encoded(self.tokenizer, [f'{question} {answer}'.strip() if with_answer else answer
                                                         for one, question in zip(found, asked) for answer in one.answers]))
        room = self.frame.room(self.config.length, True)
        framed, cut = [], []
        for one, asking, context, question in zip(found, asked, before, behind):
            ids = [next(answers) for _ in one.answers]
            kept = [self._kept(asking, text, answer, room - 1) if with_answer else answer
                    for text, answer in zip(one.answers, ids)]
            left = [max(not len(question), room - len(question) - len(answer)) for answer in kept]
            framed.append([self.frame.fitted(np.append(context[:size], question), answer, self.config.length)
                           for size, answer in zip(left, kept)])
            cut.append(max(0, *(len(context) + len(question) + len(answer) - room for answer in ids)))
        return framed, cut

    def _kept(self, question: str, answer: str, ids: np.ndarray, room: int) -> np.ndarray:
        """The ids of a question and its answer; if they are too long with the question cut at its end."""
        if not question or len(ids) <= room:
            return ids
        first, last = examples.encoded(self.tokenizer, [question, f' {answer}'])
        return np.append(first[: max(0, room - len(last))], last)

    def _facts(self, rows: _ChoiceRows) -> dict[str, int]:
        return {'questions': len(rows), 'cut': rows.cut}


def example_of(table: Table, row: Row, layout: _Layout) -> Example:
    """The example of a row, whose label has no number yet. Raises ValueError, naming the line, for one that is incomplete."""
    place, all_cells = row
    several = len(layout.answers) > 1
    optional = {*layout.answers[2:]} if several else {*()}
    if len(layout.context) + len(layout.question) > 1:  # one of the two may be empty
        optional |= {*layout.context, *layout.question}
    short = dataclasses.replace(layout, answers=tuple(c for c in layout.answers if c < len(all_cells) or c not in optional))
    groups = [short.context, short.question, short.answers, short.label]
    cells = iter(table.cells(row, [column for group in groups for column in group], 'data.answers with data.label', optional))
    context, question, answers, label = ([next(cells) for _ in group] for group in groups)
    context, question = (' '.join(filter(None, (_text(cell, place) for cell in group))) for group in (context, question))
    if not (context or question):
        raise ValueError(f'{place} has neither a context nor a question; fill one in, or take the line out.')
    if several:
        texts, own = [_text(cell, place) for cell in answers], ()
        while texts and not texts[-1]:
            texts.pop()
    else:
        texts, own = _listed(answers[0], place)
    if len(texts) < 2 or not all(texts):
        raise ValueError(f'{place} has the answers {", ".join(map(repr, texts))[:60]}; expected two or more, none of them '
                         'empty but the last ones; correct the row, or name other columns in data.answers.')
    right = re.sub(r'^(\d+)\.0$', r'\1', text_of(label[0])) if label else ''
    return Example(context, question, tuple(texts), place, right, own)


def _text(cell: Any, place: str) -> str:
    require_text(cell, place, 'data.context, question or answers')
    return text_of(cell)


def _listed(cell: Any, place: str) -> tuple[list[str], tuple[str, ...]]:
    """(answers, their own labels, () for none) of a list of answers; in a table without types it is written as JSON."""
    given = cell
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            cell = None
        json_files.require_whole(cell, given, place)
    texts, own = cell, ()
    if isinstance(cell, dict):
        texts, own = cell.get('text'), cell.get('label') or ()
    elif isinstance(cell, list) and cell and all(isinstance(one, dict) for one in cell):
        texts, own = [one.get('text') for one in cell], [one.get('label') for one in cell if 'label' in one]
    plain = isinstance(texts, list) and all(isinstance(one, (str, int, float)) for one in texts)
    if not plain or not isinstance(own, (list, tuple)) or len(own) not in (0, len(texts)) or not all(
            isinstance(one, (str, int)) for one in own):
        raise ValueError(f'{place} has {str(given)[:40]!r} for its answers; expected a list of texts, of objects '
                         '{"text": .., "label": ..}, or an object {"text": [..], "label": [..]}; correct the row, or name the '
                         'columns of the answers in data.answers.')
    return [text_of(one) for one in texts], tuple(map(text_of, own))


def _numbers(found: Sequence[Example], first: Callable[[], int], given: bool) -> list[int]:
    """The number of each right answer, from 0, in the first form that all labels of a file have: the answers' own labels,
    numbers, letters, texts; `first()` is the number of the first answer, and whether it is `given`. Raises ValueError, naming
    the line, for none, and for labels that may be numbers or texts."""
    forms = {'own': lambda one: one.own.index(one.label) if one.own.count(one.label) == 1 else None,
             'number': lambda one: int(one.label) if whole(one.label) and int(one.label) <= len(one.answers) else None,
             'letter': lambda one: _within(ord(letter) - ord('A') if len(letter := one.label.upper()) == 1 else -1, one),
             'text': lambda one: one.answers.index(one.label) if one.answers.count(one.label) == 1 else None}
    read = {name: [form(one) for one in found] for name, form in forms.items()}
    name = min(read, key=lambda name: read[name].count(None))  # the first of those with the fewest
    numbers = read[name]
    if name == 'number' and None not in numbers and found:
        base = first()
        numbers = [_within(number - base, one) for number, one in zip(numbers, found)]
        if not given and None not in read['text'] and read['text'] != numbers:
            raise ValueError(f'{found[0].place} and the other rows have answers that are numbers, so that what is right may be '
                             'the number of an answer or the answer; if it is the number, set data.first to that of the first '
                             'answer, 0 or 1, else write letters.')
    if None in numbers:
        one = found[numbers.index(None)]
        raise ValueError(f'{one.place} says that {one.label[:40]!r} is right, which names none of its {len(one.answers)} '
                         'answers in the form that other rows have; expected a number, from 0 or from 1, a letter from A, or '
                         'the text of one answer; correct the row, or set data.label to another column.')
    return numbers


def _within(number: int, one: Example) -> int | None:
    return number if 0 <= number < len(one.answers) else None
