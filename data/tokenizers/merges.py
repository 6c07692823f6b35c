"""Byte-pair encoding, learnt merge by merge (Sennrich et al. 2016, section 3.2, algorithm 1; Prince 2023, figure 12.8).

The tokens of a text are its characters at first, and a sign for the end of each word. Again and again the pair of neighbours
that occurs most often becomes one token. A token that ends a word is never the left one of a pair, so no token crosses the end
of a word.

    learner = Learner(words('a sailor went to sea sea sea'))
    for merge in learner: print(merge)

Of pairs with equal counts the one that occurs first in the text is merged, each word being where it first occurs. All
neighbours count, so that 'aaa' has the pair (a, a) twice, though only its first two are merged.
"""

import collections
import dataclasses
import heapq
from collections.abc import Iterable, Iterator, Mapping

END = ' '  # ends a word; no word has it


@dataclasses.dataclass(frozen=True)
class Merge:
    """A step.

    Attributes:
      left, right: the tokens of the pair; the new one is left + right.
      count: how often the pair occurred.
      tokens: different tokens in use after the merge; those that no longer occur are not in use.
      length: tokens of the text after it.
    """

    left: str
    right: str
    count: int
    tokens: int
    length: int


def words(texts: Iterable[str]) -> dict[str, int]:
    """The words of a text given in parts, between white space, in the order of their first occurrence, with their counts."""
    return dict(collections.Counter(word for text in texts for word in text.split()))


class Learner:
    """Iterates over the merges of words until each word is one token. A merge takes time in proportion to the occurrences of
    its pair in different words.

    Attributes:
      counts: {token: how often it occurs now} of the tokens in use.
      length: tokens of the text now.
    """

    def __init__(self, words: Mapping[str, int]):
        # The different words end to end as a linked list: a place keeps its token until it is merged into the one before it.
        self._tokens = [token for word in words for token in (*word, END)]
        self._weights = [count for word, count in words.items() for _ in range(len(word) + 1)]
        self._next, self._previous = [*range(1, len(self._tokens) + 1)], [*range(-1, len(self._tokens) - 1)]
        self.counts, self._pairs, self._places = collections.Counter(), collections.Counter(), {}
        for place, (token, weight) in enumerate(zip(self._tokens, self._weights)):
            self.counts[token] += weight
            self._add(place, weight)
        self.length = self.counts.total()
        # (-count, first place, pair), where the count may have fallen since, and the place have moved on
        self._queue = [(-count, self._places[pair][0], pair) for pair, count in self._pairs.items()]
        heapq.heapify(self._queue)

    def __iter__(self) -> Iterator[Merge]:
        while pair := self._best():
            yield self._merge(*pair)

    def _pair(self, place: int) -> tuple[str, str] | None:
        """The tokens at a place and at the next one; None if the first ends a word."""
        left = self._tokens[place]
        return None if left is None or left.endswith(END) else (left, self._tokens[self._next[place]])

    def _add(self, place: int, weight: int) -> tuple[str, str] | None:
        """Counts the pair at a place."""
        if pair := self._pair(place):
            self._pairs[pair] += weight
            heapq.heappush(self._places.setdefault(pair, []), place)
        return pair

    def _first(self, pair: tuple[str, str]) -> int:
        places = self._places[pair]
        while self._pair(places[0]) != pair:
            heapq.heappop(places)
        return places[0]

    def _best(self) -> tuple[str, str] | None:
        """The pair to merge; None if there is none."""
        while self._queue:
            *known, pair = self._queue[0]
            if not self._pairs[pair]:
                heapq.heappop(self._queue)
                continue
            now = [-self._pairs[pair], self._first(pair)]
            if known == now:
                return pair
            heapq.heapreplace(self._queue, (*now, pair))
        return None

    def _merge(self, left: str, right: str) -> Merge:
        count, made, new = self._pairs[left, right], left + right, set()
        for place in sorted(self._places[left, right]):
            if self._pair(place) != (left, right):
                continue
            weight, second, before = self._weights[place], self._next[place], self._previous[place]
            beside = [before, second] if before >= 0 else [second]
            for one in beside:
                if pair := self._pair(one):
                    self._pairs[pair] -= weight
            after = self._next[second]
            self._tokens[place], self._tokens[second], self._next[place] = made, None, after
            if after < len(self._tokens):
                self._previous[after] = place
            for one in [before, place] if before >= 0 else [place]:
                new.add(self._add(one, weight))
            self.counts[left] -= weight
            self.counts[right] -= weight
            self.counts[made] += weight
            self.length -= weight
        del self._pairs[left, right], self._places[left, right]
        for token in {left, right}:
            if not self.counts[token]:
                del self.counts[token]
        for pair in new - {None}:
            if self._pairs[pair]:  # a later occurrence may have changed its neighbour again
                heapq.heappush(self._queue, (-self._pairs[pair], self._first(pair), pair))
        return Merge(left, right, count, len(self.counts), self.length)
