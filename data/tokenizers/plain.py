"""Tokenizers that need no library: bytes, characters, words, and bare ids; see `data.tokenizers`."""

import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from data import cache
from data.tokenizers.roles import Roles, sentinel

_AROUND = 20  # characters of a text that are shown on each side of a wrong one


def save(folder: str | os.PathLike, name: str, contents: bytes) -> None:
    """Writes the file of a tokenizer into a folder."""
    cache.write(Path(folder, name), contents)


def code_points(text: str) -> np.ndarray:
    """uint32 [n], n the number of characters."""
    return np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), np.uint32)


def utf8(text: str) -> bytes:
    """The UTF-8 of a text. Raises ValueError if it has half of a pair of surrogates, such as Python makes of a byte of a
    command line that is not UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        place = error.start
        raise ValueError(f'The text {text[max(0, place - _AROUND) : place + 1 + _AROUND]!r} has {text[place]!r}, half of a '
                         'character; expected UTF-8: correct it, or take it out.') from None


def require_characters(texts: Iterable[str]) -> None:
    """Raises ValueError as `utf8` does."""
    for text in texts:
        utf8(text)


@dataclasses.dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 bytes as ids 0..255; `end` is 256, and the tokens of further roles follow, then `count` sentinels."""

    special: tuple[str, ...] = ()
    count: int = 0
    end = 256

    @property
    def vocab(self) -> int:
        return 257 + len(self.special) + self.count

    @property
    def sentinels(self) -> tuple[int, ...]:
        """The ids that name missing spans, in the order of their use: from the highest one down."""
        return tuple(self.vocab - 1 - i for i in range(self.count))

    @property
    def roles(self) -> Roles:
        return Roles(end=self.end, **{role: 257 + i for i, role in enumerate(self.special)})

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f'byte {self.special} {self.count}'.encode()).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """int32 [n], n the number of UTF-8 bytes. Raises ValueError for half of a character."""
        return np.frombuffer(utf8(text), np.uint8).astype(np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; `end` has no text, and invalid bytes become U+FFFD."""
        return bytes(int(i) for i in ids if 0 <= i < 256).decode(errors='replace')

    def piece(self, number: int) -> str:
        """An id as text for display: '<0xE4>' for a byte that is not ASCII."""
        if number in self.sentinels:
            return sentinel(self.vocab - 1 - number)
        if number >= self.end:
            return f"<{('end', *self.special)[number - self.end]}>"
        return chr(number) if number < 128 else f'<0x{number:02X}>'

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        return 1

    def save(self, folder: str | os.PathLike) -> None:
        save(folder, 'tokenizer.json', json.dumps(
            {'tokenizer': 'Byte', 'special': self.special, 'sentinels': self.count}).encode())


@dataclasses.dataclass(frozen=True)
class CharTokenizer:
    """Unicode characters: 0 is any unknown character, 1 is `end`, and the learnt characters follow in order."""

    characters: str
    end = 1
    sentinels = ()
    roles = Roles(end=1, unknown=0)

    @property
    def vocab(self) -> int:
        return 2 + len(self.characters)

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(b'char' + self.characters.encode()).hexdigest()

    @functools.cached_property
    def _ids(self) -> np.ndarray:
        table = np.zeros(0x110000, np.int32)
        table[code_points(self.characters)] = np.arange(2, self.vocab)
        return table

    def encode(self, text: str) -> np.ndarray:
        """int32 [n], n the number of characters."""
        return self._ids[code_points(text)]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; `end` has no text, and an unknown character is U+FFFD."""
        return ''.join(self.characters[i - 2] if 2 <= i < self.vocab else '\ufffd' for i in ids if i != self.end)

    def piece(self, number: int) -> str:
        """An id as text for display."""
        return self.characters[number - 2] if number > 1 else ('<unk>', '<end>')[number]

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        return len(text[0].encode())

    def save(self, folder: str | os.PathLike) -> None:
        save(folder, 'tokenizer.json', json.dumps({'tokenizer': 'Char', 'characters': self.characters}).encode())


@dataclasses.dataclass(frozen=True)
class WordTokenizer:
    """Words between white space, as in the Penn Treebank (Mikolov et al. 2010) and WikiText (Merity et al. 2016). With
    data.documents='stream' the tokens are counted as there: one `<eos>` for every line, empty ones too, and no others.

    0 is `<unk>`, any word that is not in the list, even the word `<eos>`; 1 is `<eos>`, which is the end of every line and
    `end`; the list follows. Decoded text has the format of those sets: a space before every word and every line end.
    """

    words: tuple[str, ...] = dataclasses.field(repr=False)
    end = 1
    sentinels = ()
    roles = Roles(end=1, unknown=0)

    @property
    def vocab(self) -> int:
        return 2 + len(self.words)

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256('\n'.join(['word', *self.words]).encode()).hexdigest()

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, 2)}

    def encode(self, text: str) -> np.ndarray:
        """int32 [n], n the number of words and line ends."""
        known, lines = self._ids, text.split('\n')
        ids = [[*(known.get(word, 0) for word in line.split()), self.end] for line in lines]
        return np.array([i for line in ids for i in line][:-1], np.int32)  # the last line has not ended

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """' ' and the word of each id; `<eos>` is a line end."""
        table = ('<unk>', '\n', *self.words)
        return ''.join(' ' + table[i] for i in ids)

    def piece(self, number: int) -> str:
        """An id as text for display."""
        return self.words[number - 2] if number > 1 else ('<unk>', '<eos>')[number]

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers, with the space before it."""
        return len(re.match(r'[^\S\n]*(\n|\S*)', text)[0].encode())

    def save(self, folder: str | os.PathLike) -> None:
        save(folder, 'tokenizer.json', json.dumps({'tokenizer': 'Word', 'words': self.words}).encode())


@dataclasses.dataclass(frozen=True)
class IdTokenizer:
    """Ids in place of text, as numbers between white space, for a model without a tokenizer.

    Attributes:
      vocab: number of ids.
      roles: the special ids.
    """

    vocab: int
    roles: Roles = Roles()
    sentinels = ()

    @property
    def end(self) -> int:
        """The id between documents, -1 for none."""
        return self.roles.of('end')

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(f'ids {self.vocab} {self.end}'.encode()).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]. Raises ValueError for a word that is not an id."""
        for word in text.split():
            if not (word.isdecimal() and int(word) < self.vocab):
                raise ValueError(
                    f'{word[:40]!r} is no token: this model has no tokenizer, so texts are numbers from 0 to '
                    f'{self.vocab - 1} between spaces.'
                )
        return np.array([int(word) for word in text.split()], np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32 [n], ranges int32 [n, 2]): the ids of a text, and the characters text[start:stop] of each."""
        ranges = [found.span() for found in re.finditer(r'\S+', text)]
        return self.encode(text), np.array(ranges, np.int32).reshape(-1, 2)

    def decode(self, ids: Iterable[int]) -> str:
        """' ' and the number of each id."""
        return ''.join(f' {i}' for i in ids)

    def piece(self, number: int) -> str:
        """An id as text for display."""
        return str(number)

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers, with the space before it."""
        return len(re.match(r'\s*\S*', text)[0].encode())

    def save(self, folder: str | os.PathLike) -> None:
        save(folder, 'tokenizer.json', json.dumps({'tokenizer': 'Ids', 'vocab': self.vocab}).encode())
