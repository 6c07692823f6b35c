"""Masked language modelling: words of a text are masked and predicted (Devlin et al. 2019; Liu et al. 2019).

    opened = Masked(path='books/', tokenizer=WordPiece(vocab=8192), noise=WholeWords()).open('runs/bert')
    for batch in opened.train(seed=0): ...

A row is a piece of text between its special tokens, or two parts of a piece and whether they were changed (data/noise/rows.py).
Batches hold `inputs`, `segments` (0 = padding, else 1), `positions`, `types`, each [B, T] int32; `masked` [B, M] int32, the
places to predict in ascending order, with `targets` [B, M] int32 and `weights` [B, M] float32; and of pairs `label` [B] int32.
Unused places of the M have masked 0, target 0 and weight 0. With boundary_targets there are `boundaries` [B, M, 3] int32 and
`boundary_weights` [B, M] float32 (data/noise/masking.py).
"""

import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np

from data import epochs, fields
from data.noise import rows as noisy
from data.noise.masking import Masking, Tokens
from data.noise.vocabulary import Vocabulary, closed_up
from data.sources import files as sources
from data.text import frames, tokens
from data.text.documents import OpenDocuments, Text, saved_tokenizer
from data.text.frames import Frame, parse
from data.tokenizers import unknown
from data.tokenizers.plain import IdTokenizer
from data.tokenizers.specs import TokenizerSpec, WordPiece
from data.tokenizers.tokenizer import JsonTokenizer, Tokenizer

_TRAINING = 1  # third word of the seed of a batch: pipeline.Order draws from the first two


@dataclasses.dataclass(frozen=True)
class Masked(Text):
    """Text with masked words.

    Attributes are those of Text, and:
      framing: the special tokens around a text or two, a template or its name (data/text/frames.py); '': the framing of the
        tokenizer.
      noise: which tokens are predicted, and what the model sees in their places: Tokens(share=0.15), WholeWords(),
        NGrams(longest=3), Spans(p=0.2, longest=10), or ELECTRA's WithReplacement() (data/noise/masking.py).
      copies: 0: noise is drawn anew in every epoch (Liu et al. 2019, section 4.1, dynamic masking); else it is drawn once for
        each of so many copies of the text, of which each epoch takes the next (static masking; 10 in BERT, whose code
        shuffles all copies together).
      pairs: 'none'; or rows are two parts of a document: 'next', the second is replaced by another text with probability 1/2
        (Devlin et al. 2019, section 3.1, task 2), or 'order', the two change places (Lan et al. 2020, section 3.1).
      cut: where a document is cut in two, at the ends of 'sentences' or 'anywhere'.
      boundary_targets: the most words of a span that are also predicted from its boundaries (Joshi et al. 2020, section 3.2; 20
        there), 0: none.
      unknown: what stands for an unknown word in the text; it is the tokenizer's token for these, if it has one, and never
        predicted; '': nothing does.
      packing: 'concat' (full rows: documents end to end, with the token that ends a text between them; Liu et al. 2019,
        section 4.2, FULL-SENTENCES) or 'none' (a piece of one document a row, which pairs require). A stream is one
        document.
      length: tokens in a row, special ones included.
    """

    tokenizer: TokenizerSpec = WordPiece(vocab=4096)
    packing: str = 'concat'
    framing: str = ''
    noise: Masking = Tokens()
    copies: int = 0
    pairs: str = 'none'
    cut: str = 'sentences'
    boundary_targets: int = 0
    unknown: str = unknown.SIGN
    reader: str = 'transformer.readers.masked:FilledMasks'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenMasked':
        """As Text.open."""
        self.check()
        return OpenMasked(self, saved_tokenizer(folder, source, self.tokenizer))

    def check(self) -> None:
        """Raises ValueError for field values that are invalid or do not fit together."""
        super().check()
        unknown.check(self.unknown)
        if self.framing:
            parse(self.framing)
        fields.one_of('pairs', self.pairs, noisy.PAIRS)
        fields.one_of('cut', self.cut, noisy.CUTS)
        for name, what in (('copies', 'of copies, such as 10'), ('boundary_targets', 'of words, such as 20')):
            if getattr(self, name) < 0:
                raise ValueError(f'data.{name}={getattr(self, name)} is out of range; it is a number {what}, or 0.')
        if self.copies and self.tokenizer.draws:
            raise ValueError(
                f"data.copies={self.copies} draws the noise of each row once, but data.tokenizer='{self.tokenizer}' makes "
                'other rows in every epoch; set data.copies=0, or leave the draws of the tokenizer out.'
            )
        if self.packing == 'first_fit':
            raise ValueError(
                "data.packing='first_fit' is not for masked text; set it to 'concat', full rows of one or more documents, or "
                "'none', a piece of one document a row."
            )
        if self.pairs != 'none' and self.packing != 'none':
            raise ValueError(
                f'data.pairs={self.pairs!r} puts two parts of a document in a row, but data.packing={self.packing!r} joins '
                "documents; set data.packing='none'."
            )
        if self.pairs == 'next' and self.documents == 'stream':
            raise ValueError(
                "data.pairs='next' takes parts of other documents, but data.documents='stream' has one; set it to 'file' or "
                "'line'."
            )


class OpenMasked(OpenDocuments):
    """Masked text with its tokenizer.

    Attributes:
      frame: the special tokens around a text.
      length: tokens in a row.
      pairs: what the two parts of a row are, as in the config.
    """

    frame: Frame
    length: int
    pairs: str
    needs_end = False  # the frame has one

    @property
    def unknown(self) -> str:
        """What stands for an unknown word in the text."""
        return self.config.unknown

    def __init__(self, config: Masked, tokenizer: Tokenizer | None):
        super().__init__(config, tokenizer)
        self.frame = Frame.of(config.framing, self.tokenizer)
        self.length, self.pairs = config.length, config.pairs
        self.frame.room(config.length, config.pairs != 'none')  # refuses rows without room for text
        self.facts = {**self.facts, 'types': self.frame.types, 'boundary_targets': config.boundary_targets}

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
        if config.pairs != 'none' and frame.types == 1 and [one for one, _ in frame.pair][-2:] == ['a', 'b']:
            raise ValueError(
                f'data.framing={config.framing!r} does not tell two texts apart, but data.pairs={config.pairs!r} puts two in a '
                'row; choose another framing.'
            )
        if config.noise.words and self._vocabulary.begins is None:
            raise ValueError(
                f"data.noise='{config.noise}' hides whole words, but the tokens of data.tokenizer='{config.tokenizer}' do not "
                "say where words begin; choose another tokenizer, or data.noise='Tokens()'."
            )

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known without the text."""
        batch, most = self.config.batch_size, self.config.noise.most(self.config.length)
        shapes = dict.fromkeys(('inputs', 'segments', 'positions', 'types'), ((batch, self.config.length), np.int32))
        shapes |= {'masked': ((batch, most), np.int32), 'targets': ((batch, most), np.int32)}
        shapes |= {'weights': ((batch, most), np.float32)}
        if self.config.boundary_targets:
            shapes |= {'boundaries': ((batch, most, 3), np.int32), 'boundary_weights': ((batch, most), np.float32)}
        return shapes | ({'label': ((batch,), np.int32)} if self.config.pairs != 'none' else {})

    def describe(self) -> str:
        """One line about the training part and the tokenizer, for the log."""
        config, meta = self.config, self._rows.store.meta
        left = f' (without {self._rows.left:,} tokens that data.cut={config.cut!r} cannot cut in two)' * (self._rows.left > 0)
        return (
            f'{config.place}, {fields.counted(meta["documents"], "document")}, '
            f'{meta["bytes"]:,} bytes, {self._rows.ordinary.sum():,} tokens '
            f'in {len(self._rows):,} rows to train on{left}; {type(config.tokenizer).__name__} vocabulary of '
            f'{self.tokenizer.vocab:,}; unigram entropy {self.unigram_entropy:.2f}, '
            f'{self.plateau:.2f} with the words that the noise leaves'
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
        if not isinstance(self.tokenizer, IdTokenizer):  # a number may be a part of another
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

    @functools.cached_property
    def _shares(self) -> np.ndarray:
        """The shares of the tokens that can be predicted, in the training part."""
        counts = np.bincount(self._rows.store.ids, minlength=self.tokenizer.vocab)[self._vocabulary.ordinary]
        return counts / counts.sum()

    @property
    def unigram_entropy(self) -> float:
        """-sum p log p over the shares p of the tokens that are predicted in the training part, in nats."""
        shares = self._shares[self._shares > 0]
        return float(-(shares * np.log(shares)).sum())

    @functools.cached_property
    def plateau(self) -> float:
        rows = self._rows
        return self.config.noise.plateau(self._shares, rows.ordinary, rows.counts + self.frame.extra(rows.two))

    @property
    def batches_per_epoch(self) -> float:
        """Batches that hold the training part once."""
        return len(self._rows) / self.config.batch_size

    @epochs.anew
    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch; get_state and set_state resume exactly."""
        from data import pipeline

        part, size, copies = self._rows, self.config.batch_size, self.config.copies
        order = pipeline.Order(len(part), size, seed)

        def batch(number: int) -> dict[str, np.ndarray]:
            chosen = order(number)
            if copies:
                passes = (number * size + np.arange(size)) // len(part)
                return part.batch(chosen, part.static(chosen, passes % copies, seed))
            return part.batch(chosen, np.random.default_rng([seed, number, _TRAINING]).random((size, part.width)))

        return pipeline.numbered(batch)

    def evaluation(self, split: str, batch_size: int, **view):
        """Batches that hold every row of a split once, in order, with the same masks for every pass and every batch size.

        Without pairs every token of the split is in one row. With them every piece that can be cut is in one row, but of 'next'
        its second part is missing where text of another document replaces it.

        Args:
          split: 'train', 'valid', 'test', or an expression such as 'train[:1%]' or 'all'.
          batch_size: rows in a batch.

        Returns: an Evaluation; facts 'rows' and 'documents'.
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
        facts = {'rows': len(found), 'documents': found.store.meta['documents']}
        return pipeline.Evaluation(
            len(found), batch_size, lambda numbers: found.batch(numbers, found.fixed(numbers)), facts, part.raw
        )

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]; '<unk>' as in the text that was learnt from, and masks as in its rows."""
        text = closed_up(self.tokenizer, text, [self.frame.mask] * (self.frame.mask >= 0))
        return unknown.reading(self.tokenizer, self.unknown).encode(text)

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.tokenizer, self.frame.special)

    @functools.cached_property
    def _rows(self) -> noisy.MaskedRows:
        return self._of(self.config.part('train'))

    def _of(self, part: sources.Split) -> noisy.MaskedRows:
        """The rows of a part. Raises ValueError if there are none, or too few documents."""
        self._require_tokens()
        config, store = self.config, tokens.load(part, unknown.reading(self.tokenizer, self.unknown))
        found = noisy.MaskedRows.of(store, self.frame, self._vocabulary, config)
        if config.pairs == 'next' and len(found.sizes) < 2:
            raise ValueError(
                f"The split {part.expression!r} has {len(found.sizes)} document(s) with text, and data.pairs='next' takes "
                "parts of another one; give it 2 or more, such as lines with data.documents='line', or set data.pairs='order'."
            )
        if not len(found):
            raise ValueError(f'The split {part.expression!r} holds no {self._lacking()}; give it more text.')
        return found

    def _lacking(self) -> str:
        """What a text without rows does not have."""
        config = self.config
        if config.pairs == 'none':
            return 'token to predict'
        if config.cut == 'anywhere':
            return f'document of two tokens or more, of which data.pairs={config.pairs!r} makes two parts'
        return (
            f'two sentences of one document that fit in a row of data.length={config.length} together, as data.pairs='
            f"{config.pairs!r} needs with data.cut='sentences'; set data.cut='anywhere', a larger data.length, or another "
            'data.documents than ' + repr(config.documents)
        )


def _about(*texts: str) -> str:
    """The beginning of a message about an input."""
    return ' and '.join(f'{text.strip()[:40]!r}' for text in texts)
