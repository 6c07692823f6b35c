"""What is predicted for a text: one of several classes, any number of labels, or a number."""

import abc
import ast
import contextlib
import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from data.sources.tables import blank, whole
from data.text import examples

FILE = 'classes.json'
_NUMBER = re.compile(r'[+-]?(\d+\.?\d*|\.\d+)')
_ITEM = r"""('([^'\\]|\\.)*'|"([^"\\]|\\.)*"|-?\d+)"""
_LIST = re.compile(rf'\[\s*({_ITEM}(\s*,\s*{_ITEM})*\s*)?\]')  # of Python or JSON, as pandas writes lists into CSV


@dataclasses.dataclass(frozen=True)
class Target(abc.ABC):
    """What is predicted for a text: it reads the column and makes `label` of a batch.

    Attributes:
      least: the smallest number of classes.
      optional: whether the column may be empty.
      plural: the name of the classes in the log.
    """

    least = 1
    optional = False
    plural = 'classes'

    def value(self, cell: Any, place: str, names: Sequence[str] = ()) -> Any:
        """The value in the column of the example at `place`: a string, or a value of JSON or Parquet.

        `names` are those of the classes 0, 1, .. if the file has them. Raises ValueError if the value cannot be read.
        """
        return _name(cell, names, place)

    @abc.abstractmethod
    def names(self, value: Any) -> Sequence[str]:
        """The classes that a value names."""

    @abc.abstractmethod
    def labels(self, values: Sequence, numbers: dict[str, int]) -> np.ndarray:
        """`label` [n, ..] of examples with these values; `numbers` maps the classes to their numbers."""

    @abc.abstractmethod
    def shape(self, rows: int, classes: int) -> tuple[tuple[int, ...], type]:
        """(shape, dtype) of `label`."""

    def shares(self, label: np.ndarray, classes: Sequence[str]) -> str:
        """The distribution of the labels in the training part, for the log."""
        counts = label.sum(0) if label.ndim > 1 else np.bincount(label, minlength=len(classes))
        often = np.argsort(-counts, kind='stable')
        shares = ', '.join(f'{classes[number]} {counts[number] / len(label):.1%}' for number in often[:5])
        return f'{len(classes)} {self.plural} ({shares}{", .." * (len(classes) > 5)})'

    def classes(self, values: Iterable, source: str | os.PathLike | None) -> tuple[str, ...]:
        """The names of the classes of a training part, in the order of a run to start from if it has them all."""
        return examples.classes(_sorted({name for value in values for name in self.names(value)}), source, FILE)


@dataclasses.dataclass(frozen=True)
class OneClass(Target):
    """One of several classes: int32 [B]."""

    least = 2

    def names(self, value: str) -> Sequence[str]:
        return (value,)

    def labels(self, values: Sequence[str], numbers: dict[str, int]) -> np.ndarray:
        return np.array([numbers[value] for value in values], np.int32)

    def shape(self, rows: int, classes: int) -> tuple[tuple[int, ...], type]:
        return (rows,), np.int32


@dataclasses.dataclass(frozen=True)
class Labels(Target):
    """Any number of labels, or none: float32 [B, classes], 1 for the labels of a text.

    Attributes:
      separator: the string between two labels. Lists are read as such, also where a table has them as text: "['a', 'b']".
    """

    separator: str = ','
    optional = True
    plural = 'labels'

    def __post_init__(self):
        if not self.separator:
            raise ValueError("The separator of Labels is ''; expected the string between two labels, such as ','.")

    def value(self, cell: Any, place: str, names: Sequence[str] = ()) -> tuple[str, ...]:
        cells = cell if isinstance(cell, list) else text_of(cell).split(self.separator)
        if not isinstance(cell, list) and _LIST.fullmatch(text_of(cell)):
            with contextlib.suppress(ValueError, SyntaxError):  # such as a number with a leading zero: no list of Python
                cells = ast.literal_eval(text_of(cell))
        return tuple(name for name in (_name(one, names, place) for one in cells) if name)

    def names(self, value: tuple[str, ...]) -> Sequence[str]:
        return value

    def labels(self, values: Sequence[tuple[str, ...]], numbers: dict[str, int]) -> np.ndarray:
        found = np.zeros((len(values), len(numbers)), np.float32)
        for row, names in zip(found, values):
            row[[numbers[name] for name in names]] = 1.0
        return found

    def shape(self, rows: int, classes: int) -> tuple[tuple[int, ...], type]:
        return (rows, classes), np.float32


@dataclasses.dataclass(frozen=True)
class Number(Target):
    """A number: float32 [B]. The only class is its name."""

    def value(self, cell: Any, place: str, names: Sequence[str] = ()) -> float:
        try:
            found = math.nan if isinstance(cell, bool) or '_' in str(cell) else float(cell)
        except (ValueError, TypeError, OverflowError):
            found = math.nan
        if not abs(found) <= float(np.finfo(np.float32).max):
            plain = str(cell).strip().removesuffix('%').replace(',', '.')
            hint = f'such as {plain}, with a point and without a percent sign' if _NUMBER.fullmatch(plain) else 'such as 2.5'
            raise ValueError(f'{place} has {cell!r} in the column of numbers, and expected is a number {hint}; correct the '
                             'column, or set data.label to another one.')
        return found

    def names(self, value: float) -> Sequence[str]:
        return ()

    def labels(self, values: Sequence[float], numbers: dict[str, int]) -> np.ndarray:
        return np.array(values, np.float32)

    def shape(self, rows: int, classes: int) -> tuple[tuple[int, ...], type]:
        return (rows,), np.float32

    def shares(self, label: np.ndarray, classes: Sequence[str]) -> str:
        return f'numbers from {label.min():g} to {label.max():g}, {label.mean(dtype=np.float64):.4g} on average'

    def classes(self, values: Iterable, source: str | os.PathLike | None) -> tuple[str, ...]:
        known = examples.classes((), source, FILE)
        return known if len(known) == 1 else ('LABEL_0',)  # as Hugging Face transformers calls it


def _sorted(names: set[str]) -> tuple[str, ...]:
    numbers = all(whole(name.removeprefix('-')) for name in names)
    return tuple(sorted(names, key=lambda name: (int(name), name) if numbers else name))


def text_of(cell: Any) -> str:
    """A cell as text without white space at its ends."""
    if isinstance(cell, str):
        return cell.strip()
    return '' if blank(cell) else json.dumps(cell, ensure_ascii=False, default=str)


def _name(cell: Any, names: Sequence[str], place: str) -> str:
    """The name of a class; `names` are those of the classes 0, 1, .. if the file has them."""
    found, number = text_of(cell), isinstance(cell, int) and not isinstance(cell, bool)
    if not names or not found or (found in names and not number):  # names may be numbers, and in another order
        return found
    if not whole(found) or int(found) >= len(names):
        raise ValueError(f'{place} has the class {found[:40]!r}, and the names of the classes are {", ".join(names[:8])}'
                         f'{", .." * (len(names) > 8)}; correct the row, or leave it out by a slice.')
    return names[int(found)]
