"""Readers: they turn the lines of predict.py into inputs of a run, its outputs into answers, and draw the input of eval.py.

A config names one by import path in `data.reader`; `Reader` in training/contracts.py is the contract that the scripts use.
"""

import abc
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from transformer.contracts import FramedText, require
from transformer.decoding.strategies import Strategy


@dataclasses.dataclass(frozen=True)
class Reader(abc.ABC):
    """Base of the readers.

    Attributes:
      flags: what `answers` takes as keywords: flags of predict.py, and `watch`, a function that is called with each piece of
        a text as soon as it is generated.
      usual: the strategy of those that generate text.
      several: whether an input has several lines.
      contract: the Protocol that the data have to meet, which errors call `what`.
    """
    flags: ClassVar[tuple[str, ...]] = ()
    usual: ClassVar[Strategy | None] = None
    several: ClassVar[bool] = False
    contract: ClassVar[type] = FramedText
    what: ClassVar[str] = 'texts'

    def lines(self, content: bytes | None, name: str) -> list[str]:
        """The lines of an input, without line ends. Raises ValueError, which names the input, if the content is not text, or if
        it is None: that of several files."""
        if content is None:
            what = 'is a folder' if os.path.isdir(os.path.expanduser(name)) else 'names several files'
            raise ValueError(f'{name!r} {what}; give --input a file with one input per line, or - for stdin.')
        return text_lines(content, name)

    @abc.abstractmethod
    def answers(self, snapshot: Any, lines: Sequence[str], name: str) -> Iterator[tuple[str, dict]]:
        """Yields (a line of text, the JSON of --json) for each line; errors name the input `name`. A `note` in the JSON says in
        what the answer is not about the whole input, or not the whole answer."""

    @abc.abstractmethod
    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        """Draws the attention of a run in an input: (a `transformer.explain.attention.View`, the entries of the layers as
        in `transformer.explain.maps.read`, {further entries of the JSON}). With `steps` its figure also shows scores and
        masks."""

    def data_of(self, snapshot: Any) -> Any:
        """The data of a run. Raises ValueError if they do not meet the contract of this reader."""
        require(self, snapshot.data, self.contract, self.what, 'name another class in data.reader')
        return snapshot.data

    def grid(self, snapshot: Any) -> tuple[int, int] | None:
        """(rows, columns) of the grid of the model's positions; None: a sequence."""
        return None


class _Pieces:
    """Calls `watch` with the text that each new token adds; characters whose bytes are not complete wait for them."""

    def __init__(self, data: Any):
        self.data, self.watch = data, lambda text: None
        self.begin(lambda: None)

    def begin(self, started: Callable[[], object], prompt: Sequence[int] | np.ndarray = ()) -> None:
        """Begins the continuation of a prompt; `started` is called before its first piece."""
        self.prompt, self.ids, self.shown, self.started = prompt, [], '', started

    def __call__(self, token: Any) -> None:
        if int(token) == self.data.end:
            return
        self.ids.append(int(token))
        text = continuation(self.data, self.prompt, self.ids)
        if text.startswith(self.shown) and not text.endswith('\ufffd'):
            if not self.shown:
                self.started()
            self.watch(text[len(self.shown):])
            self.shown = text


def pieces_of(data: Any, watch: Callable[[str], None]) -> _Pieces:
    """What gives the tokens of `transformer.decoding.strategies.watched` to `watch` as text; the same object, and so the same
    compiled program, for all answers from these data."""
    found = _pieces(data)
    found.watch = watch
    return found


_pieces = functools.lru_cache(maxsize=1)(_Pieces)


def text_lines(content: bytes, name: str, wanted: str = 'text with one input per line') -> list[str]:
    """The lines of a text in UTF-8, without line ends. Raises ValueError for other bytes, and for NUL, which no
    text has; it advises to give `wanted`."""
    advice = f'convert it to UTF-8, and give {wanted}'
    try:
        found = content.decode('utf-8-sig').split('\n')
    except UnicodeDecodeError as error:
        raise ValueError(f'The input {name!r} is not UTF-8 at byte {error.start}; {advice}.') from None
    if zeros := content.count(0):
        looks = ', as in UTF-16' * (zeros > len(content) / 4)
        raise ValueError(f'The input {name!r} is no text in UTF-8: {zeros:,} of its {len(content):,} bytes '
                         f'{"is" if zeros == 1 else "are"} NUL{looks}; {advice}.')
    return [line.removesuffix('\r') for line in (found if found[-1] else found[:-1])]


def place(number: int, name: str) -> str:
    """The name of a line of an input in an error, counted from 1; the name '-' stands for stdin."""
    return f'line {number}' if name == '-' else f'line {number} of {name}'


def chances(logits: np.ndarray) -> np.ndarray:
    """softmax(logits) over the last axis, in float64."""
    p = np.exp(np.float64(logits) - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def classified(classes: Sequence[str], logits: np.ndarray) -> dict:
    """The JSON for the logits [C] of classes; a model may have more classes than its data."""
    p = chances(logits[:len(classes)])
    best = int(p.argmax())
    return {'class': classes[best], 'probability': float(p[best]), 'probabilities': dict(zip(classes, map(float, p)))}


def numbers(vector: np.ndarray) -> list[float]:
    """A vector as the shortest decimal numbers that give the same float32."""
    return [float(str(x)) for x in np.asarray(vector, np.float32)]


def continuation(data: Any, prompt: Sequence[int] | np.ndarray, new: Sequence[int] | np.ndarray) -> str:
    """The text of new tokens behind a prompt; the space before it, too, where a tokenizer writes none before its first word."""
    before, whole = data.decode(prompt), data.decode([*prompt, *new])
    return whole[len(before):] if whole.startswith(before) else data.decode(new)


def hypotheses(found: Sequence, text: Callable[[np.ndarray], str]) -> list[dict]:
    """The JSON for outputs of `generate`, best first; `text` is the function from the tokens of one to its text."""
    return [{'text': text(one.tokens), 'tokens': len(one.tokens), 'ids': one.tokens.tolist(), 'score': one.score,
             'finished': one.finished} for one in found]
