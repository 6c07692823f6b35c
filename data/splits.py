"""Named parts of a data set: `train`, `train[:90%]`, `valid.txt[100:-100]`."""

import dataclasses
import fractions
import re
from collections.abc import Mapping
from typing import Any

_EXPRESSION = re.compile(r'(?P<name>.+?)(?:\[(?P<start>[^\[\]:]*):(?P<stop>[^\[\]:]*)\])?')
_LIKE_A_SLICE = re.compile(r':.*\]$|\[[^\]]*:[^\]]*$')  # in a name: a mistyped slice
_BOUND = re.compile(r'-?(\d+|\d+(\.\d+)?%)')


@dataclasses.dataclass(frozen=True)
class Slice:
    """`[start:stop]` of a sequence whose length is not known yet; bounds are '', '10', '-10', '5%' or '-2.5%'."""

    start: str = ''
    stop: str = ''

    def bounds(self, size: int) -> tuple[int, int]:
        """The range of indices, 0 <= start and stop <= size, that the slice takes out of `size` items."""
        start, stop, _ = slice(_index(self.start, size), _index(self.stop, size)).indices(size)
        return start, max(start, stop)

    def __str__(self) -> str:
        return f'[{self.start}:{self.stop}]' if self.start or self.stop else ''


def read(expression: str) -> tuple[str, Slice]:
    """Splits 'NAME' or 'NAME[start:stop]' into the name and the slice; ValueError for anything else."""
    match = _EXPRESSION.fullmatch(expression.strip())
    if match and not (match['start'] is None and _LIKE_A_SLICE.search(match['name'])):
        start, stop = ((match[key] or '').strip() for key in ('start', 'stop'))
        if all(not bound or _BOUND.fullmatch(bound) for bound in (start, stop)):
            return match['name'], Slice(start, stop)
    raise ValueError(
        f'The split {expression!r} cannot be read; write NAME or NAME[start:stop] with whole numbers or percentages, '
        "such as 'train[:90%]'."
    )


def expression(data: Any, split: str) -> str:
    """The expression of a split: data.train, data.valid or data.test; any other split is an expression itself.

    Raises ValueError if it is empty.
    """
    found = getattr(data, split) if split in ('train', 'valid', 'test') else split
    if not found:
        name = f'data.{split}' if split else 'The split'
        raise ValueError(f'{name} is empty, so there is no such split; set it to a part such as train[90%:].')
    return found


def parse(expression: str, sizes: Mapping[str, int]) -> tuple[str, int, int]:
    """Resolves an expression over parts of known sizes to (name, start, stop).

    Raises ValueError if the name is unknown (the known ones are listed) or the slice is empty.
    """
    name, cut = read(expression)
    if name not in sizes:
        raise ValueError(f'The split {expression!r} names no part of this data; known are {", ".join(sorted(sizes))}.')
    start, stop = cut.bounds(sizes[name])
    if start == stop:
        raise ValueError(f'The split {expression!r} is empty: {name!r} has {sizes[name]} examples; widen the slice.')
    return name, start, stop


def _index(bound: str, size: int) -> int | None:
    if not bound:
        return None
    if bound.endswith('%'):  # exact, so that [:p%] and [p%:] never overlap and never leave a gap
        share = fractions.Fraction(bound[:-1]) * size / 100
        return int(share) if share >= 0 else size + int(share)
    return int(bound)
