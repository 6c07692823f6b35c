"""What a noise knows of the tokens of a tokenizer: which are special, where words begin, and where sentences end."""

import dataclasses

import numpy as np

from data.tokenizers.tokenizer import SPACE, JsonTokenizer, Tokenizer

_STOPS = '.', '!', '?'
_BYTE_LEVEL = '\u0120'  # GPT-2's sign for a space


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a tokenizer, as a noise uses them.

    Attributes:
      mask: the id that stands for missing tokens, -1 for none.
      sentinels: the ids that name missing spans, in the order of their use; () for none.
      ordinary: int32, the ids that are no special tokens.
      begins, ends: bool [vocab]: whether a word begins with a token, and whether one begins behind it.
      stops: bool [vocab]: whether a sentence ends with a token: '.', '!', '?', and the end of a text.
    """

    mask: int
    sentinels: tuple[int, ...]
    ordinary: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    stops: np.ndarray

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> 'Vocabulary':
        signs = [_sign(tokenizer, number) for number in range(tokenizer.vocab)]
        roles = tokenizer.roles
        special = np.zeros(tokenizer.vocab, bool)
        special[[*roles.named().values(), *tokenizer.sentinels]] = True
        begins = special | np.array([_begins(tokenizer, sign) for sign in signs])
        ends = special | np.array([sign[-1:].isspace() for sign in signs])
        stops = np.array([sign.strip() in _STOPS for sign in signs])
        stops[roles.of('end')] |= roles.of('end') >= 0
        return cls(roles.mask, tokenizer.sentinels, np.flatnonzero(~special).astype(np.int32), begins, ends, stops)

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """int64: the places in a row of ids at which words begin; the first token begins one, even inside of a word."""
        begins = self.begins[ids]
        begins[1:] |= self.ends[ids[:-1]]
        begins[:1] = True
        return np.flatnonzero(begins)


def _sign(tokenizer: Tokenizer, number: int) -> str:
    """A token with a space where it has one; '' for an id without a token."""
    if isinstance(tokenizer, JsonTokenizer):
        return (tokenizer.sign(number) or '').replace(SPACE, ' ').replace(_BYTE_LEVEL, ' ')
    return tokenizer.piece(number)


def _begins(tokenizer: Tokenizer, sign: str) -> bool:
    """Whether a word begins with a token, whatever stands before it."""
    if isinstance(tokenizer, JsonTokenizer) and tokenizer.lower is not None:
        return not sign.startswith('##')
    return sign[:1].isspace() and bool(sign.strip())
