"""The segmentations of a text by a unigram model, which are latent: only the text is given (Kudo 2018, section 3).

A model gives the segmentation x = x_1 .. x_M of a text the probability P(x) = p(x_1) .. p(x_M). Among all segmentations of the
text that of x is P(x) / Z, Z the sum of P over them; with `alpha` it is P(x)^alpha / the sum of P^alpha, from which training
draws (section 3.2). The pieces that match form a lattice, an edge from each place of the text to a later one; sums over all
ways through it take time in proportion to its edges.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence

from data.tokenizers import plain
from data.tokenizers.tokenizer import SPACE, SentencePieceTokenizer

_UNKNOWN = 10.0  # SentencePiece's penalty of an unknown character, below the least log probability
_CERTAIN = 0.0  # its score of a symbol that is always a piece, such as a line end
_NO_SPACE = '\ufdd0'  # a code point that is no character stands for the sign of a space in a text, which is none of a piece


@dataclasses.dataclass(frozen=True)
class Edge:
    """A piece at a place.

    Attributes:
      start, stop: characters of the text that is segmented.
      piece: how the model writes it, U+2581 for a space.
      id: that of the piece; of a character that no piece has the unknown one, though it is encoded as bytes.
      score: the log probability of the piece, times alpha.
    """

    start: int
    stop: int
    piece: str
    id: int
    score: float


@dataclasses.dataclass(frozen=True)
class Lattice:
    """All segmentations of a text.

    Attributes:
      length: characters of the text.
      edges: by their start, and of equal ones by their stop.
    """

    length: int
    edges: tuple[Edge, ...]

    @functools.cached_property
    def _before(self) -> tuple[float, ...]:
        """[length + 1]: the logarithm of the sum over all ways from the beginning to each place."""
        found, ending = [0.0], self._ending
        for place in range(1, self.length + 1):
            found.append(_log_sum([found[edge.start] + edge.score for edge in ending[place]]))
        return tuple(found)

    @functools.cached_property
    def _after(self) -> tuple[float, ...]:
        """The same from each place to the end."""
        found, starting = {self.length: 0.0}, _grouped(self.edges, lambda edge: edge.start, self.length)
        for place in reversed(range(self.length)):
            found[place] = _log_sum([edge.score + found[edge.stop] for edge in starting[place]])
        return tuple(found[place] for place in range(self.length + 1))

    @functools.cached_property
    def _ending(self) -> list[list[Edge]]:
        return _grouped(self.edges, lambda edge: edge.stop, self.length)

    @property
    def total(self) -> float:
        """log Z, the log probability of the text."""
        return self._before[self.length]

    @functools.cached_property
    def count(self) -> int:
        """The number of segmentations."""
        found = [1]
        for place in range(1, self.length + 1):
            found.append(sum(found[edge.start] for edge in self._ending[place]))
        return found[-1]

    def marginals(self) -> list[float]:
        """The probability of each edge: that of the segmentations that it is part of."""
        logs = [self._before[edge.start] + edge.score + self._after[edge.stop] - self.total for edge in self.edges]
        return [math.exp(min(0.0, log)) for log in logs]

    def choices(self) -> list[list[tuple[Edge, float]]]:
        """At each place the edges that begin there, and the probability that a segmentation which comes there takes each."""
        starting = _grouped(self.edges, lambda edge: edge.start, self.length)
        return [[(edge, math.exp(min(0.0, edge.score + self._after[edge.stop] - self._after[place]))) for edge in edges]
                for place, edges in enumerate(starting)]

    def best(self, count: int) -> list[tuple[float, list[Edge]]]:
        """The `count` segmentations of the highest probability, and their log P(x); the first is Viterbi's."""
        found = [[(0.0, None, 0)]]  # at each place the best: (log P, the last edge, which of the best at its start)
        for place in range(1, self.length + 1):
            ways = [(score + edge.score, edge, rank) for edge in self._ending[place]
                    for rank, (score, _, _) in enumerate(found[edge.start])]
            found.append(sorted(ways, key=lambda way: -way[0])[:count])
        made = []
        for score, edge, rank in found[-1]:
            way = []
            while edge is not None:
                way.append(edge)
                _, edge, rank = found[edge.start][rank]
            made.append((score, way[::-1]))
        return made


def normalized(tokenizer: SentencePieceTokenizer, text: str) -> str:
    """A text as the model segments it: with a space before it, single spaces and no ligatures if the model was learnt with
    these. One learnt here takes any text as it is. Raises ValueError for half of a character."""
    import sentencepiece

    plain.require_characters([text])
    normalize = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model).normalize
    as_bytes = any(sign == f'<0x{SPACE.encode()[0]:02X}>' for sign, _, kind in tokenizer.pieces() if kind == 'special')
    parts = text.split(SPACE) if as_bytes else [text]  # the sign of a space is encoded apart
    return SPACE.join(normalize(part).replace(SPACE, ' ') for part in parts)


def of(tokenizer: SentencePieceTokenizer, text: str, alpha: float = 1.0) -> Lattice:
    """The lattice of a text as the model has it (`normalized`), with the pieces and the scores of SentencePiece. Raises
    ValueError for a model of another kind and for a text without characters."""
    if not text:
        raise ValueError('The text is empty; give one with characters.')
    if tokenizer.kind != 'unigram':
        raise ValueError("The tokenizer is of kind 'bpe', which has one segmentation for a text; give one of kind 'unigram'.")
    if not (text := normalized(tokenizer, text)):
        raise ValueError('The text has only characters that the model leaves out; give one with others.')
    written = ''.join(_NO_SPACE if one == SPACE else SPACE if one == ' ' else one for one in text)
    pieces = tokenizer.pieces()
    normal = [score for _, score, kind in pieces if kind == 'normal']
    scores = {sign: (number, score) for number, (sign, score, kind) in enumerate(pieces) if kind == 'normal'}
    scores |= {sign: (number, _CERTAIN) for number, (sign, _, kind) in enumerate(pieces) if kind == 'user-defined'}
    unknown = {one: (tokenizer.roles.unknown, min(normal) - _UNKNOWN) for one in written if one not in scores}
    found = matching(written, scores | unknown, max(map(len, scores)), alpha)
    return Lattice(found.length, tuple(
        dataclasses.replace(edge, piece=SPACE) if edge.piece == _NO_SPACE else edge for edge in found.edges))


def matching(text: str, scores: Mapping[str, tuple[int, float]], longest: int, alpha: float) -> Lattice:
    """The lattice of a text whose pieces have (id, score), and at most `longest` characters; all its characters are pieces."""
    edges = []
    for start in range(len(text)):
        for stop in range(start + 1, min(start + longest, len(text)) + 1):
            if (piece := text[start:stop]) in scores:
                number, score = scores[piece]
                edges.append(Edge(start, stop, piece, number, alpha * score))
    return Lattice(len(text), tuple(edges))


def _grouped(edges: Sequence[Edge], key, length: int) -> list[list[Edge]]:
    found = [[] for _ in range(length + 1)]
    for number, group in itertools.groupby(sorted(edges, key=key), key):
        found[number] = [*group]
    return found


def _log_sum(values: Sequence[float]) -> float:
    """log(exp(values[0]) + exp(values[1]) + ..), with an exactly rounded sum."""
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))
