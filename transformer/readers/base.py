"""Readers: what a run makes of the lines that predict.py is given, and of the input that eval.py draws.

A config names one by import path in `data.reader`; `Reader` in training/contracts.py is what the scripts ask of it.
"""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from transformer.contracts import FramedText, require


@dataclasses.dataclass(frozen=True)
class Reader(abc.ABC):
    """Base of the readers.

    Attributes:
      flags: those flags of predict.py that `answers` takes as keywords; the others are refused.
      contract: what the data have to offer, and `what` names it in an error.
    """
    flags: ClassVar[tuple[str, ...]] = ()
    contract: ClassVar[type] = FramedText
    what: ClassVar[str] = 'texts'

    def lines(self, content: bytes, name: str) -> list[str]:
        """The lines of an input, without their ends. Raises ValueError, about the input of this name, for what is no text."""
        return text_lines(content, name)

    @abc.abstractmethod
    def answers(self, snapshot: Any, lines: Sequence[str], name: str) -> Iterator[tuple[str, dict]]:
        """(a line of text, what --json prints) one after the other, for the lines of the input of this name."""

    @abc.abstractmethod
    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        """What the attention of a run looks at in an input: (a matplotlib figure, the entries of the layers as in
        `transformer.explain.maps.read`, {further entries of the JSON}). With `steps` the figure also shows scores and masks."""

    def data_of(self, snapshot: Any) -> Any:
        """The data of a run. Raises ValueError for those that this reader is not for."""
        require(self, snapshot.data, self.contract, self.what, 'name another class in data.reader')
        return snapshot.data

    def grid(self, snapshot: Any) -> tuple[int, int] | None:
        """(rows, columns) in which the positions of the model lie; None: they are a row."""
        return None


def text_lines(content: bytes, name: str, wanted: str = 'text with one input per line') -> list[str]:
    """The lines of a text in UTF-8, without their ends; ValueError names what is `wanted` in place of other bytes."""
    try:
        found = content.decode('utf-8-sig').split('\n')
    except UnicodeDecodeError as error:
        raise ValueError(f'The input {name!r} is not UTF-8 at byte {error.start}; give {wanted}.') from None
    return [line.removesuffix('\r') for line in (found if found[-1] else found[:-1])]


def place(number: int, name: str) -> str:
    """How an error names a line of an input, counted from 1; '-' is the name of stdin."""
    return f'line {number}' if name == '-' else f'line {number} of {name}'


def chances(logits: np.ndarray) -> np.ndarray:
    """softmax(logits) over the last axis, in float64."""
    p = np.exp(np.float64(logits) - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def classified(classes: Sequence[str], logits: np.ndarray) -> dict:
    """What --json says of the logits [C] of classes; a model may have more of them than its data."""
    p = chances(logits[:len(classes)])
    best = int(p.argmax())
    return {'class': classes[best], 'probability': float(p[best]), 'probabilities': dict(zip(classes, map(float, p)))}


def numbers(vector: np.ndarray) -> list[float]:
    """A vector in float32 as the shortest numbers that name it."""
    return [float(str(x)) for x in np.asarray(vector, np.float32)]


def hypotheses(data: Any, found: Sequence, begun: Sequence[int] = ()) -> list[dict]:
    """What --json says of outputs of `generate`, best first, each with the tokens that it was begun with."""
    return [{'text': data.decode([*begun, *one.tokens]), 'tokens': len(one.tokens), 'ids': one.tokens.tolist(),
             'score': one.score, 'finished': one.finished} for one in found]
