"""Classes, labels and numbers of texts, and choices among answers. A text that is longer than a row is cut as in training,
which a note says; `cut` in its JSON is the number of tokens that are left out."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer.contracts import ChosenText, LabelledText, UnlabelledTable
from transformer.readers.base import chances, classified
from transformer.readers.rows import TokenRow, given_by
from transformer.readers.whole import WholeText


@dataclasses.dataclass(frozen=True)
class TextClass(WholeText):
    """The class of a text, or of 'first<TAB>second', and its probability."""
    contract, what = LabelledText, 'texts with a class'

    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        return [TokenRow(framed) for framed in data.read_orders(line)], data.cut(line)

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        text, found = self.found(data, _logits(rows))
        return text, {'text': line, **found} | _cut(known, data)

    def found(self, data: LabelledText, logits: np.ndarray) -> tuple[str, dict]:
        """(text, details) for the logits [C] of a text."""
        found = classified(data.classes, logits)
        return f'{found["class"]}\t{found["probability"]:.4f}', found

    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        view, found, more = super().picture(snapshot, given, steps)
        return view, found, more | _cut(snapshot.data.cut(given), snapshot.data)


@dataclasses.dataclass(frozen=True)
class TextLabels(TextClass):
    """The labels of a text with a probability above one half, and these probabilities, separated by commas."""
    what = 'texts with labels'

    def found(self, data: LabelledText, logits: np.ndarray) -> tuple[str, dict]:
        logits = np.float64(logits[:len(data.classes)])
        chances = dict(zip(data.classes, map(float, 1 / (1 + np.exp(-logits)))))
        found = [name for name, p in chances.items() if p > 0.5]
        text = ','.join(found) + '\t' + ','.join(f'{chances[name]:.4f}' for name in found)
        return text, {'labels': found, 'probabilities': chances}


@dataclasses.dataclass(frozen=True)
class TextNumber(TextClass):
    """The number of a text."""
    what = 'texts with a number'

    def found(self, data: LabelledText, logits: np.ndarray) -> tuple[str, dict]:
        return f'{float(logits[0]):.4f}', {'number': float(logits[0])}


@dataclasses.dataclass(frozen=True)
class TextChoice(WholeText):
    """The answer that is chosen and its probability, of 'context<TAB>answer<TAB>answer ..', where the data has questions too
    of 'context<TAB>question<TAB>answer<TAB>answer ..'; or the same for each row of a table, with or without labels. A picture
    shows the row of the first answer."""
    contract, what = ChosenText, 'questions with several answers'

    def names(self, snapshot: Any) -> tuple[str, ...]:
        return tuple({'choice_logits'} & given_by(snapshot)) or ('logits',)

    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        answers, framed, cut = data.read_choices(line)
        if len(answers) < 2:
            raise ValueError(f'{line[:60]!r} has the only answer {answers[0][:40]!r}; give two or more, with tabs '
                             'between them.')
        return [TokenRow(row) for row in framed], (answers, cut)

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        answers, cut = known
        p = chances(np.array([np.ravel(row.get('choice_logits', row.get('logits')))[0] for row in rows]))
        best = int(p.argmax())
        found = {'answer': answers[best], 'number': best, 'probability': float(p[best]), 'probabilities': [*map(float, p)]}
        said = answers[best].replace('\n', ' ')
        return f'{said}\t{p[best]:.4f}', {'text': line, **found} | _cut(cut, data)

    def answers(self, snapshot: Any, lines: Sequence[str], name: str) -> Iterator[tuple[str, dict]]:
        rows = self.data_of(snapshot).unanswered(lines, name)
        lines, name = (lines, name) if rows is None else (rows, f'the rows of {name}')
        yield from super().answers(snapshot, lines, name)

    def shown(self, snapshot: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
        _, (first, *_), _ = snapshot.data.read_choices(text)
        return first


def _logits(rows: Sequence[dict]) -> np.ndarray:
    """The logits of a text, or of a pair the sum over its orders."""
    return sum(row['logits'] for row in rows)


class Submitted(TextClass):
    """Base of readers that also take a table without labels, such as the test.tsv of GLUE, and then give what its server takes:
    a line for each row, also of an empty text, of an index, a tab and the prediction. The header has `index`, `id` or `idx`,
    and the columns of the texts as in training."""
    contract = UnlabelledTable

    def answers(self, snapshot: Any, lines: Sequence[str], name: str) -> Iterator[tuple[str, dict]]:
        data = self.data_of(snapshot)
        table = data.unlabelled(lines)
        if table is None:
            yield from super().answers(snapshot, lines, name)
            return
        indices, texts = table
        read = lambda data, names, line: ([TokenRow(framed) for framed in data.read_orders(line, empty=True)],
                                          data.cut(line, empty=True))
        answers = zip(indices, self.answered(snapshot, texts, f'the texts of {name}', read))
        first = [*itertools.islice(answers, 1)]  # what cannot be answered is refused before the header is printed
        yield 'index\tprediction', {'columns': ['index', 'prediction']}
        for index, (text, details) in itertools.chain(first, answers):
            yield f'{index}\t{data.submitted(text.partition(chr(9))[0])}', {'index': index, **details}


@dataclasses.dataclass(frozen=True)
class SubmittedClasses(Submitted):
    """`TextClass`, and the classes of a table as GLUE takes them."""


@dataclasses.dataclass(frozen=True)
class SubmittedNumbers(Submitted, TextNumber):
    """`TextNumber`, and the numbers of a table as GLUE takes them."""


def _cut(count: int, data: LabelledText | ChosenText) -> dict:
    """The entries of the JSON for a text of which so many tokens are left out."""
    note = f'cut to {data.length} tokens, as in training; {count:,} at its end are not read'
    return {'cut': count, 'note': note} if count else {}
