"""A tokenizer for texts in which a sign stands for unknown words, '<unk>' in WikiText and the Penn Treebank."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from data.tokenizers.tokenizer import Tokenizer

SIGN = '<unk>'


@dataclasses.dataclass(frozen=True)
class WithUnknown:
    """Encodes as `inner`, a tokenizer with a token for unknown words, but every `sign` as that token. The space before it is
    part of it."""

    inner: Tokenizer
    sign: str = SIGN

    @property
    def vocab(self) -> int:
        return self.inner.vocab

    @property
    def roles(self):
        return self.inner.roles

    @property
    def end(self) -> int:
        """The id between documents, -1 for none."""
        return self.inner.end

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint and f'{self.inner.fingerprint} {self.roles.unknown} {self.sign}'

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts in parallel threads."""
        parts = [text.replace(f' {self.sign}', self.sign).split(self.sign) for text in texts]
        encoded = iter(self.inner.encode_many([part for text in parts for part in text]))
        unknown = np.array([self.roles.unknown], np.int32)
        found = []
        for text in parts:
            pieces = [next(encoded) for _ in text]
            found.append(np.concatenate([one for ids in pieces for one in (unknown, ids)][1:]).astype(np.int32))
        return found

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        return len(self.sign.encode()) if text.startswith(self.sign) else self.inner.first_bytes(text)


def reading(tokenizer: Tokenizer, sign: str = SIGN) -> Tokenizer | WithUnknown:
    """The tokenizer, which reads a sign as its token for unknown words if it has one that does not end a text too, as GPT-2's;
    '': there is no sign."""
    return WithUnknown(tokenizer, sign) if sign and tokenizer.roles.unknown not in (-1, tokenizer.end) else tokenizer


def check(sign: str) -> None:
    """Raises ValueError for a sign with white space, which is no word."""
    if any(one.isspace() for one in sign):
        raise ValueError(
            f"data.unknown={sign!r} has white space; it is the word that stands for unknown ones, such as '<unk>'."
        )
