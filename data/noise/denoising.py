"""BART's noises (Lewis et al. 2020, section 2.2; fairseq/data/denoising_dataset.py), whose targets are the text:

    PermuteSentences() >> Infill(share=0.3, mean=3.0)

permutes, then infills; this order is fairseq's, whose next are more inserted masks and rotation.
"""

import abc
import dataclasses
import functools
import math

import numpy as np

from data.noise.noise import Noise, rounded_up
from data.noise.vocabulary import Vocabulary

_TAIL = 1e-7  # fairseq cuts the table of Poisson probabilities below it
_LONGEST = 128  # entries of that table


@dataclasses.dataclass(frozen=True)
class Denoising(Noise):
    """Base of noises whose targets are the text; `a >> b` is a, then b."""

    @abc.abstractmethod
    def __call__(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
        """int32: the row of ids [n], n at least 1, with noise."""

    def corrupted(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        ids = np.asarray(ids, np.int32)
        return self(ids, rng, vocabulary), ids

    def restored(self, inputs: np.ndarray, targets: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
        return np.asarray(targets, np.int32)

    def __rshift__(self, other: 'Denoising') -> 'Denoising':
        return _Chain((*_chained(self), *_chained(other))) if isinstance(other, Denoising) else NotImplemented


@dataclasses.dataclass(frozen=True, repr=False)
class _Chain(Denoising):
    steps: tuple[Denoising, ...]

    @property
    def masks(self) -> bool:
        return any(step.masks for step in self.steps)

    def __repr__(self):
        return ' >> '.join(map(repr, self.steps))

    def __call__(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
        for step in self.steps:
            ids = step(ids, rng, vocabulary) if len(ids) else ids
        return ids


def _chained(noise: Denoising) -> tuple[Denoising, ...]:
    return noise.steps if isinstance(noise, _Chain) else (noise,)


def _require_share(noise: Denoising) -> None:
    """Raises ValueError unless `share` is a share of the tokens."""
    if not 0 < noise.share <= 1:
        raise ValueError(f'{noise} has no meaning: share is above 0 and at most 1.')


@dataclasses.dataclass(frozen=True)
class Infill(Denoising):
    """Text infilling: a mask in place of each span, whose length in words is drawn from a Poisson distribution.

    Spans are drawn until they have ceil(share · words) words, and the last one is trimmed to that. A span of 0 words is a mask
    that is inserted at any place. The spans begin at different words, each as likely; where one begins inside of another,
    both have one mask, so that less than that share is missing.

    Attributes:
      share: the share of the words in spans.
      mean: the mean number of words in a span, λ: 3 in the paper, 3.5 for the released models.
      random: the share of masks that are random tokens instead, 0.1 for the released models.
    """

    share: float = 0.3
    mean: float = 3.0
    random: float = 0.0

    masks = True

    def __post_init__(self):
        _require_share(self)
        if not (0.001 <= self.mean <= 32 and 0 <= self.random <= 1):
            raise ValueError(f'{self} has no meaning: mean is 0.001 to 32, and random between 0 and 1.')

    def __call__(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
        starts = _word_starts(ids, vocabulary)
        words, bounds = len(starts), np.append(starts, len(ids))
        lengths = self.lengths(rounded_up(self.share * words), rng)
        spans = lengths[lengths > 0]
        first = rng.permutation(words)[: len(spans)]
        begin, end = bounds[first], bounds[np.minimum(first + spans, words)]
        noised, kept = ids.copy(), np.ones(len(ids), bool)
        noised[begin] = self._masks(len(begin), rng, vocabulary)
        for start, stop in zip(begin + 1, end):  # of two spans that overlap one mask remains
            kept[start:stop] = False
        return self._inserted(noised[kept], len(lengths) - len(spans), rng, vocabulary)

    def lengths(self, budget: int, rng: np.random.Generator) -> np.ndarray:
        """int64: lengths of spans, in words, that add up to `budget`; the last is trimmed, some may be 0."""
        table, drawn = _poisson(self.mean), np.zeros(0, np.int64)
        while drawn.sum() < budget:
            drawn = np.append(drawn, rng.choice(len(table), budget, p=table))
        ends = np.cumsum(drawn)
        count = int(np.searchsorted(ends, budget)) + 1
        return np.append(drawn[: count - 1], budget - (ends[count - 2] if count > 1 else 0))

    def _inserted(self, ids: np.ndarray, count: int, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
        """fairseq takes ceil(n · (count / n)) masks, which rounds to one too many at times."""
        total = len(ids) + count
        inside = np.ones(total, bool)
        inside[rng.permutation(total)[:count]] = False
        found = np.empty(total, np.int32)
        found[inside], found[~inside] = ids, self._masks(count, rng, vocabulary)
        return found

    def _masks(self, count: int, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
        return _masks(count, self.random, rng, vocabulary)


@dataclasses.dataclass(frozen=True)
class MaskTokens(Denoising):
    """Token masking: ceil(share · n) of n tokens become masks.

    Attributes:
      share: the share of the tokens.  random: the share of masks that are random tokens instead.
    """

    share: float = 0.15
    random: float = 0.0

    masks = True

    def __post_init__(self):
        _require_share(self)
        if not 0 <= self.random <= 1:
            raise ValueError(f'{self} has no meaning: random is a share between 0 and 1.')

    def __call__(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
        chosen = rng.permutation(len(ids))[: rounded_up(self.share * len(ids))]
        noised = ids.copy()
        noised[chosen] = _masks(len(chosen), self.random, rng, vocabulary)
        return noised


@dataclasses.dataclass(frozen=True)
class DeleteTokens(Denoising):
    """Token deletion: ceil(share · n) of n tokens are deleted, but one at least is kept.

    Attributes:
      share: the share of the tokens.
    """

    share: float = 0.15

    def __post_init__(self):
        _require_share(self)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
        kept = rng.permutation(len(ids))[min(rounded_up(self.share * len(ids)), len(ids) - 1) :]
        return ids[np.sort(kept)]


@dataclasses.dataclass(frozen=True)
class PermuteSentences(Denoising):
    """Sentence permutation: ceil(share · n) of n sentences change places, in random order.

    A sentence ends as data/noise/vocabulary.py says, with a line, or with the text. (fairseq knows the token 13 of GPT-2's BPE,
    '.', and for other vocabularies the end of a text alone.)

    Attributes:
      share: the share of the sentences.
    """

    share: float = 1.0

    def __post_init__(self):
        _require_share(self)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
        between = np.flatnonzero(ids == vocabulary.end) + 1  # texts that share a row
        ends = functools.reduce(np.union1d, (vocabulary.sentence_ends(ids), between, [len(ids)])).astype(np.int64)
        chosen = rng.permutation(len(ends))[: rounded_up(self.share * len(ends))]
        order = np.arange(len(ends))
        order[chosen] = rng.permutation(chosen)
        sentences = np.split(ids, ends[:-1])
        return np.concatenate([sentences[i] for i in order])


@dataclasses.dataclass(frozen=True)
class Rotate(Denoising):
    """Document rotation: the row begins with one of its tokens, each as likely, and what stood before it follows the rest.

    Attributes:
      share: the share of the rows that are rotated.
    """

    share: float = 1.0

    def __post_init__(self):
        _require_share(self)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
        rotated, first = rng.random() < self.share, rng.integers(len(ids))
        return np.roll(ids, -first) if rotated else ids


def _word_starts(ids: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """int64: the places at which words begin; special tokens are words, and so are all tokens that do not tell words."""
    if vocabulary.begins is None:
        return np.arange(len(ids))
    special = vocabulary.special[ids]
    return np.flatnonzero(vocabulary.word_starts(ids) | special | np.append(False, special[:-1]))


def _masks(count: int, random: float, rng: np.random.Generator, vocabulary: Vocabulary) -> np.ndarray:
    """int32 [count]: masks, and with probability `random` ordinary tokens."""
    others = rng.choice(vocabulary.ordinary, count)
    return np.where(rng.random(count) < random, others, vocabulary.mask).astype(np.int32)


@functools.cache
def _poisson(mean: float) -> np.ndarray:
    """The probabilities of 0, 1, .., up to the first below 1e-7 that is more than the mean, renormalised."""
    found = []
    for k in range(_LONGEST):
        found.append(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)))
        if k > mean and found[-1] < _TAIL:
            break
    return np.array(found) / sum(found)
