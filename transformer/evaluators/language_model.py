"""Evaluators of language models: perplexity, compressors to compare with, continuations."""

import dataclasses
import gzip
import lzma
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.contracts import ContinuedText, TextBatches, require
from transformer.decoding.generate import generate, require_strategy
from transformer.decoding.strategies import Sample, Strategy
from transformer.evaluators.base import Averages, Evaluator
from transformer.readers.base import continuation


@dataclasses.dataclass(frozen=True)
class Perplexity(Averages):
    """`Averages` over windows of `context` tokens moved by `stride`: every token counts once, with at least
    context - stride tokens before it. context 0 stands for the training length, stride 0 for the context."""
    context: int = 0
    stride: int = 0

    @property
    def view(self) -> Mapping:
        return {'context': self.context or None, 'stride': self.stride or None}

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        return (*super().check(run, batches), 'context', 'stride')

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        return snapshot.averages(batches) | {name: batches.facts[name] for name in ('context', 'stride')}


@dataclasses.dataclass(frozen=True)
class Compressors(Evaluator):
    """Bits per byte that `gzip -9` and `xz -9` need for the same bytes, as one file: a baseline for a model."""

    def check(self, run: Any, batches: TextBatches) -> Sequence[str]:
        batches.text()
        return 'gzip_bits_per_byte', 'xz_bits_per_byte'

    def __call__(self, snapshot: Any, batches: TextBatches) -> Mapping[str, float]:
        text = batches.text()
        return {'gzip_bits_per_byte': 8 * len(gzip.compress(text, 9)) / len(text),
                'xz_bits_per_byte': 8 * len(lzma.compress(text, preset=9)) / len(text)}


@dataclasses.dataclass(frozen=True)
class Continuations(Evaluator):
    """Continues a prompt `count` times; the texts go to samples/ and TensorBoard and are printed at the end."""
    prompt: str = '\n'
    count: int = 3
    tokens: int = 100
    strategy: Strategy = Sample(temperature=0.8)

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        if self.count < 1 or self.tokens < 1:
            raise ValueError(f'Continuations has count={self.count} and tokens={self.tokens}; both must be at least 1.')
        require(self, run.data, ContinuedText, 'text to continue', 'leave that evaluator out')
        prompt = run.data.prompt(self.prompt)
        if not 1 <= len(prompt) < run.model.length:
            raise ValueError(f'The prompt {self.prompt!r} of Continuations has {len(prompt)} tokens; expected 1 to '
                             f'{run.model.length - 1}, which leave room for one more in the context.')
        require_strategy(run.model, run.shapes.params, self.strategy, run.data.facts['vocab'])
        return ()

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        data = snapshot.data
        prompt = data.prompt(self.prompt)
        new = generate(snapshot.model, snapshot.params, [prompt] * self.count, steps=self.tokens, strategy=self.strategy,
                       key=snapshot.key('continuations'), end=data.end, vocab=data.facts['vocab'])
        texts = [f'--- {i + 1} ---\n{self.prompt}{continuation(data, prompt, best.tokens)}' for i, (best, *_) in enumerate(new)]
        snapshot.text('continuations', '\n'.join(texts) + '\n')
        return {}
