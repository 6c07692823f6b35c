"""Text to token ids and back: bytes, characters, words, SentencePiece (BPE or unigram), WordPiece,
any tokenizer.json, and bare ids.

Every tokenizer has `vocab` (number of ids), `end` (the id between documents), `encode`, `encode_many`, `decode`,
`piece`, `first_bytes`, `save` and `fingerprint`; `learn` makes one from a call expression and text, `load` reads a saved one.
All but words, WordPiece, a tokenizer.json and ids give back any text exactly. A learnt WordPiece is a tokenizer.json.
"""

import collections
import dataclasses
import functools
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from data import fields, word_piece
from data import plain_tokenizers as plain
from data.plain_tokenizers import Byte, Char, Ids, Word

_SAMPLE = 4_000_000  # characters that SentencePiece learns from; more changes the pieces little and costs time
_LEAST = 260  # pieces: 256 bytes, unknown, end, line end, and one character
_LEAST_WORD_PIECE = 6  # pieces: 5 special ones and one character
_ENDS = ('<|endoftext|>', '<|end_of_text|>', '</s>', '<eos>', '[SEP]')  # of GPT-2, Llama 3, T5, Gemma, BERT
_KINDS = ('bpe', 'unigram')
_SPACE = '\u2581'  # SentencePiece's own sign for a space


@dataclasses.dataclass(frozen=True)
class SentencePiece:
    """A SentencePiece model, given by its bytes. One learnt here gives back any text exactly.

    A line end is always its own piece, so text may be encoded line by line. U+2581, SentencePiece's sign for a
    space, is written as its three bytes, or it would come back as a space. (Sennrich et al. 2016, section 3.2;
    Kudo and Richardson 2018.)
    """

    model: bytes = dataclasses.field(repr=False)

    @functools.cached_property
    def _processor(self):
        import sentencepiece

        try:
            return sentencepiece.SentencePieceProcessor(model_proto=self.model)
        except RuntimeError as error:
            raise ValueError(f'The SentencePiece model is damaged ({error}); restore it, or start a new run.') from error

    @functools.cached_property
    def _space_bytes(self) -> list[int]:
        ids = [self._processor.piece_to_id(f'<0x{byte:02X}>') for byte in _SPACE.encode()]
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
    def end(self) -> int:
        return self._processor.eos_id()

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """int32 [n] of piece ids."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts in parallel threads."""
        if not any(_SPACE in text for text in texts) or not self._space_bytes:
            encoded = self._processor.encode(list(texts), num_threads=os.cpu_count() or 1)
            return [np.array(ids, np.int32) for ids in encoded]
        result = []
        for text in texts:
            ids = []
            for number, part in enumerate(text.split(_SPACE)):
                ids += (self._space_bytes if number else []) + self._processor.encode(part)
            result.append(np.array(ids, np.int32))
        return result

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; `end` has none, and bytes that form no character become U+FFFD."""
        return self._processor.decode([int(i) for i in ids])

    def piece(self, number: int) -> str:
        """What an id stands for, to be shown: '<0xE4>' for a byte, '</s>' for `end`."""
        return self._processor.id_to_piece(number).replace(_SPACE, ' ')

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        first = int(self.encode(text.split('\n', 1)[0] or '\n')[0])
        if self._processor.is_byte(first):
            return 1
        return len(self._processor.id_to_piece(first).replace(_SPACE, ' ').encode())

    def save(self, folder: str | os.PathLike) -> None:
        plain.save(folder, 'tokenizer.model', self.model)


@dataclasses.dataclass(frozen=True)
class Json:
    """A tokenizer.json of the Hugging Face library `tokenizers`, given by its bytes; special tokens are not added.

    Attributes:
      end_token: the token between documents; '' finds the first of the usual ones that is special, or else in the vocabulary.
      limit: the ids that a model has, where the tokenizer has more: a text with one of those is refused; 0: all.
    """

    contents: bytes = dataclasses.field(repr=False)
    end_token: str = ''
    limit: int = 0

    @functools.cached_property
    def _tokenizer(self):
        import tokenizers

        try:
            made = tokenizers.Tokenizer.from_str(self.contents.decode())
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f'The tokenizer.json cannot be read ({error}); give one that `tokenizers` saved.') from error
        made.no_truncation()
        made.no_padding()
        return made

    @functools.cached_property
    def vocab(self) -> int:
        return self.limit or 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    @functools.cached_property
    def end(self) -> int:
        # The vocabularies of RoBERTa and BART hold GPT-2's <|endoftext|> too, as a piece like any other.
        special = [token for token in _ENDS if token in self.special]
        for token in [self.end_token] if self.end_token else [*special, *_ENDS]:
            if (found := self._tokenizer.token_to_id(token)) is not None:
                return found
        tried = repr(self.end_token) if self.end_token else f'none of {", ".join(_ENDS)}'
        raise ValueError(f"The tokenizer.json has {tried} as its token between documents; name one it has, Json(end='...').")

    @functools.cached_property
    def added(self) -> frozenset[int]:
        """The ids of tokens that were added to the vocabulary, or marked in it."""
        return frozenset(self._tokenizer.get_added_tokens_decoder())

    @functools.cached_property
    def special(self) -> frozenset[str]:
        """The tokens that are no text, such as '</s>' and '[MASK]'."""
        return frozenset(token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special)

    @functools.cached_property
    def lower(self) -> bool | None:
        """Whether a WordPiece of BERT takes capitals for small letters; None for other tokenizers."""
        from tokenizers import models, normalizers

        made = self._tokenizer
        known = isinstance(made.model, models.WordPiece) and isinstance(made.normalizer, normalizers.BertNormalizer)
        return made.normalizer.lowercase if known else None

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.contents + f'{self.end_token}{self.limit or ""}'.encode()).hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts in parallel threads."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._within(np.array(one.ids, np.int32)) for one in encoded]

    def _within(self, ids: np.ndarray) -> np.ndarray:
        if self.limit and ids.size and ids.max() >= self.limit:
            raise ValueError(
                f'A text has {self.sign(int(ids.max()))!r}, for which this model has nothing: it takes {self.limit:,} of the '
                'ids of its tokenizer; leave that out.'
            )
        return ids

    def offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids int32 [n], ranges int32 [n, 2]): the tokens of a text and the characters that each stands for, text[start:stop]
        without white space at its ends; of a character in several tokens each has all."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        ranges = np.array(found.offsets, np.int32).reshape(-1, 2)
        for row, (start, stop) in enumerate(found.offsets):
            piece = text[start:stop]
            if piece != piece.strip():  # byte-level BPE and SentencePiece count the space before a word
                stripped = piece.lstrip()
                ranges[row] = stop - len(stripped), stop - len(stripped) + len(stripped.rstrip())
        return self._within(np.array(found.ids, np.int32)), ranges

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; special tokens such as `end` have none."""
        return self._tokenizer.decode([int(i) for i in ids if i != self.end])

    def piece(self, number: int) -> str:
        """What an id stands for, to be shown; the library's own sign for what is no text alone."""
        sign = self.sign(number) or f'<{number}>'  # ids may have gaps
        text = sign.replace(_SPACE, ' ') if _SPACE in sign else self._tokenizer.decode([number], skip_special_tokens=False)
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


Tokenizer = Byte | Char | Word | Ids | SentencePiece | Json


def _learn_byte(texts: Iterable[str]) -> Byte:
    return Byte()


def _read_ids(texts: Iterable[str], vocab: int = 0, end: int = 0) -> Ids:
    if not 0 <= end < vocab:
        raise ValueError(f'Ids(vocab={vocab}, end={end}) names no ids; expected a vocab, and an end below it.')
    return Ids(vocab, end)


def _learn_char(texts: Iterable[str]) -> Char:
    seen = np.zeros(0x110000, bool)
    for text in texts:
        seen[plain.code_points(text)] = True
    return Char(''.join(map(chr, np.flatnonzero(seen))))


def _learn_word(texts: Iterable[str], vocab: int = 0, least: int = 1) -> Word:
    """The words that the text has `least` times or more, or the vocab - 2 most frequent of them, by falling frequency."""
    counts = collections.Counter(word for text in texts for word in text.split())
    for special in ('<unk>', '<eos>'):
        counts.pop(special, None)
    words = sorted((word for word in counts if counts[word] >= least), key=lambda word: (-counts[word], word))
    often = f' that it uses {least} times or more' if least > 1 else ''
    if vocab > 2 + len(words):
        raise ValueError(
            f'Word(vocab={vocab}) cannot be learnt from the training part: it has {len(words):,} words{often}, so vocab is at '
            f'most {2 + len(words)}, or 0 for all.'
        )
    if least > 1 and not words:
        raise ValueError(f'Word(least={least}) cannot be learnt from the training part: it has no words{often}; lower least.')
    return Word(tuple(words[: vocab - 2] if vocab else words))


def _read_json(texts: Iterable[str], path: str = '', end: str = '', vocab: int = 0) -> Json:
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r} is no file; Json(path='...') in data.tokenizer names a tokenizer.json.")
    made = Json(path.read_bytes(), end, vocab)
    made.end  # read now, so that what is wrong with it is said before anything is written  # noqa: B018
    return made


def _learn_word_piece(texts: Iterable[str], vocab: int = 30522, lower: bool = True) -> Json:
    return Json(word_piece.learn(texts, vocab, lower))


def _learn_sentence_piece(texts: Iterable[str], vocab: int = 4096, kind: str = 'bpe') -> SentencePiece:
    import sentencepiece

    lines = _sample(line for text in texts for line in text.split('\n') if line)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocab,
            model_type=kind,
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
            max_sentence_length=1 << 24,  # the default leaves out lines above 4 KB without a word
            num_threads=8,  # in the model, and the order of a unigram's sums: not the machine's
            minloglevel=2,
        )
    except RuntimeError as error:
        largest = re.search(r'<= (\d+)', str(error))
        if 'too high' in str(error) and largest:
            advice = f'this text supports at most vocab={largest[1]}.'
        elif 'smaller than required_chars' in str(error):
            advice = 'its characters and the 256 bytes alone need more; use a larger vocab.'
        elif 'sentences_.empty()' in str(error):
            advice = 'it holds nothing but line ends; give it more text.'
        else:
            advice = f'{error}.'
        raise ValueError(f'SentencePiece(vocab={vocab}) cannot be learnt from the training part: {advice}') from error
    return SentencePiece(model.getvalue())


_LEARN = {
    'Byte': _learn_byte,
    'Char': _learn_char,
    'Word': _learn_word,
    'SentencePiece': _learn_sentence_piece,
    'WordPiece': _learn_word_piece,
    'Json': _read_json,
    'Ids': _read_ids,
}
_SIGNATURES = {name: functools.partial(make, ()) for name, make in _LEARN.items()}  # without the text
NOT_LEARNT = ('Byte', 'Json', 'Ids')  # what needs no text


def parse(expression: str, field: str = 'data.tokenizer') -> tuple[str, dict[str, int | str]]:
    """Reads 'Word()', 'SentencePiece(vocab=N)' or the like into name and keywords; ValueError for anything else, that calls
    it by its field."""
    name, keywords = fields.call(expression, _SIGNATURES, field)
    vocab = keywords.get('vocab')
    if name == 'Word' and vocab and vocab < 3:
        raise ValueError(
            f'{field}={expression!r} is too small: <unk>, <eos> and one word make 3; use a larger vocab, or 0 for '
            'all words.'
        )
    if keywords.get('least', 1) < 1:
        raise ValueError(f'{field}={expression!r}: least is a count of 1 or more.')
    if name == 'SentencePiece' and vocab is not None and vocab < _LEAST:
        raise ValueError(
            f'{field}={expression!r} is too small: 256 bytes, 3 special pieces and one character make {_LEAST}; '
            'use a larger vocab.'
        )
    if name == 'WordPiece' and vocab is not None and vocab < _LEAST_WORD_PIECE:
        raise ValueError(
            f'{field}={expression!r} is too small: 5 special tokens and one character make {_LEAST_WORD_PIECE}; use a larger '
            'vocab.'
        )
    if keywords.get('kind', 'bpe') not in _KINDS:
        raise ValueError(f'{field}={expression!r}: kind is {" or ".join(map(repr, _KINDS))}.')
    return name, keywords


def learn(expression: str, texts: Iterable[str]) -> Tokenizer:
    """Makes the tokenizer that `expression` names from text given in chunks; the same text gives the same bits.

    SentencePiece sees a sample of its lines, about 4 MB. Raises ValueError for an unknown expression, or a vocabulary
    that the text cannot fill.
    """
    name, keywords = parse(expression)
    return _LEARN[name](texts, **keywords)


def load(folder: str | os.PathLike, expression: str, field: str = 'data.tokenizer') -> Tokenizer | None:
    """The tokenizer saved in a folder, None if there is none.

    Raises ValueError if it is unreadable, or not what the call expression `expression`, the value of a field, names.
    """
    name, keywords = parse(expression, field)
    saved = _load(folder, keywords.get('end', ''), keywords.get('vocab', 0) if name == 'Json' else 0)
    if saved and not _is_named(saved, expression):
        kind = f' of kind {saved.kind!r}' if isinstance(saved, SentencePiece) else ''
        if isinstance(saved, Json) and saved.lower is not None:
            kind = f', WordPiece(vocab={saved.vocab}, lower={saved.lower})'
        raise ValueError(
            f'{field}={expression!r} is not the tokenizer of {folder}, which is used with its parameters: '
            f'{type(saved).__name__} with {saved.vocab} ids{kind}; set {field} to that.'
        )
    return saved


def _is_named(tokenizer: Tokenizer, expression: str) -> bool:
    name, keywords = parse(expression)
    kind = 'Json' if name == 'WordPiece' else name
    if type(tokenizer).__name__ != kind or keywords.get('vocab', 0) not in (0, tokenizer.vocab):
        return False
    if name == 'WordPiece':
        return tokenizer.lower == keywords.get('lower', True)
    if name == 'Json':  # the file may be gone: a run has its own copy
        path = Path(keywords.get('path', '')).expanduser()
        return not path.is_file() or path.read_bytes() == tokenizer.contents
    return name != 'SentencePiece' or tokenizer.kind == keywords.get('kind', 'bpe')


def _load(folder: str | os.PathLike, end_token: str, limit: int) -> Tokenizer | None:
    model, description = Path(folder, 'tokenizer.model'), Path(folder, 'tokenizer.json')
    if model.exists():
        return SentencePiece(model.read_bytes())
    if not description.exists():
        return None
    try:
        saved = json.loads(description.read_text(encoding='utf-8'))
        made = {
            None: lambda: Json(description.read_bytes(), end_token, limit),
            'Byte': lambda: Byte(),
            'Char': lambda: Char(saved['characters']),
            'Word': lambda: Word(tuple(saved['words'])),
            'Ids': lambda: Ids(int(saved['vocab']), int(saved['end'])),
        }
        return made[saved.get('tokenizer')]()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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

