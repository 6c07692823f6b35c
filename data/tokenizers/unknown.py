"""A tokenizer for texts whose unknown words are written '<unk>', as WikiText's and the Penn Treebank's are."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from data.tokenizers.tokenizer import Tokenizer

SIGN = '<unk>'


@dataclasses.dataclass(frozen=True)
class WithUnknown:
    """Encodes as `inner`, a tokenizer with a token for unknown words, but every '<unk>' as that token. The space before it is
    part of it."""

    inner: Tokenizer

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
        return self.inner.fingerprint and f'{self.inner.fingerprint} {SIGN}'

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts in parallel threads."""
        parts = [text.replace(f' {SIGN}', SIGN).split(SIGN) for text in texts]
        encoded = iter(self.inner.encode_many([part for text in parts for part in text]))
        unknown = np.array([self.roles.unknown], np.int32)
        found = []
        for text in parts:
            pieces = [next(encoded) for _ in text]
            found.append(np.concatenate([one for ids in pieces for one in (unknown, ids)][1:]).astype(np.int32))
        return found

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        return len(SIGN) if text.startswith(SIGN) else self.inner.first_bytes(text)


def reading(tokenizer: Tokenizer) -> Tokenizer | WithUnknown:
    """The tokenizer, which reads '<unk>' as its token for unknown words if it has one."""
    return WithUnknown(tokenizer) if tokenizer.roles.unknown >= 0 else tokenizer
