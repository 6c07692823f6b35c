"""Evaluators of translations."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from transformer.contracts import PairBatches, ReadsSource, TranslatedText, require
from transformer.decoding.generate import require_strategy
from transformer.decoding.strategies import Greedy, Strategy
from transformer.decoding.translate import all_encoded, best_texts, longest_source
from transformer.evaluators.base import Evaluator
from transformer.evaluators.metrics import textbook_bleu, translation_scores


def require_translation(run: Any, evaluator: Any) -> None:
    """Raises ValueError unless a run has pairs of texts and its model supports the strategy."""
    require(evaluator, run.data, TranslatedText, 'pairs of texts', 'leave that evaluator out')
    if longest_source(run) < run.data.lengths[0]:
        raise ValueError(f'{type(evaluator).__name__} is to translate sources of up to data.source_length='
                         f'{run.data.lengths[0]} tokens, but model.source_length is {run.model.source_length}; raise that.')
    require_strategy(run.model, run.shapes.params, evaluator.strategy, run.data.facts['vocab'],
                     translates=isinstance(run.model, ReadsSource))


@dataclasses.dataclass(frozen=True)
class Translations(Evaluator):
    """BLEU and chrF of sacrebleu and the share of exact matches, for the model's translations of a split. Some translations and
    the signatures of the scores go to samples/. BLEU tokenizes as the target language needs it (`translation_scores`).

    Attributes:
      limit: the number of pairs, from the start of the split; 0: all.
      shown: the number of translations that are written out.
    """
    strategy: Strategy = Greedy()
    limit: int = 0
    shown: int = 5

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require_translation(run, self)
        if self.limit < 0 or self.shown < 0:
            raise ValueError(f'Translations has limit={self.limit} and shown={self.shown}; both must be 0 or more.')
        return 'bleu', 'chrf', 'exact_match', 'pairs'

    def __call__(self, snapshot: Any, batches: PairBatches) -> Mapping[str, float]:
        pairs = batches.pairs()[:self.limit or None]
        sources, references = zip(*pairs)
        texts = best_texts(snapshot, sources, self.strategy)
        numbers, signatures = translation_scores(texts, references, snapshot.data.target_language)
        shown = [f'source:    {source}\nreference: {reference}\noutput:    {text}\n'
                 for (source, reference), text in list(zip(pairs, texts))[:self.shown]]
        prepared = snapshot.data.preparation  # the signatures do not tell that the scores are of prepared texts
        of = '' if prepared == 'raw' else f', of texts prepared by data.text={prepared!r}'
        snapshot.text('translations', '\n'.join([*shown, f'{self.strategy}{of}', *signatures]) + '\n')
        return numbers | {'pairs': len(pairs)}


@dataclasses.dataclass(frozen=True)
class Sentences(Evaluator):
    """Translates given sentences and scores each by the textbook's BLEU, as `bleu_1`, `bleu_2`, ..

    Attributes:
      sources, references: sentences, and the reference of each.
      k: the length of the longest n-gram.
    """
    sources: tuple = ()
    references: tuple = ()
    k: int = 2
    strategy: Strategy = Greedy()

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require_translation(run, self)
        if not len(self.sources) == len(self.references) > 0 or self.k < 1:
            raise ValueError(f'Sentences has {len(self.sources)} sources, {len(self.references)} references and k={self.k}; '
                             'give as many references as sources, one at least, and a k of 1 or more.')
        all_encoded(run, self.sources)  # refuses sentences that are too long before training
        return tuple(f'bleu_{i + 1}' for i in range(len(self.sources)))

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        texts = best_texts(snapshot, self.sources, self.strategy)
        scores = [textbook_bleu(text, snapshot.data.prepare(reference), self.k)
                  for text, reference in zip(texts, self.references)]
        snapshot.text('sentences', '\n'.join(f'{source} => {text}, bleu {score:.3f}' for source, text, score in zip(
            self.sources, texts, scores)) + '\n')
        return {f'bleu_{i + 1}': score for i, score in enumerate(scores)}
