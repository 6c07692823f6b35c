"""The shifting task: the inputs are a row of words, the targets are the same row from its second word on and one word more.

    opened = Shift(source='stdlib', tokenizer=Word(vocab=5000), length=100).open(None)
    for batch in opened.train(seed=0): ...

All targets but the last are in the inputs, one place further on; the last one cannot be known and has weight 0.
Evaluation scores words alone: line ends and unknown words, which all look the same, have weight 0 there.
Rows hold the arrays of pairs (data/seq2seq/parallel.py): `inputs`, `segments`, `positions`, `decoder_inputs`,
`decoder_segments`, `decoder_positions`, `targets` and `weights`, each [B, T].
"""

import dataclasses
import os

import numpy as np

from data import epochs
from data.text.documents import OpenDocuments, Stream, Text, saved_tokenizer
from data.tokenizers.specs import TokenizerSpec, Word
from data.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Shift(Text):
    """Rows of `length` words of a text, which is one stream.

    Attributes are those of Text; `documents` is 'stream'.
    """

    documents: str = 'stream'
    tokenizer: TokenizerSpec = Word()
    length: int = 100
    reader: str = 'transformer.readers.shift:ShiftedWords'

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenShift':
        """As Text.open."""
        self.check()
        return OpenShift(self, saved_tokenizer(folder, source, self.tokenizer))

    def check(self) -> None:
        """Raises ValueError for field values that are invalid or do not fit together."""
        super().check()
        if self.documents != 'stream':
            raise ValueError(
                f"data.documents={self.documents!r} has rows of several lengths; leave it at 'stream' for the shifting task."
            )
        if self.length < 2:
            raise ValueError(f'data.length={self.length} leaves nothing to copy; set it to 2 or more.')


class OpenShift(OpenDocuments):
    """Text of the shifting task.

    Attributes:
      start: the first input of the decoder.
    """

    start: int

    def __init__(self, config: Shift, tokenizer: Tokenizer | None):
        super().__init__(config, tokenizer)
        self.start = self.tokenizer.end
        self.facts = {**self.facts, 'source_vocab': 0}

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch, known without the text."""
        own = super().shapes
        return own | {f'decoder_{name}': own[name] for name in ('inputs', 'segments', 'positions')}

    @epochs.anew
    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch; get_state and set_state resume exactly."""
        from data import pipeline

        rows = Stream(self._training, self.config.length, self.config.batch_size, seed)
        return pipeline.numbered(_Shifted(rows, self.start))

    def _evaluate(self, *given):
        evaluation = super()._evaluate(*given)
        signs = self.tokenizer.roles.end, self.tokenizer.roles.unknown

        def scored(batch):
            batch = shifted(batch, self.start)
            return batch | {'weights': batch['weights'] * ~np.isin(batch['targets'], signs)}

        evaluation = evaluation.mapped(scored)
        evaluation.facts = {name: fact for name, fact in evaluation.facts.items() if name != 'bytes'}  # not all are scored
        return evaluation


@dataclasses.dataclass(frozen=True)
class _Shifted:
    """Batch k of `rows`, as `shifted` makes it."""

    rows: Stream
    start: int

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        return shifted(self.rows(number), self.start)


def shifted(batch: dict[str, np.ndarray], start: int) -> dict[str, np.ndarray]:
    """Rows of a language model as pairs: the decoder inputs are `start` and all targets but the last; the last target of each
    row has weight 0."""
    there = batch['segments'] > 0
    told = np.concatenate([np.full_like(batch['targets'][:, :1], start), batch['targets'][:, :-1]], 1)
    known = np.concatenate([there[:, 1:], np.zeros_like(there[:, :1])], 1)
    return batch | {
        'weights': batch['weights'] * known,
        'decoder_inputs': np.where(there, told, 0),
        'decoder_segments': batch['segments'],
        'decoder_positions': batch['positions'],
    }
