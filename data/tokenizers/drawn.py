"""Segmentations drawn at random, so that a model sees the same words in several pieces.

BPE-dropout (Provilkov et al. 2020, algorithm 1): in each round every pair of neighbours that could be merged is left out with
probability p, and the best of the others is merged; the last round is one that leaves out all. With p = 0 the segmentation is
the usual one, with 1 it is characters. (SentencePiece's sampling looks at each pair only once, and so splits more.)

Subword regularisation (Kudo 2018, section 3.2) draws the segmentation x of a unigram model with probability P(x)^alpha / sum of
P^alpha, over all segmentations.

SentencePiece draws neither of them alike in two processes, so the draws are made here. All copies of a word in a text are drawn
together: how many of n copies go one way is a binomial number, so that frequent words cost little, and each copy is drawn
independently of the others all the same.
"""

import abc
import bisect
import collections
import dataclasses
import functools
import itertools
import random
import re
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from data.tokenizers import lattice
from data.tokenizers.tokenizer import SPACE, SentencePieceTokenizer

_SUMMED = 16  # copies whose binomial numbers are sums of single draws


@dataclasses.dataclass(frozen=True)
class DrawnPieces(SentencePieceTokenizer, abc.ABC):
    """A SentencePiece model that draws the segmentation of a text. All other things are those of the model.

    What it draws depends on `seed` and on the texts that it encodes at once alone.
    """

    seed: str
    fingerprint = ''  # its encodings are not the model's

    @abc.abstractmethod
    def draw(self, word: str, count: int, chance: 'Chance') -> Iterator[tuple[tuple[int, ...], int]]:
        """Draws `count` segmentations of a word, U+2581 for a space: (ids, how many of them), in any order."""

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes texts, one after the other."""
        parts = [self._parts(text) for text in texts]
        chance = Chance(f'{self.seed} {zlib.crc32(chr(0).join(texts).encode())}')
        left = {}  # {word: the ids of its copies that were not given away yet}
        for word, count in collections.Counter(part for text in parts for part in text if isinstance(part, str)).items():
            found = [ids for ids, copies in self.draw(word, count, chance) for _ in range(copies)]
            if any(ids is not found[0] for ids in found):
                chance.shuffle(found)
            left[word] = found
        ids_of = lambda part: left[part].pop() if isinstance(part, str) else part
        return [np.array([*itertools.chain.from_iterable(map(ids_of, text))], np.int32) for text in parts]

    def _parts(self, text: str) -> list[str | tuple[int, ...]]:
        """The words of a text, and the ids of what is no word: line ends and other symbols that are always pieces, U+2581,
        which is encoded as bytes, and characters that no piece has."""
        found, known = [], {SPACE: tuple(self._space_bytes)}
        for number, part in enumerate(self._fixed.split(text)):
            if number % 2:
                if part not in known:
                    known[part] = tuple(self._processor.encode(part))
                found.append(known[part])
            else:
                found += self._words.findall(part.replace(' ', SPACE))
        return found

    @functools.cached_property
    def _table(self) -> dict[str, tuple[int, float]]:
        """{piece: (id, score)} of the pieces that are not special."""
        return {sign: (number, score) for number, (sign, score, kind) in enumerate(self.pieces()) if kind == 'normal'}

    @functools.cached_property
    def _longest(self) -> int:
        return max(map(len, self._table))

    @functools.cached_property
    def _fixed(self) -> re.Pattern:
        """What has the same ids in every segmentation; a group."""
        symbols = sorted((sign for sign, _, kind in self.pieces() if kind == 'user-defined'), key=len, reverse=True)
        known = ''.join(sign for sign in self._table if len(sign) == 1 and sign != SPACE) + ' ' * (SPACE in self._table)
        return re.compile(f'({"".join(f"{re.escape(sign)}|" for sign in symbols)}[^{re.escape(known)}])')

    @functools.cached_property
    def _words(self) -> re.Pattern:
        """Parts of a text that no piece crosses: a word with the spaces before it, unless pieces have spaces inside."""
        inside = any(re.search(f'[^{SPACE}]{SPACE}', sign) for sign in self._table)
        return re.compile('.+' if inside else f'{SPACE}*[^{SPACE}]+|{SPACE}+', re.DOTALL)


class Chance:
    """A stream of random numbers that depends on a seed alone."""

    def __init__(self, seed: str):
        made = random.Random(seed)
        self.uniform, self.shuffle = made.random, made.shuffle
        self._numpy = np.random.default_rng(made.getrandbits(64))

    def binomial(self, count: int, p: float) -> int:
        """How many of `count` things with probability p each happen."""
        if count > _SUMMED:
            return int(self._numpy.binomial(count, p))
        return sum([self.uniform() < p for _ in range(count)])


@dataclasses.dataclass(frozen=True)
class DroppedMerges(DrawnPieces):
    """BPE-dropout.

    Attributes:
      dropout: p, the probability with which a merge is left out.
    """

    dropout: float

    def draw(self, word: str, count: int, chance: Chance) -> Iterator[tuple[tuple[int, ...], int]]:
        # {number of tokens: {the tokens: how many copies have them}}: each round makes one token less
        rounds = collections.defaultdict(collections.Counter)
        rounds[len(word)][tuple(word)] = count
        for size in range(len(word), 0, -1):
            for tokens, copies in rounds.pop(size, {}).items():
                if copies == 1:
                    yield self._numbers(self._single([*tokens], chance)), 1
                    continue
                for _, place in sorted(self._merges(tokens)):
                    kept = chance.binomial(copies, 1 - self.dropout)
                    if kept:
                        rounds[size - 1][(*tokens[:place], tokens[place] + tokens[place + 1], *tokens[place + 2:])] += kept
                        copies -= kept
                    if not copies:
                        break
                else:
                    yield self._numbers(tokens), copies

    def _merges(self, tokens: Sequence[str]) -> Iterator[tuple[float, int]]:
        """(rank, place of the first token) of each pair that can be merged."""
        for place, (left, right) in enumerate(itertools.pairwise(tokens)):
            if (made := left + right) in self._table:
                yield -self._table[made][1], place

    def _single(self, tokens: list[str], chance: Chance) -> list[str]:
        """The tokens after all rounds, for one copy, in time that grows little with its length."""
        merges, after = sorted(self._merges(tokens)), [*range(1, len(tokens)), -1]
        before = [*range(-1, len(tokens) - 1)]

        def pair(place: int) -> tuple[float, int] | None:
            made = tokens[place] + tokens[after[place]] if place >= 0 and after[place] >= 0 else ''
            return (-self._table[made][1], place) if made in self._table else None

        while (chosen := next((one for one in merges if chance.uniform() >= self.dropout), None)) is not None:
            _, place = chosen
            for one in (pair(before[place]), chosen, pair(after[place])):
                if one is not None:
                    del merges[bisect.bisect_left(merges, one)]
            gone = after[place]
            tokens[place], tokens[gone], after[place] = tokens[place] + tokens[gone], '', after[gone]
            if after[place] >= 0:
                before[after[place]] = place
            for one in (pair(before[place]), pair(place)):
                if one is not None:
                    bisect.insort(merges, one)
        return [token for token in tokens if token]

    def _numbers(self, tokens: Sequence[str]) -> tuple[int, ...]:
        return tuple(self._table[token][0] for token in tokens)


@dataclasses.dataclass(frozen=True)
class DrawnWays(DrawnPieces):
    """Subword regularisation.

    Attributes:
      alpha: the exponent of the probabilities.
    """

    alpha: float

    def draw(self, word: str, count: int, chance: Chance) -> Iterator[tuple[tuple[int, ...], int]]:
        choices = lattice.matching(word, self._table, self._longest, self.alpha).choices()
        rounds = collections.defaultdict(list)  # {place: [((the way to the last piece, its id), how many copies go it)]}
        rounds[0].append((None, count))
        for place in range(len(word)):
            for way, copies in rounds.pop(place, ()):
                share = 1.0  # of the edges that were not looked at yet
                for edge, p in choices[place]:
                    taken = copies if p >= share else chance.binomial(copies, p / share)
                    share -= p
                    if taken:
                        rounds[edge.stop].append(((way, edge.id), taken))
                        copies -= taken
                    if not copies:
                        break
                else:  # rounding has left a share of the last one
                    rounds[edge.stop].append(((way, edge.id), copies))
        for way, copies in rounds[len(word)]:
            ids = []
            while way is not None:
                way, number = way
                ids.append(number)
            yield tuple(ids[::-1]), copies
