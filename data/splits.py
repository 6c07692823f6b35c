"""Named parts of a data set: `train`, `train[:90%]`, `valid.txt[100:-100]`."""

import dataclasses
import difflib
import fractions
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

_EXPRESSION = re.compile(r'(?P<name>.+?)(?P<slices>(\[[^\[\]:]*:[^\[\]:]*\])*)')
_LIKE_A_SLICE = re.compile(r':.*\]$|\[[^\]]*:[^\]]*$')  # in a name: a mistyped slice
_HELD_OUT = 'valid', 'test'
_OF_CONFIGS = 'train', *_HELD_OUT  # splits that a config names
_LONG = 10 ** 18  # a length that no data have
_BOUND = re.compile(r'-?(\d+|\d+(\.\d+)?%)')


@dataclasses.dataclass(frozen=True)
class Slice:
    """`[start:stop]` of a sequence whose length is not known yet; bounds are '', '10', '-10', '5%' or '-2.5%'.

    Attributes:
      of: the slice that this one is a slice of; None for the whole sequence.
    """

    start: str = ''
    stop: str = ''
    of: 'Slice | None' = None

    def bounds(self, size: int) -> tuple[int, int]:
        """The range of indices, 0 <= start and stop <= size, that the slice takes out of `size` items."""
        first, last = self.of.bounds(size) if self.of else (0, size)
        start, stop, _ = slice(_index(self.start, last - first), _index(self.stop, last - first)).indices(last - first)
        return first + start, first + max(start, stop)

    @property
    def relative(self) -> bool:
        """Whether all bounds are percentages."""
        return bool(self._bounds) and all(bound.endswith('%') for bound in self._bounds)

    @property
    def mixed(self) -> bool:
        """Whether this slice takes a number of items from a share."""
        return self.of is not None and (self.of.mixed or (self.of.relative and not self.relative))

    def apart(self, other: 'Slice') -> bool:
        """Whether this slice and another one of the same sequence share nothing, however long it is; False if that depends on
        its length."""
        if self.of or other.of:  # slices of slices, which are rounded twice
            return bool((self.of and self.of.apart(other)) or (other.of and self.apart(other.of)))
        bounds = [*self._bounds, *other._bounds]
        alike = len({bound.endswith('%') for bound in bounds}) == 1 and not any(bound.startswith('-') for bound in bounds)
        (start, stop), (other_start, other_stop) = self.bounds(_LONG), other.bounds(_LONG)
        return alike and max(start, other_start) >= min(stop, other_stop)

    @property
    def _bounds(self) -> list[str]:
        return [*(self.of._bounds if self.of else ()), *filter(None, (self.start, self.stop))]

    def __str__(self) -> str:
        return f'{self.of or ""}' + (f'[{self.start}:{self.stop}]' if self.start or self.stop else '')


def read(expression: str) -> tuple[str, Slice]:
    """Splits 'NAME', 'NAME[start:stop]' or a slice of that into the name and the slice; ValueError for anything else."""
    match = _EXPRESSION.fullmatch(expression.strip())
    if match and (match['slices'] or not _LIKE_A_SLICE.search(match['name'])):
        bounds = [tuple(map(str.strip, one.split(':'))) for one in match['slices'][1:-1].split('][')] if match['slices'] else []
        if all(not bound or _BOUND.fullmatch(bound) for pair in bounds for bound in pair):
            if beyond := [bound for pair in bounds for bound in pair if bound.endswith('%') and abs(float(bound[:-1])) > 100]:
                raise ValueError(f'The split {expression!r} has {beyond[0]}, and percentages go from 0% to 100%; write such as '
                                 f'{match["name"]}[:90%].')
            for start, stop in bounds:
                if start and stop and '-' not in start + stop and start.endswith('%') == stop.endswith('%') and (
                        float(start.strip('%')) > float(stop.strip('%'))):
                    raise ValueError(f'The split {expression!r} is empty: [{start}:{stop}] starts behind its end; '
                                     'write the smaller number first.')
            cut = None
            for start, stop in bounds:
                cut = Slice(start, stop, cut)
            return match['name'], cut or Slice()
    raise ValueError(
        f'The split {expression!r} cannot be read; write NAME or NAME[start:stop] with whole numbers or percentages, '
        "such as 'train[:90%]'."
    )


def expression(data: Any, split: str, parts: Collection[str] = ()) -> str:
    """The expression of a split: data.train, data.valid or data.test, or of a slice of these; any other split is an
    expression itself.

    Args:
      parts: the names of the parts that the source has by itself: its own 'test' stands for an empty data.test, if the training
        part is one of 'train'.

    Raises ValueError if it is empty.
    """
    name, bracket, cut = split.partition('[')
    name = name.strip()
    if not split:
        raise ValueError('The split is empty, so there is no such split; name a part such as train[90%:].')
    if name not in _OF_CONFIGS:
        return split
    read(split)  # which names the expression that was given
    if found := getattr(data, name):
        return found + bracket + cut
    if name in parts and read(data.train)[0] == 'train':
        return split
    raise ValueError(f'data.{name} is empty, so there is no such split: a run has those that it was trained with; '
                     'set it for the training, or score files with eval.py --path=FILE.')


def require_apart(data: Any, expression: str, part: Callable[[str], Any], field: str = 'data.{}') -> None:
    """Raises ValueError if what `expression` names is data.valid or data.test, or a slice of it, and overlaps with data.train.

    Args:
      part: from an expression to a part, whose `shared` says where it overlaps with another one, '' if it does not.
      field: the name of a field of `data`, for the message.
    """
    name = read(expression)[0] if expression else ''
    if name not in _HELD_OUT or not getattr(data, name):
        return
    try:
        where = part(data.train).shared(part(getattr(data, name)))
    except (ValueError, FileNotFoundError):  # reported where that split is used
        return
    if where:
        one, other = field.format('train'), field.format(name)
        raise ValueError(f'{one}={data.train!r} and {other}={getattr(data, name)!r} overlap in {where}; give each its own '
                         'file, or slices that do not overlap, such as train[:90%] and train[90%:], or, for no such part, set '
                         f"{other} to ''.")


def common(one: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]) -> str:
    """The first name whose range in both overlaps; '' for none."""
    return next((name for name, (start, stop) in one.items()
                 if name in other and max(start, other[name][0]) < min(stop, other[name][1])), '')


def parse(expression: str, sizes: Mapping[str, int]) -> tuple[str, int, int]:
    """Resolves an expression over parts of known sizes to (name, start, stop).

    Raises ValueError if the name is unknown (the known ones are listed) or the slice is empty.
    """
    name, cut = read(expression)
    if name not in sizes:
        of_config = () if name in _OF_CONFIGS else _OF_CONFIGS
        close = difflib.get_close_matches(name, [*sizes, *of_config], 1)
        known = f'did you mean {close[0]!r}?' if close else (
            f'known are {", ".join(sorted(sizes))}{", and train, valid and test of the config" if of_config else ""}.')
        raise ValueError(f'The split {expression!r} names no part of this data; {known}')
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
