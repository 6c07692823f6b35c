"""Parallel text: sentences with their translations, as batches for an encoder and a decoder.

    opened = Parallel(source='files', path='multi30k', languages='en,de', train='train', valid='val', test='').open(None)
    for batch in opened.train(seed=0): ...

Rows hold `inputs`, `segments`, `positions` [B, S] of the sources, and `decoder_inputs`, `decoder_segments`,
`decoder_positions`, `targets`, `weights` [B, T] of the targets. A source ends with `end`; the decoder inputs begin with
`start`, and the targets end with `end`. Both sides are tokenized once, into the cache (data/text/tokens.py).
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from data import epochs, fields, splits
from data.opened import Opened
from data.seq2seq import pairs
from data.sources import files as sources
from data.sources import pairs as pair_sources
from data.sources.tables import CHOICES, data_files
from data.text import tokens
from data.text.documents import saved_tokenizer
from data.text.frames import framed, parse
from data.tokenizers.specs import SentencePiece, TokenizerSpec
from data.tokenizers.tokenizer import Tokenizer

_CHECKED = {
    'source': ('cldr', 'table', 'files', 'tfds'),
    'header': CHOICES,
    'quotes': CHOICES,
    'order': pairs.ORDERS,
    'text': pairs.TEXTS,
    'packing': ('first_fit', 'buckets', 'none'),
}
_SOURCE = 'source'  # the folder in a run for a tokenizer of the sources alone


@dataclasses.dataclass(frozen=True)
class Parallel:
    """Parallel text for translation.

    Attributes:
      source: 'cldr', phrases that Babel renders in two locales; 'table', files of TSV, CSV, JSON Lines or Parquet
        (data/sources/tables.py); 'files', two aligned files for each split; or 'tfds', a translation set of TFDS (see name).
      path: for 'table' a file, a folder or a glob; for 'files' the folder; .gz and .zst are read too. For 'tfds' the folder of
        prepared sets ('': $TFDS_DATA_DIR or ~/tensorflow_datasets).
      name: a set of TFDS, such as wmt14_translate/de-en, that `python -m data.prepare NAME` has prepared.
      languages: source and target, separated by a comma: locales of CLDR, endings of aligned files, features of TFDS. For
        'table' the columns of these names, if there are such and `columns` names no others. The second says how BLEU splits
        targets.
      columns: the columns of the source and of the target in a table, by name or by number from 1; (): those named as the
        languages, or source and target, else the first two that are not all numbers.
      header, quotes: whether the first line of a table names its columns, and whether fields may be quoted: 'true', 'false',
        or 'auto', which finds out.
      encoding: that of the files, as in data.text.documents:Text.
      order: 'file', or 'hash', by a hash of the source without case and punctuation: slices are then random samples, and
        pairs that share a side with one of data.valid or data.test, slices of the same part, are left out of training.
      text: 'nfc' (composed characters, single plain spaces), 'textbook' (that in lower case, a space before , . ! ?) or
        'raw' (data/seq2seq/pairs.py:prepare). The inputs of predict.py are prepared in the same way.
      tokenizer: as in data.text.documents:Text, learnt from both sides of the training part.
      target_tokenizer: the tokenizer of the targets; `tokenizer` is then learnt from the sources alone. None: one for both.
      start: the first input of the decoder, an id; -1: the id that ends a target.
      framing: the special tokens around a source and around a predicted target, a template or its name
        (data/text/frames.py): one token ends both, and others may begin them, such as BART's <s> in 'roberta'.
      train, valid, test: NAME or NAME[start:stop], '' for no such split; slices count pairs. For 'cldr' NAME is 'train',
        'valid' or 'test'; for 'table' 'all', a file name or a glob, or 'train', 'valid' or 'test', the files with that word in
        their names (without such files 'train' is all); for 'files' the name of two files
        without their language's ending; for 'tfds' a split of the set or 'all', whose slices count examples in 'file' order.
        Train must not name a part, or a file of a table, that valid or test names too, unless both are slices of the same
        part that do not overlap or order is 'hash'.
      source_length, length: tokens in a row of sources and in a row of targets; the `end` of a sentence counts.
      long: what happens to longer pairs: 'drop' leaves them out of training, and evaluation refuses them; 'truncate' cuts
        them, in batches; 'refuse' refuses them in training too.
      packing: 'first_fit' (pairs share rows, some padding), 'buckets' (a pair a row; rows of 1/4, 1/2 and the full length, 4,
        2 and 1 times as many) or 'none' (a pair a row).
      batch_size: rows of full length in a training batch.
      reader: import path of the class that reads inputs for predict.py and draws them for eval.py; '' for none.
    """

    source: str = 'cldr'
    path: str = ''
    name: str = ''
    languages: str = 'en,fr'
    columns: tuple = ()
    header: str = 'auto'
    quotes: str = 'auto'
    encoding: str = 'utf-8'
    order: str = 'file'
    text: str = 'nfc'
    tokenizer: TokenizerSpec = SentencePiece(vocab=1024)
    target_tokenizer: TokenizerSpec | None = None
    start: int = -1
    framing: str = 't5'
    train: str = 'train'
    valid: str = 'valid'
    test: str = 'test'
    source_length: int = 64
    length: int = 64
    long: str = 'drop'
    packing: str = 'first_fit'
    batch_size: int = 32
    reader: str = 'transformer.readers.translation:Translation'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenParallel':
        """Opens the pairs with the tokenizers saved in `folder`, a run, or in `source`, a run to start from; without
        either they are learnt.

        With saved tokenizers the text is not read before train() or evaluation(). Raises ValueError or
        FileNotFoundError, in one sentence, for a field or a text that cannot be used.
        """
        self.check()
        if folder is None and source is None:
            return self.opened(*self._learnt())
        run = source if folder is None else folder
        inner = Path(run, _SOURCE)
        if inner.is_dir() != bool(self.target_tokenizer):
            has, do = ('a tokenizer of the targets alone', 'set it to that') if inner.is_dir() else (
                'one tokenizer for both sides', 'leave it empty')
            raise ValueError(f"{run} has {has}, and data.target_tokenizer is '{self.target_tokenizer or ''}'; {do}.")
        if not self.target_tokenizer:
            saved = saved_tokenizer(run, None, self.tokenizer)
            return self.opened(saved, saved)
        own = saved_tokenizer(run, None, self.target_tokenizer, 'data.target_tokenizer')
        return self.opened(saved_tokenizer(inner, None, self.tokenizer), own)

    def opened(self, source_tokenizer: Tokenizer, tokenizer: Tokenizer) -> 'OpenParallel':
        """The pairs with the tokenizers of their sides."""
        return OpenParallel(self, source_tokenizer, tokenizer)

    def check(self) -> None:
        """Raises ValueError for field values that are invalid or do not fit together."""
        for field, choices in _CHECKED.items():
            fields.one_of(field, getattr(self, field), choices)
        check_rows(self)
        for field, readers in (('path', ('table', 'files', 'tfds')), ('name', ('tfds',))):
            if getattr(self, field) and self.source not in readers:
                raise ValueError(
                    f'data.{field}={getattr(self, field)!r} is not read with data.source={self.source!r}; set data.source to '
                    f'{" or ".join(map(repr, readers))}, or leave data.{field} empty.'
                )
        if self.source == 'tfds' and not self.name:
            raise ValueError("data.name is empty and data.source is 'tfds'; set it to a set such as wmt14_translate/de-en.")
        if self.source in ('table', 'files') and not self.path:
            what = 'a table, a folder or a glob' if self.source == 'table' else 'the folder of the aligned files'
            raise ValueError(f'data.path is empty and data.source is {self.source!r}; set it to {what}.')
        if self.columns and len({*fields.columns('columns', self.columns)}) != 2:
            raise ValueError(f'data.columns={self.columns} are not two columns; write source and target, by name or counted '
                             'from 1, as 1,2.')
        _two(self.languages)

    def part(self, split: str) -> pairs.Pairs:
        """The pairs that 'train', 'valid', 'test' or a split expression names; they are read and ordered once."""
        if split not in self._parts:
            self._parts[split] = self._part(split)
        return self._parts[split]

    @functools.cached_property
    def _parts(self) -> dict[str, pairs.Pairs]:
        return {}

    def _part(self, split: str) -> pairs.Pairs:
        expression = splits.expression(self, split)
        name, cut = splits.read(expression)
        if self.source == 'tfds' and self.order == 'file':  # TFDS slices by itself, and reads only what it must
            name, cut = expression, splits.Slice()
        held_out = self._held_out() if split == 'train' else ()
        return pairs.Pairs(self._origins(name), cut, self.order, self.text, held_out, expression, self._compared)

    _compared = 0, 1  # the sides that training may not share with held-out pairs

    def _held_out(self) -> tuple[splits.Slice, ...]:
        """The slices of the same pairs that data.valid and data.test take, in the order of hashes.

        Raises ValueError if data.train overlaps with them: it names some of their files or splits of TFDS, or with
        order='file' slices of the same part that overlap.
        """
        name, cut = splits.read(self.train)
        origin, found = self._origins(name), []
        for field in ('valid', 'test'):
            expression = getattr(self, field)
            try:
                other, other_cut = splits.read(expression)
                others = self._origins(other)
            except (ValueError, FileNotFoundError):  # reported where that split is used
                continue
            if others == origin and self.order == 'hash':
                found.append(other_cut)
            elif self._overlap(origin, cut, other_cut) if others == origin else self._shared(origin, others):
                files = ', '.join(self._shared(origin, others)[:3]) or f'the part {name!r}'
                raise ValueError(
                    f'data.train={self.train!r} names {files}, and so does data.{field}={expression!r}; give each its own '
                    f'part, or slices of one that do not overlap, such as {name}[:90%] and {name}[90%:].'
                )
        return tuple(found)

    @staticmethod
    def _overlap(origin: pair_sources.Origin, cut: splits.Slice, other: splits.Slice) -> bool:
        if not (str(cut) and str(other)):
            return True
        (start, stop), (other_start, other_stop) = (one.bounds(origin.size) for one in (cut, other))
        return max(start, other_start) < min(stop, other_stop)

    def _shared(self, origin: pair_sources.Origin, other: pair_sources.Origin) -> list[str]:
        """The names of files of tables, or of splits of TFDS, that belong to both."""
        if self.source == 'tfds':
            return [split for split in origin.source.examples.splits if split in other.source.examples.splits]
        return [file.name for file in origin.files if file in set(other.files)] if self.source == 'table' else []

    @functools.cached_property
    def _origins(self) -> Callable[[str], pair_sources.Origin]:
        """The function from a name to the pairs of that part."""
        languages = _two(self.languages)
        if self.source == 'cldr':
            return pair_sources.cldr(languages)
        if self.source == 'table':
            return pair_sources.tables(self.path, self.form, encoding=self.encoding)
        if self.source == 'files':
            return pair_sources.aligned(self.path, languages, self.encoding)
        return pair_sources.tfds(self.name, self.path, languages)

    @property
    def form(self) -> pair_sources.Form:
        columns = fields.columns('columns', self.columns)
        return pair_sources.Form(columns, _two(self.languages), self.header, self.quotes,
                                 self.languages != Parallel.languages)

    def _learnt(self) -> tuple[Tokenizer, Tokenizer]:
        """The tokenizers of both sides, learnt from the training part."""
        part = self.part('train')
        sides = part.side(0), part.side(1)
        if self.target_tokenizer:
            return (tokens.learn(sides[0], self.tokenizer),
                    tokens.learn(sides[1], self.target_tokenizer, field='data.target_tokenizer'))
        shared = tokens.learn(sources.Joined(sides, 'line', part.expression), self.tokenizer)
        return shared, shared


def check_rows(config) -> None:
    """Raises ValueError for fields of Parallel, or of data.seq2seq.tasks:Tasks, that make no rows."""
    fields.one_of('long', config.long, ('drop', 'truncate', 'refuse'))
    fields.positive(source_length=config.source_length, length=config.length, batch_size=config.batch_size)
    drawing = [spec for spec in (config.tokenizer, config.target_tokenizer) if spec is not None and spec.draws]
    if drawing and config.long == 'refuse':
        raise ValueError(
            f"data.long='refuse' refuses pairs that are too long, but data.tokenizer='{drawing[0]}' makes them longer or "
            "shorter in every epoch; set data.long to 'drop' or 'truncate'."
        )
    if config.framing:
        parse(config.framing)


class OpenParallel(Opened):
    """Parallel text with its tokenizers: training batches, evaluation, encoding and decoding.

    Attributes:
      start: the first input of a decoder.  end: the id that ends a target.
      lengths: tokens in a row of sources and in one of targets.
      packed: whether several pairs share a row in training.
      target_language: the second of data.languages, such as 'fr'; '' for tables where nobody has set these.
    """

    start: int
    end: int
    lengths: tuple[int, int]
    target_language: str
    unit = 'tokens'

    def __init__(self, config: Parallel, source_tokenizer: Tokenizer, tokenizer: Tokenizer):
        if not -1 <= config.start < tokenizer.vocab:
            raise ValueError(
                f'data.start={config.start} is no id of the tokenizer, which has {tokenizer.vocab:,}; leave it out, or give '
                'one of these.'
            )
        self.config = config
        self.source_tokenizer, self.tokenizer = (framed(one, config.framing) for one in (source_tokenizer, tokenizer))
        tokenizer = self.tokenizer
        self.end = tokenizer.end
        self.start = self.end if config.start == -1 else config.start
        self.facts = {'vocab': tokenizer.vocab, 'source_vocab': source_tokenizer.vocab if config.target_tokenizer else 0}
        self.meanings = {'tokenizer': tokenizer.fingerprint, 'tokenizer of sources': source_tokenizer.fingerprint}
        self.lengths = config.source_length, config.length
        self.packed = config.packing == 'first_fit'
        named = config.source != 'table' or config.form.given
        self.target_language = _two(config.languages)[1] if named else ''

    @property
    def truncates(self) -> bool:
        """Whether pairs that are too long are cut."""
        return self.config.long == 'truncate'

    @property
    def preparation(self) -> str:
        """How texts are prepared: data.text."""
        return self.config.text

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizers, so that opening with this folder needs no text."""
        self.tokenizer.save(folder)
        if self.config.target_tokenizer:
            self.source_tokenizer.save(Path(folder, _SOURCE))

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch of full length, known without the text."""
        return self.buckets[-1]

    @property
    def buckets(self) -> list[dict[str, tuple[tuple[int, ...], type]]]:
        """The shapes of all training batches, the longest last."""
        from data.seq2seq import pair_packing

        shares = pair_packing.SHARES if self.config.packing == 'buckets' else (1,)
        rows = self.config.batch_size
        return [pair_packing.shapes(share * rows, pair_packing.scaled(self.lengths, share)) for share in shares]

    def describe(self) -> str:
        """One line about the training part and the tokenizers, for the log."""
        config, store, left_out = self.config, self._training, self.config.part('train').left_out
        long = len(store.sizes[0]) - len(self._kept)
        one, two = self.source_tokenizer, self.tokenizer
        where = f'{config.source} {config.name or config.path or ""}'.strip(), config.part('train').origin.described()
        about = [
            f'{", ".join(filter(None, where))}; '
            f'{len(self._kept):,} pairs, {store.sizes[1, self._kept].sum():,} target tokens to train on',
        ]
        if left_out:
            about.append(f'without {left_out:,} pairs that share a side with held-out ones')
        if long:
            about.append(f'without {long:,} pairs longer than {config.source_length} and {config.length} tokens')
        each = f'{one.vocab:,} and {two.vocab:,}' if config.target_tokenizer else f'{two.vocab:,}'
        kinds = dict.fromkeys(type(spec).__name__ for spec in (config.tokenizer, config.target_tokenizer) if spec)
        return f'{", ".join(about)}; {" and ".join(kinds)} vocabulary of {each}'

    def prepare(self, text: str) -> str:
        """A text, prepared like the sides of the pairs."""
        return pairs.prepare(text, self.config.text)

    def encode(self, text: str) -> np.ndarray:
        """int32 [n]: a source as the model reads it, prepared and with `end`, never cut."""
        return self._encoded(self.source_tokenizer, text)

    def encode_target(self, text: str) -> np.ndarray:
        """int32 [n]: a target as the model predicts it, prepared and with `end`, never cut."""
        return self._encoded(self.tokenizer, text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a target's ids, without white space at its ends; `end` has no text."""
        return self.tokenizer.decode(ids).strip()

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id of a source as text for display."""
        return [self.source_tokenizer.piece(int(i)) for i in ids]

    def target_pieces(self, ids: Iterable[int]) -> list[str]:
        """Each id of a target as text for display."""
        return [self.tokenizer.piece(int(i)) for i in ids]

    def count(self, batch: dict[str, np.ndarray]) -> int:
        """The number of target tokens to predict in a batch."""
        return int(np.count_nonzero(batch['weights']))

    def digest(self, split: str) -> str:
        """A digest of the pairs of a split; other data have another digest."""
        return self.config.part(split).digest

    @functools.cached_property
    def batches_per_epoch(self) -> float:
        """Batches that hold the training part once; for packed rows, estimated from the first block of pairs."""
        rows = self.config.batch_size
        if self.config.packing == 'buckets':
            return self._buckets(0).batches()
        if self.config.packing == 'none':
            return self._order(1, 0).count / rows
        pairs_packed, bounds = self._blocks(0)(0)
        return self._order(1, 0).count * (len(bounds) - 1) / len(pairs_packed) / rows

    @property
    def specs(self) -> dict[str, TokenizerSpec]:
        """{attribute: the spec of the tokenizer in it}."""
        return {'source_tokenizer': self.config.tokenizer, 'tokenizer': self.config.target_tokenizer or self.config.tokenizer}

    @epochs.anew
    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch; get_state and set_state resume exactly."""
        from data import pipeline
        from data.seq2seq import pair_packing

        config = self.config
        if config.packing == 'buckets':
            return pipeline.numbered(self._buckets(seed))
        if config.packing == 'none':
            order = self._order(config.batch_size, seed)
            return pipeline.numbered(pair_packing.Singles(self._training, self._kept, order, self.lengths))
        return pipeline.ahead(pair_packing.Packed(self._blocks(seed), config.batch_size))

    def evaluation(self, split: str, batch_size: int, **view):
        """Batches that hold every pair of a split once, in order, one a row of full length.

        Args:
          split: 'train', 'valid', 'test', or an expression such as 'train[:1%]'.
          batch_size: rows in a batch.

        Returns: a PairEvaluation; facts 'pairs', 'tokens' (of the targets), 'bytes' (of the targets, unless one is cut);
          `pairs()` are the texts.
        Raises: ValueError for an unknown or empty split, for pairs that are too long, unless data.long='truncate', and for a
          view, which only text for language modelling takes.
        """
        return self._evaluate(self.config.part(split), batch_size, view)

    def score(self, paths: Sequence[str], batch_size: int, **view):
        """Like `evaluation`, over files given by path: tables, or with data.source='files' two aligned files."""
        config = self.config
        if config.source == 'files':
            origin = pair_sources.two_files(paths, config.encoding)
        else:
            found = [file for path in paths for file in data_files(path, '--path', config.encoding)]
            origin = pair_sources.TablePairs(tuple(found), config.form)
        return self._evaluate(pairs.Pairs(origin, splits.Slice(), 'file', config.text, (), '--path'), batch_size, view)

    def _evaluate(self, part: pairs.Pairs, batch_size: int, view: dict):
        from data.seq2seq import pair_packing

        self.refuse_view(view)
        store = self._store(part)
        if self.config.long != 'truncate':
            self._refuse_long(store, part)
        sizes, longest = store.sizes[1], self.lengths[1]
        facts = {'pairs': len(sizes), 'tokens': int(np.minimum(sizes, longest).sum())}
        if sizes.max() <= longest:  # the bytes of a cut target are unknown
            facts['bytes'] = store.target.meta['bytes']
        return pair_packing.PairEvaluation(
            len(sizes),
            batch_size,
            lambda numbers: store.batch(numbers, np.arange(len(numbers) + 1), self.lengths),
            facts,
            part.side(1).raw,
            pairs=lambda: part.texts,
        )

    def _store(self, part: pairs.Pairs):
        from data.seq2seq import pair_packing

        sides = [tokens.load(part.side(i), tokenizer) for i, tokenizer in enumerate((self.source_tokenizer, self.tokenizer))]
        return pair_packing.Store(*sides, (self.source_tokenizer.end, self.end), self.start)

    @functools.cached_property
    def _training(self):
        return self._store(self.config.part('train'))

    @functools.cached_property
    def _kept(self) -> np.ndarray:
        """int64: numbers of the pairs to train on."""
        store = self._training
        if self.config.long == 'refuse':
            self._refuse_long(store, self.config.part('train'))
        kept = np.arange(store.sizes.shape[1]) if self.config.long == 'truncate' else np.flatnonzero(store.fits(self.lengths))
        if not len(kept):
            raise ValueError(
                f'No pair of the training part is within data.source_length={self.lengths[0]} and data.length='
                f'{self.lengths[1]}; raise them.'
            )
        return kept

    def _order(self, size: int, seed: int):
        """Draws of pairs to train on, as numbers of `_kept`."""
        from data import pipeline

        return pipeline.Order(len(self._kept), size, seed)

    def _buckets(self, seed: int):
        from data.seq2seq import pair_packing

        return pair_packing.Buckets.of(self._training, self._kept, self.config.batch_size, self.lengths, seed)

    def _blocks(self, seed: int):
        from data.seq2seq import pair_packing

        sizes = self._training.sizes[:, self._kept]
        per_row = max(1, int((self.lengths / sizes.mean(1)).min()))
        order = self._order(8 * self.config.batch_size * per_row, seed)
        return pair_packing.Blocks(self._training, self._kept, order, self.lengths)

    def _refuse_long(self, store, part: pairs.Pairs) -> None:
        """Raises ValueError if pairs are longer than the rows."""
        long = np.flatnonzero(~store.fits(self.lengths))
        if len(long):
            source, target = np.maximum(store.sizes.max(1), self.lengths)
            raise ValueError(
                f'{len(long):,} of the {store.sizes.shape[1]:,} pairs of {part.expression!r} are longer than '
                f'data.source_length={self.lengths[0]} or data.length={self.lengths[1]}, the first of them '
                f'{part.place(long[0])} with {store.sizes[0, long[0]]} and {store.sizes[1, long[0]]}, '
                f'{part.texts[long[0]][0][:40]!r}; raise these to {source} and {target}, or set '
                "data.long='truncate'."
            )

    def _encoded(self, tokenizer: Tokenizer, text: str) -> np.ndarray:
        return np.append(tokenizer.encode(self.prepare(text)), tokenizer.end).astype(np.int32)


def _two(languages: str) -> tuple[str, str]:
    """The source and the target of data.languages."""
    found = tuple(language.strip() for language in languages.split(','))
    if len(found) != 2 or not all(found) or found[0] == found[1]:
        raise ValueError(f"data.languages={languages!r} are not two languages; write source and target as in 'en,fr'.")
    return found
