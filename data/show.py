"""Prints what a config reads, and a row of its batches, as a person reads it: tokens with their noise, targets, labels.

    python -m data.show --config=configs/NAME.py[:VARIANT] [--config.part.field=value ...] [--split=train] [--row=0]

--row counts the rows of all batches from 0. Those of --split=train are shuffled and noisy as in training, those of any other
split, such as valid or 'train[:1%]', are in order, as evaluation reads them.
"""

import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from data import remote
from data.text.babi import OpenBabi
from data.text.choices import OpenChoices
from data.text.masked import OpenMasked
from data.text.preferences import OpenPreferences
from data.text.questions import OpenQuestions
from data.text.tagged import OpenTagged

_WIDTH = 100
_FEW = 8  # numbers of an array that is no text
_MEANINGS = {'next': ('the second text follows the first', 'the second text is from another document'),
             'order': ('the two texts are in order', 'the two texts have changed places')}

Row = Mapping[str, np.ndarray]
Pieces = Callable[[Sequence[int]], list[str]]


def row_of(opened: Any, split: str, number: int, seed: int = 0) -> tuple[dict[str, np.ndarray], int, int]:
    """(a row, the number of its batch, its number there). Raises ValueError for a row that is not there."""
    if number < 0:
        raise ValueError(f'--row is {number}; expected the number of a row, from 0.')
    batches = opened.train(seed) if split == 'train' else opened.evaluation(split, opened.config.batch_size)
    before = 0
    for index, batch in enumerate(batches):
        first = next(iter(batch.values()))
        rows = int(batch['example_weights'].sum()) if 'example_weights' in batch else len(first)
        if number < before + rows:
            return {name: x[number - before] for name, x in batch.items() if name != 'example_weights'}, index, number - before
        before += rows
    raise ValueError(f'--row is {number}, but the split {split!r} has {before} rows; give a lower number.')


def lines(opened: Any, row: Row) -> Iterator[str]:
    """A row of a batch of opened data. Of arrays that are no text, the shape and the first numbers are told."""
    told = {'inputs', 'segments', 'positions', 'types', 'decoder_inputs', 'decoder_segments', 'decoder_positions'} & {*row}
    if isinstance(opened, OpenBabi):
        yield from _story(opened, row)
        told |= {'story', 'question'}
    elif isinstance(opened, OpenPreferences):
        for side, what in enumerate(('chosen', 'rejected')):
            yield from _text(what, {name: x[side] for name, x in row.items()}, opened.pieces)
    elif isinstance(opened, OpenChoices):
        for number in np.flatnonzero(row['segments'].any(-1)):
            what = f'answer {number + 1}' + ', the right one' * bool(number == row['label'])
            yield from _text(what, {name: row[name][number] for name in told}, opened.pieces)
        told |= {'label'}
    elif isinstance(opened, OpenMasked):
        yield from _masked(row, opened.pieces)
        told |= {'masked', 'targets', 'weights', 'boundaries', 'boundary_weights'}
    elif isinstance(opened, OpenTagged):
        tags = [f'/{opened.classes[tag]}' if weight else '' for tag, weight in zip(row['targets'], row['weights'])]
        yield from _text('inputs', row, lambda ids: [piece + tag for piece, tag in zip(opened.pieces(ids), tags)])
        told |= {'targets', 'weights'}
    elif told and row['inputs'].ndim == 2:  # two texts in both orders (data.both)
        for number in range(len(row['inputs'])):
            yield from _text(f'inputs, order {number + 1}', {name: row[name][number] for name in told}, opened.pieces)
    elif told:
        yield from _text('inputs', row, opened.pieces)
    if isinstance(opened, OpenQuestions):
        yield _answer(opened, row)
        told |= {'start', 'end'}
    if {'targets', 'weights'} <= {*row} - told:
        yield from _targets(row, lambda ids: [opened.tokenizer.piece(int(number)) for number in ids])
        told |= {'targets', 'weights'}
    if 'label' in {*row} - told:
        yield f'label: {_label(opened, row["label"])}'
    for name, x in row.items():
        if name not in (*told, 'label'):
            numbers = ' '.join(f'{one:.4g}' for one in np.ravel(x)[:_FEW]) + ' ..' * (x.size > _FEW)
            yield f'{name}: {x.dtype} {list(x.shape)}, from {x.min():.4g} to {x.max():.4g}: {numbers}' if x.ndim else (
                f'{name}: {x:.6g}')


def _text(what: str, row: Row, pieces: Pieces, before: str = '', words: Sequence[str] = ()) -> Iterator[str]:
    """The tokens of one side of a row, `words` or their own pieces: a paragraph for each segment and type of tokens."""
    ids, segments = row[f'{before}inputs'], row[f'{before}segments']
    types = row['types'] if 'types' in row and not before else np.zeros_like(segments)
    words = words or pieces(ids)
    for (segment, kind), run in itertools.groupby(range(len(ids)), lambda place: (int(segments[place]), int(types[place]))):
        places = list(run)
        if segment:
            about = [f'segment {segment}'] * bool(segments.max() > 1) + [f'type {kind}'] * bool(types.any())
            yield ', '.join([what, *about]) + ':'
            yield _paragraph([words[place] for place in places])
    padding = int((segments == 0).sum())
    yield f'  {len(ids) - padding} tokens' + f', {padding} places of padding' * bool(padding)


def _paragraph(words: Sequence[str]) -> str:
    """Pieces as a text: with spaces between them unless they bring their own; signs that a terminal obeys are escaped."""
    own = any(word.startswith(' ') for word in words) or sum(len(word) == 1 for word in words) > len(words) / 2  # characters
    text = ('' if own else ' ').join(words).replace('\n', '\u23ce ')
    text = ''.join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    wrapped = textwrap.wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent('\n'.join(wrapped), '  ')


def _masked(row: Row, pieces: Pieces) -> Iterator[str]:
    """The tokens with their noise, and the words to predict."""
    words, hidden = pieces(row['inputs']), []
    for number in np.flatnonzero(row['weights']):
        place = int(row['masked'][number])
        was, seen = pieces([row['targets'][number]])[0], words[place]
        about = 'stays' if row['inputs'][place] == row['targets'][number] else f'seen as {seen.strip()}'
        about += f', weight {row["weights"][number]:g}' * bool(row['weights'][number] != 1)
        if 'boundaries' in row and row['boundary_weights'][number]:
            left, right, inside = row['boundaries'][number]
            about += f'; word {inside + 1} of the span between {left} and {right}'
        hidden.append(f'  {place:4} {was.strip()}: {about}')
        changed = '' if about.startswith('stays') else f'\u2192{seen.strip()}'
        words[place] = f'{" " * was.startswith(" ")}\u2039{was.strip()}{changed}\u203a'
    yield from _text('inputs, with \u2039word\u2192what the model sees\u203a', row, pieces, words=words)
    yield f'{len(hidden)} words to predict, by their places:'
    yield from hidden


def _targets(row: Row, pieces: Pieces) -> Iterator[str]:
    """The inputs of a decoder, if there is one, and the targets; those of weight 0 are '_'."""
    before = 'decoder_' if 'decoder_inputs' in row else ''
    if before:
        yield from _text('decoder inputs', row, pieces, before)
    words = pieces(row['targets'])
    blank = ' _' if any(word.startswith(' ') for word in words) else '_'
    words = [word if weight else blank for word, weight in zip(words, row['weights'])]
    yield from _text('targets', row, pieces, before, words)


def _story(opened: OpenBabi, row: Row) -> Iterator[str]:
    said = lambda ids: ' '.join(opened.vocabulary[number] for number in ids if number)
    yield 'story, the latest sentence first:'
    yield from (f'  {said(sentence)}' for sentence in row['story'] if sentence.any())
    yield f'question: {said(row["question"])}'


def _answer(opened: OpenQuestions, row: Row) -> str:
    first, last = int(row['start']), int(row['end'])
    if not last:
        return 'answer: none in this window'
    return f'answer: {opened.decode(row["inputs"][first : last + 1]).strip()} (places {first} to {last})'


def _label(opened: Any, label: np.ndarray) -> str:
    if isinstance(opened, OpenMasked):
        return f'{label}, {_MEANINGS[opened.pairs][label]}'
    if isinstance(opened, OpenBabi):
        return opened.vocabulary[label]
    if label.ndim:  # any number of classes
        return ', '.join(name for name, there in zip(opened.classes, label) if there) or 'none'
    return opened.classes[label] if np.issubdtype(label.dtype, np.integer) else f'{label:g}'


if __name__ == '__main__':  # a script, which may import everything, as those at the root may
    from absl import flags

    from training import workdir
    from training.config import cli, resolve, schema

    flags.DEFINE_string('split', 'train', 'train, valid, test or an expression over the data')
    flags.DEFINE_integer('row', 0, 'the number of the row, from 0')
    cli.answer_help(config='configs/quickstart.py')

    def main(config, name):
        schema.check(config)
        source = workdir.existing(config.init_from, '--config.init_from') if config.init_from else None
        opened = resolve.construct(config.data, 'pipeline').open(None, source)
        row, batch, place = row_of(opened, flags.FLAGS.split, flags.FLAGS.row, config.seed)
        print(f'data: {opened.describe()}')
        print(f'{name}, {config.data.pipeline}, {flags.FLAGS.split}: batch {batch}, row {place} of {config.data.batch_size}')
        print('\n'.join(lines(opened, row)))

    cli.run(main, config='configs/quickstart.py', shown=remote.shown)
