"""Text with noise, from which an encoder and a decoder learn to restore it (Raffel et al. 2020; Lewis et al. 2020).

    opened = Corrupted(path='books/', noise=SpanCorruption()).open('runs/t5')
    for batch in opened.train(seed=0): ...

Rows hold `inputs`, `segments`, `positions` [B, S] of the text with noise, and `decoder_inputs`, `decoder_segments`,
`decoder_positions`, `targets`, `weights` [B, T] of what is missing, or of the whole text, as those of data/seq2seq/parallel.py.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np

from data import epochs, fields
from data.noise import denoising as denoising  # noises that `noise` may name
from data.noise.noise import Noise
from data.noise.span_corruption import SpanCorruption
from data.noise.vocabulary import Vocabulary, closed_up
from data.sources import files as sources
from data.text import tokens
from data.text.documents import OpenDocuments, Text, saved_tokenizer
from data.text.frames import Framed, framed, parse
from data.tokenizers import unknown
from data.tokenizers.roles import sentinel
from data.tokenizers.specs import SentencePiece, TokenizerSpec
from data.tokenizers.tokenizer import Tokenizer

_TRAINING = 2  # third word of the seed of a row: pipeline.Order draws from the first two
_EVALUATION = 20191023  # seed of the noise of evaluation


@dataclasses.dataclass(frozen=True)
class Corrupted(Text):
    """Text with noise for an encoder, and for a decoder what restores it.

    Attributes are those of Text, and:
      noise: SpanCorruption(share=0.15, mean=3.0) (data/noise/span_corruption.py), or BART's (data/noise/denoising.py), one or
        several in sequence: 'PermuteSentences() >> Infill(share=0.3)'.
      framing: the special tokens around inputs and targets, as in data.seq2seq.parallel:Parallel.
      start: the first input of the decoder, an id; -1: the id that ends a target.
      unknown: what stands for an unknown word in the text; it is the tokenizer's token for these, if it has one, and never
        predicted; '': nothing does.
      packing: 'concat' (full rows: documents end to end, with the token that ends a text between them) or 'none' (a piece of
        one document a row). A stream is one document.
      length: tokens in a row of inputs, special ones included; longer inputs are cut. The rows of targets have the length that
        the noise gives them.
    """

    tokenizer: TokenizerSpec = SentencePiece(vocab=4096, sentinels=100)
    packing: str = 'concat'
    noise: Noise = SpanCorruption()
    framing: str = 't5'
    start: int = -1
    unknown: str = unknown.SIGN
    reader: str = 'transformer.readers.gaps:FilledGaps'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenCorrupted':
        """As Text.open."""
        self.check()
        return OpenCorrupted(self, saved_tokenizer(folder, source, self.tokenizer))

    def check(self) -> None:
        """Raises ValueError for field values that are invalid or do not fit together."""
        super().check()
        fields.one_of('packing', self.packing, ('concat', 'none'))
        unknown.check(self.unknown)
        if self.framing:
            parse(self.framing)


class OpenCorrupted(OpenDocuments):
    """Text with noise, with its tokenizer.

    Attributes:
      start: the first input of a decoder.  end: the id that ends inputs and targets.
      lengths: tokens in a row of inputs and in one of targets.
    """

    start: int
    end: int
    lengths: tuple[int, int]
    truncates = False
    preparation = 'raw'
    target_language = ''

    @property
    def unknown(self) -> str:
        """What stands for an unknown word in the text."""
        return self.config.unknown

    def __init__(self, config: Corrupted, tokenizer: Tokenizer | None):
        super().__init__(config, tokenizer)
        inner = framed(self.tokenizer, config.framing)
        if not -1 <= config.start < inner.vocab:
            raise ValueError(f'data.start={config.start} is no id of the tokenizer, which has {inner.vocab:,}; leave it out, '
                             'or give one of these.')
        self.end = inner.end
        self.start = self.end if config.start == -1 else config.start
        self.facts = {**self.facts, 'source_vocab': 0}
        self._before = inner.before if isinstance(inner, Framed) else ()
        around = len(self._before) + 1
        room, noise = config.length - around, config.noise
        if room < noise.least:
            raise ValueError(f'data.length={config.length} has no room for a text with noise and {around} special tokens; it '
                             f'must be {noise.least + around} or more.')
        self._raw = noise.raw(room)
        self.lengths = config.length, noise.targets(self._raw) + around
        self._vocabulary = dataclasses.replace(Vocabulary.of(self.tokenizer), end=self.end)
        self._require_tokens()

    def _require_tokens(self) -> None:
        """Raises ValueError if the noise changes nothing, or needs a token that the tokenizer lacks."""
        config, spec, found = self.config, self.config.tokenizer, self._vocabulary
        try:
            config.noise.check(self._raw)
        except ValueError as error:
            raise ValueError(f'data.noise={error}; raise its share, or data.length.') from None
        if config.noise.masks and found.mask < 0:
            raise ValueError(
                f"data.tokenizer='{spec}' has no mask, which data.noise='{config.noise}' puts in place of words; take one that "
                "has it, as SentencePiece(vocab=4096, special=('mask',))."
            )
        if (needed := config.noise.sentinels(self._raw)) > len(found.sentinels):
            raise ValueError(
                f"data.noise='{config.noise}' takes {needed} sentinels in a row of data.length={config.length}, and "
                f"data.tokenizer='{spec}' has {len(found.sentinels) or 'none'}; take one that has as many, as "
                f'SentencePiece(vocab=4096, sentinels={needed}), or lower data.length.'
            )

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known without the text."""
        from data.seq2seq import pair_packing

        return pair_packing.shapes(self.config.batch_size, self.lengths)

    def describe(self) -> str:
        """One line about the training part and the tokenizer, for the log."""
        config, meta = self.config, self._rows.store.meta
        return (
            f'{config.place}, {fields.counted(meta["documents"], "document")}, '
            f'{meta["bytes"]:,} bytes, {self._rows.counts.sum():,} tokens in '
            f'{len(self._rows):,} rows to train on; {type(config.tokenizer).__name__} vocabulary of {self.tokenizer.vocab:,}'
        )

    def prepare(self, text: str) -> str:
        """The text itself."""
        return text

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]: inputs as the model reads them, with the special tokens."""
        return np.array([*self._before, *self._read(text), self.end], np.int32)

    def _read(self, text: str) -> np.ndarray:
        """int32 [n]: the ids of a text; '<unk>' as in the text that was learnt from, masks and sentinels as in its inputs."""
        found = self._vocabulary
        text = closed_up(self.tokenizer, text, (*[found.mask] * (found.mask >= 0), *found.sentinels))
        return unknown.reading(self.tokenizer, self.unknown).encode(text)

    def encode_target(self, text: str) -> np.ndarray:
        """int32 [n]: a target, with the special tokens."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without white space at its ends; the special tokens around it have no text."""
        return self.tokenizer.decode([one for one in ids if one not in (*self._before, self.end)]).strip()

    def target_pieces(self, ids: Sequence[int]) -> list[str]:
        """Each id of a target as text for display."""
        return self.pieces(ids)

    def filled(self, text: str, ids: Sequence[int]) -> str:
        """The text with what a decoder has said to be missing. Raises ValueError for one without a sentinel that the noise
        needs."""
        given, around = self._read(text), (*self._before, self.end)
        if self.config.noise.sentinels(self._raw) and not np.isin(given, self._vocabulary.sentinels).any():
            raise ValueError(f'{text[:40]!r} has no {sentinel(0)}; write it where words are missing, and {sentinel(1)} at the '
                             'next place.')
        said = np.array([one for one in ids if one not in around], np.int32)
        return self.decode(self.config.noise.restored(given, said, self._vocabulary))

    @property
    def batches_per_epoch(self) -> float:
        """Batches that hold the training part once."""
        return len(self._rows) / self.config.batch_size

    @epochs.anew
    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch, with new noise in each; get_state and set_state
        resume exactly: a batch depends on the seed and its number alone."""
        from data import pipeline

        part, rows = self._rows, self.config.batch_size
        order = pipeline.Order(len(part), rows, seed)

        def batch(number: int) -> dict[str, np.ndarray]:
            return part.batch(order(number), [(seed, number * rows + row, _TRAINING) for row in range(rows)])

        return pipeline.numbered(batch)

    def evaluation(self, split: str, batch_size: int, **view):
        """Batches that hold every row of a split once, in order, with the same noise for every pass and every batch size.

        Args:
          split: 'train', 'valid', 'test', or an expression such as 'train[:1%]' or 'all'.
          batch_size: rows in a batch.

        Returns: an Evaluation; facts 'tokens' (those of the rows, without the special ones around them) and 'documents'.
        Raises: ValueError for an unknown or empty split, and for a view, which only text for language modelling takes.
        """
        return self._evaluate(self.config.part(split), batch_size, view)

    def score(self, paths: Sequence[str], batch_size: int, **view):
        """Like `evaluation`, over text files given by path."""
        found = [file for path in paths for file in sources.files(path, '--path', self.config.encoding)]
        return self._evaluate(sources.Split.of('all', found, self.config.documents), batch_size, view)

    def _evaluate(self, part: sources.Split, batch_size: int, view: dict):
        from data import pipeline

        self.refuse_view(view)
        found = self._of(part)
        # No 'bytes': the targets are not the text.
        facts = {'tokens': int(found.counts.sum()), 'documents': found.store.meta['documents']}
        return pipeline.Evaluation(
            len(found), batch_size, lambda numbers: found.batch(numbers, [(_EVALUATION, n) for n in numbers]), facts, part.raw
        )

    @functools.cached_property
    def _rows(self) -> 'CorruptedRows':
        return self._of(self.config.part('train'))

    def _of(self, part: sources.Split) -> 'CorruptedRows':
        """The rows of a part. Raises ValueError if there are none, and if the text has sentinels of its own."""
        config, store = self.config, tokens.load(part, unknown.reading(self.tokenizer, self.unknown))
        if config.noise.sentinels(self._raw) and len(found := np.flatnonzero(np.isin(store.ids, self._vocabulary.sentinels))):
            raise ValueError(
                f'The split {part.expression!r} has {self.tokenizer.piece(int(store.ids[found[0]]))!r} in its text, one of the '
                "sentinels of data.noise; take these out, so that the noise's own can be told apart."
            )
        starts, counts = _stretches(store, self._raw, config)
        kept = counts >= config.noise.least
        if not kept.any():
            raise ValueError(
                f"The split {part.expression!r} holds no row of {config.noise.least} tokens or more, which data.noise="
                f"'{config.noise}' takes; give it more text."
            )
        borders = store.offsets[:0] if config.documents == 'stream' else store.offsets
        return CorruptedRows(store, starts[kept], counts[kept], borders, self)

    def row(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, targets), with the special tokens around them, of a row of text with noise."""
        made = self.config.noise.corrupted(ids, rng, self._vocabulary)
        around = len(self._before) + 1
        return tuple(np.array([*self._before, *one[: length - around], self.end], np.int32)
                     for one, length in zip(made, self.lengths, strict=True))


@dataclasses.dataclass(frozen=True)
class CorruptedRows:
    """The rows of a split, as stretches of its token file.

    Attributes:
      starts, counts: [rows], the tokens of each row.
      borders: the places of the file between two documents, ascending.
      opened: adds the noise.
    """

    store: tokens.Tokens
    starts: np.ndarray
    counts: np.ndarray
    borders: np.ndarray
    opened: OpenCorrupted

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, number: int) -> np.ndarray:
        """int32: the tokens of a row, without noise, with the token that ends a text between documents."""
        return self.store.piece(self.starts[number], self.counts[number], self.borders, self.opened.end)

    def batch(self, numbers: np.ndarray, seeds: Sequence[tuple[int, ...]]) -> dict[str, np.ndarray]:
        """The batch of rows with these numbers, each with the noise of a seed."""
        from data.seq2seq import pair_packing

        opened = self.opened
        shapes = pair_packing.shapes(len(numbers), opened.lengths)
        batch = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
        for row, (number, seed) in enumerate(zip(numbers, seeds, strict=True)):
            inputs, targets = opened.row(self.text(number), np.random.default_rng(seed))
            for prefix, ids in (('', inputs), ('decoder_', targets)):
                batch[f'{prefix}segments'][row, : len(ids)] = 1
                batch[f'{prefix}positions'][row, : len(ids)] = np.arange(len(ids))
            batch['inputs'][row, : len(inputs)] = inputs
            batch['decoder_inputs'][row, : len(targets)] = [opened.start, *targets[:-1]]
            batch['targets'][row, : len(targets)] = targets
            known = (targets != opened.tokenizer.roles.unknown) | (targets == opened.end)  # GPT-2's end is both
            batch['weights'][row, : len(targets)] = known
        return batch


def _stretches(store: tokens.Tokens, room: int, config: Corrupted) -> tuple[np.ndarray, np.ndarray]:
    """(starts, counts): the places in a token file of pieces of at most `room` tokens of documents, or of all of them end to
    end; no piece begins or ends with the token between two documents."""
    from data.text import packing

    offsets, stream = store.offsets, config.documents == 'stream'
    joined = config.packing == 'concat' and not stream
    documents = packing.documents(offsets, len(store.ids), stream)
    whole = (offsets[:1] + 1, offsets[-1:] - offsets[:1] - 1) if joined else documents
    return packing.stripped(*packing.stretches(*whole, room), *documents)
