"""Texts between special tokens, as each family of models was trained with them.

    bert      [CLS] a [SEP]      [CLS] a [SEP] b [SEP]      types 0 up to the first [SEP], then 1 (Devlin et al. 2019, figure 2)
    roberta   <s> a </s>         <s> a </s> </s> b </s>     types 0; BART's too
    t5        a </s>             a </s> b </s>              types 0
    plain     a                  a b                        types 0; GPT-2's
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence

import numpy as np

from data import fields
from data.tokenizers import Json, Tokenizer

STYLES = ('bert', 'roberta', 't5', 'plain')  # in which they are looked for in a tokenizer
_SIGNS = {  # of begin, end and mask
    'bert': ('[CLS]', '[SEP]', '[MASK]'),
    'roberta': ('<s>', '</s>', '<mask>'),
    't5': ('', '</s>', ''),
    'plain': ('', '', ''),
}


@dataclasses.dataclass(frozen=True)
class Frame:
    """The special tokens of one style as ids, -1 for none.

    Attributes:
      begin, end: what stands before a text and behind it.
      mask: what stands for a word that is to be found.
    """

    style: str
    begin: int
    end: int
    mask: int

    @classmethod
    def of(cls, style: str, tokenizer: Tokenizer, marks: Sequence[int] = ()) -> 'Frame':
        """The frame of a style.

        Args:
          style: '' for the first of `STYLES` whose tokens the tokenizer has.
          marks: the ids (begin, end, mask), for a tokenizer that does not name its tokens; () if it does.
        Raises: ValueError for another style, and for a tokenizer that has no such tokens.
        """
        fields.one_of('style', style, ('', *STYLES))
        if not style:
            if marks:
                raise ValueError(f'data.marks={tuple(marks)} are given without a style; set data.style to one of '
                                 f'{", ".join(STYLES)}.')
            known = lambda sign: isinstance(tokenizer, Json) and tokenizer.number(sign) is not None
            style = next(one for one, signs in _SIGNS.items() if all(known(sign) for sign in signs if sign))
        if marks:
            if len(marks) != 3 or not all(-1 <= mark < tokenizer.vocab for mark in marks):
                raise ValueError(
                    f'data.marks={tuple(marks)} are not the ids of the tokens that begin and end a text and of the mask; give '
                    f'three below {tokenizer.vocab:,}, -1 for none, or () to have them found in the tokenizer.'
                )
            return cls(style, *marks)
        ids = []
        for sign in _SIGNS[style]:
            found = tokenizer.number(sign) if sign and isinstance(tokenizer, Json) else None
            if sign and found is None:
                raise ValueError(
                    f'data.style={style!r} needs the token {sign}, which the tokenizer does not have; choose another style of '
                    f'{", ".join(STYLES)}, a tokenizer that has it, or give the ids of its own in data.marks.'
                )
            ids.append(-1 if found is None else found)
        return cls(style, *ids)

    def extra(self, pair: bool = False) -> int:
        """How many special tokens there are around one text, or around two."""
        return len(self.framed([], [] if pair else None)[0])

    def room(self, length: int, pair: bool = False) -> int:
        """Tokens of one text, or of two, in a row of `length`. Raises ValueError if there is not even one for each text."""
        extra, texts = self.extra(pair), 1 + pair
        if length < extra + texts:
            raise ValueError(
                f'data.length={length} has no room for {"two texts" if pair else "a text"} and {extra} special tokens; it must '
                f'be {extra + texts} or more.'
            )
        return length - extra

    def framed(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(ids, types), int32 [n], of one text or of two."""
        begin, end = ([mark] if mark >= 0 else [] for mark in (self.begin, self.end))
        parts = [begin, first, end]
        if second is not None:
            parts += [end if self.style == 'roberta' else [], second, end]
        ids = np.concatenate([np.asarray(part, np.int32) for part in parts])
        types = np.zeros(len(ids), np.int32)
        if second is not None and self.style == 'bert':
            types[len(ids) - len(second) - len(end) :] = 1
        return ids, types

    def fitted(self, first: Sequence[int], second: Sequence[int] | None, length: int) -> tuple[np.ndarray, np.ndarray]:
        """`framed` with at most `length` tokens: tokens are taken from the end of the longer text first."""
        left = self.room(length, second is not None)
        if second is None:
            return self.framed(first[:left])
        short = min(len(first), len(second))
        if len(first) + len(second) <= left:
            sizes = len(first), len(second)
        elif 2 * short >= left:  # both lose some: the odd token stays with the first
            sizes = left - left // 2, left // 2
        else:
            sizes = (left - short, short) if len(first) > len(second) else (short, left - short)
        return self.framed(first[: sizes[0]], second[: sizes[1]])


def rows(framed: Sequence[tuple[np.ndarray, np.ndarray]], length: int) -> dict[str, np.ndarray]:
    """inputs, segments (0 = padding), positions and types, int32 [len(framed), length], of what `Frame` gives."""
    batch = {name: np.zeros((len(framed), length), np.int32) for name in ('inputs', 'segments', 'positions', 'types')}
    for row, (ids, types) in enumerate(framed):
        batch['inputs'][row, : len(ids)] = ids
        batch['segments'][row, : len(ids)] = 1
        batch['positions'][row, : len(ids)] = np.arange(len(ids))
        batch['types'][row, : len(ids)] = types
    return batch


@dataclasses.dataclass(frozen=True)
class Begun:
    """A tokenizer whose texts all begin with one more token, such as <s>, which is no text."""

    inner: Tokenizer
    begin: int

    @property
    def vocab(self) -> int:
        return self.inner.vocab

    @property
    def end(self) -> int:
        return self.inner.end

    @property
    def fingerprint(self) -> str:
        return f'{self.inner.fingerprint} {self.begin}'

    def encode(self, text: str) -> np.ndarray:
        """int32 [1 + n]."""
        return np.append(np.int32(self.begin), self.inner.encode(text)).astype(np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.append(np.int32(self.begin), ids).astype(np.int32) for ids in self.inner.encode_many(texts)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; the first token has none."""
        return self.inner.decode([i for i in ids if i != self.begin])

    def piece(self, number: int) -> str:
        """What an id stands for, to be shown."""
        return self.inner.piece(number)

    def save(self, folder: str | os.PathLike) -> None:
        self.inner.save(folder)
