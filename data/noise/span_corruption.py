"""T5's span corruption (Raffel et al. 2020, section 3.1.4 and figure 2; t5/data/preprocessors.py:random_spans_noise_mask).

    text     Thank you for inviting me to your party last week .
    inputs   Thank you <X> me to your party <Y> week .
    targets  <X> for inviting <Y> last
"""

import dataclasses

import numpy as np

from data.noise.noise import Noise
from data.noise.vocabulary import Vocabulary

_MOST = 0.99  # share: of more, a row of inputs stands for so much text that nothing has room for its targets


@dataclasses.dataclass(frozen=True)
class SpanCorruption(Noise):
    """Replaces spans by sentinels; the targets are the sentinels, each followed by its span.

    Of n tokens round(share·n) are missing, in round(that / mean) spans: both numbers are deterministic. The lengths of the
    spans, and of the text between them, are drawn uniformly among all that add up. A row begins with text and ends with a
    span, as in T5's code, where `targets` therefore have no closing sentinel; the paper's figure shows one. A row that is so
    short that it has one span misses its end.

    Attributes:
      share: the share of the tokens that are missing.
      mean: the mean length of a span.
      closing: whether one more sentinel closes the targets.
    """

    share: float = 0.15
    mean: float = 3.0
    closing: bool = False

    least = 2

    def __post_init__(self):
        if not (0 < self.share <= _MOST and self.mean >= 1):
            raise ValueError(f'{self} is out of range: share is above 0 and at most {_MOST}, such as 0.15, and mean 1 or more.')

    def corrupted(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        missing, spans = self.counts(len(ids))
        hidden = _segments(missing, spans, rng)
        between = _segments(len(ids) - missing, spans, rng)
        sentinels = np.array(vocabulary.sentinels[: spans + self.closing], np.int32)
        ends = np.cumsum(hidden + between)
        inputs, targets = [], []
        for sentinel, start, end in zip(sentinels, ends - hidden, ends):
            inputs += [ids[start - between[len(targets)] : start], [sentinel]]
            targets.append(np.append(sentinel, ids[start:end]))
        return _joined(inputs), _joined([*targets, sentinels[spans:]])

    def restored(self, inputs: np.ndarray, targets: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
        """A sentinel of the inputs that the targets lack has no text."""
        targets = np.asarray(targets)
        places = np.flatnonzero(np.isin(targets, vocabulary.sentinels))
        spans = {}
        for start, end in zip(places, [*places[1:], len(targets)]):
            spans.setdefault(int(targets[start]), targets[start + 1 : end])
        sentinels = {*vocabulary.sentinels}
        return _joined([spans.get(int(one), []) if one in sentinels else [one] for one in np.asarray(inputs)])

    def counts(self, count: int) -> tuple[int, int]:
        """(missing tokens, spans) of a text of `count` tokens: one each at least, and a token of text before every span."""
        missing = min(max(round(count * self.share), 1), count - 1)
        return missing, min(max(round(missing / self.mean), 1), count - missing)

    def raw(self, room: int) -> int:
        """The most tokens whose inputs fit, T5's random_spans_helper: 568 for 512 places, one of which is that of the end."""
        count = room
        while self._inputs(count + 1) <= room:
            count += 1
        missing, _ = self.counts(count)
        return count - (self.share == 0.5 and 2 * missing > count)  # as there: the targets fit in as many places as the inputs

    def targets(self, count: int) -> int:
        return sum(self.counts(count)) + self.closing

    def sentinels(self, count: int) -> int:
        return self.counts(count)[1] + self.closing

    def check(self, count: int) -> None:
        if round(count * self.share) < 1:
            raise ValueError(f'{self} hides {count * self.share:.2g} of the {count} tokens in a row, less than one')

    def _inputs(self, count: int) -> int:
        missing, spans = self.counts(count)
        return count - missing + spans


def _segments(count: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [parts]: lengths of at least 1 that add up to `count`, uniform among all of these."""
    cuts = np.sort(rng.permutation(count - 1)[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [count]]))


def _joined(parts: list) -> np.ndarray:
    return np.concatenate([np.asarray(part, np.int32) for part in parts]) if parts else np.zeros(0, np.int32)
