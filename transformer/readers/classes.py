"""Classes, labels and numbers of texts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.contracts import LabelledText
from transformer.readers.base import classified
from transformer.readers.rows import TokenRow
from transformer.readers.whole import WholeText


@dataclasses.dataclass(frozen=True)
class TextClass(WholeText):
    """The class of a text, or of 'first<TAB>second', and its probability."""
    contract, what = LabelledText, 'texts with a class'

    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        return [TokenRow(data.read_text(line))], None

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        found = classified(data.classes, rows[0]['logits'])
        return f'{found["class"]}\t{found["probability"]:.4f}', {'text': line, **found}


@dataclasses.dataclass(frozen=True)
class TextLabels(TextClass):
    """The labels of a text with a probability above one half, and these probabilities, separated by commas."""
    what = 'texts with labels'

    def answer(self, data: LabelledText, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        logits = np.float64(rows[0]['logits'][:len(data.classes)])
        chances = dict(zip(data.classes, map(float, 1 / (1 + np.exp(-logits)))))
        found = [name for name, p in chances.items() if p > 0.5]
        text = ','.join(found) + '\t' + ','.join(f'{chances[name]:.4f}' for name in found)
        return text, {'text': line, 'labels': found, 'probabilities': chances}


@dataclasses.dataclass(frozen=True)
class TextNumber(TextClass):
    """The number of a text."""
    what = 'texts with a number'

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        number = float(rows[0]['logits'][0])
        return f'{number:.4f}', {'text': line, 'number': number}
