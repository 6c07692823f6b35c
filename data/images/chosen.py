"""Some of the examples of a source: those of some classes, and as many of each class."""

import csv
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from data import cache, fields, splits
from data.sources.images import ImageSource


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The examples of a part of an `ImageSource` with these numbers, as a part of their own.

    Attributes:
      renumbered: int32 [classes of the part]: the number of each class here; -1: it is not here.
    """

    part: Any
    numbers: np.ndarray
    renumbered: np.ndarray

    def __len__(self) -> int:
        return len(self.numbers)

    @functools.cached_property
    def labels(self) -> np.ndarray:
        return _renumbered(self.part.labels[self.numbers], self.renumbered)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the examples and of which they are."""
        return cache.key(self.part.digest, self.numbers.tolist(), self.renumbered.tolist())

    def take(self, numbers: np.ndarray, rng: np.random.Generator | None = None) -> tuple[np.ndarray, np.ndarray]:
        """float32 [len(numbers), h, w, c] in 0..1 and int32 labels."""
        images, labels = self.part.take(self.numbers[numbers], rng)
        return images, _renumbered(labels, self.renumbered)

    def joined(self, others: Sequence['Chosen']) -> 'Chosen':
        """These examples, then those of others."""
        parts = (self, *others)
        starts = np.cumsum([0, *(len(one.part) for one in parts)])
        numbers = np.concatenate([one.numbers + start for one, start in zip(parts, starts)])
        return Chosen(self.part.joined([one.part for one in others]), numbers, self.renumbered)


def of_classes(source: ImageSource, given: str) -> ImageSource:
    """The source with some classes alone, in their order.

    Args:
      given: their names with commas between them, one that has a comma itself in quotes, such as '"Shoes, men",Bags'; or
        '[start:stop]': from the most frequent one of the part 'train' (or of the first part) on, of equally frequent ones in
        their order.
    Raises: ValueError for an unknown class, and for names or a range that cannot be read or are empty.
    """
    names = list(source.classes)
    if given.startswith('['):
        part = source.parts.get('train') or next(iter(source.parts.values()))
        frequent = np.argsort(-np.bincount(part.labels[part.labels >= 0], minlength=len(names)), kind='stable')
        start, stop = splits.read(f'classes{given}')[1].bounds(len(names))
        kept = {names[number] for number in frequent[start:stop]}
    else:
        kept = set(_names(given))
        for name in sorted(kept):
            fields.one_of('classes', name, names)
    if not kept:
        raise ValueError(f'data.classes={given!r} names none of the {len(names):,} classes; give such as [:10], or names with '
                         'commas between them.')
    classes = [name for name in names if name in kept]
    renumbered = np.full(len(names), -1, np.int32)
    renumbered[[names.index(name) for name in classes]] = np.arange(len(classes))
    parts = {name: Chosen(part, np.flatnonzero(_renumbered(part.labels, renumbered) >= 0), renumbered)
             for name, part in source.parts.items()}
    about = '; '.join(filter(None, (source.about, f'of {len(names):,}, by data.classes={given}')))
    return dataclasses.replace(source, parts=parts, classes=tuple(classes), about=about)


def balanced(part: Any, classes: Sequence[str], start: int, stop: int, each: int, seed: int) -> Chosen:
    """`each` examples of every class among those from `start` to `stop`, drawn by a seed: with a larger `each` these and more.

    Raises ValueError for a class that has fewer.
    """
    labels, numbers = part.labels[start:stop], []
    for number, name in enumerate(classes):
        there = np.flatnonzero(labels == number)
        if len(there) < each:
            raise ValueError(f'data.per_class={each}, and the class {name!r} has {len(there):,} images to train on; lower '
                             'data.per_class, widen data.train, or leave the class out with data.classes.')
        numbers.append(np.random.default_rng([seed, number]).permutation(there)[:each])
    return Chosen(part, start + np.sort(np.concatenate(numbers)), np.arange(len(classes), dtype=np.int32))


def _names(given: str) -> list[str]:
    """The names of a list with commas between them."""
    try:
        row = next(csv.reader([given], skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise ValueError(f'data.classes={given!r} cannot be read ({error}); write names with commas between them, and one that '
                         'has a comma itself in quotes, such as \'"Shoes, men",Bags\'.') from None
    return [name.strip() for name in row if name.strip()]


def _renumbered(labels: np.ndarray, renumbered: np.ndarray) -> np.ndarray:
    """The numbers of labels here; -1 for what has no label."""
    return np.where(labels < 0, np.int32(-1), renumbered[labels])
