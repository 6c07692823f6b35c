"""Prepares pairs of sentences: normalises, orders and slices them, and gives each side as a text to tokenize."""

import dataclasses
import functools
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, TypeVar

from data import cache, splits
from data.sources import pairs as pair_sources

TEXTS = ('nfc', 'textbook', 'raw')
ORDERS = ('file', 'hash')

Pair = tuple[str, str]
T = TypeVar('T')

_WHITE = '[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+'  # what str.split splits at
_FORMAT = 1  # part of every digest: another normalisation or order makes other pairs


def prepare(text: str, how: str) -> str:
    """A side of a pair as the model sees it.

    Args:
      how: 'nfc': Unicode NFC, every run of white space as one space, none at the ends; the narrow and the no-break spaces of
        French are white space. 'textbook': that in lower case, with a space before each of , . ! ? that has none (Zhang et
        al., Dive into Deep Learning, section 10.5). 'raw': as it is.
    """
    if how == 'raw':
        return text
    text = ' '.join(unicodedata.normalize('NFC', text).split())
    return re.sub(r'(?<=[^ ])([,.!?])', r' \1', text.lower()) if how == 'textbook' else text


def normalizers(how: str) -> list:
    """`prepare` as normalizers of the Hugging Face library `tokenizers`, to be applied in order.

    They give the same text, except for characters that only one of the two versions of Unicode has.
    """
    from tokenizers import Regex
    from tokenizers import normalizers as of

    if how == 'raw':
        return []
    steps = [of.NFC(), of.Replace(Regex(_WHITE), ' '), of.Strip()]
    if how == 'textbook':
        # A sigma that ends a word has a form of its own, which Lowercase does not know.
        steps += [of.Replace(Regex(r'\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})'), 'ς'), of.Lowercase()]
        steps += [of.Replace(Regex(f'(?<=[^ ])[{sign}]'), f' {sign}') for sign in ',.!?']
    return steps


def folded(text: str) -> str:
    """A text after NFKC and case folding, without punctuation and white space, to compare sides by."""
    return unicodedata.normalize('NFKC', text).casefold().translate(_DROPPED)


class _Dropped(dict):
    """For str.translate: None for punctuation, separators and controls, filled in as characters occur."""

    def __missing__(self, point: int) -> int | None:
        self[point] = None if unicodedata.category(chr(point))[0] in 'PZC' else point
        return self[point]


_DROPPED = _Dropped()


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The pairs that one split expression names.

    Attributes:
      cut: slices the pairs of `origin`, in their order.
      order: 'file', as they come, or 'hash', by a hash of the folded source: any slice is then a random sample, and pairs
        with one source stay together.
      text: how both sides are prepared.
      held_out: slices in this order; a pair that shares a folded side with a pair in them is left out.
      compared: the sides of which that is true: 0 is the source, 1 the target.
    """

    origin: pair_sources.Origin
    cut: splits.Slice
    order: str
    text: str
    held_out: tuple[splits.Slice, ...]
    expression: str
    compared: tuple[int, ...] = (0, 1)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the pairs, from the contents of their files."""
        return cache.key(_FORMAT, self.origin.digest, self.cut, self.order, self.text, self.compared, *self.held_out)

    def __iter__(self) -> Iterator[Pair]:
        """The prepared pairs in order. Raises ValueError if there are none, or a file cannot be read."""
        chosen = iter(self._hashed[0] if self.order == 'hash' else self._slice(self._prepared()))
        first = next(chosen, None)
        if first is None and self.held_out and self._hashed[1]:
            raise ValueError(
                f'All {self._hashed[1]:,} pairs of {self.expression!r} share a side with one of data.valid or data.test, '
                'so none is left to train on; narrow the slices of valid and test.'
            )
        if first is None:
            raise ValueError(f'The split {self.expression!r} holds no pairs; widen its slice, or give it more text.')
        return itertools.chain([first], chosen)

    @functools.cached_property
    def left_out(self) -> int:
        """The number of pairs of the slice that are left out for a held-out side, stored in the cache."""

        def build(folder: Path) -> None:
            (folder / 'left_out.json').write_text(json.dumps(self._hashed[1] if self.held_out else 0))

        entry = cache.entry('pairs', self.digest, build, lambda folder: (folder / 'left_out.json').is_file())
        return json.loads((entry / 'left_out.json').read_text())

    @functools.cached_property
    def texts(self) -> list[Pair]:
        """All pairs, kept in memory."""
        return list(self)

    def place(self, number: int) -> str:
        """The place of a pair of `texts`, such as its file and line; with order='hash' the first place of equal pairs."""
        if self.order == 'file':
            return next(self._slice(self.origin.placed(), number))[0]
        return next(place for place, pair in self.origin.placed() if self._ready(pair) == self.texts[number])

    def side(self, number: int) -> 'Side':
        """The sources (0) or the targets (1)."""
        return Side(self, number)

    def _ready(self, pair: Pair) -> Pair:
        return tuple(prepare(side, self.text) for side in pair)

    def _prepared(self) -> Iterator[Pair]:
        return map(self._ready, self.origin)

    def _slice(self, items: Iterable[T], skipped: int = 0) -> Iterator[T]:
        """The items of the cut, one for each pair of the origin, without the first `skipped`."""
        start, stop = self.cut.bounds(self.origin.size) if str(self.cut) else (0, None)
        return itertools.islice(items, start + skipped, stop)

    @functools.cached_property
    def _hashed(self) -> tuple[list[Pair], int]:
        """The pairs of the slice in the order of hashes, and how many were left out."""
        pairs = sorted(self._prepared(), key=lambda pair: hashlib.sha256(folded(pair[0]).encode()).digest())
        taken, *held = (pairs[slice(*cut.bounds(len(pairs)))] for cut in (self.cut, *self.held_out))
        known = {number: {folded(pair[number]) for part in held for pair in part} for number in self.compared}
        kept = [pair for pair in taken if all(folded(pair[number]) not in known[number] for number in known)]
        return kept, len(taken) - len(kept)


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of the pairs, as a text whose documents are sentences (like data/sources/files.py:Split)."""

    documents: ClassVar[str] = 'line'

    pairs: Pairs
    number: int

    @property
    def expression(self) -> str:
        return self.pairs.expression

    @functools.cached_property
    def digest(self) -> str:
        return cache.key(self.pairs.digest, self.number)

    def chunks(self) -> Iterable[tuple[str, bool]]:
        return ((pair[self.number], True) for pair in self.pairs)

    def raw(self) -> Iterator[bytes]:
        """The bytes of the sentences in order, a line each."""
        for text, _ in self.chunks():
            yield text.encode() + b'\n'
