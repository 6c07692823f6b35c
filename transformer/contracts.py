"""Protocols of the data and the model of a run, as evaluators, readers and pictures use them without knowing their classes.

`require` refuses in one sentence what does not meet a Protocol. B is the number of rows of a batch, T that of tokens of a row,
n that of tokens of one text. Ids and types are int32; `types` are the token types of BERT, 0 or 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class ContinuedText(Protocol):
    """Texts that a model continues; their evaluation batches are `TextBatches`.

    Attributes:
      facts: 'vocab' is the number of ids.
      end: the id that ends a text; -1 for none.
    """
    facts: Mapping[str, Any]
    end: int

    def prompt(self, text: str) -> np.ndarray:
        """int32 [n]: the ids of a prompt."""

    def unread(self, ids: np.ndarray) -> int:
        """The number of ids that stand for what the vocabulary lacks."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each id, for display."""


@runtime_checkable
class TranslatedText(Protocol):
    """Texts with their translations; their evaluation batches are `PairBatches`.

    Attributes:
      facts: 'vocab' is the number of ids of targets.
      start: the first id of the decoder's input.  end: the id that ends a target.
      lengths: the number of tokens in a row of sources and in a row of targets.
      truncates: whether longer sources are truncated.
      preparation: how `prepare` changes texts; 'raw': not at all.
      target_language: such as 'fr'; '': unknown.
    """
    facts: Mapping[str, Any]
    start: int
    end: int
    lengths: tuple[int, int]
    truncates: bool
    preparation: str
    target_language: str

    def prepare(self, text: str) -> str:
        """A text, prepared as in training."""

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]: a source with its end, not truncated."""

    def encode_target(self, text: str) -> np.ndarray:
        """int32 [n]: a target with its end, not truncated."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids of a target."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each id of a source, for display."""

    def target_pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each id of a target, for display."""


@runtime_checkable
class PrefixedText(TranslatedText, Protocol):
    """Texts with their translations behind them, in one row.

    Attributes:
      bidirectional: whether the tokens of a source see each other.
    """
    bidirectional: bool


@runtime_checkable
class CorruptedText(TranslatedText, Protocol):
    """Texts with noise, the sources, and what restores them, the targets."""

    def filled(self, text: str, ids: Sequence[int]) -> str:
        """A source with the missing text that the ids of a target give. Raises ValueError for one that misses nothing."""


@runtime_checkable
class ShiftedText(Protocol):
    """Texts whose words are copied, shifted by one place.

    Attributes:
      start: the first id of the decoder's input.
    """
    start: int

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]: the ids of a text."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each id, for display."""


@runtime_checkable
class FramedText(Protocol):
    """Texts that a model reads whole, between special tokens.

    Attributes:
      facts: 'vocab' is the number of ids.
      frame: the special tokens: `style`, and the ids `begin`, `end` and `mask`, -1 for none.
      length: T, the number of tokens in a row of training.
    """
    facts: Mapping[str, Any]
    frame: Any
    length: int

    def rows(self, framed: Sequence[tuple[np.ndarray, np.ndarray]], length: int) -> dict[str, np.ndarray]:
        """inputs, segments (0 = padding), positions and types, int32 [rows, length], of the (ids, types) of each row."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each id, for display."""


@runtime_checkable
class MaskedText(FramedText, Protocol):
    """Texts with masked words.

    Attributes:
      pairs: 'none', or what the two texts of a row are.
    """
    pairs: str

    def framed(self, *texts: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, types) [n] of one text or of two. Raises ValueError for texts without tokens, or too long for a row."""

    def read_masked(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids [n], types [n], places [masks]) of a text with masks. Raises ValueError for one without, as `framed` does."""

    def in_place(self, text: str, mask: int, word: str) -> np.ndarray:
        """int32 [n]: the tokens of a word in place of a mask of a text; the first one is mask 0. Raises ValueError for a word
        that cannot stand there."""

    def filled(self, text: str, ids: Sequence[int]) -> str:
        """A text with its masks replaced by these ids."""


@runtime_checkable
class Classified(Protocol):
    """Texts or images with a class.

    Attributes:
      classes: their names.
      shapes: {name: (shape, dtype)} of a training batch, with `label`.
    """
    classes: Sequence[str]
    shapes: Mapping[str, tuple]


@runtime_checkable
class LabelledText(FramedText, Protocol):
    """Texts, or pairs of texts, with a class, several labels or a number.

    Attributes:
      classes: the names of the classes or labels; for a number, one name.
    """
    classes: Sequence[str]

    def read_text(self, line: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, types) [n] of a line as in training, truncated to a row. Raises ValueError for another number of texts."""

    def read_orders(self, line: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """`read_text`, or of a pair of texts that a model reads in both orders that of each; their logits are added."""

    def cut(self, line: str) -> int:
        """The number of tokens that `read_text` leaves out of a line."""


@runtime_checkable
class UnlabelledTable(LabelledText, Protocol):
    """Labelled texts whose tables are also read without labels."""

    def unlabelled(self, lines: Sequence[str]) -> tuple[list[str], list[str]] | None:
        """(index, line with its texts, which may be empty) of each row of a table whose first line names the columns; None if
        it does not. Raises ValueError, naming the line, for a row without them."""

    def read_orders(self, line: str, empty: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
        """As of `LabelledText`; `empty`: texts may be so."""

    def cut(self, line: str, empty: bool = False) -> int:
        """As of `LabelledText`; `empty`: texts may be so."""

    def submitted(self, name: str) -> str:
        """What stands for a class in the predictions for such a table: its name or its number."""


@runtime_checkable
class ChosenText(FramedText, Protocol):
    """Contexts and questions with several answers, of which one is right."""

    def read_choices(self, line: str) -> tuple[tuple[str, ...], list[tuple[np.ndarray, np.ndarray]], int]:
        """(answers, the (ids, types) [n] of the row of each, the number of tokens that are left out) of a line. Raises
        ValueError for one without a question and answers."""

    def unanswered(self, lines: Sequence[str], name: str) -> list[str] | None:
        """The lines, as `read_choices` takes them, of the rows of a table, whose name is that of the input; None if the lines
        are no table. Raises ValueError, naming the line, for a row that cannot be read."""


@runtime_checkable
class TaggedText(FramedText, Protocol):
    """Tagged words; their evaluation batches are `SentenceBatches`.

    Attributes:
      classes: the tags.
      has_spans: whether the tags name spans (`transformer.decoding.spans.named_spans`).
    """
    classes: Sequence[str]
    has_spans: bool

    def read_words(self, line: str) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[np.ndarray]]:
        """((ids, types) [n] of each row, the places of the first token of each word in each row) of words separated by spaces.
        Raises ValueError for a line without words."""


@runtime_checkable
class QuestionedText(FramedText, Protocol):
    """Questions with answers; their evaluation batches are `QuestionBatches`.

    Attributes:
      unanswerable: whether some questions have no answer.
    """
    unanswerable: bool

    def read_question(self, question: str, context: str) -> tuple[list[tuple[np.ndarray, np.ndarray]], list]:
        """((ids, types) [n] of each row, its window as in `transformer.decoding.spans.best_spans`) of a question about a text.
        Raises ValueError if either is empty."""

    def cut(self, question: str) -> int:
        """The number of tokens of a question that `read_question` leaves out."""


@runtime_checkable
class ToldStories(Protocol):
    """Stories with questions about them."""

    def read_stories(self, text: str | bytes, name: str) -> tuple[list, dict[str, np.ndarray]]:
        """The questions of a text in bAbI's format, each with `line`, `text` and `sentences`, and a batch of them. Raises
        ValueError, naming line and word, for a word that the run has not learnt."""

    def answer(self, number: int) -> str:
        """The answer with a number."""


class TextBatches(Protocol):
    """A pass over a text."""

    def text(self) -> bytes:
        """The text, in order. Raises ValueError if the batches are not of text."""


class PairBatches(Protocol):
    """A pass over pairs of texts, one in each row."""

    def pairs(self) -> list[tuple[str, str]]:
        """(source, target) of every row, prepared but not truncated."""


class TaskBatches(PairBatches, Protocol):
    """A pass over pairs of texts of several tasks.

    Attributes:
      tasks: the name of the task of each pair; (): there is only one task.
    """
    tasks: Sequence[str]


class SentenceBatches(Protocol):
    """A pass over sentences, each in one row or several.

    Attributes:
      sentences: int [rows], the number of the sentence of each row.
    """
    sentences: np.ndarray


class QuestionBatches(Protocol):
    """A pass over questions, each in one row or several.

    Attributes:
      windows: the window of each row (see `transformer.decoding.spans.best_spans`).
      questions: the questions in order, each with `accepted`, the texts of the right answers.
    """
    windows: Sequence
    questions: Sequence


@runtime_checkable
class ReadsSource(Protocol):
    """A model of a source and a target.

    Attributes:
      source_length: the largest number of tokens of a source.
    """
    source_length: int


def require(asking: object, data: Any, contract: type, what: str, instead: str) -> None:
    """Raises ValueError unless the data meet a contract.

    Args:
      asking: the part that needs them, such as an evaluator.
      what: the needed data, such as 'pairs of texts'.
      instead: the advice of the error, such as 'leave that evaluator out'.
    """
    if not isinstance(data, contract):
        raise ValueError(f'{type(asking).__name__} needs {what}, and {type(data.config).__name__} has none; {instead}.')
