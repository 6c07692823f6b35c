"""Specs of tokenizers, such as `data.tokenizer='SentencePiece(vocab=4096)'`: each is learnt from text, or read from a file.

    made = WordPiece(vocab=8192).learn(texts)
    made.save('runs/bert')
    load('runs/bert', WordPiece(vocab=8192))

The same text gives the same bits.
"""

import abc
import collections
import dataclasses
import io
import json
import math
import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from data import remote
from data.tokenizers import plain, word_piece
from data.tokenizers.drawn import DrawnPieces, DrawnWays, DroppedMerges
from data.tokenizers.plain import ByteTokenizer, CharTokenizer, IdTokenizer, WordTokenizer
from data.tokenizers.roles import NAMES, Roles, sentinel
from data.tokenizers.tokenizer import JsonTokenizer, SentencePieceTokenizer, Tokenizer

_SAMPLE = 4_000_000  # characters that SentencePiece learns from; more change the pieces little and take time
_LONGEST = 1 << 24  # bytes of a line that SentencePiece learns from; the default silently drops lines above 4 KB
_FEW = 64  # characters that nothing can be learnt from, whatever the vocabulary
_LEAST = 260  # pieces: 256 bytes, unknown, end, line end, and one character
_LEAST_WORD_PIECE = 6  # pieces: 5 special ones and one character
_KINDS = ('bpe', 'unigram')
_SIGNS = {'begin': '<s>', 'pad': '<pad>', 'mask': '<mask>'}  # roles that SentencePiece(special=..) may add


class TokenizerSpec(abc.ABC):
    """Base of the specs, frozen dataclasses. The repr of one is the expression that names it in a config."""

    learnt = True  # from text
    draws = False  # a segmentation anew in every epoch of training

    @abc.abstractmethod
    def learn(self, texts: Iterable[str] = ()) -> Tokenizer:
        """Makes the tokenizer from text given in chunks. Raises ValueError for a vocabulary that the text cannot fill."""

    @property
    def plain(self) -> 'TokenizerSpec':
        """The spec of what is learnt, without draws."""
        return self

    @abc.abstractmethod
    def names(self, made: Tokenizer) -> bool:
        """Whether this spec may have made a tokenizer."""

    def no_more_than(self, vocab: int) -> str:
        """Advice for a text that supports no larger `vocab`."""
        fits = repr(dataclasses.replace(self, vocab=vocab))
        return f'this text supports at most vocab={vocab}; give it more text, or take --config.data.tokenizer={fits!r}'

    def __repr__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return f'{type(self).__name__}({", ".join(f"{name}={value!r}" for name, value in given)})'


@dataclasses.dataclass(frozen=True, repr=False)
class Byte(TokenizerSpec):
    """UTF-8 bytes, and a token that ends a text.

    Attributes:
      special: further roles that have a token, such as ('cls', 'mask'); see data/tokenizers/roles.py.
      sentinels: tokens that name missing spans (data/noise/span_corruption.py), the last ids.
    """

    special: tuple = ()
    sentinels: int = 0
    learnt = False

    def __post_init__(self):
        _require_sentinels(self)
        if {*self.special} - {*NAMES} or 'end' in self.special or len({*self.special}) < len(self.special):
            others = ', '.join(name for name in NAMES if name != 'end')
            raise ValueError(f'{self} has no meaning: special names some of {others}, each once.')

    def learn(self, texts: Iterable[str] = ()) -> ByteTokenizer:
        return ByteTokenizer(self.special, self.sentinels)

    def names(self, made: Tokenizer) -> bool:
        return made == self.learn()


@dataclasses.dataclass(frozen=True, repr=False)
class Char(TokenizerSpec):
    """The characters of the text."""

    def learn(self, texts: Iterable[str] = ()) -> CharTokenizer:
        seen = np.zeros(0x110000, bool)
        for text in texts:
            seen[plain.code_points(text)] = True
        return CharTokenizer(''.join(map(chr, np.flatnonzero(seen))))

    def names(self, made: Tokenizer) -> bool:
        return isinstance(made, CharTokenizer)


@dataclasses.dataclass(frozen=True, repr=False)
class Word(TokenizerSpec):
    """The words that occur at least `least` times in the text, or the vocab - 2 most frequent of them (0: all), in order of
    descending frequency."""

    vocab: int = 0
    least: int = 1

    def __post_init__(self):
        if self.vocab and self.vocab < 3:
            raise ValueError(f'{self} is too small: <unk>, <eos> and one word make 3; use a larger vocab, or 0 for all words.')
        if self.least < 1:
            raise ValueError(f'{self} has no meaning: least is a count of 1 or more.')

    def learn(self, texts: Iterable[str] = ()) -> WordTokenizer:
        counts = collections.Counter(word for text in texts for word in text.split())
        for special in ('<unk>', '<eos>'):
            counts.pop(special, None)
        words = sorted((word for word in counts if counts[word] >= self.least), key=lambda word: (-counts[word], word))
        often = f' that it uses {self.least} times or more' if self.least > 1 else ''
        if not counts:
            raise ValueError(f'{self} cannot be learnt from the training part: it holds no words; give it more text.')
        if self.vocab > 2 + len(words):
            raise ValueError(
                f'{self} cannot be learnt from the training part: it has {len(words):,} words{often}, so vocab is at '
                f'most {2 + len(words)}, or 0 for all.'
            )
        if self.least > 1 and not words:
            raise ValueError(f'{self} cannot be learnt from the training part: it has no words{often}; lower least.')
        return WordTokenizer(tuple(words[: self.vocab - 2] if self.vocab else words))

    def names(self, made: Tokenizer) -> bool:
        return isinstance(made, WordTokenizer) and self.vocab in (0, made.vocab)


@dataclasses.dataclass(frozen=True, repr=False)
class SentencePiece(TokenizerSpec):
    """Pieces of words that SentencePiece learns, `kind` 'bpe' or 'unigram', from a sample of the lines, about 4 MB.

    Attributes:
      special: further roles that have a token, of 'begin', 'pad' and 'mask'; it and the sentinels have the last ids.
      sentinels: tokens that name missing spans (data/noise/span_corruption.py), which a text may have as '<extra_id_0>'.
      dropout: of 'bpe', the probability with which training leaves out a merge, such as 0.1 (BPE-dropout).
      alpha: of 'unigram', training draws segmentations with probability P^alpha, such as 0.2 (subword regularisation); 0: it
        takes the likeliest. All but training has the usual segmentation (data/tokenizers/drawn.py).
    """

    vocab: int = 4096
    kind: str = 'bpe'
    special: tuple = ()
    sentinels: int = 0
    dropout: float = 0.0
    alpha: float = 0.0

    def __post_init__(self):
        _require_sentinels(self)
        if {*self.special} - {*_SIGNS} or len({*self.special}) < len(self.special):
            raise ValueError(f'{self} has no meaning: special names some of {", ".join(_SIGNS)}, each once.')
        if self.vocab - self._added < _LEAST:
            raise ValueError(
                f'{self} is too small: 256 bytes, {3 + self._added} special pieces and one character make '
                f'{_LEAST + self._added}; set vocab to some hundreds for a small text, to thousands for a large one.'
            )
        if self.kind not in _KINDS:
            raise ValueError(f'{self} has no meaning: kind is {" or ".join(map(repr, _KINDS))}.')
        if not 0 <= self.dropout <= 1 or (self.dropout and self.kind != 'bpe'):
            raise ValueError(f"{self} has no meaning: dropout is a probability, such as 0.1, and for kind='bpe' alone.")
        if not 0 <= self.alpha < math.inf or (self.alpha and self.kind != 'unigram'):
            raise ValueError(f"{self} has no meaning: alpha is a number, such as 0.2, and for kind='unigram' alone.")

    @property
    def draws(self) -> bool:
        """Whether training draws segmentations."""
        return bool(self.dropout or self.alpha)

    @property
    def plain(self) -> 'SentencePiece':
        """The same without draws, which does not change what is learnt."""
        return dataclasses.replace(self, dropout=0.0, alpha=0.0)

    def drawn(self, made: SentencePieceTokenizer, seed: str) -> DrawnPieces:
        """The tokenizer that draws segmentations, which depend on a seed."""
        return DroppedMerges(made.model, seed, self.dropout) if self.dropout else DrawnWays(made.model, seed, self.alpha)

    @property
    def _added(self) -> int:
        """The number of tokens that no text teaches."""
        return len(self.special) + self.sentinels

    def learn(self, texts: Iterable[str] = ()) -> SentencePieceTokenizer:
        import sentencepiece

        lines = _sample(line for text in texts for line in text.split('\n') if line)
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                vocab_size=self.vocab - self._added,
                model_type=self.kind,
                byte_fallback=True,
                split_digits=True,
                normalization_rule_name='identity',
                add_dummy_prefix=False,
                remove_extra_whitespaces=False,
                allow_whitespace_only_pieces=True,
                user_defined_symbols=['\n'],
                unk_id=0,
                eos_id=1,
                bos_id=-1,
                pad_id=-1,
                max_sentence_length=_LONGEST,
                num_threads=8,  # not the number of cores: it is stored in the model and orders a unigram's sums
                minloglevel=2,
            )
        except RuntimeError as error:
            size = sum(map(len, lines))
            if 0 < size < _FEW:
                raise ValueError(f'{self} cannot be learnt from the training part: it has {size} characters, too few to train '
                                 'on; give it more text.') from error
            largest = re.search(r'<= (\d+)', str(error))
            if 'too high' in str(error) and largest:
                advice = f'{self.no_more_than(int(largest[1]) + self._added)}.'
            elif 'smaller than required_chars' in str(error):
                advice = 'its characters and the 256 bytes alone need more; use a larger vocab.'
            elif any(check in str(error) for check in ('sentences_.empty()', '(all_chars_count) > (0)')):
                if any(len(line.encode()) > _LONGEST for line in lines):
                    advice = (f'it holds a line of more than {_LONGEST >> 20} MB, and SentencePiece leaves such lines out; '
                              'break it into lines.')
                else:
                    signs = {'\0': ' and NUL characters', '\u2585': ' and lines with U+2585'}
                    held = ''.join(what for sign, what in signs.items() if any(sign in line for line in lines))
                    advice = f'it holds nothing but line ends{held}, which SentencePiece leaves out; give it more text.'
            else:
                advice = f'{error}.'
            raise ValueError(f'{self} cannot be learnt from the training part: {advice}') from error
        return SentencePieceTokenizer(self._with_added(model.getvalue()))

    def _with_added(self, model: bytes) -> bytes:
        """The model with the special tokens and the sentinels as its last pieces."""
        if not self._added:
            return model
        from sentencepiece import sentencepiece_model_pb2

        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        kinds = proto.SentencePiece
        signs = [_SIGNS[role] for role in self.special]
        for sign in (*signs, *(sentinel(i) for i in reversed(range(self.sentinels)))):
            kind = kinds.CONTROL if sign in ('<s>', '<pad>') else kinds.USER_DEFINED  # read from texts
            proto.pieces.add(piece=sign, score=0.0, type=kind)
        return proto.SerializeToString(deterministic=True)

    def names(self, made: Tokenizer) -> bool:
        if not isinstance(made, SentencePieceTokenizer):
            return False
        special = {role for role in _SIGNS if getattr(made.roles, role) >= 0}
        return (made.vocab, made.kind, len(made.sentinels), special) == (
            self.vocab, self.kind, self.sentinels, {*self.special})


@dataclasses.dataclass(frozen=True, repr=False)
class WordPiece(TokenizerSpec):
    """BERT's word pieces, learnt by merging; `lower` lower-cases text and strips accents.

    Attributes:
      sentinels: tokens that name missing spans (data/noise/span_corruption.py), the last ids.
    """

    vocab: int = 30522
    lower: bool = True
    sentinels: int = 0

    def __post_init__(self):
        _require_sentinels(self)
        if self.vocab - self.sentinels < _LEAST_WORD_PIECE:
            raise ValueError(
                f'{self} is too small: {5 + self.sentinels} special tokens and one character make '
                f'{_LEAST_WORD_PIECE + self.sentinels}; use a larger vocab.'
            )

    def learn(self, texts: Iterable[str] = ()) -> JsonTokenizer:
        return JsonTokenizer(word_piece.learn(texts, self))

    def names(self, made: Tokenizer) -> bool:
        return isinstance(made, JsonTokenizer) and (made.vocab, made.lower, len(made.sentinels)) == (
            self.vocab, self.lower, self.sentinels)


@dataclasses.dataclass(frozen=True, repr=False)
class Json(TokenizerSpec):
    """A tokenizer.json of the Hugging Face library `tokenizers`, as it is, and the roles of its special tokens.

    Attributes:
      path: the file; '' in a run that has a copy of it.
      vocab: the number of ids of a model that has fewer than the tokenizer: a text with a higher id is refused; 0: all.
      begin, end, pad, cls, separator, mask, unknown: the token that has this role, '' for none. If no role is stated,
        tokens with a usual name have its role ('<|endoftext|>', '</s>', '[CLS]', .., see data/tokenizers/roles.py).
      split: whether the special tokens in a text are text (split_special_tokens in tokenizer_config.json).
    """

    path: str = ''
    vocab: int = 0
    begin: str = ''
    end: str = ''
    pad: str = ''
    cls: str = ''
    separator: str = ''
    mask: str = ''
    unknown: str = ''
    split: bool = False
    learnt = False

    @property
    def stated(self) -> tuple[tuple[str, str], ...]:
        """(role, token) of the stated roles."""
        return tuple((role, getattr(self, role)) for role in NAMES if getattr(self, role))

    def learn(self, texts: Iterable[str] = ()) -> JsonTokenizer:
        """Reads the file. Raises FileNotFoundError, and ValueError for one that cannot be read or lacks a token."""
        path = Path(remote.local(self.path))
        if not path.is_file():
            raise FileNotFoundError(f"{str(path)!r} is no file; Json(path='...') in data.tokenizer names a tokenizer.json.")
        made = JsonTokenizer(path.read_bytes(), self.stated, self.vocab, self.split)
        made.roles  # raises here if a token is missing, before anything is written  # noqa: B018
        return made

    def names(self, made: Tokenizer) -> bool:
        if not isinstance(made, JsonTokenizer) or self.vocab not in (0, made.vocab):
            return False
        try:
            path = Path(remote.local(self.path))
        except (OSError, ValueError):  # it may be gone: a run has its own copy
            return True
        return not path.is_file() or path.read_bytes() == made.contents


@dataclasses.dataclass(frozen=True, repr=False)
class Ids(TokenizerSpec):
    """Ids in place of text, as numbers between spaces.

    Attributes:
      vocab: number of ids.
      begin, end, pad, cls, separator, mask, unknown: the id that has this role, -1 for none.
    """

    vocab: int
    begin: int = -1
    end: int = -1
    pad: int = -1
    cls: int = -1
    separator: int = -1
    mask: int = -1
    unknown: int = -1
    learnt = False

    def __post_init__(self):
        if self.vocab < 1 or not all(-1 <= getattr(self, role) < self.vocab for role in NAMES):
            raise ValueError(f'{self} names no ids; expected a vocab, and roles of ids below it, -1 for none.')

    @property
    def roles(self) -> Roles:
        return Roles(**{role: getattr(self, role) for role in NAMES})

    def learn(self, texts: Iterable[str] = ()) -> IdTokenizer:
        return IdTokenizer(self.vocab, self.roles)

    def names(self, made: Tokenizer) -> bool:
        return made == self.learn()


def _require_sentinels(spec: TokenizerSpec) -> None:
    if spec.sentinels < 0:
        raise ValueError(f'{spec} has no meaning: sentinels is a count of 0 or more, such as 100.')


def load(folder: str | os.PathLike, spec: TokenizerSpec, field: str = 'data.tokenizer') -> Tokenizer | None:
    """The tokenizer saved in a folder, None if there is none.

    Raises ValueError if it is unreadable, or does not fit `spec`, the value of the config field `field`.
    """
    saved = _saved(folder, spec)
    if saved and not spec.names(saved):
        raise ValueError(
            f"{field}='{spec}' is not the tokenizer of {folder}, which is used with its parameters: {_expression(saved)} with "
            f'{saved.vocab} ids; set {field} to that.'
        )
    return saved


def _expression(made: Tokenizer) -> str:
    """A call expression that names a tokenizer."""
    match made:
        case SentencePieceTokenizer():
            special = tuple(role for role in _SIGNS if getattr(made.roles, role) >= 0)
            more = ''.join(f', {name}={value!r}' for name, value in (
                ('special', special), ('sentinels', len(made.sentinels))) if value)
            return f'SentencePiece(vocab={made.vocab}, kind={made.kind!r}{more})'
        case JsonTokenizer() if made.lower is None:
            return 'Json()'
        case JsonTokenizer():
            more = f', sentinels={len(made.sentinels)}' if made.sentinels else ''
            return f'WordPiece(vocab={made.vocab}, lower={made.lower}{more})'
        case IdTokenizer():
            return f'Ids(vocab={made.vocab})'
        case ByteTokenizer():
            return repr(Byte(made.special, made.count))
    return f'{type(made).__name__.removesuffix("Tokenizer")}()'


def _saved(folder: str | os.PathLike, spec: TokenizerSpec) -> Tokenizer | None:
    model, description = Path(folder, 'tokenizer.model'), Path(folder, 'tokenizer.json')
    if model.exists():
        made = SentencePieceTokenizer(model.read_bytes())
        try:
            made.require_read()
        except ValueError as error:
            raise ValueError(f'{model}: {error}') from error
        return made
    if not description.exists():
        return None
    more = (spec.stated, spec.vocab, spec.split) if isinstance(spec, Json) else ()
    try:
        saved = json.loads(description.read_text(encoding='utf-8'))
        made = {
            None: lambda: JsonTokenizer(description.read_bytes(), *more),
            'Byte': lambda: ByteTokenizer(tuple(saved['special']), int(saved['sentinels'])),
            'Char': lambda: CharTokenizer(saved['characters']),
            'Word': lambda: WordTokenizer(tuple(saved['words'])),
            'Ids': lambda: IdTokenizer(int(saved['vocab']), spec.roles if isinstance(spec, Ids) else Roles()),
        }
        return made[saved.get('tokenizer')]()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f'{description} is no saved tokenizer; restore it, or start a new run.') from error


def _sample(lines: Iterable[str]) -> list[str]:
    """At most _SAMPLE characters of lines, spread evenly: a line is kept if a hash of its number is low enough."""
    kept, size, limit = [], 0, 1 << 32
    for number, line in enumerate(lines):
        rank = zlib.crc32(number.to_bytes(8, 'little'))
        if rank < limit:
            kept.append((rank, line))
            size += len(line)
            while size > _SAMPLE and len(kept) > 1:
                limit = limit * 7 // 8
                kept = [pair for pair in kept if pair[0] < limit] or kept[:1]
                size = sum(len(line) for _, line in kept)
    return [line for _, line in kept]

