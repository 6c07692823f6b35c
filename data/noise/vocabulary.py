"""What a noise knows of the tokens of a tokenizer: which are special, where words begin, and where sentences end."""

import dataclasses
import string
from collections.abc import Iterable

import numpy as np

from data.tokenizers.plain import IdTokenizer, WordTokenizer
from data.tokenizers.tokenizer import SPACE, JsonTokenizer, SentencePieceTokenizer, Tokenizer

_STOPS = '.!?\u2026\u203d\u3002\uff01\uff0e\uff1f\uff61\u061f\u06d4\u0964\u0965\n'  # of Chinese, Arabic, Urdu and Hindi too
_CLOSING = '"\')]}\u00bb\u2019\u201d\u300d\u300f\uff09'  # what may stand behind one
_BYTE_LEVEL = '\u0120', '\u010a'  # GPT-2's signs for a space and a line end


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a tokenizer, as a noise uses them.

    Attributes:
      mask: the id that stands for missing tokens, -1 for none.
      ordinary: int32, the ids that are no special tokens; those of unknown words and of padding are special.
      begins, ends: bool [vocab]: whether a word begins with a token, and whether one begins behind it; None if the tokens do
        not say so.
      stops, closes, digits: bool [vocab]: whether a token ends a sentence: '.', '!', '?', their like in other scripts, a line
        end; whether it may stand behind such a token, as quotes do; and whether it is a number.
      sentinels: the ids that name missing spans, in the order of their use; () for none.
      end: the id between texts, -1 for none.
    """

    mask: int
    ordinary: np.ndarray
    begins: np.ndarray | None
    ends: np.ndarray | None
    stops: np.ndarray
    closes: np.ndarray
    digits: np.ndarray
    sentinels: tuple[int, ...] = ()
    end: int = -1

    @classmethod
    def of(cls, tokenizer: Tokenizer, special: frozenset[int] = frozenset()) -> 'Vocabulary':
        """That of a tokenizer; `special`: further ids that are special."""
        known = np.ones(tokenizer.vocab, bool)
        named = map(tokenizer.number, tokenizer.special) if isinstance(tokenizer, JsonTokenizer) else ()
        known[[i for i in (*tokenizer.roles.named().values(), *named, *special) if i < len(known)]] = False
        known[[*tokenizer.sentinels]] = False
        signs = [_sign(tokenizer, number) for number in range(tokenizer.vocab)]
        words = [sign.strip(' ').removeprefix('##') for sign in signs]
        endings = [word.rstrip(_CLOSING)[-1:] for word in words]
        stops = np.array([bool(end) and end in _STOPS for end in endings]) & known
        closes = np.array([bool(word) and not word.strip(_CLOSING) for word in words]) & known
        digits = np.array([word.isdigit() or word == '@' for word in words])  # WikiText writes 3 @.@ 5
        begins, ends = _words(tokenizer, signs)
        ordinary = np.flatnonzero(known).astype(np.int32)
        return cls(tokenizer.roles.mask, ordinary, begins, ends, stops, closes, digits, tokenizer.sentinels, tokenizer.end)

    @property
    def special(self) -> np.ndarray:
        """bool [vocab]: the ids that are not `ordinary`."""
        found = np.ones(len(self.stops), bool)
        found[self.ordinary] = False
        return found

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """bool like ids [.., T]: where words begin; the first token begins one, even inside of a word."""
        begins = self.begins[ids]
        begins[..., 1:] |= self.ends[ids[..., :-1]]
        begins[..., 0] = True
        return begins

    def sentence_ends(self, ids: np.ndarray) -> np.ndarray:
        """int64: the places behind the sentences of ids [n], after the quotes and brackets that close them. The point of a
        number ends none; that of an abbreviation does."""
        stops, closes = self.stops[ids], self.closes[ids]
        inner = stops.copy()
        inner[:1] = inner[-1:] = False
        inner[1:-1] &= self.digits[ids[:-2]] & self.digits[ids[2:]]
        stops = stops & ~inner
        run = stops | closes  # a stop and what closes behind it
        place = np.arange(len(ids))
        begun = np.maximum.accumulate(np.where(stops, place, -1))
        broken = np.maximum.accumulate(np.where(~run, place, -1))
        inside = begun > broken  # a stop stands before, and nothing but stops and closing signs between
        last = inside & ~np.append(inside[1:] & run[1:], False)
        return np.flatnonzero(last) + 1


def closed_up(tokenizer: Tokenizer, text: str, ids: Iterable[int]) -> str:
    """A text in which someone has written masks or sentinels, without the spaces before these: a piece of SentencePiece has the
    space before its word, so the token that stands for it has it too. A tokenizer.json says itself what its tokens take."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        for sign in map(tokenizer.piece, ids):
            text = text.replace(f' {sign}', sign)
    return text


def _sign(tokenizer: Tokenizer, number: int) -> str:
    """A token with a space and a line end where it has one; '' for an id without a token."""
    if isinstance(tokenizer, JsonTokenizer):
        sign, (space, line) = (tokenizer.sign(number) or '').replace(SPACE, ' '), _BYTE_LEVEL
        return sign.replace(space, ' ').replace(line, '\n') if tokenizer.byte_level else sign  # else letters of Maltese
    return tokenizer.piece(number)


def _words(tokenizer: Tokenizer, signs: list[str]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(begins, ends) of a vocabulary. A space between two words belongs to the second, as in SentencePiece and GPT-2's BPE."""
    ends = np.array([sign.endswith('\n') for sign in signs])
    if isinstance(tokenizer, IdTokenizer):
        return None, None
    if any(sign.startswith('##') for sign in signs):  # WordPiece
        return np.array([not sign.startswith('##') for sign in signs]), ends
    if isinstance(tokenizer, WordTokenizer) or (isinstance(tokenizer, JsonTokenizer) and tokenizer.whole_words):
        return np.ones(len(signs), bool), ends
    if not any(sign.startswith(' ') for sign in signs):
        return None, None
    begins = [sign[:1].isspace() for sign in signs]
    if not (isinstance(tokenizer, JsonTokenizer) and tokenizer.byte_level):  # in albert's code signs are words, not in fairseq
        begins = [one or (bool(sign) and not sign.strip(string.punctuation)) for one, sign in zip(begins, signs)]
    return np.array(begins), ends
