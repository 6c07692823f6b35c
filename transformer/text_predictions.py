"""What runs on whole texts say of lines: words for masks, whether texts follow each other, classes, tags, answers, vectors.

Each reader turns a line into rows of tokens, and what the model gives for these into an answer.
"""

import abc
import itertools
import json
from typing import NamedTuple

import jax
import numpy as np

from transformer.text_evaluators import outputs

KINDS = 'masked', 'labelled', 'tagged', 'questions'  # of data that this is for
AT_ONCE = 64  # rows in one call of a model
MASKS = 8  # places in one of these rows; a text with more masks has several
BEST = 5  # words for a mask, and answers to a question, that are told of


class Row(NamedTuple):
    """A text between its special tokens: (ids, types), and the places in it whose words are asked for, `MASKS` at most."""
    framed: tuple
    masked: np.ndarray = np.zeros(0, np.int32)


class Reader(abc.ABC):
    """Base of the readers.

    Attributes:
      names: the outputs of the model that it needs.
    """
    names = 'logits',

    def __init__(self, data):
        self.data = data

    @abc.abstractmethod
    def read(self, line):
        """([Row], what `answer` is to know of them, `known`). Raises ValueError for a line that cannot be answered."""

    @abc.abstractmethod
    def answer(self, line, known, rows):
        """(text, details) of a line whose rows have these outputs, {name: array}."""


def answers(snapshot, lines, place):
    """(text, details) of each line of text, of a blank one '' and itself. All lines are read before the first answer.

    Args:
      place: from the number of a line, from 1, to how an error names it.
    """
    reader, asked = reader_of(snapshot), []
    for number, line in enumerate(lines, 1):
        try:
            asked.append(reader.read(line) if line.strip() else ([], None))
        except ValueError as error:
            raise ValueError(f'In {place(number)}: {error}') from None
    found = outputs(snapshot, batches(snapshot.data, [row for rows, _ in asked for row in rows]), reader.names)
    for line, (rows, known) in zip(lines, asked):
        yield reader.answer(line, known, list(itertools.islice(found, len(rows)))) if rows else ('', {'text': line})


def shown(snapshot, text):
    """(ids, types) of a text that is to be looked at; where words are masked it needs no mask. Raises ValueError where it takes
    several rows."""
    data = snapshot.data
    if data.kind == 'masked':
        return data.framed(*text.split('\t', 1) if data.config.next_sentence else [text])
    rows, _ = reader_of(snapshot).read(text)
    if len(rows) > 1:
        raise ValueError(f'{text[:40]!r} takes {len(rows)} rows of this run, and a picture shows one; shorten it.')
    return rows[0].framed


def batches(data, rows):
    """Batches of `Row`s, all of one shape, so that one program is compiled: powers of two, or if these are less `AT_ONCE` rows
    and the tokens of training."""
    count = size(len(rows), AT_ONCE)
    length = size(max((len(row.framed[0]) for row in rows), default=1), data.config.length)
    for first in range(0, len(rows), count):
        part = rows[first:first + count]
        there = np.arange(count) < len(part)
        part = part + [Row((np.zeros(0, np.int32),) * 2)] * (count - len(part))
        masked = np.stack([np.pad(row.masked, (0, MASKS - len(row.masked))) for row in part]).astype(np.int32)
        yield data.rows([row.framed for row in part], length) | {'masked': masked, 'example_weights': there.astype(np.float32)}


def size(count, most):
    """The power of two from `count` on, `most` at most."""
    return min(most, 1 << max(count - 1, 0).bit_length())


def reader_of(snapshot):
    """The reader for a run on texts that are read whole."""
    data, given = snapshot.data, given_by(snapshot)
    if data.kind == 'masked' and not given & {'logits', 'next_logits'}:
        return Vectors(data, 'pooled' if 'pooled' in given else 'hidden')
    if data.kind == 'masked':
        return Masked(data, words='logits' in given, pairs='next_logits' in given and data.config.next_sentence)
    return {'labelled': Labelled, 'tagged': Tagged, 'questions': Questions}[data.kind](data)


def given_by(snapshot):
    """The names of the outputs of a run's model."""
    batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in snapshot.data.shapes.items()}
    return set(jax.eval_shape(lambda batch: snapshot.apply(**snapshot.run.task.inputs(batch)), batch))


def chances(logits):
    """softmax(logits), in float64."""
    p = np.exp(np.float64(logits) - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def classified(classes, logits):
    """What --json says of the logits of classes; a model may have more of them than its data."""
    p = chances(logits[:len(classes)])
    best = int(p.argmax())
    return {'class': classes[best], 'probability': float(p[best]), 'probabilities': dict(zip(classes, map(float, p)))}


def numbers(vector):
    """A vector in float32 as the shortest numbers that name it."""
    return [float(str(x)) for x in np.asarray(vector, np.float32)]


def parted(line, what):
    """The two texts of a line with one tab, or more in the second; `what` they are is for an error."""
    first, tab, second = line.partition('\t')
    if not tab:
        raise ValueError(f'{line.strip()[:40]!r} has no tab; expected {what} with a tab between them.')
    return first, second


class Masked(Reader):
    """Fills the masks of a text; or, of 'first<TAB>second', tells whether the second text follows the first."""

    def __init__(self, data, words, pairs):
        super().__init__(data)
        self.words, self.pairs = words, pairs
        self.names = ('logits',) * words + ('next_logits',) * pairs

    def read(self, line):
        if self.pairs and ('\t' in line or not self.words):
            return [Row(self.data.framed(*parted(line, 'two texts')))], None
        ids, types, places = self.data.read(line)
        return [Row((ids, types), places[first:first + MASKS]) for first in range(0, len(places), MASKS)], len(places)

    def answer(self, line, known, rows):
        if known is None:
            p, (first, second) = chances(rows[0]['next_logits']), parted(line, 'two texts')
            said = 'follows' if p[0] >= p[1] else 'does not follow'
            return f'{said}\t{p.max():.4f}', {'first': first, 'second': second, 'follows': said == 'follows',
                                              'probability': float(p.max())}
        vocab = self.data.facts['vocab']  # a model may have more
        p = chances(np.concatenate([row['logits'] for row in rows])[:known, :vocab])
        best = np.argsort(-p, -1, kind='stable')[:, :BEST]
        text = self.data.filled(line, best[:, 0])
        masks = [[{'token': sign, 'id': int(i), 'probability': float(row[i])} for sign, i in zip(self.data.pieces(ids), ids)]
                 for row, ids in zip(p, best)]
        return text, {'text': line, 'filled': text, 'masks': masks}


class Labelled(Reader):
    """The class of a text, or of 'first<TAB>second'."""

    def read(self, line):
        return [Row(self.data.read(line))], None

    def answer(self, line, known, rows):
        found = classified(self.data.classes, rows[0]['logits'])
        return f'{found["class"]}\t{found["probability"]:.4f}', {'text': line, **found}


class Tagged(Reader):
    """Words and their tags, and where these are of names what they span; a line of many words has several rows."""

    def read(self, line):
        framed, places = self.data.read(line)
        return [Row(row) for row in framed], places

    def answer(self, line, known, rows):
        classes, words = self.data.classes, line.split()
        best = [row['logits'][places, :len(classes)].argmax(-1) for row, places in zip(rows, known)]
        tags = [classes[tag] for tag in np.concatenate(best)]
        details = {'words': words, 'tags': tags}
        if self.data.has_spans:
            details['spans'] = [{'type': kind, 'text': ' '.join(words[start:stop]), 'start': start, 'stop': stop}
                                for start, stop, kind in sorted(self.data.spans(tags))]
        return ' '.join(f'{word}/{tag}' for word, tag in zip(words, tags)), details


class Questions(Reader):
    """The answer to 'question<TAB>context', a part of the context; '' where there is none. A long context has several rows."""
    names = 'start_logits', 'end_logits'

    def read(self, line):
        framed, windows = self.data.read(*parted(line, 'a question and a text'))
        return [Row(row) for row in framed], windows

    def answer(self, line, known, rows):
        starts, ends = ([row[name] for row in rows] for name in self.names)
        found, = self.data.best_spans(starts, ends, known, count=BEST, null=0.0 if self.data.unanswerable else None)
        outputs = [{'answer': one.text, 'score': one.score, 'start': one.start, 'stop': one.stop} for one in found]
        return outputs[0]['answer'], {'question': line.partition('\t')[0], **outputs[0], 'outputs': outputs}


class Vectors(Reader):
    """A text as a vector: what the model pools, or the mean of its hidden states, those of special tokens too."""

    def __init__(self, data, name):
        super().__init__(data)
        self.names = name,

    def read(self, line):
        return [Row(self.data.framed(line))], None

    def answer(self, line, known, rows):
        row, (name,) = rows[0], self.names
        found = row['pooled'] if name == 'pooled' else row['hidden'][row['segments'] != 0].mean(0)
        vector = numbers(found)
        return json.dumps(vector), {'text': line, 'vector': vector, 'of': 'pooled' if name == 'pooled' else 'mean'}
