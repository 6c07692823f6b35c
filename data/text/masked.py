"""Masked language modelling: words of a text are masked and predicted (Devlin et al. 2019; Liu et al. 2019).

    opened = Masked(path='books/', tokenizer=WordPiece(vocab=8192)).open('runs/bert')
    for batch in opened.train(seed=0): ...

A row is a piece of text between its special tokens, or two pieces and whether the second follows the first. Batches hold
`inputs`, `segments` (0 = padding, else 1), `positions`, `types`, each [B, T] int32; `masked` [B, M] int32, the places to
predict in ascending order, with `targets` [B, M] int32 and `weights` [B, M] float32; and with next_sentence `label` [B] int32.
Unused places of the M have masked 0, target 0 and weight 0.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Sequence

import numpy as np

from data.sources import files as sources
from data.text import frames, tokens
from data.text.documents import OpenDocuments, Text, saved_tokenizer
from data.text.frames import Frame, parse
from data.tokenizers.specs import TokenizerSpec, WordPiece
from data.tokenizers.tokenizer import JsonTokenizer, Tokenizer

_TRAINING = 1  # third word of the seed of a batch: pipeline.Order draws from the first two
_EVALUATION = 20190602  # seed of the masks of evaluation
_BLOCK = 4096  # rows planned at once
_CHOICES = 4  # random numbers for two pieces: whether they follow, where to cut, which other document, where in it


@dataclasses.dataclass(frozen=True)
class Masked(Text):
    """Text with masked words.

    Of the ordinary tokens of a row, those that are not special, max(1, round(share * count)) are predicted, drawn anew each
    time: 80 % are replaced by the mask, 10 % by a random ordinary token of the vocabulary, and 10 % are kept (Devlin et al.
    2019, section 3.1, task 1; Liu et al. 2019, section 4.1, dynamic masking).

    With next_sentence a row is a piece of a document, cut in two at a random place. With probability 1/2 the second part is
    replaced by as many tokens from a random place of another document (fewer if that is shorter). label 0 = follows, 1 = does
    not (Devlin et al. 2019, section 3.1, task 2; Lan et al. 2019, section 3.1, on its use). A piece of one token cannot be
    cut, and is left out.

    Attributes are those of Text, and:
      framing: the special tokens around a text or two, a template or its name (data/text/frames.py); '': the framing of the
        tokenizer.
      share: the share of the tokens to predict, above 0 and at most 1.
      next_sentence: whether rows are two pieces.
      packing: 'concat' (full rows: documents end to end, with the token that ends a text between them; Liu et al. 2019,
        section 4.2, FULL-SENTENCES) or 'none' (a piece of one document a row, which next_sentence requires). A stream is one
        document.
      length: tokens in a row, special ones included.
    """

    tokenizer: TokenizerSpec = WordPiece(vocab=4096)
    packing: str = 'concat'
    framing: str = ''
    share: float = 0.15
    next_sentence: bool = False
    reader: str = 'transformer.readers.masked:FilledMasks'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenMasked':
        """As Text.open."""
        self.check()
        return OpenMasked(self, saved_tokenizer(folder, source, self.tokenizer))

    def check(self) -> None:
        """Raises ValueError for field values that are invalid or do not fit together."""
        super().check()
        if self.framing:
            parse(self.framing)
        if not 0 < self.share <= 1:
            raise ValueError(f'data.share={self.share} is out of range; it is the share of tokens to predict, such as 0.15.')
        if self.packing == 'first_fit':
            raise ValueError(
                "data.packing='first_fit' is not for masked text; set it to 'concat', full rows of one or more documents, or "
                "'none', a piece of one document a row."
            )
        if self.next_sentence and self.packing != 'none':
            raise ValueError(
                f"data.next_sentence puts two pieces in a row, but data.packing={self.packing!r} joins documents; set "
                "data.packing='none'."
            )
        if self.next_sentence and self.documents == 'stream':
            raise ValueError(
                "data.next_sentence takes pieces of other documents, but data.documents='stream' has one; set it to 'file' or "
                "'line'."
            )


class OpenMasked(OpenDocuments):
    """Masked text with its tokenizer.

    Attributes:
      frame: the special tokens around a text.
      length: tokens in a row.
      next_sentence: whether rows are two texts.
    """

    frame: Frame
    length: int
    next_sentence: bool
    needs_end = False  # the frame has one

    def __init__(self, config: Masked, tokenizer: Tokenizer | None):
        super().__init__(config, tokenizer)
        self.frame = Frame.of(config.framing, self.tokenizer)
        self.length, self.next_sentence = config.length, config.next_sentence
        self.frame.room(config.length, config.next_sentence)  # refuses rows without room for text
        self.facts = {**self.facts, 'types': self.frame.types}

    def _require_tokens(self) -> None:
        """Raises ValueError if a special token that training and evaluation need is missing; a run that was converted from
        Hugging Face may lack some."""
        config, frame = self.config, self.frame
        if frame.mask < 0 or frame.mask in [one for one, _ in (*frame.single, *frame.pair)]:
            raise ValueError(
                f"data.tokenizer='{config.tokenizer}' states no mask of its own, the token that replaces words to predict; "
                "state it, as in Json(path='tokenizer.json', mask='<mask>') or Ids(vocab=30522, mask=103)."
            )
        if frame.end < 0 and config.packing == 'concat' and config.documents != 'stream':
            raise ValueError(
                f'data.framing={config.framing!r} has no token behind a text, which data.packing=\'concat\' puts between two; '
                "choose another framing, or set data.packing='none'."
            )
        if config.next_sentence and frame.types == 1 and [one for one, _ in frame.pair][-2:] == ['a', 'b']:
            raise ValueError(
                f'data.framing={config.framing!r} does not tell two texts apart, but data.next_sentence puts two in a row; '
                'choose another framing.'
            )

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known without the text."""
        batch, most = self.config.batch_size, self._masking.most
        shapes = dict.fromkeys(('inputs', 'segments', 'positions', 'types'), ((batch, self.config.length), np.int32))
        shapes |= {'masked': ((batch, most), np.int32), 'targets': ((batch, most), np.int32)}
        shapes |= {'weights': ((batch, most), np.float32)}
        return shapes | ({'label': ((batch,), np.int32)} if self.config.next_sentence else {})

    def describe(self) -> str:
        """One line about the training part and the tokenizer, for the log."""
        config, meta = self.config, self._rows.store.meta
        return (
            f'{config.origin} {config.name or config.path}'.strip()
            + f', {meta["documents"]:,} documents, {meta["bytes"]:,} bytes, {self._rows.ordinary.sum():,} tokens in '
            f'{len(self._rows):,} rows to train on; {type(config.tokenizer).__name__} vocabulary of {self.tokenizer.vocab:,}'
        )

    def read_masked(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids, types, places), int32 [n], [n] and [masks]: a text with masks, framed, and the places of the masks.

        A mask is written as the tokenizer's token: '[MASK]', '<mask>', or its number for bare ids.
        Raises ValueError for a text without one, and for one that is longer than a row.
        """
        self._require_tokens()
        frame, sign = self.frame, self.tokenizer.piece(self.frame.mask)
        if frame.mask not in self.encode(text.strip()):
            if frame.mask not in self.encode(sign):
                raise ValueError(
                    f'The tokenizer of this run does not read {sign} as its token {frame.mask}, the mask, so that no text can '
                    'ask for words; train with a tokenizer.json that has it among its added tokens.'
                )
            raise ValueError(f'{_about(text)} has no {sign}; write it where a word is to be found.')
        ids, types = self.framed(text)
        return ids, types, np.flatnonzero(ids == frame.mask).astype(np.int32)

    def framed(self, *texts: str) -> tuple[np.ndarray, np.ndarray]:
        """(ids, types), int32 [n], of one text or of two, framed; masks may be in them.

        Raises ValueError for texts without tokens, and for those that are longer than a row.
        """
        encoded = [self.encode(text.strip()) for text in texts]
        if not all(map(len, encoded)):
            raise ValueError(f'{_about(*texts)} has no tokens; give {"two texts" if len(texts) > 1 else "a text"}.')
        ids, types = self.frame.framed(*encoded)
        if len(ids) > self.config.length:
            raise ValueError(
                f'{_about(*texts)} has {len(ids)} tokens with the special ones, and a row of this run {self.config.length}; '
                'shorten it.'
            )
        return ids, types

    def in_place(self, text: str, mask: int, word: str) -> np.ndarray:
        """int32 [n]: the tokens of a word that stands in place of a mask of a text, the first one being mask 0.

        Raises ValueError for a word without tokens or with special ones, and for one that joins the words around it.
        """
        sign, found = self.tokenizer.piece(self.frame.mask), self.encode(word)
        if isinstance(self.tokenizer, JsonTokenizer):  # others have the same tokens wherever a word stands
            ids, parts = self.encode(text.strip()), text.strip().split(sign)
            place = np.flatnonzero(ids == self.frame.mask)[mask]
            whole = self.encode(sign.join(parts[: mask + 1]) + word + sign.join(parts[mask + 1 :]))
            stop = len(whole) - (len(ids) - place - 1)
            if stop < place or [*whole[:place], *whole[stop:]] != [*ids[:place], *ids[place + 1 :]]:
                raise ValueError(
                    f'{word!r} has no tokens of its own in place of {sign}: it joins a word or a space beside it; write that '
                    'differently.'
                )
            found = whole[place:stop]
        if not len(found):
            raise ValueError(f'{word!r} has no tokens; give a word.')
        if others := {*found.tolist()} & {*self.frame.special, self.tokenizer.roles.unknown}:
            raise ValueError(f'{word!r} has the token {self.tokenizer.piece(min(others))}, which is no word; give another.')
        return found

    def filled(self, text: str, ids: Sequence[int]) -> str:
        """The text with these tokens in place of its masks."""
        if not (isinstance(self.tokenizer, JsonTokenizer) and self.tokenizer.lower is not None):  # not BERT's: reversible
            found = self.encode(text.strip())
            found[found == self.frame.mask] = ids
            return self.decode(found).strip()
        found, *rest = text.strip().split(self.tokenizer.piece(self.frame.mask))
        for piece, after in zip(self.pieces(ids), rest):
            goes_on = piece.startswith('##')  # it continues the word before it
            found = (found.rstrip() if goes_on else found) + piece.removeprefix('##') + after
        return found

    def rows(self, framed: Sequence[tuple[np.ndarray, np.ndarray]], length: int) -> dict[str, np.ndarray]:
        """inputs, segments (0 = padding), positions and types, int32 [rows, length], of the (ids, types) of each row."""
        return frames.rows(framed, length)

    @property
    def batches_per_epoch(self) -> float:
        """Batches that hold the training part once."""
        return len(self._rows) / self.config.batch_size

    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch; get_state and set_state resume exactly."""
        from data import pipeline

        part = self._rows
        order = pipeline.Order(len(part), self.config.batch_size, seed)

        def batch(number: int) -> dict[str, np.ndarray]:
            chosen = order(number)
            return part.batch(chosen, np.random.default_rng([seed, number, _TRAINING]).random((len(chosen), part.width)))

        return pipeline.numbered(batch)

    def evaluation(self, split: str, batch_size: int, **view):
        """Batches that hold every row of a split once, in order, with the same masks for every pass and every batch size.

        Without next_sentence every token of the split is in one row. With it every piece is in one row, but its second part
        is missing where a piece of another document replaces it.

        Args:
          split: 'train', 'valid', 'test', or an expression such as 'train[:1%]' or 'all'.
          batch_size: rows in a batch.

        Returns: an Evaluation; facts 'tokens' (those to predict) and 'documents'.
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
        facts = {'tokens': found.asked(), 'documents': found.store.meta['documents']}
        return pipeline.Evaluation(
            len(found), batch_size, lambda numbers: found.batch(numbers, found.fixed(numbers)), facts, part.raw
        )

    @functools.cached_property
    def _masking(self) -> 'Masking':
        return Masking.of(self.frame, self.tokenizer.vocab, self.config.share, self.config.length)

    @functools.cached_property
    def _rows(self) -> 'MaskedRows':
        return self._of(self.config.part('train'))

    def _of(self, part: sources.Split) -> 'MaskedRows':
        """The rows of a part. Raises ValueError if there are none, or too few documents."""
        self._require_tokens()
        config, store = self.config, tokens.load(part, self.tokenizer)
        found = MaskedRows.of(store, self._masking, config)
        if config.next_sentence and len(found.sizes) < 2:
            raise ValueError(
                f'The split {part.expression!r} has {len(found.sizes)} document(s) with text, and data.next_sentence takes '
                "pieces of another one; give it 2 or more, such as lines with data.documents='line'."
            )
        if not len(found):
            raise ValueError(
                f'The split {part.expression!r} holds no token to predict'
                f"{', no document of two tokens or more' if config.next_sentence else ''}; give it more text."
            )
        return found


def _about(*texts: str) -> str:
    """The beginning of a message about an input."""
    return ' and '.join(f'{text.strip()[:40]!r}' for text in texts)


@dataclasses.dataclass(frozen=True)
class Masking:
    """Masks tokens of rows.

    Attributes:
      frame: its special tokens are never predicted and never replace other tokens.
      vocab: number of ids.  share: the share of the ordinary tokens to predict.
      most: M, the largest number of tokens to predict in a row.
    """

    frame: Frame
    vocab: int
    share: float
    most: int

    @classmethod
    def of(cls, frame: Frame, vocab: int, share: float, length: int) -> 'Masking':
        return cls(frame, vocab, share, max(1, math.ceil(share * length)))

    @property
    def special(self) -> list[int]:
        """The ids of special tokens, ascending."""
        return sorted(self.frame.special)

    def asked(self, ordinary: np.ndarray) -> np.ndarray:
        """The number of tokens to predict in rows with so many ordinary tokens."""
        return np.minimum(ordinary, np.maximum(1, np.rint(self.share * ordinary))).astype(np.int64)

    def is_special(self, ids: np.ndarray) -> np.ndarray:
        return functools.reduce(np.logical_or, [ids == one for one in self.special])

    def __call__(self, batch: dict[str, np.ndarray], draws: np.ndarray) -> dict[str, np.ndarray]:
        """The batch with masked `inputs`, and `masked`, `targets` and `weights`.

        Args:
          draws: [B, T + 2 M] random numbers in [0, 1).
        """
        inputs = batch['inputs']
        count, length = inputs.shape
        rank, fate, other = np.split(draws, [length, length + self.most], 1)
        ordinary = (batch['segments'] > 0) & ~self.is_special(inputs)
        chosen = np.argsort(np.where(ordinary, rank, 2.0), 1)[:, : self.most]  # the ordinary ones come first
        used = np.arange(self.most) < self.asked(ordinary.sum(1))[:, None]
        masked = np.where(used, np.sort(np.where(used, chosen, length), 1), 0)
        targets = np.where(used, np.take_along_axis(inputs, masked, 1), 0)
        random = (other * (self.vocab - len(self.special))).astype(np.int32)
        for one in self.special:  # ascending: the ids beyond each move up by one
            random += random >= one
        told = np.where(fate < 0.8, self.frame.mask, np.where(fate < 0.9, random, targets))
        row = np.broadcast_to(np.arange(count)[:, None], used.shape)
        hidden = inputs.copy()
        hidden[row[used], masked[used]] = told[used]
        found = {'inputs': hidden, 'masked': masked.astype(np.int32), 'targets': targets.astype(np.int32)}
        return batch | found | {'weights': used.astype(np.float32)}


@dataclasses.dataclass(frozen=True)
class MaskedRows:
    """The rows of a split, as stretches of its token file, where document d is ids[begins[d] : begins[d] + sizes[d]].

    Attributes:
      store: the token file.  masking: masks the tokens.
      length: tokens in a row.  pairs: rows are two pieces.
      begins, sizes: [documents], without empty ones.
      starts, counts: [rows], the tokens of a row.
      document: [rows], the document of a row's first token.
      borders: if documents share rows, the places of the file between two documents, ascending.
      special: places of the file with no ordinary token, ascending.
    """

    store: tokens.Tokens
    masking: Masking
    length: int
    pairs: bool
    begins: np.ndarray
    sizes: np.ndarray
    starts: np.ndarray
    counts: np.ndarray
    document: np.ndarray
    borders: np.ndarray
    special: np.ndarray

    @classmethod
    def of(cls, store: tokens.Tokens, masking: Masking, config: Masked) -> 'MaskedRows':
        """Cuts documents, or all of them end to end, into pieces; those without a token to predict are left out."""
        from data.text import packing

        ends, stream, pairs = store.offsets, config.documents == 'stream', config.next_sentence
        begins, sizes = (ends[:1], np.array([len(store.ids)])) if stream else (ends[:-1] + 1, np.diff(ends) - 1)
        begins, sizes = begins[sizes > 0], sizes[sizes > 0]
        joined = config.packing == 'concat' and not stream
        whole = (ends[:1] + 1, ends[-1:] - ends[:1] - 1) if joined else (begins, sizes)
        room = masking.frame.room(config.length, pairs)
        text = np.concatenate([[0], np.cumsum(whole[1])])  # places in the text without the tokens between documents
        pieces = packing.windows(text, room, room)
        place, counts = pieces.starts, pieces.counts.astype(np.int64)
        inside = np.searchsorted(text, place, 'right') - 1
        starts = place - text[inside] + whole[0][inside]
        borders = ends if joined else ends[:0]
        at_start = np.isin(starts, borders)  # a row has no border at its edge
        starts, counts = starts + at_start, counts - at_start
        counts -= np.isin(starts + counts - 1, borders) & (counts > 0)
        special = np.union1d(np.flatnonzero(masking.is_special(store.ids)), borders)
        document = np.searchsorted(begins, starts, 'right') - 1
        made = cls(store, masking, config.length, pairs, begins, sizes, starts, counts, document, borders, special)
        kept = (made.ordinary > 0) & (counts > pairs)
        return dataclasses.replace(made, starts=starts[kept], counts=counts[kept], document=document[kept])

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def width(self) -> int:
        """The number of random numbers for a row."""
        return _CHOICES * self.pairs + self.length + 2 * self.masking.most

    @functools.cached_property
    def ordinary(self) -> np.ndarray:
        """[rows]: ordinary tokens of each row's own text."""
        return self._ordinary(self.starts, self.counts)

    def fixed(self, numbers: np.ndarray) -> np.ndarray:
        """[n, width] random numbers, always the same for a row; `numbers` must be consecutive."""
        bits = np.random.PCG64(_EVALUATION).advance(int(numbers[0]) * self.width)  # one step per random number
        return np.random.Generator(bits).random((len(numbers), self.width))

    def asked(self) -> int:
        """The number of tokens to predict in all rows with `fixed` random numbers."""
        total = 0
        for start in range(0, len(self), _BLOCK):
            numbers = np.arange(start, min(len(self), start + _BLOCK))
            starts, counts, _ = self._stretches(numbers, self.fixed(numbers) if self.pairs else None)
            total += int(self.masking.asked(self._ordinary(starts, counts).sum(1)).sum())
        return total

    def batch(self, numbers: np.ndarray, draws: np.ndarray) -> dict[str, np.ndarray]:
        """The batch of rows with these numbers; draws: [n, width] random numbers in [0, 1)."""
        starts, counts, label = self._stretches(numbers, draws)
        texts = [[self._ids(*one) for one in zip(*both)] for both in zip(starts.tolist(), counts.tolist(), strict=True)]
        made = frames.rows([self.masking.frame.framed(*text) for text in texts], self.length)
        made = self.masking(made, draws[:, _CHOICES * self.pairs :])
        return made | ({'label': label} if self.pairs else {})

    def _stretches(self, numbers: np.ndarray, draws: np.ndarray | None):
        """(starts, counts, label): the one or two stretches of each row, [n, 1 or 2], and for two [n] int32."""
        start, count = self.starts[numbers], self.counts[numbers]
        if not self.pairs:
            return start[:, None], count[:, None], None
        follows, cut, which, where = draws[:, :_CHOICES].T
        first = 1 + (cut * (count - 1)).astype(np.int64)
        second = count - first
        other = (which * (len(self.sizes) - 1)).astype(np.int64)
        other += other >= self.document[numbers]
        taken = np.minimum(second, self.sizes[other])  # as long as the true second part, so that the length reveals nothing
        place = self.begins[other] + (where * (self.sizes[other] - taken + 1)).astype(np.int64)
        follows = follows < 0.5
        starts = np.stack([start, np.where(follows, start + first, place)], 1)
        return starts, np.stack([first, np.where(follows, second, taken)], 1), (~follows).astype(np.int32)

    def _ids(self, start: int, count: int) -> np.ndarray:
        """int32 [count]: the tokens of a stretch, with the token that ends a text between documents."""
        ids = self.store.ids[start : start + count].astype(np.int32)
        first, last = self.borders.searchsorted((start, start + count))
        ids[self.borders[first:last] - start] = self.masking.frame.end
        return ids

    def _ordinary(self, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """How many ordinary tokens stretches hold."""
        before, after = np.searchsorted(self.special, starts), np.searchsorted(self.special, starts + counts)
        return counts - (after - before)
