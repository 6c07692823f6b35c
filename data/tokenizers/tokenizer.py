"""Text to token ids and back: bytes, characters, words, SentencePiece (BPE or unigram), WordPiece,
any tokenizer.json, and bare ids.

Every tokenizer has `vocab` (number of ids), `roles` (the ids of its special tokens), `end` (the id between documents),
`encode`, `encode_many`, `decode`, `piece`, `first_bytes`, `save` and `fingerprint` ('': its encodings are drawn). A config
names a tokenizer by a spec (data/tokenizers/specs.py), which learns it from text or reads a saved one. Bytes and a
SentencePiece learnt here restore any text exactly, characters any text of learnt characters. A learnt WordPiece is a
tokenizer.json.
"""

import dataclasses
import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from data.tokenizers import plain as plain
from data.tokenizers import post_processor
from data.tokenizers.plain import ByteTokenizer, CharTokenizer, IdTokenizer, WordTokenizer
from data.tokenizers.roles import Roles, sentinel, usual

SPACE = '\u2581'  # SentencePiece's own sign for a space


@dataclasses.dataclass(frozen=True)
class SentencePieceTokenizer:
    """A SentencePiece model, given by its bytes. One learnt here gives back any text exactly.

    A line end is always its own piece, so text may be encoded line by line. U+2581, SentencePiece's sign for a
    space, is encoded as its three bytes, because its piece would decode to a space. (Sennrich et al. 2016, section 3.2;
    Kudo and Richardson 2018.)
    """

    model: bytes = dataclasses.field(repr=False)

    def require_read(self) -> None:
        """Raises ValueError if the model is damaged."""
        self._processor  # noqa: B018

    @functools.cached_property
    def _processor(self):
        import sentencepiece

        if not self.model:
            raise ValueError('The SentencePiece model is empty; restore it, or start a new run.')
        try:
            return sentencepiece.SentencePieceProcessor(model_proto=self.model)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f'The SentencePiece model is damaged ({error}); restore it, or start a new run.') from error

    @functools.cached_property
    def _space_bytes(self) -> list[int]:
        ids = [self._processor.piece_to_id(f'<0x{byte:02X}>') for byte in SPACE.encode()]
        return ids if all(self._processor.is_byte(i) for i in ids) else []

    @property
    def vocab(self) -> int:
        return self._processor.vocab_size()

    @property
    def kind(self) -> str:
        """'bpe' or 'unigram': the scores of the first are ranks, of the second log-probabilities."""
        processor = self._processor
        ranks = all(processor.get_score(number).is_integer() for number in range(processor.vocab_size()))
        return 'bpe' if ranks else 'unigram'

    @property
    def roles(self) -> Roles:
        made = self._processor
        mask = made.piece_to_id('<mask>')
        return Roles(begin=made.bos_id(), end=made.eos_id(), pad=made.pad_id(), unknown=made.unk_id(),
                     mask=-1 if mask == made.unk_id() else mask)

    @functools.cached_property
    def sentinels(self) -> tuple[int, ...]:
        """The ids that name missing spans, in the order of their use."""
        made = self._processor
        return _sentinels(lambda sign: None if (found := made.piece_to_id(sign)) == made.unk_id() else found)

    @property
    def end(self) -> int:
        return self._processor.eos_id()

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """int32 [n] of piece ids."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts in parallel threads. Raises ValueError for half of a character."""
        plain.require_characters(texts)
        if not any(SPACE in text for text in texts) or not self._space_bytes:
            encoded = self._processor.encode(list(texts), num_threads=os.cpu_count() or 1)
            return [np.array(ids, np.int32) for ids in encoded]
        result = []
        for text in texts:
            ids = []
            for number, part in enumerate(text.split(SPACE)):
                ids += (self._space_bytes if number else []) + self._processor.encode(part)
            result.append(np.array(ids, np.int32))
        return result

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; `end` has no text, and invalid bytes become U+FFFD."""
        ids = [int(i) for i in ids]
        if outside := [i for i in ids if not 0 <= i < self.vocab]:
            raise ValueError(f'The id {outside[0]} is no token; expected ids from 0 to {self.vocab - 1}.')
        return self._processor.decode(ids)

    def piece(self, number: int) -> str:
        """An id as text for display: '<0xE4>' for a byte, '</s>' for `end`."""
        return self._processor.id_to_piece(number).replace(SPACE, ' ')

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        first = int(self.encode(text.split('\n', 1)[0] or '\n')[0])
        if self._processor.is_byte(first):
            return 1
        return len(self._processor.id_to_piece(first).replace(SPACE, ' ').encode())

    def pieces(self) -> list[tuple[str, float, str]]:
        """(piece, score, 'normal', 'user-defined' or 'special') of every id."""
        from sentencepiece import sentencepiece_model_pb2

        kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
        names = {kinds.NORMAL: 'normal', kinds.USER_DEFINED: 'user-defined'}
        proto = sentencepiece_model_pb2.ModelProto.FromString(self.model)
        return [(one.piece, one.score, names.get(one.type, 'special')) for one in proto.pieces]

    def save(self, folder: str | os.PathLike) -> None:
        plain.save(folder, 'tokenizer.model', self.model)


@dataclasses.dataclass(frozen=True)
class JsonTokenizer:
    """A tokenizer.json of the Hugging Face library `tokenizers`, given by its bytes; special tokens are not added.

    Attributes:
      stated: (role, token) of its special tokens; () if they have the usual names (data/tokenizers/roles.py).
      limit: the number of ids of a model that has fewer than the tokenizer: a text with a higher id is refused; 0: all.
      split: whether the special tokens in a text are text, and not these tokens.
    """

    contents: bytes = dataclasses.field(repr=False)
    stated: tuple[tuple[str, str], ...] = ()
    limit: int = 0
    split: bool = False

    @functools.cached_property
    def _tokenizer(self):
        import tokenizers

        try:
            made = tokenizers.Tokenizer.from_str(self.contents.decode())
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f'The tokenizer.json cannot be read ({error}); give one that `tokenizers` saved.') from error
        made.no_truncation()
        made.no_padding()
        made.encode_special_tokens = self.split
        return made

    @functools.cached_property
    def vocab(self) -> int:
        return self.limit or 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    @functools.cached_property
    def roles(self) -> Roles:
        """The roles, stated or usual. Raises ValueError for a stated token that the tokenizer lacks."""
        if not self.stated:
            named = usual(self.special, self._tokenizer.get_vocab(with_added_tokens=True))
            return Roles(**{role: self.number(sign) for role, sign in named.items() if self.number(sign) < self.vocab})
        for role, sign in self.stated:
            if (found := self.number(sign)) is None or found >= self.vocab:
                raise ValueError(f'The tokenizer.json has no token {sign!r} for {role}={sign!r}; name one that it has.')
        return Roles(**{role: self.number(sign) for role, sign in self.stated})

    @functools.cached_property
    def sentinels(self) -> tuple[int, ...]:
        """The ids that name missing spans, in the order of their use."""
        return tuple(one for one in _sentinels(self.number) if one < self.vocab)

    @property
    def end(self) -> int:
        """The id between documents, -1 for none."""
        return self.roles.of('end')

    @functools.cached_property
    def framing(self) -> str:
        """The template of the special tokens that its post_processor adds (data/text/frames.py); '' if it has none."""
        named = {id_: role for role, id_ in self.roles.named().items()}
        for role in ('begin', 'end', 'cls', 'separator'):  # a token with several roles gets the last
            named[getattr(self.roles, role)] = role
        templates = []
        for pieces in post_processor.read(self.contents) or ():
            words = []
            for piece, kind in pieces:
                word = piece if isinstance(piece, str) else named.get(piece)
                if word is None:
                    sign = self.sign(piece)
                    raise ValueError(
                        f'The tokenizer.json puts {sign!r} around texts, a token that has no role; state it, as in '
                        f'Json(cls={sign!r}), or set data.framing.'
                    )
                words.append(f'{word}:{kind}' if kind else word)
            templates.append(' '.join(words))
        return ' | '.join(templates)

    @functools.cached_property
    def added(self) -> frozenset[int]:
        """The ids of tokens that were added to the vocabulary, or marked in it."""
        return frozenset(self._tokenizer.get_added_tokens_decoder())

    @functools.cached_property
    def special(self) -> frozenset[str]:
        """The special tokens, such as '</s>' and '[MASK]'."""
        return frozenset(token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special)

    @functools.cached_property
    def lower(self) -> bool | None:
        """Whether a WordPiece of BERT lower-cases text; None for other tokenizers."""
        from tokenizers import models, normalizers

        made = self._tokenizer
        known = isinstance(made.model, models.WordPiece) and isinstance(made.normalizer, normalizers.BertNormalizer)
        return made.normalizer.lowercase if known else None

    @functools.cached_property
    def whole_words(self) -> bool:
        """Whether every token is a word."""
        from tokenizers import models

        return isinstance(self._tokenizer.model, models.WordLevel)

    @functools.cached_property
    def byte_level(self) -> bool:
        """Whether the tokens are of bytes, as GPT-2's."""
        from tokenizers import decoders

        return isinstance(self._tokenizer.decoder, decoders.ByteLevel)

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.contents + f'{self.end} {self.limit}{" split" * self.split}'.encode()).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts in parallel threads. Raises ValueError for half of a character."""
        plain.require_characters(texts)
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._within(np.array(one.ids, np.int32)) for one in encoded]

    def _within(self, ids: np.ndarray) -> np.ndarray:
        if self.limit and ids.size and ids.max() >= self.limit:
            raise ValueError(
                f'A text has {self.sign(int(ids.max()))!r}, a token that this model lacks: it takes only {self.limit:,} of '
                'the ids of its tokenizer; leave that token out.'
            )
        return ids

    def offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32 [n], ranges int32 [n, 2]): the tokens of a text, and the characters text[start:stop] of each, without
        white space at their ends. If a character takes several tokens, each has all of it."""
        plain.require_characters([text])
        found = self._tokenizer.encode(text, add_special_tokens=False)
        ranges = np.array(found.offsets, np.int32).reshape(-1, 2)
        for row, (start, stop) in enumerate(found.offsets):
            piece = text[start:stop]
            if piece != piece.strip():  # byte-level BPE and SentencePiece count the space before a word
                stripped = piece.lstrip()
                ranges[row] = stop - len(stripped), stop - len(stripped) + len(stripped.rstrip())
        return self._within(np.array(found.ids, np.int32)), ranges

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; special tokens such as `end` have no text."""
        return self._tokenizer.decode([int(i) for i in ids if i != self.end])

    def piece(self, number: int) -> str:
        """An id as text for display; the library's own sign for an id that is not text by itself."""
        sign = self.sign(number) or f'<{number}>'  # ids may have gaps
        text = sign.replace(SPACE, ' ') if SPACE in sign else self._tokenizer.decode([number], skip_special_tokens=False)
        return sign if not text or '\ufffd' in text else text

    def sign(self, number: int) -> str | None:
        """The token of an id as the library writes it; None if there is none."""
        return self._tokenizer.id_to_token(number)

    def number(self, sign: str) -> int | None:
        """The id of a token as the library writes it; None if there is none."""
        return self._tokenizer.token_to_id(sign)

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        offsets = self._tokenizer.encode(text[:1000], add_special_tokens=False).offsets
        return len(text[: offsets[0][1]].encode()) if offsets else 0

    def save(self, folder: str | os.PathLike) -> None:
        plain.save(folder, 'tokenizer.json', self.contents)


def _sentinels(number: Callable[[str], int | None]) -> tuple[int, ...]:
    """The ids of <extra_id_0>, <extra_id_1>, .., up to the first that `number` does not know."""
    return tuple(itertools.takewhile(lambda found: found is not None, (number(sentinel(i)) for i in itertools.count())))


Tokenizer = ByteTokenizer | CharTokenizer | WordTokenizer | IdTokenizer | SentencePieceTokenizer | JsonTokenizer
