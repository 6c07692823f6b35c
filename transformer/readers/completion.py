"""Continuations of texts."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from display import progress
from transformer.contracts import ContinuedText
from transformer.decoding.generate import generate, require_room
from transformer.decoding.strategies import Sample, Strategy, watched
from transformer.explain import attention
from transformer.readers.base import Reader, continuation, hypotheses, pieces_of, place


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt where one has ended a compiled program inside `watch`; JAX logs it and raises another error."""
    log = logging.getLogger('jax._src.debugging')
    was, log.disabled = log.disabled, True
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if 'KeyboardInterrupt' in str(error):
            raise KeyboardInterrupt from None
        raise
    finally:
        log.disabled = was


@dataclasses.dataclass(frozen=True)
class Completion(Reader):
    """A prompt and its continuation on one line, with \\n for line breaks. An empty line is the start of a document, if the
    data has documents."""
    flags = 'strategy', 'tokens', 'seed', 'watch'
    usual = Sample(temperature=0.8)
    contract, what = ContinuedText, 'text to continue'

    def answers(self, snapshot: Any, lines: Sequence[str], name: str, *, strategy: Strategy | None = None,
                tokens: int | None = None, seed: int = 0,
                watch: Callable[[str], None] | None = None) -> Iterator[tuple[str, dict]]:
        """strategy: None: `usual`.  tokens: largest number of new tokens; None: 100.  seed: of the sampling.  watch: is called
        with each new piece of text."""
        data, strategy = self.data_of(snapshot), strategy or self.usual
        pieces = pieces_of(data, watch) if watch else None
        strategy = watched(strategy, pieces) if watch else strategy
        prompts = [data.prompt(line) for line in lines]
        own = len(data.prompt(''))
        for number, prompt in enumerate(prompts, 1):
            require_room(snapshot.model, prompt, f'The prompt in {place(number, name)}', own)
        for i, (line, prompt) in enumerate(zip(lines, prompts)):
            # One prompt at a time, so that each answer is printed as soon as it is known.
            with _interruptible() if pieces else contextlib.nullcontext(), contextlib.ExitStack() as stack:
                stack.enter_context(progress.waiting('generating'))
                if pieces:
                    pieces.begin(stack.close, prompt)
                found, = generate(snapshot.model, snapshot.params, [prompt], steps=tokens or 100, strategy=strategy,
                                  end=data.end, vocab=data.facts['vocab'], key=snapshot.key('predict', seed), numbers=[i])
            if pieces:
                jax.effects_barrier()
            outputs = hypotheses(found, functools.partial(continuation, data, prompt))
            room = snapshot.model.length + 1 - len(prompt)
            full = (tokens or 100) > room and not outputs[0]['finished']
            notes = [f'ends after {room} new tokens: the context of this model is {snapshot.model.length}'] * full
            if unread := data.unread(prompt):
                notes.append(f'{unread:,} of the {len(prompt):,} tokens of the prompt are unknown to the tokenizer')
            details = {'prompt': line, **outputs[0], 'outputs': outputs} | ({'note': '; '.join(notes)} if notes else {})
            yield (line + outputs[0]['text']).replace('\n', '\\n'), details

    def picture(self, snapshot: Any, given: str, steps: bool = False) -> tuple:
        self.data_of(snapshot)
        return attention.of_text(snapshot, given, steps=steps)
