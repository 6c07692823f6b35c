"""Text to token ids and back, exactly: bytes, characters, and SentencePiece byte-pair encoding.

Every tokenizer has `vocab` (number of ids), `end` (the id between documents), `encode`, `encode_many`, `decode`,
`first_bytes`, `save` and `fingerprint`; `learn` makes one from a call expression and text, `load` reads a saved one.
"""

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

from data import cache, fields

_SAMPLE = 4_000_000  # characters that SentencePiece learns from; more changes the pieces little and costs time
_LEAST = 260  # pieces: 256 bytes, unknown, end, line end, and one character
_SPACE = '\u2581'  # SentencePiece's own sign for a space


@dataclasses.dataclass(frozen=True)
class Byte:
    """UTF-8 bytes as ids 0..255; `end` is 256."""

    vocab = 257
    end = 256

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(b'byte').hexdigest()

    def encode(self, text: str) -> np.ndarray:
        """int32 [n], n the number of UTF-8 bytes."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; `end` has none, and bytes that form no character become U+FFFD."""
        return bytes(int(i) for i in ids if 0 <= i < 256).decode(errors='replace')

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        return 1

    def save(self, folder: str | os.PathLike) -> None:
        _save(folder, 'tokenizer.json', json.dumps({'tokenizer': 'Byte'}).encode())


@dataclasses.dataclass(frozen=True)
class Char:
    """Unicode characters: 0 is any character not seen in learning, 1 is `end`, then the learnt ones in order."""

    characters: str
    end = 1

    @property
    def vocab(self) -> int:
        return 2 + len(self.characters)

    @functools.cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(b'char' + self.characters.encode()).hexdigest()

    @functools.cached_property
    def _ids(self) -> np.ndarray:
        table = np.zeros(0x110000, np.int32)
        table[_code_points(self.characters)] = np.arange(2, self.vocab)
        return table

    def encode(self, text: str) -> np.ndarray:
        """int32 [n], n the number of characters."""
        return self._ids[_code_points(text)]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids; `end` has none and an unknown character is U+FFFD."""
        return ''.join(self.characters[i - 2] if 2 <= i < self.vocab else '\ufffd' for i in ids if i != self.end)

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        return len(text[0].encode())

    def save(self, folder: str | os.PathLike) -> None:
        _save(folder, 'tokenizer.json', json.dumps({'tokenizer': 'Char', 'characters': self.characters}).encode())


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

    def first_bytes(self, text: str) -> int:
        """Bytes of `text` that its first token covers."""
        first = int(self.encode(text.split('\n', 1)[0] or '\n')[0])
        if self._processor.is_byte(first):
            return 1
        return len(self._processor.id_to_piece(first).replace(_SPACE, ' ').encode())

    def save(self, folder: str | os.PathLike) -> None:
        _save(folder, 'tokenizer.model', self.model)


Tokenizer = Byte | Char | SentencePiece


def _learn_byte(texts: Iterable[str]) -> Byte:
    return Byte()


def _learn_char(texts: Iterable[str]) -> Char:
    seen = np.zeros(0x110000, bool)
    for text in texts:
        seen[_code_points(text)] = True
    return Char(''.join(map(chr, np.flatnonzero(seen))))


def _learn_sentence_piece(texts: Iterable[str], vocab: int = 4096) -> SentencePiece:
    import sentencepiece

    lines = _sample(line for text in texts for line in text.split('\n') if line)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocab,
            model_type='bpe',
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
            num_threads=min(os.cpu_count() or 1, 16),
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


_LEARN = {'Byte': _learn_byte, 'Char': _learn_char, 'SentencePiece': _learn_sentence_piece}


def parse(expression: str) -> tuple[str, dict[str, int]]:
    """Reads 'Byte()', 'Char()' or 'SentencePiece(vocab=N)' into name and keywords; ValueError for anything else."""
    signatures = {'Byte': lambda: None, 'Char': lambda: None, 'SentencePiece': lambda vocab=4096: None}
    name, keywords = fields.call(expression, signatures, 'data.tokenizer')
    if keywords.get('vocab', _LEAST) < _LEAST:
        raise ValueError(
            f'data.tokenizer={expression!r} is too small: 256 bytes, 3 special pieces and one character make {_LEAST}; '
            'use a larger vocab.'
        )
    return name, keywords


def learn(expression: str, texts: Iterable[str]) -> Tokenizer:
    """Makes the tokenizer that `expression` names from text given in chunks; the same text gives the same bits.

    SentencePiece sees a sample of its lines, about 4 MB. Raises ValueError for an unknown expression, or a vocabulary
    that the text cannot fill.
    """
    name, keywords = parse(expression)
    return _LEARN[name](texts, **keywords)


def load(folder: str | os.PathLike) -> Tokenizer | None:
    """The tokenizer saved in a folder, None if there is none; ValueError if it is unreadable."""
    model, description = Path(folder, 'tokenizer.model'), Path(folder, 'tokenizer.json')
    if model.exists():
        return SentencePiece(model.read_bytes())
    if not description.exists():
        return None
    try:
        fields = json.loads(description.read_text(encoding='utf-8'))
        return Byte() if fields['tokenizer'] == 'Byte' else Char(fields['characters'])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{description} is no saved Byte or Char tokenizer; restore it, or start a new run.') from error


def _save(folder: str | os.PathLike, name: str, contents: bytes) -> None:
    cache.write(Path(folder, name), contents)


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


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), np.uint32)
