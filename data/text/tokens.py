"""Tokenized text in the cache: one memory-mapped file of ids and the places where documents begin.

A document d_0..d_{n-1} is stored as `d_0 .. d_{n-1} end`, and one `end` stands before the first. The pair
(inputs, targets) of document i is then ids[o_i : o_{i+1}], ids[o_i + 1 : o_{i+1} + 1] with o = offsets: the `end` of
one document is the first input of the next, unless `Tokens.begin` takes its place there. A stream has no `end` and counts as
one document with n - 1 targets.
"""

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data import cache
from data.sources import files as sources
from data.tokenizers import specs
from data.tokenizers.tokenizer import Tokenizer
from display import progress

_FORMAT = 1  # part of every key: a new layout or tokenization makes new entries
_BATCH = 1 << 22  # characters encoded at once


@dataclasses.dataclass(frozen=True)
class Tokens:
    """An entry of the token cache. Only its path is pickled, so worker processes map the same pages.

    Attributes:
      begin: the first input of a document, if that is not the `end` of the document before it; else -1.
    """

    folder: Path
    begin: int = -1

    @functools.cached_property
    def meta(self) -> dict[str, int]:
        """'tokens' (targets), 'bytes' (of the text these cover), 'documents', 'ids' (in the file), 'width' (bytes)."""
        return json.loads((self.folder / 'meta.json').read_text())

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """uint16 or uint32 [ids], mapped."""
        mapped = np.memmap(self.folder / 'ids.bin', np.dtype(f'<u{self.meta["width"]}'), 'r')
        return mapped.view(np.ndarray)  # plain indexing, without the subclass's cost

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """int64 [documents + 1]."""
        return np.load(self.folder / 'offsets.npy')

    def mapped(self) -> 'Tokens':
        """These tokens, which need their folder no longer in this process."""
        self.meta, self.ids, self.offsets  # noqa: B018
        return self

    def inputs(self, places: np.ndarray) -> np.ndarray:
        """The input ids at some places of the file, where documents begin with `begin`."""
        ids, first = self.ids[places], self.offsets[:-1]
        if self.begin < 0:
            return ids
        # Not np.isin, which sorts the offsets of all documents each time.
        return np.where(first.searchsorted(places) < first.searchsorted(places, 'right'), self.begin, ids)

    def piece(self, start: int, count: int, borders: np.ndarray, end: int) -> np.ndarray:
        """int32 [count]: the ids of a stretch of the file, with the id `end` at `borders`, ascending places of the file."""
        ids = self.ids[start : start + count].astype(np.int32)
        first, last = borders.searchsorted((start, start + count))
        ids[borders[first:last] - start] = end
        return ids

    def __getstate__(self):
        return {'folder': self.folder, 'begin': self.begin}


def load(part: sources.Split, tokenizer: Tokenizer) -> Tokens:
    """The tokens of a part, from the cache or encoded into it; those of a tokenizer without a fingerprint, which draws
    them, are encoded into a file that is gone when it is used no longer. Raises what reading the text raises."""
    name = cache.key(_FORMAT, part.digest, part.documents, tokenizer.fingerprint)
    begin = -1 if part.documents == 'stream' or tokenizer.roles.begin == tokenizer.end else tokenizer.roles.begin
    build = lambda folder: _build(folder, part, tokenizer)
    if not tokenizer.fingerprint:
        return cache.scratch(build, lambda folder: Tokens(folder, begin).mapped())
    return Tokens(cache.entry('tokens', name, build, _intact), begin)


def learn(part: sources.Split, spec: specs.TokenizerSpec, without: str = '', field: str = 'data.tokenizer') -> Tokenizer:
    """The tokenizer that a spec, the value of the config field `field`, names, learnt from a part unless the cache holds it;
    `without`: a sign that is left out."""
    if not spec.learnt:
        return spec.learn()
    key = cache.key(_FORMAT, part.digest, repr(spec.plain), *filter(None, [without]))

    def build(folder: Path) -> None:
        spec.learn(chunk.replace(without, '') if without else chunk for chunk, _ in part.chunks()).save(folder)

    try:
        entry = cache.entry('tokenizers', key, build, lambda folder: any(folder.glob('tokenizer.*')))
    except ValueError as error:
        raise ValueError(str(error).replace('--config.data.tokenizer=', f'--config.{field}=')) from error
    return specs.load(entry, spec)


def _build(folder: Path, part: sources.Split, tokenizer: Tokenizer) -> None:
    stream, end = part.documents == 'stream', max(0, tokenizer.end)  # 0 is a placeholder if the tokenizer has none
    width = 2 if tokenizer.vocab <= 1 << 16 else 4
    offsets, count, size, skipped = [0], 0, 0, 0
    with open(folder / 'ids.bin', 'wb') as file, progress.waiting('tokenizing the text', unit='million characters') as advance:

        def write(ids: np.ndarray) -> int:
            file.write(ids.astype(f'<u{width}').tobytes())
            return len(ids)

        if not stream:
            count = write(np.array([end]))
        batches = ((one.documents == 'line', *batch) for one in _parts(part) for batch in _batches(one.chunks()))
        for lines, texts, ends in batches:
            if stream and not count:
                skipped = tokenizer.first_bytes(texts[0])
            for text, ids, ends_here in zip(texts, tokenizer.encode_many(texts), ends, strict=True):
                count += write(ids)
                size += len(text.encode()) + lines  # the end of a line, as in `raw`
                if ends_here:
                    count += write(np.array([end]))
                    offsets.append(count - 1)
                advance(len(text) / 1e6)
    if stream:
        offsets.append(count - 1)
    if size - skipped <= 0 or count < 2:  # the first token of a stream is not predicted
        raise ValueError(f'The split {part.expression!r} holds no text to predict; give it more text.')
    np.save(folder / 'offsets.npy', np.array(offsets, np.int64))
    meta = {'tokens': count - 1, 'bytes': size - skipped, 'documents': len(offsets) - 1, 'ids': count, 'width': width}
    (folder / 'meta.json').write_text(json.dumps(meta))


def _intact(folder: Path) -> bool:
    try:
        tokens = Tokens(folder)
        size = (folder / 'ids.bin').stat().st_size
        whole = size == tokens.meta['ids'] * tokens.meta['width'] and len(tokens.offsets) == tokens.meta['documents'] + 1
        return whole and tokens.meta['tokens'] > 0
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return False


def _parts(part: sources.Split | sources.Joined) -> list[sources.Split]:
    """The parts of one that is joined; else itself."""
    return [one for inner in part.parts for one in _parts(inner)] if isinstance(part, sources.Joined) else [part]


def _batches(chunks: Iterator[tuple[str, bool]]) -> Iterator[tuple[list[str], list[bool]]]:
    texts, ends, size = [], [], 0
    for text, end in chunks:
        texts.append(text)
        ends.append(end)
        size += len(text) + 1
        if size >= _BATCH:
            yield texts, ends
            texts, ends, size = [], [], 0
    if texts:
        yield texts, ends
