"""Continuations of texts."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from display import progress
from transformer.contracts import ContinuedText
from transformer.decoding.generate import generate, require_room
from transformer.decoding.strategies import Sample, Strategy
from transformer.explain import attention
from transformer.readers.base import Reader, hypotheses, place


@dataclasses.dataclass(frozen=True)
class Completion(Reader):
    """A prompt and its continuation on one line, with \\n for line breaks. An empty line is the start of a document, if the
    data has documents."""
    flags = 'strategy', 'tokens', 'seed'
    contract, what = ContinuedText, 'text to continue'

    def answers(self, snapshot: Any, lines: Sequence[str], name: str, *, strategy: Strategy | None = None,
                tokens: int | None = None, seed: int = 0) -> Iterator[tuple[str, dict]]:
        """strategy: None: Sample(temperature=0.8).  tokens: largest number of new tokens; None: 100.  seed: of the sampling."""
        data, strategy = self.data_of(snapshot), strategy or Sample(temperature=0.8)
        prompts = [data.prompt(line) for line in lines]
        for number, prompt in enumerate(prompts, 1):
            require_room(snapshot.model, prompt, f'The prompt in {place(number, name)}')
        for i, (line, prompt) in enumerate(zip(lines, prompts)):
            # One prompt at a time, so that each answer is printed as soon as it is known.
            with progress.waiting('generating'):
                found, = generate(snapshot.model, snapshot.params, [prompt], steps=tokens or 100, strategy=strategy,
                                  end=data.end, vocab=data.facts['vocab'], key=snapshot.key('predict', seed), numbers=[i])
            outputs = hypotheses(data, found)
            yield (line + outputs[0]['text']).replace('\n', '\\n'), {'prompt': line, **outputs[0], 'outputs': outputs}

    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        self.data_of(snapshot)
        return attention.of_text(snapshot, given, steps=steps)
