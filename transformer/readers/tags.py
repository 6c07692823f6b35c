"""Tags of words."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.contracts import TaggedText
from transformer.decoding.spans import named_spans
from transformer.readers.rows import TokenRow
from transformer.readers.whole import WholeText


@dataclasses.dataclass(frozen=True)
class WordTags(WholeText):
    """The words of a line with their tags, and the spans of names if the tags mark them; a long line takes several rows."""
    contract, what = TaggedText, 'tagged words'

    def read(self, data: Any, names: Sequence[str], line: str) -> tuple[list[TokenRow], object]:
        framed, places = data.read_words(line)
        return [TokenRow(row) for row in framed], places

    def answer(self, data: Any, line: str, known: Any, rows: Sequence[dict]) -> tuple[str, dict]:
        words = line.split()
        best = [row['logits'][places, :len(data.classes)].argmax(-1) for row, places in zip(rows, known)]
        tags = [data.classes[tag] for tag in np.concatenate(best)]
        details = {'words': words, 'tags': tags}
        if data.has_spans:
            details['spans'] = [{'type': name, 'text': ' '.join(words[start:stop]), 'start': start, 'stop': stop}
                                for start, stop, name in sorted(named_spans(tags))]
        return ' '.join(f'{word}/{tag}' for word, tag in zip(words, tags)), details
