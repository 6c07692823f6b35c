"""Which tokens of a row are hidden and predicted: the noise of encoders that learn masked words, a part of a config.

    data.noise='Spans(p=0.2, longest=10)'

Of n tokens about share·n are predicted. Each becomes the mask with probability `mask`, a random ordinary token with probability
`random`, and stays otherwise (Devlin et al. 2019, section 3.1, task 1). Special tokens, unknown words among them, are never
predicted and never put in (so fairseq; Google's code draws random tokens from the whole vocabulary).

What is drawn is a function of uniform numbers alone, a fixed count for each row, so that whoever gives these decides whether
masks are drawn anew (Liu et al. 2019, section 4.1) or stay the same.
"""

import abc
import dataclasses
import math
from collections.abc import Collection, Iterator

import numpy as np

from data.noise.noise import rounded_up
from data.noise.vocabulary import Vocabulary

BUDGETS = 'round', 'ceil', 'chance', 'bernoulli'
_LONGEST = 1000  # words of a stretch
_SIGMAS = 6  # how far above its mean the number of tokens that bernoulli may choose: more in a row of 10⁹, which are left out


@dataclasses.dataclass(frozen=True)
class Masking(abc.ABC):
    """Base of the noises, frozen dataclasses.

    Attributes:
      share: the share of the tokens to predict, above 0 and at most 1.
      mask, random: the shares of these that become the mask and a random token; the rest stays.
      budget: how many are predicted of n tokens, at least 1: 'round', round(share·n), as in Google's code; 'ceil', as in
        SpanBERT's; 'chance', floor(share·n + u) with a uniform u, as in fairseq's; 'bernoulli', each token by itself, as in
        Hugging Face's collator.
      specials: whether n counts the special tokens of the row too, as in Google's code.
    """

    share: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    budget: str = 'round'
    specials: bool = False

    words = False  # whether it needs to know where words begin
    together = False  # whether neighbours that are predicted share their fate
    budgets = 'round', 'ceil', 'chance'

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise ValueError(f'{self}: share is {self.share}; expected the share of tokens to predict, such as 0.15.')
        if not (self.mask >= 0 and self.random >= 0 and self.mask + self.random <= 1 + 1e-9):
            raise ValueError(
                f'{self}: mask is {self.mask} and random {self.random}; expected shares of 0 or more that add up to at most 1.'
            )
        if self.budget not in self.budgets:
            raise ValueError(f'{self}: budget is {self.budget!r}; it takes {", ".join(map(repr, self.budgets))}.')

    def most(self, length: int) -> int:
        """M, the largest number of tokens to predict in a row of `length`."""
        mean = self.share * length
        if self.budget == 'bernoulli':
            mean += _SIGMAS * math.sqrt(mean * (1 - self.share))
        return min(length, int(rounded_up(mean)))

    def fates(self, ordinary: np.ndarray, count: np.ndarray) -> tuple[float, float]:
        """(m, r): the shares of what is predicted that become the mask and a random token, in rows [B] where `count` of so many
        ordinary tokens are chosen."""
        return self.mask, self.random

    def plateau(self, shares: np.ndarray, ordinary: np.ndarray, there: np.ndarray) -> float:
        """-sum p(word, seen) log p(word | seen) in nats, over words with these shares p, in rows with so many ordinary tokens
        and tokens, int [B]: the loss of a model that knows how frequent each word is and whether it sees the mask, the word
        itself or a random one, but nothing of the others.

        Of m masked, r random and k kept words seen(x) = k·p(x) + r/V is the chance to see x, and
        loss = m·H(p) - sum over x of [s(x) log s(x)/seen(x) + sum over w != x of r·p(w)/V · log (r·p(w)/V)/seen(x)] with
        s(x) = (k + r/V)·p(x), where word and sight are the same.
        """
        chance = np.random.default_rng(0).random(len(ordinary))  # for a budget that is drawn
        mask, random = self.fates(ordinary, self.budgeted(ordinary, there, chance))
        size, kept = len(shares), max(0.0, 1 - mask - random)
        random /= size
        p = shares[shares > 0]
        entropy = -(p * np.log(p)).sum()
        seen, same = kept * shares + random, (kept + random) * shares
        found = mask * entropy - (same[same > 0] * np.log(same[same > 0] / seen[same > 0])).sum()
        if random:
            own = np.zeros(size)
            own[shares > 0] = -p * np.log(p)
            found += random * ((entropy - own) + (1 - shares) * np.log(seen / random)).sum()
        return float(found)

    def width(self, length: int) -> int:
        """The number of uniform numbers for a row of `length`."""
        return 1 + self.own_width(length) + 2 * length

    @abc.abstractmethod
    def own_width(self, length: int) -> int:
        """How many of these `chosen` takes."""

    @abc.abstractmethod
    def chosen(self, text: np.ndarray, starts: np.ndarray | None, count: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """int [B, T]: how often each token is chosen, 0 where `text` is False.

        Args:
          text: bool [B, T], the ordinary tokens.
          starts: bool [B, T], where words begin, a subset of `text`; None unless `words`.
          count: int [B], how many are to be chosen, at most those of the text.
          draws: [B, own_width] uniform numbers in [0, 1).
        """

    def budgeted(self, ordinary: np.ndarray, there: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """int [B]: how many tokens to choose in rows with so many ordinary tokens, and so many tokens, int [B]."""
        wanted = self.share * (there if self.specials else ordinary)
        if self.budget == 'ceil':
            wanted = rounded_up(wanted)
        elif self.budget == 'chance':
            wanted = np.floor(wanted + chance)
        return np.minimum(ordinary, np.maximum(1, np.rint(wanted))).astype(np.int64)

    def __call__(self, batch: dict[str, np.ndarray], vocabulary: Vocabulary, draws: np.ndarray) -> dict[str, np.ndarray]:
        """The batch with hidden `inputs`, and `masked`, `targets` [B, M] int32 and `weights` [B, M] float32: how often each is
        chosen. The places of a row ascend; unused ones have masked 0, target 0 and weight 0.

        Args:
          draws: [B, width(T)] uniform numbers in [0, 1).
        """
        inputs, there = batch['inputs'], batch['segments'] > 0
        rows, length = inputs.shape
        most = self.most(length)
        text = there & ~vocabulary.special[inputs]
        starts = None
        if self.words:
            starts = text & (vocabulary.word_starts(inputs) | ~_moved(text))
        chance, own, fate, other = np.split(draws, np.cumsum([1, self.own_width(length), length]), 1)
        times = self.chosen(text, starts, self.budgeted(text.sum(1), there.sum(1), chance[:, 0]), own)
        row, place = np.nonzero(times)
        column = np.arange(len(row)) - np.searchsorted(row, np.arange(rows))[row]
        row, place, column = (x[column < most] for x in (row, place, column))
        found = {name: np.zeros((rows, most), np.int32) for name in ('masked', 'targets')}
        found['weights'] = np.zeros((rows, most), np.float32)
        targets, often = inputs[row, place], times[row, place]
        for name, values in (('masked', place), ('targets', targets), ('weights', often)):
            found[name][row, column] = values
        leader = _leaders(row, place) if self.together else np.arange(len(row))
        # Each of several choices of a token is a chance for the mask: the least of k uniform numbers decides.
        drawn = (1 - (1 - fate[row, place]) ** (1 / often))[leader]
        random = vocabulary.ordinary[(other[row, place] * len(vocabulary.ordinary)).astype(np.int64)]
        hidden = inputs.copy()
        hidden[row, place] = np.where(
            drawn < self.mask, vocabulary.mask, np.where(drawn < self.mask + self.random, random, targets))
        return batch | {'inputs': hidden} | found


@dataclasses.dataclass(frozen=True)
class Tokens(Masking):
    """Tokens by themselves (Devlin et al. 2019)."""

    budgets = BUDGETS

    def own_width(self, length: int) -> int:
        return length

    def chosen(self, text: np.ndarray, starts: np.ndarray | None, count: np.ndarray, draws: np.ndarray) -> np.ndarray:
        rank = np.where(text, draws, 2.0)
        if self.budget == 'bernoulli':
            picked = rank < self.share
            return picked | ((rank == rank.min(1, keepdims=True)) & text & ~picked.any(1, keepdims=True))
        order = np.argsort(rank, 1)
        times = np.zeros(text.shape, np.int64)
        np.put_along_axis(times, order, np.arange(text.shape[1]) < count[:, None], 1)
        return times


@dataclasses.dataclass(frozen=True)
class WithReplacement(Masking):
    """Tokens, drawn with replacement, as in ELECTRA's code (Clark et al. 2020): one that is drawn twice has the weight 2, and
    two chances to become the mask. By default 85 % of the draws do, and the others stay."""

    mask: float = 0.85
    random: float = 0.0
    specials: bool = True

    def fates(self, ordinary: np.ndarray, count: np.ndarray) -> tuple[float, float]:
        """Of n draws of N tokens each meets j ~ Binomial(n - 1, 1/N) others at its token, which has 1 + j chances; that none of
        them is below a share s has the probability E[(1 - s)^(1 + j)] = (1 - s)·(1 - s/N)^(n - 1)."""
        above = lambda share: np.average((1 - share) * (1 - share / ordinary) ** (count - 1), weights=count)
        return 1 - above(self.mask), above(self.mask) - above(min(1, self.mask + self.random))

    def own_width(self, length: int) -> int:
        return self.most(length)

    def chosen(self, text: np.ndarray, starts: np.ndarray | None, count: np.ndarray, draws: np.ndarray) -> np.ndarray:
        places, size = np.argsort(~text, 1, kind='stable'), text.sum(1)
        drawn = np.take_along_axis(places, (draws * size[:, None]).astype(np.int64), 1)
        used = (np.arange(draws.shape[1]) < count[:, None]) & (size > 0)[:, None]
        times = np.zeros(text.shape, np.int64)
        np.add.at(times, (np.nonzero(used)[0], drawn[used]), 1)
        return times


@dataclasses.dataclass(frozen=True)
class NGrams(Masking):
    """Stretches of 1 to `longest` words, n of them with probability ~ 1/n (Lan et al. 2020, section 4.1).

    The words of a row are tried in random order as the first of a stretch. A stretch that is over budget is shortened word by
    word, and skipped if it does not fit then, or touches a word that is already chosen: so long words are chosen less often, as
    in the code of ALBERT and BERT. If no word of a row fits, the first pieces of one are predicted. Stretches end at special
    tokens, where ALBERT's may go on behind one. Every piece of a word has its own fate, as there.

    Attributes:
      longest: the most words of a stretch.
    """

    longest: int = 3
    words = True

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.longest <= _LONGEST:
            raise ValueError(f'{self}: longest is {self.longest}; expected a number of words, 1 to {_LONGEST}.')

    def own_width(self, length: int) -> int:
        return 2 * length

    def chosen(self, text: np.ndarray, starts: np.ndarray | None, count: np.ndarray, draws: np.ndarray) -> np.ndarray:
        times = np.zeros(text.shape, np.int64)
        chances = np.cumsum(1 / np.arange(1, self.longest + 1)).tolist()
        for row, (begins, after) in enumerate(_words(text, starts)):
            order, sizes = np.split(draws[row], 2)
            left, many = int(count[row]), len(begins)
            follows = [*(after[i] == begins[i + 1] for i in range(many - 1)), False]  # whether the next word touches it
            free = [True] * many
            tried = np.argsort(order[:many]).tolist()
            for first in tried:
                if not left:
                    break
                reach = first
                while reach - first + 1 < self.longest and follows[reach]:
                    reach += 1
                if not free[first]:
                    continue
                u = sizes[first] * chances[reach - first]
                last = first + next(n for n, chance in enumerate(chances) if u < chance)
                while last >= first and after[last] - begins[first] > left:
                    last -= 1
                if last < first or not all(free[first : last + 1]):
                    continue
                free[first : last + 1] = [False] * (last + 1 - first)
                times[row, begins[first] : after[last]] = 1
                left -= after[last] - begins[first]
            if many and all(free):
                times[row, begins[tried[0]] : begins[tried[0]] + left] = 1
        return times


@dataclasses.dataclass(frozen=True)
class WholeWords(Masking):
    """All pieces of words, in random order; each piece has its own fate, and a word over budget is skipped, as in BERT's code
    ("Whole Word Masking", May 2019)."""

    words = True

    def own_width(self, length: int) -> int:
        return NGrams().own_width(length)

    def chosen(self, text: np.ndarray, starts: np.ndarray | None, count: np.ndarray, draws: np.ndarray) -> np.ndarray:
        return NGrams(longest=1).chosen(text, starts, count, draws)


@dataclasses.dataclass(frozen=True)
class Spans(Masking):
    """Stretches of words, of lengths l with probability ~ p·(1 - p)^(l - 1) on 1..longest (Joshi et al. 2020, section 3.1).

    As in SpanBERT's code a stretch begins with the word of a token that is not chosen yet, drawn uniformly; it ends at the end
    of a text too, and when the budget is spent, even inside of a word; stretches that touch are one.

    Attributes:
      p: of the geometric distribution, above 0 and below 1.
      longest: the most words of a stretch.
      together: whether the tokens of a stretch share their fate, as in the paper; else each has its own.
    """

    budget: str = 'ceil'
    p: float = 0.2
    longest: int = 10
    together: bool = True
    words = True

    def __post_init__(self):
        super().__post_init__()
        if not (0 < self.p < 1 and 1 <= self.longest <= _LONGEST):
            raise ValueError(
                f'{self}: p is {self.p} and longest {self.longest}; expected a probability between 0 and 1, and a number of '
                f'words, 1 to {_LONGEST}.'
            )

    def lengths(self) -> np.ndarray:
        """float64 [longest]: the probabilities of the lengths."""
        found = self.p * (1 - self.p) ** np.arange(self.longest)
        return found / found.sum()

    def own_width(self, length: int) -> int:
        return 2 * self.most(length)

    def chosen(self, text: np.ndarray, starts: np.ndarray | None, count: np.ndarray, draws: np.ndarray) -> np.ndarray:
        times = np.zeros(text.shape, np.int64)
        below = np.cumsum(self.lengths())[:-1]
        for row, (begins, after) in enumerate(_words(text, starts)):
            open_, left = text[row].copy(), int(count[row])
            for size, where in draws[row].reshape(-1, 2):
                if not left:
                    break
                free = np.flatnonzero(open_)
                first = int(np.searchsorted(begins, free[int(where * len(free))], 'right')) - 1
                last = first + int(np.searchsorted(below, size, 'right'))
                for word in range(first, min(last + 1, len(begins))):
                    if word > first and begins[word] != after[word - 1]:
                        break
                    new = np.flatnonzero(open_[begins[word] : after[word]])[:left] + begins[word]
                    open_[new] = False
                    left -= len(new)
            times[row] = text[row] & ~open_
        return times


def boundaries(batch: dict[str, np.ndarray], edges: Collection[int], most: int) -> dict[str, np.ndarray]:
    """{'boundaries' [B, M, 3] int32, 'boundary_weights' [B, M] float32} of the `masked` of a batch, whose neighbouring places
    are a span: the place left and the place right of it, and the place in it from 0 (Joshi et al. 2020, section 3.2).

    The weight is 1 for the first `most` of a span, unless it touches an edge of its text: a neighbour is one of the special
    tokens `edges`, or padding. Others are 0, as their boundaries are.
    """
    masked, used = batch['masked'], batch['weights'] > 0
    row, column = np.nonzero(used)
    place = masked[used]
    leader = _leaders(row, place)
    number = np.arange(len(row))
    begins = leader == number
    behind = np.append(np.flatnonzero(begins)[1:], len(row))  # the first number behind each span
    last = behind[np.cumsum(begins) - 1] - 1
    left, right, inside = place[leader] - 1, place[last] + 1, number - leader
    length = batch['inputs'].shape[1]
    there = (left >= 0) & (right < length) & (inside < most)
    row, column, left, right, inside = (x[there] for x in (row, column, left, right, inside))
    outside = (batch['segments'] == 0) | np.isin(batch['inputs'], list(edges))
    inner = ~outside[row, left] & ~outside[row, right]
    found, weights = np.zeros((*masked.shape, 3), np.int32), np.zeros(masked.shape, np.float32)
    found[row[inner], column[inner]] = np.stack([left, right, inside], 1)[inner]
    weights[row[inner], column[inner]] = 1
    return {'boundaries': found, 'boundary_weights': weights}


def _moved(x: np.ndarray) -> np.ndarray:
    """bool [B, T]: the value one place to the left; False at the first place."""
    return np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], 1)


def _words(text: np.ndarray, starts: np.ndarray) -> Iterator[tuple[list[int], list[int]]]:
    """(first places, places behind the last) of the words of each row."""
    ends = text & ~np.concatenate([(text & ~starts)[:, 1:], np.zeros_like(text[:, :1])], 1)
    for begins, last in zip(starts, ends):
        yield np.flatnonzero(begins).tolist(), (np.flatnonzero(last) + 1).tolist()


def _leaders(row: np.ndarray, place: np.ndarray) -> np.ndarray:
    """int [n]: for each place of a row, in ascending order, the number of the first in its run of neighbours."""
    number = np.arange(len(row))
    begins = np.ones(len(row), bool)
    begins[1:] = (row[1:] != row[:-1]) | (place[1:] != place[:-1] + 1)
    return np.maximum.accumulate(np.where(begins, number, 0))
