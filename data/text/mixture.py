"""Several texts as one: every row of a training batch comes from one of them, drawn by weight.

A mixture is opened and used as a single text (data/text/documents.py). Its split `valid` is that of all parts in sequence,
`code.valid` that of the part `code`.
"""

import dataclasses
import functools
import math
import os
import zlib
from collections.abc import Mapping

import grain
import numpy as np

from data import pipeline, splits
from data.sources import files as sources
from data.text.documents import OpenText, Text, saved_tokenizer
from data.tokenizers.specs import SentencePiece, TokenizerSpec


@dataclasses.dataclass(frozen=True)
class Part:
    """A text of a mixture.

    Attributes:
      weight: divided by the sum of all weights, the share of rows that come from this part.
      source, path, name, features, encoding, train, valid, test: as in data.text.documents:Text; '' for no such split.
    """

    weight: float = 1.0
    source: str = 'files'
    path: str = ''
    name: str = ''
    features: str = ''
    encoding: str = 'utf-8'
    train: str = 'train[:90%]'
    valid: str = 'train[90%:95%]'
    test: str = 'train[95%:]'


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Texts for language modelling with one tokenizer, learnt from all of them.

    Attributes:
      parts: {name: Part}.
      documents, tokenizer, length, packing, batch_size, reader: shared by all parts, as in data.text.documents:Text.
    """

    parts: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    documents: str = 'file'
    tokenizer: TokenizerSpec = SentencePiece(vocab=4096)
    length: int = 128
    packing: str = 'first_fit'
    batch_size: int = 32
    reader: str = 'transformer.readers.completion:Completion'
    encoding = 'utf-8'  # no field: that of files that eval.py --path names; each part has its own

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenMixture':
        """Opens all texts, as Text.open does one."""
        if not self.parts:
            raise ValueError('The mixture has no parts; name one or more, as configs/quickstart.py:mixture does.')
        for name, text in self.texts.items():
            weight = self.parts[name].weight
            if not 0 < weight < math.inf:
                raise ValueError(f'data.parts.{name}.weight is {weight}; expected a number above 0, or leave the part out.')
            try:
                text.check()
            except ValueError as error:
                raise ValueError(f'In part {name!r} of the mixture: {error}') from error
        return OpenMixture(self, saved_tokenizer(folder, source, self.tokenizer))

    @functools.cached_property
    def texts(self) -> dict[str, Text]:
        """Every part as a separate text, whose batches have about as many rows as it contributes to a batch."""
        shared = {name: getattr(self, name) for name in ('documents', 'tokenizer', 'length', 'packing')}
        total = sum(part.weight for part in self.parts.values())
        own = [field.name for field in dataclasses.fields(Part) if field.name != 'weight']
        return {
            name: Text(
                **{field: getattr(part, field) for field in own},
                **shared,
                batch_size=max(1, round(self.batch_size * part.weight / total)) if total > 0 else 1,
            )
            for name, part in self.parts.items()
        }

    def part(self, split: str) -> sources.Joined | sources.Split:
        """The text of a split: of all parts that have it, or of the one before a dot."""
        name, dot, own = split.partition('.')
        texts = self.texts
        if dot and name in texts:
            return texts[name].part(own)
        base = splits.read(split)[0] if split else ''
        having = [text for text in texts.values() if base not in ('train', 'valid', 'test') or getattr(text, base)]
        if not split or not having:
            one = next(iter(texts))
            raise ValueError(f'No part of the mixture has a split {split!r}; set it, as in data.parts.{one}.valid.')
        return sources.Joined([text.part(split) for text in having], self.documents, split)


class OpenMixture(OpenText):
    """A mixture with its tokenizer, used as a single text."""

    def describe(self) -> str:
        """One line about the training parts and the tokenizer, for the log."""
        total = sum(part.weight for part in self.config.parts.values())
        about = [
            f'{name} {self.config.parts[name].weight / total:.1%}, {text.describe().rpartition("; ")[0]}'
            for name, text in self._opened.items()
        ]
        return f'{"; ".join(about)}; {type(self.config.tokenizer).__name__} vocabulary of {self.tokenizer.vocab:,}'

    @functools.cached_property
    def batches_per_epoch(self) -> float:
        """Batches that hold as many rows as all training parts together."""
        rows = sum(text.batches_per_epoch * text.config.batch_size for text in self._opened.values())
        return rows / self.config.batch_size

    def train(self, seed: int) -> grain.DatasetIterator:
        """An endless iterator over batches; every part has its own epochs. get_state and set_state resume exactly."""
        weights = np.array([part.weight for part in self.config.parts.values()])
        streams = {
            name: text.train(zlib.crc32(f'{seed} {name}'.encode())) for name, text in self._opened.items()
        }
        return pipeline.closed_at_exit(_Mixed(streams, weights / weights.sum(), self.config.batch_size, seed))

    @functools.cached_property
    def _opened(self) -> dict[str, OpenText]:
        return {name: OpenText(text, self.tokenizer) for name, text in self.config.texts.items()}


class _Mixed(grain.DatasetIterator):
    """Batches whose rows are drawn from streams of batches, each row of a stream used once and in order."""

    def __init__(self, streams: dict[str, grain.DatasetIterator], shares: np.ndarray, rows: int, seed: int):
        super().__init__()
        self._streams, self._shares, self._rows, self._seed = streams, shares, rows, seed
        self._number = 0
        self._places = {name: {'before': stream.get_state(), 'taken': 0} for name, stream in streams.items()}
        self._batches: dict[str, dict[str, np.ndarray]] = {}

    def __next__(self):
        chosen = np.random.default_rng([self._seed, self._number]).choice(len(self._shares), self._rows, p=self._shares)
        mixed: dict[str, np.ndarray] = {}
        for index, name in enumerate(self._streams):
            for row in np.flatnonzero(chosen == index):
                for key, value in self._row(name).items():
                    if key not in mixed:
                        mixed[key] = np.empty((self._rows, *value.shape), value.dtype)
                    mixed[key][row] = value
        self._number += 1
        return mixed

    def _row(self, name: str) -> dict[str, np.ndarray]:
        place = self._places[name]
        if name not in self._batches or place['taken'] == len(self._batches[name]['inputs']):
            place |= {'before': self._streams[name].get_state(), 'taken': 0}
            self._batches[name] = next(self._streams[name])
        place['taken'] += 1
        return {key: value[place['taken'] - 1] for key, value in self._batches[name].items()}

    def get_state(self):
        return {'next': self._number, 'places': {name: dict(place) for name, place in self._places.items()}}

    def set_state(self, state):
        self._number, self._batches = state['next'], {}
        for name, stream in self._streams.items():
            self._places[name] = dict(state['places'][name])
            stream.set_state(self._places[name]['before'])
            if self._places[name]['taken']:
                self._batches[name] = next(stream)

    def close(self):
        for stream in self._streams.values():
            stream.close()
