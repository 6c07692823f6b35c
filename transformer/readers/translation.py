"""Translations of texts."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from transformer.contracts import ReadsSource, TranslatedText
from transformer.decoding.generate import require_room
from transformer.decoding.strategies import Beam, Strategy
from transformer.decoding.translate import EXTRA, encoded, longest_source, translate
from transformer.explain import attention
from transformer.readers.base import Reader, hypotheses, place
from transformer.readers.rows import AT_ONCE


@dataclasses.dataclass(frozen=True)
class Translation(Reader):
    """The translation of a text; that of a blank line is empty. A note says whether the source was cut, and whether the
    translation has filled the context of the model."""
    flags = 'strategy', 'tokens', 'seed', 'truncate', 'prefix'
    usual = Beam(size=4, length_penalty=0.6)
    contract, what = TranslatedText, 'pairs of texts'

    def answers(self, snapshot: Any, lines: Sequence[str], name: str, *, strategy: Strategy | None = None,
                tokens: int | None = None, seed: int = 0, truncate: bool = False,
                prefix: str = '') -> Iterator[tuple[str, dict]]:
        """strategy: None: `usual`.  tokens: largest number of new tokens; None: 50 more than the
        source's.  seed: of the sampling.  truncate: cut sources that are too long.  prefix: begins every translation."""
        data, longest = self.data_of(snapshot), longest_source(snapshot)
        strategy = strategy or self.usual
        for number, line in enumerate(lines, 1):
            self.require(data, line, place(number, name))
        ids = [encoded(data, source, longest, truncate=truncate, what=f'The source in {place(number, name)}',
                       otherwise='give --truncate, in Python truncate=True') if source.strip() else None
               for number, source in enumerate(lines, 1)]
        begun = data.encode_target(prefix)[:-1] if prefix else ()
        alone = not isinstance(snapshot.model, ReadsSource)  # a decoder
        own = (len(data.encode('')) if alone else 1) + (len(data.encode_target('')) - 1 if prefix else 0)  # special tokens
        if not alone:
            require_room(snapshot.model, [data.start, *begun], '--prefix', own)
        else:
            for number, source in enumerate(ids, 1):
                if source is not None:
                    what = f'The source in {place(number, name)}{" with --prefix" if prefix else ""}'
                    require_room(snapshot.model, [*source, *begun], what, own)
        for first in range(0, len(lines), AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, len(lines)))
            part = {i: ids[i] for i in numbers if ids[i] is not None}
            found = translate(snapshot, list(part.values()), strategy=strategy, steps=tokens,
                              key=snapshot.key('predict', seed), numbers=list(part), prefix=begun)
            outputs = {i: hypotheses(one, lambda new: data.decode([*begun, *new])) for i, one in zip(part, found)}
            for i in numbers:
                found = outputs.get(i, [{'text': '', 'tokens': 0, 'ids': [], 'score': 0.0, 'finished': True}])
                for one in found:
                    one['text'] = self.said(data, lines[i], one['text'], [*begun, *one['ids']])
                best = found[0]
                details = {'source': lines[i], **best, 'outputs': outputs.get(i, [])}
                if i in part:
                    room = snapshot.model.length + 1 - len(begun) - (len(part[i]) if alone else 1)
                    full = (tokens or len(part[i]) + EXTRA) > room and not best['finished']
                    cut = len(data.encode(lines[i])) - len(part[i]) if truncate else 0
                    notes = [f'the source is cut to {longest} tokens; {cut:,} at its end are not read'] * (cut > 0)
                    notes += [f'ends after {room} new tokens: the context of this model is {snapshot.model.length}'] * full
                    details |= ({'cut': cut} if cut else {}) | ({'note': '; '.join(notes)} if notes else {})
                yield best['text'].replace('\n', ' '), details

    def require(self, data: Any, line: str, where: str) -> None:
        """Raises ValueError for a line that no source can be made of, of the place `where`."""

    def said(self, data: Any, line: str, text: str, ids: Sequence[int]) -> str:
        """The answer to a line, from the text and the ids of the decoder."""
        return text

    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        self.data_of(snapshot)
        return attention.of_pair(snapshot, given, steps=steps)
