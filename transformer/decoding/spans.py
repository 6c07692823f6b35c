"""From predictions for tokens to spans: answers in a text, names in a sentence."""

import collections
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class SpanAnswer(NamedTuple):
    """context[start:stop] with its score, the sum of two logits; the text '' stands for no answer."""
    text: str
    score: float
    start: int
    stop: int


def best_spans(start_logits: Sequence[np.ndarray], end_logits: Sequence[np.ndarray], windows: Sequence, longest: int = 30,
               count: int = 1, null: float | None = None) -> list[list[SpanAnswer]]:
    """The best answers to each question over all its windows, best first (Devlin et al. 2019, sections 4.2 and 4.3).

    The score of tokens i to j of a window is start_logits[i] + end_logits[j], with i <= j < i + longest, both in the context.
    The score of no answer is the least start_logits[0] + end_logits[0] of all windows, plus `null`.

    Args:
      start_logits, end_logits: [windows, T].
      windows: the contents of each row: `question`, the number of its question; `first`, the place in the row of the first
        token of the context; `ranges` [n, 2], the characters of the context that each of its n tokens in the row stands
        for; `context`, the whole text.
      longest: the largest number of tokens of an answer.
      count: the largest number of answers to a question.
      null: added to the score of no answer; None: every question has an answer.

    Returns: for each question, in the order of the windows, a list of SpanAnswer.
    Raises: ValueError if the numbers of rows and windows differ.
    """
    if not len(start_logits) == len(end_logits) == len(windows):
        raise ValueError(f'{len(start_logits)} and {len(end_logits)} rows of logits were given for {len(windows)} windows; '
                         'expected a row of both for each.')
    spans, nothing = collections.defaultdict(dict), {}
    for starts, ends, window in zip(start_logits, end_logits, windows):
        scores, empty = spans[window.question], float(starts[0]) + float(ends[0])
        nothing[window.question] = min(nothing.get(window.question, empty), empty)
        for first, last, score in _best_of(starts, ends, window, longest, count):
            place = int(window.ranges[first, 0]), int(window.ranges[last, 1])
            scores[place] = max(scores.get(place, score), score)
    found, contexts = [], {window.question: window.context for window in windows}
    for number, scores in spans.items():
        answers = [SpanAnswer(contexts[number][start:stop], score, start, stop) for (start, stop), score in scores.items()]
        if null is not None or not answers:
            answers.append(SpanAnswer('', nothing[number] + (null or 0.0), 0, 0))
        found.append(sorted(answers, key=lambda answer: (-answer.score, answer.start, answer.stop))[:count])
    return found


def _best_of(starts: Any, ends: Any, window: Any, longest: int, count: int) -> list[tuple[int, int, float]]:
    """(first token, last token, score) of the `count` best spans of a window, unordered; tokens count from its first."""
    size = len(window.ranges)
    if not size:
        return []
    shown = slice(window.first, window.first + size)
    blank = window.ranges[:, 0] >= window.ranges[:, 1]  # of white space alone
    first, last = (np.where(blank, -np.inf, np.asarray(logits, np.float64)[shown]) for logits in (starts, ends))
    following = np.append(last, np.full(longest - 1, -np.inf))
    scores = first[:, None] + np.lib.stride_tricks.sliding_window_view(following, longest)  # [n, longest]
    best = np.argpartition(-scores, min(count, scores.size) - 1, axis=None)[:count]
    spans = [(int(place) // longest, int(place) // longest + int(place) % longest) for place in best]
    return [(i, j, float(first[i] + last[j])) for i, j in spans if j < size and first[i] + last[j] > -np.inf]


def named_spans(tags: Sequence[str], strict: bool = False) -> set[tuple[int, int, str]]:
    """{(start, stop, type)}: the spans of a sequence of tags 'O', 'B-type' and 'I-type', for the F1 of names; in the schemes
    IOBES and BILOU also 'E-type' or 'L-type', the last of a span, and 'S-type' or 'U-type', a span of its own.

    A span begins at B-type, and at I-type or E-type where no span of this type is open; so conlleval counts those of B and I
    (Tjong Kim Sang and Buchholz 2000), and seqeval those of E and S too. With `strict` none begins at I-type or E-type. Raises
    ValueError for another tag.
    """
    found, start, kind = set(), 0, ''
    for place, tag in enumerate([*tags, 'O']):
        if not re.fullmatch('O|[BIESLU]-.+', tag):
            raise ValueError(f"The tag {tag!r} belongs to no span; expected 'O', or 'B-', 'I-', 'E-' or 'S-' and a type.")
        sign, _, new = tag.partition('-')
        goes_on = sign in 'IEL'
        if kind and not (goes_on and new == kind):
            found.add((start, place, kind))
            kind = ''
        if new and not kind and not (strict and goes_on):
            start, kind = place, new
        if kind and sign in 'ELSU':
            found.add((start, place + 1, kind))
            kind = ''
    return found
