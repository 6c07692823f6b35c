"""Special tokens around one text and around two: templates of the roles of tokens, whatever the tokens are called.

    'cls a separator | cls a separator b:1 separator:1'

is a template for one text a and for two texts a and b; ':1' gives a piece the type 1, all others have the type 0.
The roles are those of data/tokenizers/roles.py. Five templates have names:

    bert      cls a separator  |  cls a separator b:1 separator:1        Devlin et al. 2019, figure 2
    roberta   cls a separator  |  cls a separator separator b separator  Liu et al. 2019; BART's too
    t5        a end            |  a end b end
    plain     a                |  a b                                    GPT-2's
    gpt       begin a cls      |  begin a separator b cls                start, delimiter, extract: Radford et al. 2018, 3.3
"""

import dataclasses
import functools
import os
from collections.abc import Iterable, Sequence

import numpy as np

from data.tokenizers.roles import NAMES
from data.tokenizers.tokenizer import JsonTokenizer, Tokenizer

TEMPLATES = {
    'bert': 'cls a separator | cls a separator b:1 separator:1',
    'roberta': 'cls a separator | cls a separator separator b separator',
    't5': 'a end | a end b end',
    'plain': 'a | a b',
    'gpt': 'begin a cls | begin a separator b cls',
}
Piece = tuple[int | str, int]  # the id or the role of a token, or 'a' or 'b' for a text; its type


@functools.cache
def parse(framing: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The pieces of one text and of two, by roles, of a template or its name. Raises ValueError for anything else."""
    parts = [part.split() for part in TEMPLATES.get(framing, framing).split('|')]
    words = [[word.partition(':') for word in part] for part in parts]
    texts = [[name for name, _, _ in part if name in ('a', 'b')] for part in words]
    names = {name for part in words for name, _, _ in part}
    kinds = [kind for part in words for _, colon, kind in part if colon]
    if texts != [['a'], ['a', 'b']] or names - {*NAMES, 'a', 'b'} or not all(kind in ('0', '1') for kind in kinds):
        raise ValueError(
            f'data.framing={framing!r} is no template; it takes {", ".join(map(repr, TEMPLATES))}, or a template for one text '
            f"and for two, such as '{TEMPLATES['bert']}', with the roles {', '.join(NAMES)}."
        )
    return tuple(tuple((name, int(kind or 0)) for name, _, kind in part) for part in words)


def named(framing: str) -> str:
    """The name of a template, or the template itself if it has none."""
    return next((name for name in TEMPLATES if parse(name) == parse(framing)), framing)


def of_one_type(framing: str) -> str:
    """A template with type 0 everywhere."""
    return named(' | '.join(' '.join(name for name, _ in part) for part in parse(framing)))


def lacking(framing: str, tokenizer: Tokenizer) -> list[str]:
    """The roles in a template for which a tokenizer has no token."""
    names = dict.fromkeys(name for part in parse(framing) for name, _ in part)
    return [name for name in names if name in NAMES and tokenizer.roles.of(name) < 0]


@dataclasses.dataclass(frozen=True)
class Frame:
    """The special tokens around texts, as ids.

    Attributes:
      single, pair: the pieces of one text and of two.
      mask: the token that replaces a word to predict, -1 for none.
    """

    single: tuple[Piece, ...]
    pair: tuple[Piece, ...]
    mask: int = -1

    @classmethod
    def of(cls, framing: str, tokenizer: Tokenizer) -> 'Frame':
        """The frame of a template or its name; for '' that of the tokenizer, from its tokenizer.json or else its roles.

        Raises: ValueError for an invalid template, and for a tokenizer that lacks one of its roles.
        """
        framing = framing or _told(tokenizer)
        if lacks := lacking(framing, tokenizer):
            raise ValueError(
                f'data.framing={framing!r} needs a token with the role {lacks[0]!r}, and data.tokenizer states none; state it, '
                f"as in Json(path='tokenizer.json', {lacks[0]}='<token>'), or choose another framing: {', '.join(TEMPLATES)}."
            )
        ids = lambda part: tuple((tokenizer.roles.of(name) if name in NAMES else name, kind) for name, kind in part)
        return cls(*map(ids, parse(framing)), tokenizer.roles.mask)

    @property
    def before(self) -> tuple[int, ...]:
        """The tokens before a single text."""
        ids = [one for one, _ in self.single]
        return tuple(ids[: ids.index('a')])

    @property
    def end(self) -> int:
        """The token that ends a single text, -1 for none."""
        last, _ = self.single[-1]
        return -1 if last == 'a' else last

    @property
    def special(self) -> frozenset[int]:
        """The ids of all special tokens."""
        return frozenset(one for one, _ in (*self.single, *self.pair, (self.mask, 0)) if isinstance(one, int)) - {-1}

    @property
    def types(self) -> int:
        """The number of token types."""
        return 1 + max(kind for _, kind in (*self.single, *self.pair))

    def extra(self, pair: bool = False) -> int:
        """The number of special tokens around one text, or around two."""
        return sum(isinstance(one, int) for one, _ in (self.pair if pair else self.single))

    def second(self, first: int) -> int:
        """The place of the second text in a row where the first text has `first` tokens."""
        places = [one for one, _ in self.pair]
        return first + places.index('b') - 1

    def room(self, length: int, pair: bool = False) -> int:
        """How many tokens of one text, or of two, fit in a row of `length`. Raises ValueError if less than one each."""
        extra, texts = self.extra(pair), 1 + pair
        if length < extra + texts:
            raise ValueError(
                f'data.length={length} has no room for {"two texts" if pair else "a text"} and {extra} special tokens; it must '
                f'be {extra + texts} or more.'
            )
        return length - extra

    def framed(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(ids, types), int32 [n], of one text or of two."""
        texts, pieces = {'a': first, 'b': second}, self.single if second is None else self.pair
        parts = [(np.asarray([one] if isinstance(one, int) else texts[one], np.int32), kind) for one, kind in pieces]
        types = [np.full(len(ids), kind, np.int32) for ids, kind in parts]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate(types)

    def fitted(self, first: Sequence[int], second: Sequence[int] | None, length: int) -> tuple[np.ndarray, np.ndarray]:
        """`framed` with at most `length` tokens: the longer text is cut first, at its end."""
        left = self.room(length, second is not None)
        if second is None:
            return self.framed(first[:left])
        short = min(len(first), len(second))
        if len(first) + len(second) <= left:
            sizes = len(first), len(second)
        elif 2 * short >= left:  # both are cut: the odd token stays with the first
            sizes = left - left // 2, left // 2
        else:
            sizes = (left - short, short) if len(first) > len(second) else (short, left - short)
        return self.framed(first[: sizes[0]], second[: sizes[1]])


def rows(framed: Sequence[tuple[np.ndarray, np.ndarray]], length: int) -> dict[str, np.ndarray]:
    """inputs, segments (0 = padding), positions and types, int32 [len(framed), length], of the (ids, types) of rows."""
    batch = {name: np.zeros((len(framed), length), np.int32) for name in ('inputs', 'segments', 'positions', 'types')}
    for row, (ids, types) in enumerate(framed):
        batch['inputs'][row, : len(ids)] = ids
        batch['segments'][row, : len(ids)] = 1
        batch['positions'][row, : len(ids)] = np.arange(len(ids))
        batch['types'][row, : len(ids)] = types
    return batch


def sizes(framed: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """int64 [len(framed)]: the number of tokens of each row."""
    return np.array([len(ids) for ids, _ in framed], np.int64)


def _told(tokenizer: Tokenizer) -> str:
    """The template of a tokenizer."""
    if not isinstance(tokenizer, JsonTokenizer):
        return 'plain'
    if tokenizer.framing:
        return tokenizer.framing
    roles = tokenizer.roles
    if roles.cls >= 0 and roles.separator >= 0:
        return 'roberta' if roles.separator == roles.end else 'bert'
    return 't5' if roles.end >= 0 and roles.begin < 0 else 'plain'


@dataclasses.dataclass(frozen=True)
class Framed:
    """A tokenizer that puts tokens before every text, such as <s>, and has another `end` than the inner one.

    Attributes:
      before: the ids before a text.
      end: the id after a text, which `encode` leaves out.
    """

    inner: Tokenizer
    before: tuple[int, ...]
    end: int

    @property
    def vocab(self) -> int:
        return self.inner.vocab

    @property
    def roles(self):
        return self.inner.roles

    @property
    def sentinels(self) -> tuple[int, ...]:
        return self.inner.sentinels

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint and f'{self.inner.fingerprint} {self.before} {self.end}'

    def encode(self, text: str) -> np.ndarray:
        """int32 [before + n]."""
        return np.append(np.int32(self.before), self.inner.encode(text)).astype(np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.append(np.int32(self.before), ids).astype(np.int32) for ids in self.inner.encode_many(texts)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; `before` and `end` have no text."""
        return self.inner.decode([i for i in ids if i not in (*self.before, self.end)])

    def piece(self, number: int) -> str:
        """An id as text for display."""
        return self.inner.piece(number)

    def save(self, folder: str | os.PathLike) -> None:
        self.inner.save(folder)


def framed(tokenizer: Tokenizer, framing: str) -> Tokenizer | Framed:
    """The tokenizer with the framing of texts that a decoder predicts. Raises ValueError unless one token follows a text."""
    frame = Frame.of(framing, tokenizer)
    if len(frame.single) - len(frame.before) != 2:
        raise ValueError(
            f"data.framing={framing!r} needs exactly one token after a text, where a decoder stops; take 't5' or 'roberta'."
        )
    same = not frame.before and frame.end == tokenizer.end
    return tokenizer if same else Framed(tokenizer, frame.before, frame.end)
