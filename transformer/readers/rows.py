"""Rows of inputs, and the outputs of a model for each row."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from display import progress
from transformer.contracts import FramedText

AT_ONCE = 64  # rows in one call of a model
MASKS = 8  # masked places in one of these rows; a text with more takes several rows


class TokenRow(NamedTuple):
    """A text with its special tokens, (ids, types), and up to `MASKS` places in it whose words are predicted."""
    framed: tuple[np.ndarray, np.ndarray]
    masked: np.ndarray = np.zeros(0, np.int32)


def token_batches(data: FramedText, rows: Sequence[TokenRow]) -> Iterator[dict[str, np.ndarray]]:
    """Batches of rows, all of one shape, so that one program is compiled: the number of rows is a power of two, at most
    `AT_ONCE`, and so is their length, at most that of training."""
    count = size(len(rows), AT_ONCE)
    length = size(max((len(row.framed[0]) for row in rows), default=1), data.length)
    for first in range(0, len(rows), count):
        part = rows[first:first + count]
        there = np.arange(count) < len(part)
        part = [*part, *[TokenRow((np.zeros(0, np.int32),) * 2)] * (count - len(part))]
        masked = np.stack([np.pad(row.masked, (0, MASKS - len(row.masked))) for row in part]).astype(np.int32)
        yield data.rows([row.framed for row in part], length) | {'masked': masked, 'example_weights': there.astype(np.float32)}


def outputs(snapshot: Any, batches: Iterable[Mapping], names: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
    """Yields for each row of the batches one dict of its arrays and the named outputs in float32: in the order of the batches,
    or in that of `row` [B], if batches have it. Of a run on masked words the logits are those of the `masked` places, also if
    its task asks the model for those of all."""
    numbered = {}
    for batch in batches:
        with progress.waiting('predicting'):  # not while the answers are printed
            words = 'masked' in batch and 'logits' in names and 'masked' in snapshot.data.shapes
            places = {'masked': batch['masked']} if words else {}
            found = snapshot.apply(**snapshot.run.task.inputs(batch) | places)
            rows = batch | {name: _of_examples(batch, _in_float32(found, name)) for name in names}
        for row in np.flatnonzero(batch['example_weights']):
            found = {name: x[row] for name, x in rows.items()}
            if 'row' in found:
                numbered[int(found['row'])] = found
            else:
                yield found
    yield from (numbered[row] for row in sorted(numbered))


def _of_examples(batch: Mapping, x: np.ndarray) -> np.ndarray:
    """An output of each example: of inputs [B, 2, T], pairs in both orders, the sum over the orders."""
    inputs = batch.get('inputs')
    return x if np.ndim(inputs) < 3 else x.reshape(len(inputs), -1, *x.shape[1:]).sum(1)


def output_rows(snapshot: Any, inputs: Mapping[str, np.ndarray], name: str) -> Iterator[np.ndarray]:
    """Yields one output for each row of the inputs, in float32; all batches have one size, so that one program is compiled."""
    rows = len(next(iter(inputs.values())))
    count = size(rows, AT_ONCE)
    for start in range(0, rows, count):
        part = {key: x[start:start + count] for key, x in inputs.items()}
        padded = {key: np.concatenate([x, np.zeros((count - len(x), *x.shape[1:]), x.dtype)]) for key, x in part.items()}
        with progress.waiting('predicting'):
            found = _in_float32(snapshot.apply(**padded), name)
        yield from found[:rows - start]


def _in_float32(found, name):
    if name not in found:
        raise ValueError(f'The model of this run gives {", ".join(sorted(found))}, and no {name}; set data.reader to a reader '
                         'of these.')
    return np.asarray(found[name], np.float32)


def size(count: int, most: int) -> int:
    """The least power of two that is at least `count`, or `most` if that is less."""
    return min(most, 1 << max(count - 1, 0).bit_length())


def given_by(snapshot: Any) -> set[str]:
    """The names of the outputs of a run's model."""
    batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in snapshot.data.shapes.items()}
    return set(jax.eval_shape(lambda batch: snapshot.apply(**snapshot.run.task.inputs(batch)), batch))
