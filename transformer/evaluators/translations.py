"""Evaluators of translations."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.contracts import PairBatches, ReadsSource, TranslatedText, require
from transformer.decoding.generate import require_strategy
from transformer.decoding.strategies import Greedy, Strategy
from transformer.decoding.translate import all_encoded, best_texts, longest_source, written
from transformer.evaluators.base import Evaluator, Found, OfExamples
from transformer.evaluators.metrics import (
    bleu_counts,
    bleu_interval,
    bleu_of_counts,
    bleu_tokenizer,
    textbook_bleu,
    translation_scores,
)


def require_translation(run: Any, evaluator: Any) -> None:
    """Raises ValueError unless a run has pairs of texts and its model supports the strategy."""
    require(evaluator, run.data, TranslatedText, 'pairs of texts', 'leave that evaluator out')
    if longest_source(run) < run.data.lengths[0]:
        raise ValueError(f'{type(evaluator).__name__} is to translate sources of up to data.source_length='
                         f'{run.data.lengths[0]} tokens, but model.source_length is {run.model.source_length}; raise that.')
    require_strategy(run.model, run.shapes.params, evaluator.strategy, run.data.facts['vocab'],
                     translates=isinstance(run.model, ReadsSource))


@dataclasses.dataclass(frozen=True)
class Translations(OfExamples):
    """BLEU and chrF of sacrebleu and the share of exact matches, for the model's translations of a split. Some translations and
    the signatures of the scores go to samples/. BLEU tokenizes as the target language needs it (`translation_scores`).
    References are as the tokenizer writes them, which may differ in case, accents and white space; samples/ says so.

    Attributes:
      limit: the number of pairs, from the start of the split; 0: all.
      shown: the number of translations that are written out.
    """
    percent = 'bleu', 'chrf'
    strategy: Strategy = Greedy()
    limit: int = 0
    shown: int = 5

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require_translation(run, self)
        if self.limit < 0 or self.shown < 0:
            raise ValueError(f'Translations has limit={self.limit} and shown={self.shown}; both must be 0 or more.')
        return 'bleu', 'chrf', 'exact_match', 'pairs'

    def each(self, snapshot: Any, batches: PairBatches) -> Found:
        sources, references = _sides(snapshot, batches.pairs()[:self.limit or None])
        texts = best_texts(snapshot, sources, self.strategy)
        return {'counts': bleu_counts(texts, references, snapshot.data.target_language),
                'exact_match': np.array([text == reference for text, reference in zip(texts, references)])}

    def numbers(self, found: Found) -> Mapping[str, float]:
        """BLEU and the share of exact matches; chrF is of whole corpora."""
        return {'bleu': bleu_of_counts(found['counts']), 'exact_match': float(found['exact_match'].mean())}

    def right(self, found: Found) -> Mapping[str, np.ndarray]:
        return {'exact_match': found['exact_match']}

    def __call__(self, snapshot: Any, batches: PairBatches) -> Mapping[str, float]:
        pairs = batches.pairs()[:self.limit or None]
        sources, references = _sides(snapshot, pairs)
        texts = best_texts(snapshot, sources, self.strategy)
        numbers, signatures = translation_scores(texts, references, snapshot.data.target_language)
        shown = [f'source:    {source}\nreference: {reference}\noutput:    {text}\n'
                 for (source, reference), text in list(zip(pairs, texts))[:self.shown]]
        other = sum(own != given for own, (_, given) in zip(references, pairs))
        note = f', {other:,} of {len(pairs):,} references as the tokenizer writes them' if other else ''
        snapshot.text('translations', '\n'.join([*shown, f'{self.strategy}{_prepared(snapshot)}{note}', *signatures]) + '\n')
        return numbers | {'pairs': len(pairs)}


def _sides(snapshot, pairs):
    """(sources, references as the tokenizer writes them)."""
    sources, references = zip(*pairs)
    return sources, written(snapshot.data, references)


def _prepared(snapshot):
    """Words on how texts are prepared, which the signatures of scores do not tell; '' if they are not."""
    prepared = snapshot.data.preparation
    return '' if prepared == 'raw' else f', of texts prepared by data.text={prepared!r}'


@dataclasses.dataclass(frozen=True)
class ByLength(OfExamples):
    """BLEU by the length of the source (Bahdanau et al. 2015, figure 2): for each bin of lengths the BLEU of its pairs as a
    corpus (`bleu/1-5`; sacrebleu's, as in `Translations`), its bootstrap interval of 95 % over the pairs (`low/1-5`,
    `high/1-5`), and their number (`pairs/1-5`). A bin without pairs is left out. The table goes to samples/.

    Attributes:
      bounds: the greatest length of each bin but the last, which has no end, increasing.
      unit: of the lengths of the prepared sources: 'words', which white space separates, or 'characters'.
      limit: the number of pairs of each bin, from the start of the split; 0: all.
    """
    percent = 'bleu', 'low', 'high'
    strategy: Strategy = Greedy()
    bounds: tuple = (5, 10, 15, 20, 30, 40)
    unit: str = 'words'
    limit: int = 0

    @property
    def bins(self) -> list[str]:
        """The names of the bins: '1-5', .., '41+'."""
        firsts = [1, *(bound + 1 for bound in self.bounds)]
        closed = (f'{first}-{last}' if first < last else f'{first}' for first, last in zip(firsts, self.bounds))
        return [*closed, f'{firsts[-1]}+']

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        require_translation(run, self)
        if not all(isinstance(bound, int) and bound > before for bound, before in zip(self.bounds, (0, *self.bounds))):
            raise ValueError(f'ByLength has bounds={self.bounds}; give increasing whole numbers of 1 or more, such as 5,10,20.')
        if self.unit not in ('words', 'characters'):
            raise ValueError(f"ByLength has unit={self.unit!r}; it must be 'words' or 'characters'.")
        if self.limit < 0:
            raise ValueError(f'ByLength has limit={self.limit}; it must be 0 or more.')
        number, _ = self._chosen(batches)
        return [f'{name}/{self.bins[i]}' for name in ('bleu', 'low', 'high', 'pairs') for i in np.unique(number)]

    def each(self, snapshot: Any, batches: PairBatches) -> Found:
        number, pairs = self._chosen(batches)
        sources, references = _sides(snapshot, pairs)
        texts = best_texts(snapshot, sources, self.strategy)
        here = np.isin(np.arange(len(self.bins)), number)
        return {'bin': number, 'counts': bleu_counts(texts, references, snapshot.data.target_language),
                'here': np.tile(here, (len(pairs), 1))}  # the bins that have pairs, whichever of these are drawn

    def numbers(self, found: Found) -> Mapping[str, float]:
        """The BLEU of each bin; 0 for one of whose pairs none is drawn."""
        return {f'bleu/{self.bins[i]}': bleu_of_counts(found['counts'][found['bin'] == i])
                for i in np.flatnonzero(found['here'][0])}

    def __call__(self, snapshot: Any, batches: PairBatches) -> Mapping[str, float]:
        found = self.each(snapshot, batches)
        here = {i: found['counts'][found['bin'] == i] for i in np.unique(found['bin'])}
        rows = {self.bins[i]: {'bleu': bleu_of_counts(counts), **dict(zip(('low', 'high'), bleu_interval(counts))),
                               'pairs': len(counts)} for i, counts in here.items()}
        table = [f'{self.unit:10}    BLEU     95 % interval    pairs', *(
            '{:10}{bleu:8.2f}{low:9.2f} to {high:5.2f}{pairs:9,}'.format(name, **row) for name, row in rows.items())]
        tokenizer = bleu_tokenizer(snapshot.data.target_language)
        table += ['', f'{self.strategy}, BLEU of tokens by {tokenizer}{_prepared(snapshot)}']
        snapshot.text('by_length', '\n'.join(table) + '\n')
        return {f'{name}/{column}': rows[column][name] for name in ('bleu', 'low', 'high', 'pairs') for column in rows}

    def _chosen(self, batches):
        """(the numbers of the bins of the pairs that are translated, int [pairs]; the pairs)."""
        pairs = batches.pairs()
        lengths = [len(source.split() if self.unit == 'words' else source) for source, _ in pairs]
        number = np.searchsorted(self.bounds, lengths)  # a length that is a bound belongs to the bin that ends with it
        before = np.zeros(len(pairs), int)  # the pairs of its bin before each
        for i in np.unique(number):
            before[number == i] = np.arange((number == i).sum())
        kept = np.flatnonzero(before < (self.limit or len(pairs)))
        return number[kept], [pairs[i] for i in kept]


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
