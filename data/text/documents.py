"""Text: from a path to batches of tokens.

    opened = Text(path='books/', documents='line', tokenizer=Char()).open('runs/books')
    for batch in opened.train(seed=0): ...

Rows hold `inputs`, `targets`, `weights`, `segments` and `positions`, each [B, T]; targets are already shifted.
Text is tokenized once, into a memory-mapped file in the cache (`$HEED_CACHE`).
"""

import dataclasses
import functools
import os
import shlex
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from data import epochs, fields, splits
from data.opened import Opened
from data.sources import contents, corpora
from data.sources import files as sources
from data.sources import tfds as tfds_sources
from data.text import tokens
from data.tokenizers.specs import SentencePiece, TokenizerSpec, load
from data.tokenizers.tokenizer import Tokenizer

_OF_PLACES = 'path', 'name', 'features', 'documents', 'train', 'valid', 'test'  # what each source of a corpus has of its own
_FEW = 16  # tokens that nothing can be learnt from
_SAMPLE = 1 << 16  # pieces that rows are estimated from, in 0.2 seconds
_CHECKED = {'source': ('auto', 'files', 'stdlib', 'tfds'), 'documents': sources.DOCUMENTS,
            'packing': ('first_fit', 'concat', 'none')}


@dataclasses.dataclass(frozen=True)
class Text:
    """Text for language modelling. There are no `workers`: a batch takes 0.1 to 1 ms, and a thread prefetches it.

    Attributes:
      source: 'files' (see path), 'stdlib', the source code of the running Python's standard library, 'tfds' (see name), or
        'auto': the first of 'tfds' and 'files' whose field is set, else 'stdlib'.
      path: a text file, a folder or a glob; .gz and .zst are read too. For 'tfds' the folder of prepared sets ('':
        $TFDS_DATA_DIR or ~/tensorflow_datasets).
      name: a data set of TFDS, NAME[/CONFIG][:VERSION], that `python -m data.prepare NAME` has prepared.
      features: the name of its text feature; needed where several features qualify and none is called 'text'.
      corpus: texts of several places instead, one after the other, each with splits of its own (data/sources/corpora.py), such
        as "(Documents(path='wiki', documents='article'), Column(path='reviews.tsv', column='sentence'))".
      encoding: that of the files, by a name that Python knows, such as 'utf-16', 'latin-1' or 'gb18030'; with 'utf-8' a byte
        order mark, if there is one, says another.
      documents: what a document is: a 'file', a 'line' (empty ones are skipped), the lines between two 'blank' ones, an
        'article' of WikiText, which begins with a line ' = Title = ', or 'stream', all text as one. For 'tfds' every example is
        one (empty ones are skipped).
      tokenizer: Byte(), Char(), Word(vocab=N) (0: all words), SentencePiece(vocab=N, kind='bpe' or 'unigram') or
        WordPiece(vocab=N, lower=True), BERT's, learnt from the training part alone; or Json(path='tokenizer.json') as it is,
        with the roles of its special tokens, such as Json(path='tokenizer.json', begin='<s>', end='</s>').
      train, valid, test: NAME or NAME[start:stop]; NAME is 'all' (everything), a file name or a glob, or 'train', 'valid'
        or 'test': the files with that word in their names (without such files 'train' is all).
        Slices count documents, or bytes of a stream, as whole numbers or percentages; percentages of fewer than 20 files
        are shares of their text. For 'tfds' NAME is a split of the
        set or 'all'.
      length: tokens in a row.
      packing: how pieces of documents share rows: 'first_fit' (whole pieces, some padding), 'concat' (no padding,
        pieces are cut), 'none' (one piece a row). A stream always has full rows.
      batch_size: rows in a training batch.
      reader: import path of the class that reads inputs for predict.py and draws them for eval.py; '' for none.
    """

    source: str = 'files'
    path: str = ''
    name: str = ''
    features: str = ''
    corpus: tuple[corpora.Source, ...] = ()
    encoding: str = 'utf-8'
    documents: str = 'file'
    tokenizer: TokenizerSpec = SentencePiece(vocab=4096)
    train: str = 'train[:90%]'
    valid: str = 'train[90%:95%]'
    test: str = 'train[95%:]'
    length: int = 128
    packing: str = 'first_fit'
    batch_size: int = 32
    reader: str = 'transformer.readers.completion:Completion'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenText':
        """Opens the text with the tokenizer saved in `folder`, a run, or in `source`, a run to start from; without either
        the tokenizer is learnt.

        With a saved tokenizer the text is not read before train() or evaluation(). Raises ValueError or
        FileNotFoundError, in one sentence, for a field or a text that cannot be used.
        """
        self.check()
        return OpenText(self, saved_tokenizer(folder, source, self.tokenizer))

    def check(self) -> None:
        """Raises ValueError for field values that are invalid or do not fit together."""
        for field, choices in _CHECKED.items():
            fields.one_of(field, getattr(self, field), choices)
        fields.positive(length=self.length, batch_size=self.batch_size)
        given = [name for name in _OF_PLACES if self.corpus and getattr(self, name) != getattr(Text, name)]
        if given:
            have = ' and '.join(f'data.{name}={getattr(self, name)!r}' for name in given)
            flags = ' '.join(f'--config.data.{name}={shlex.quote(getattr(Text, name)) if getattr(Text, name) else ""}'
                             for name in given)
            raise ValueError(
                f'{have} {"are" if len(given) > 1 else "is"} not used with data.corpus, whose sources have places, documents '
                f'and splits of their own; leave one of the two out, or, where the config sets this, add {flags}.'
            )
        if self.source != 'auto':
            tfds_sources.check(self)
        if self.origin == 'tfds' and self.documents != 'file':
            raise ValueError(
                f"data.documents={self.documents!r} does not go with data.source='tfds', whose documents are its examples; "
                "set it to 'file'."
            )
        contents.require_encoding(self.encoding)
        if self.path and self.source == 'stdlib':
            raise ValueError(
                f"data.path={self.path!r} is not read with data.source={self.source!r}; set data.source='files', or leave "
                'data.path empty.'
            )

    @property
    def origin(self) -> str:
        """`source`, or what 'auto' stands for; 'corpus' of one."""
        if self.corpus:
            return 'corpus'
        return self.source if self.source != 'auto' else 'tfds' if self.name else 'files' if self.path else 'stdlib'

    @property
    def place(self) -> str:
        """Where the text comes from, for the log."""
        if self.corpus:
            return f'corpus of {len(self.corpus)} sources'
        wrong = sources.misread(self.part('train').files) if self.origin == 'files' else ''
        return f'{self.origin} {self.name or self.path}'.strip() + wrong

    def part(self, split: str) -> sources.Split | tfds_sources.TfdsTexts:
        """The text that 'train', 'valid', 'test' or a split expression names.

        Raises ValueError if there is none, and for data.valid or data.test if it overlaps with data.train.
        """
        if self.corpus:
            return corpora.joined(self.corpus, split)
        splits.require_apart(self, split, self._parts)
        return self._parts(splits.expression(self, split))

    @functools.cached_property
    def _parts(self) -> Callable[[str], sources.Split | tfds_sources.TfdsTexts]:
        """The function from a split expression to the text that it names."""
        if self.origin == 'tfds':
            return tfds_sources.texts(self.name, self.path, self.features)
        found = sources.stdlib() if self.origin == 'stdlib' else sources.files(self.path, encoding=self.encoding)
        return lambda expression: sources.Split.of(expression, found, self.documents)


def saved_tokenizer(
    folder: str | os.PathLike | None,
    source: str | os.PathLike | None,
    spec: TokenizerSpec,
    field: str = 'data.tokenizer',
):
    """The tokenizer of `folder`, a run, or of `source`, a run to start from; None without either.

    Raises ValueError if it is missing, or does not fit `spec`, the value of the config field `field`.
    """
    folder = source if folder is None else folder
    saved = load(folder, spec, field) if folder is not None else None
    if folder is not None and saved is None:
        raise ValueError(f'{folder} has no tokenizer.model or tokenizer.json any more; restore it, or start a new run.')
    return saved


class OpenDocuments(Opened):
    """Documents with their tokenizer: training batches, evaluation, encoding and decoding.

    Attributes:
      begin, end: the tokens that begin and end a document; -1 in a stream.
    """

    begin: int
    end: int
    unit = 'tokens'
    needs_end = True  # between documents
    unknown = ''  # what stands for an unknown word in the text, which no tokenizer learns; '': nothing does

    def __init__(self, config: Text, tokenizer: Tokenizer | None):
        self.config = config
        self.tokenizer = tokenizer or tokens.learn(self.config.part('train'), config.tokenizer, self.unknown)
        stream, roles = config.documents == 'stream', self.tokenizer.roles
        if self.needs_end and self.tokenizer.end < 0 and not stream:
            raise ValueError(
                f"data.tokenizer='{config.tokenizer}' has no token that ends a document; state it, as in "
                "Json(path='tokenizer.json', end='<|endoftext|>'), or set data.documents='stream'."
            )
        self.end = -1 if stream else self.tokenizer.end
        self.begin = self.end if stream or roles.begin < 0 else roles.begin
        self.facts = {'vocab': self.tokenizer.vocab}
        self.meanings = {'tokenizer': self.tokenizer.fingerprint}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes the tokenizer, so that opening with this folder needs no text."""
        self.tokenizer.save(folder)

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known without the text."""
        names = ('inputs', 'targets', 'weights', 'segments', 'positions')
        shape = self.config.batch_size, self.config.length
        return {name: (shape, np.float32 if name == 'weights' else np.int32) for name in names}

    def describe(self) -> str:
        """One line about the training part and the tokenizer, for the log."""
        meta, config = self._training.meta, self.config
        return (
            f'{config.place}, {fields.counted(meta["documents"], "document")}, '
            f'{meta["bytes"]:,} bytes, {meta["tokens"]:,} tokens to train on; '
            f'{type(config.tokenizer).__name__} vocabulary of {self.tokenizer.vocab:,}'
        )

    def encode(self, text: str) -> np.ndarray:
        """int32 [n], without `end`."""
        return self.tokenizer.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; `end` has no text."""
        return self.tokenizer.decode(ids)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Each token id as text for display."""
        return [self.tokenizer.piece(int(i)) for i in ids]

    def count(self, batch: dict[str, np.ndarray]) -> int:
        """The number of tokens to predict in a batch."""
        return int(np.count_nonzero(batch['weights']))

    def digest(self, split: str) -> str:
        """A digest of the text of a split; other data have another digest."""
        return self.config.part(split).digest

    @functools.cached_property
    def batches_per_epoch(self) -> float:
        """Batches that hold the training part once; for first fit, estimated from some of the blocks that are packed."""
        from data.text import packing

        config, store = self.config, self._training
        if config.packing == 'concat' or config.documents == 'stream':
            return store.meta['tokens'] / config.length / config.batch_size
        pieces = packing.windows(store.offsets, config.length, config.length)
        if config.packing == 'none':
            return len(pieces) / config.batch_size
        order = self._blocks(len(pieces), 0)
        blocks = [pieces[order(number)] for number in range(max(1, min(len(pieces), _SAMPLE) // order.size))]
        rows = sum(len(packing.first_fit(block, config.length)) for block in blocks) / len(blocks) / order.size
        return rows * len(pieces) / config.batch_size

    @property
    def specs(self) -> dict[str, TokenizerSpec]:
        """{attribute: the spec of the tokenizer in it}."""
        return {'tokenizer': self.config.tokenizer}

    @epochs.anew
    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch; get_state and set_state resume exactly."""
        from data import pipeline
        from data.text import packing

        config, store = self.config, self._training
        if config.documents == 'stream':
            return pipeline.numbered(Stream(store, config.length, config.batch_size, seed))
        pieces = packing.windows(store.offsets, config.length, config.length)
        if config.packing == 'none':
            order = pipeline.Order(len(pieces), config.batch_size, seed)
            return pipeline.numbered(_Singles(order, pieces, store, config.length))
        batches = packing.PackedBatches(
            pipeline.endless(self._blocks(len(pieces), seed)),
            pieces,
            store,
            length=config.length,
            batch_size=config.batch_size,
            packing=config.packing,
        )
        return pipeline.ahead(batches)

    def _blocks(self, count: int, seed: int):
        """The order of `count` pieces in draws that fill about eight batches, each of which is packed by itself."""
        from data import pipeline

        per_row = max(1, self.config.length * count // self._training.meta['tokens'])
        return pipeline.Order(count, 8 * self.config.batch_size * per_row, seed)

    def evaluation(self, split: str, batch_size: int, context: int | None = None, stride: int | None = None):
        """Batches that score every token of a split exactly once.

        Args:
          split: 'train', 'valid', 'test', or an expression such as 'train[:1%]' or 'all'.
          batch_size: rows in a batch.
          context: tokens in a row (default: `length`).
          stride: tokens by which a window moves on (default: `context`); a smaller one gives more context, at
            context / stride times the work.

        Returns: an Evaluation; facts 'tokens', 'bytes', 'documents', 'context', 'stride'.
        Raises: ValueError for an unknown or empty split or a stride outside 1..context.
        """
        return self._evaluate(self.config.part(split), batch_size, context, stride)

    def score(self, paths: Sequence[str], batch_size: int, context: int | None = None, stride: int | None = None):
        """Like `evaluation`, over text files given by path."""
        found = [file for path in paths for file in sources.files(path, '--path', self.config.encoding)]
        return self._evaluate(sources.Split.of('all', found, self.config.documents), batch_size, context, stride)

    def _evaluate(self, part: sources.Split, batch_size: int, context: int | None, stride: int | None):
        from data import pipeline
        from data.text import packing

        config = self.config
        context = config.length if context is None else context
        stride = context if stride is None else stride
        if not 1 <= stride <= context:
            raise ValueError(f'context={context} and stride={stride} do not fit; expected 1 <= stride <= context.')
        store = tokens.load(part, self.tokenizer)
        pieces = packing.windows(store.offsets, context, stride)
        packed = config.packing != 'none' and config.documents != 'stream'
        rows = packing.first_fit(pieces, context) if packed else packing.single(pieces)
        facts = {name: store.meta[name] for name in ('bytes', 'tokens', 'documents')}
        return pipeline.Evaluation(
            len(rows),
            batch_size,
            lambda numbers: rows.batch(numbers, store, context),
            {**facts, 'context': context, 'stride': stride},
            part.raw,
        )

    @functools.cached_property
    def _training(self) -> tokens.Tokens:
        store = tokens.load(self.config.part('train'), self.tokenizer)
        if store.meta['tokens'] < self.config.length:
            mend = 'lower data.length or give it more text' if store.meta['ids'] > _FEW else 'give it more text'
            raise ValueError(
                f'The training part has {store.meta["ids"]} tokens and data.length={self.config.length} needs '
                f'one more than that; {mend}.'
            )
        return store


class OpenText(OpenDocuments):
    """Text that a model continues."""

    @property
    def packed(self) -> bool:
        return self.config.packing != 'none' and self.config.documents != 'stream'

    def unread(self, ids: np.ndarray) -> int:
        """The number of ids that stand for what the vocabulary lacks."""
        unknown = self.tokenizer.roles.unknown
        return 0 if unknown in (-1, self.begin, self.end) else int(np.count_nonzero(ids == unknown))

    def prompt(self, text: str) -> np.ndarray:
        """int32 [n]: the tokens that a model continues; a document starts with `begin`, a stream does not."""
        start = [] if self.config.documents == 'stream' else [self.begin]
        return np.concatenate([np.array(start, np.int32), self.encode(text)])


@dataclasses.dataclass(frozen=True)
class Stream:
    """Batch k of a stream: row r of an epoch starts at a random place in [r length, (r + 1) length)."""

    store: tokens.Tokens
    length: int
    batch_size: int
    seed: int

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        from data import pipeline

        targets, length = self.store.meta['tokens'], self.length
        count = max(1, (targets + 1) // length - 1)
        rows = pipeline.Order(count, self.batch_size, self.seed)(number)
        phases = np.random.default_rng([self.seed, number]).random(len(rows))
        room = np.minimum(length, targets - length + 1 - rows * length)
        starts = rows * length + (phases * room).astype(np.int64)
        window = self.store.ids[starts[:, None] + np.arange(length + 1)].astype(np.int32)
        shape = len(rows), length
        return {
            'inputs': window[:, :-1],
            'targets': window[:, 1:],
            'weights': np.ones(shape, np.float32),
            'segments': np.ones(shape, np.int32),
            'positions': np.broadcast_to(np.arange(length, dtype=np.int32), shape),
        }


@dataclasses.dataclass(frozen=True)
class _Singles:
    """Batch k of rows with one piece each."""

    order: object
    pieces: object
    store: tokens.Tokens
    length: int

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        from data.text import packing

        chosen = packing.single(self.pieces[self.order(number)])
        return chosen.batch(np.arange(len(chosen)), self.store, self.length)
