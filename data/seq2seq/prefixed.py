"""Parallel text for a decoder alone: a source and its target in one row, of which the target is predicted.

    opened = Prefixed(source='table', path='pairs.tsv').open(None)

A row has n tokens of a source, the last of which ends it, and then the target: `inputs` s_1 .. s_n t_1 .. t_m, `targets` one
later with `weights` of 1 at t_1 .. t_m and the end, `segments`, `positions`, and `prefix` with 1 at the tokens of the source,
each [B, source_length + length]. Several pairs may share a row.
"""

import dataclasses

import numpy as np

from data.seq2seq import pair_packing, pairs
from data.seq2seq.parallel import OpenParallel, Parallel
from data.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Prefixed(Parallel):
    """Parallel text, a pair in one piece of a row.

    Attributes are those of data.seq2seq.parallel:Parallel, and:
      bidirectional: whether the tokens of a source see each other, a prefix language model (Raffel et al. 2020, section 3.2.1);
        else each sees those before it.
    """

    bidirectional: bool = True

    def opened(self, source_tokenizer: Tokenizer, tokenizer: Tokenizer) -> 'OpenPrefixed':
        return OpenPrefixed(self, source_tokenizer, tokenizer)

    def check(self) -> None:
        """Raises ValueError for field values that are invalid or do not fit together."""
        super().check()
        if self.target_tokenizer:
            raise ValueError(f"data.target_tokenizer='{self.target_tokenizer}' does not go with sources and targets in one "
                             'row; leave it empty.')


class OpenPrefixed(OpenParallel):
    """Parallel text in rows for a decoder alone.

    Attributes:
      bidirectional: whether the tokens of a source see each other.
    """

    bidirectional: bool

    def __init__(self, config: Prefixed, source_tokenizer: Tokenizer, tokenizer: Tokenizer):
        super().__init__(config, source_tokenizer, tokenizer)
        self.bidirectional = config.bidirectional
        del self.facts['source_vocab']

    @property
    def buckets(self) -> list[dict[str, tuple[tuple[int, ...], type]]]:
        """The shapes of all training batches, the longest last."""
        return [_shapes(shapes) for shapes in super().buckets]

    def _store(self, part: pairs.Pairs) -> '_Store':
        return _Store(**vars(super()._store(part)), bidirectional=self.bidirectional)


@dataclasses.dataclass(frozen=True)
class _Store(pair_packing.Store):
    """Tokenized pairs, whose batches are joined."""

    bidirectional: bool

    def batch(self, pairs: np.ndarray, bounds: np.ndarray, lengths: pair_packing.Lengths) -> dict[str, np.ndarray]:
        return joined(super().batch(pairs, bounds, lengths), self.bidirectional)


def _shapes(pairs: dict) -> dict[str, tuple[tuple[int, ...], type]]:
    (rows, source), (_, target) = pairs['inputs'][0], pairs['targets'][0]
    names = 'inputs', 'targets', 'weights', 'segments', 'positions', 'prefix'
    return {name: ((rows, source + target), np.float32 if name == 'weights' else np.int32) for name in names}


def joined(batch: dict[str, np.ndarray], bidirectional: bool) -> dict[str, np.ndarray]:
    """A batch for a decoder alone, from one for an encoder and a decoder whose rows hold several pairs (see the module)."""
    after = batch['decoder_positions'] > 0
    first = batch['positions'] == 0
    # What is read leaves out the start of the decoder, and what is predicted the first token of the source.
    read = [batch['segments'], np.where(after, batch['decoder_segments'], 0)]
    predicted = [np.where(first, 0, batch['segments']), batch['decoder_segments']]
    order, there = _sorted(read)
    at = _sorted(predicted)[0]

    def placed(order: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
        return np.where(there, np.take_along_axis(np.concatenate([source, target], 1), order, 1), 0).astype(source.dtype)

    none, unread = np.zeros_like(batch['inputs']), np.zeros(batch['inputs'].shape, np.float32)
    segments = placed(order, *read)
    place = np.arange(segments.shape[1])
    begins = np.diff(segments, axis=1, prepend=0) != 0
    positions = place - np.maximum.accumulate(np.where(begins, place, 0), 1)
    marks = np.ones_like(none) if bidirectional else none
    return {
        'inputs': placed(order, batch['inputs'], batch['decoder_inputs']),
        'targets': placed(at, none, batch['targets']),
        'weights': placed(at, unread, batch['weights']),
        'segments': segments,
        'positions': np.where(there, positions, 0).astype(np.int32),
        'prefix': placed(order, marks, np.zeros_like(batch['targets'])),
    }


def _sorted(segments: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(order, there) [B, S + T]: the entries of both sides pair by pair, the source first, then those of no pair; and which of
    them are of a pair."""
    both = np.concatenate(segments, 1)
    keys = np.where(both > 0, both, both.max() + 1)
    order = np.argsort(keys, 1, kind='stable')
    return order, np.take_along_axis(both, order, 1) > 0
