"""From sequences to sequences: translating texts, and evaluators of translations."""

import dataclasses

import numpy as np

from transformer.decoding import generate, require_strategy
from transformer.evaluators import Evaluator
from transformer.metrics import textbook_bleu, translation_scores
from transformer.strategies import Greedy, Strategy

EXTRA = 50  # tokens that an output may have more than its source (Vaswani et al. 2017, section 6.1)


def translate(snapshot, sources, *, strategy, key, steps=None, numbers=None, prefix=(), rows=32):
    """For each source, token ids with their end, the hypotheses of the strategy, best first.

    Sources of like length are decoded together, `rows` at once; what comes out does not depend on that.

    Args:
      steps: how many tokens an output has at most; None: `EXTRA` more than its source.
      numbers: of the random streams of the sources; None: 0, 1, ...
      prefix: token ids with which every output begins; they are not part of the hypotheses.
    """
    data, found = snapshot.data, {}
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    for first in range(0, len(order), rows):
        part = order[first:first + rows]
        batch = [sources[i] for i in part]
        limits = [len(source) + EXTRA if steps is None else steps for source in batch]
        streams = part if numbers is None else [numbers[i] for i in part]
        outputs = generate(snapshot.model, snapshot.params, [[data.start, *prefix]] * len(batch), source=batch, steps=limits,
                           strategy=strategy, key=key, numbers=streams, end=data.end, vocab=data.facts['vocab'])
        found |= zip(part, outputs)
    return [found[i] for i in range(len(sources))]


def encoded(data, source, longest, *, truncate=False, what='The source', otherwise=''):
    """int32 ids of a source text with their end, `longest` at most: of a longer one the first ones and its end if `truncate`,
    else ValueError, about `what`; `otherwise` is what to do but shorten it."""
    ids = data.encode(source)
    if len(ids) <= longest:
        return ids
    if not truncate:
        raise ValueError(f'{what} has {len(ids)} tokens with its end, but this model takes {longest}; shorten '
                         f'it{otherwise and ", or " + otherwise}.')
    return np.append(ids[:longest - 1], ids[-1])


def all_encoded(run, sources):
    """The same for each source, of a run or a snapshot: cut where data.long='truncate'."""
    return [encoded(run.data, source, run.model.source_length, truncate=run.data.config.long == 'truncate',
                    what=f'The source {source!r}', otherwise="set data.long='truncate'") for source in sources]


def best_texts(snapshot, sources, strategy):
    """The best output for each source text, as text."""
    found = translate(snapshot, all_encoded(snapshot, sources), strategy=strategy, key=snapshot.key('translations'))
    return [snapshot.data.decode(hypotheses[0].tokens) for hypotheses in found]


def require_translation(run, evaluator):
    """Raises ValueError unless the data of a run are pairs of texts and its model can do what the strategy asks."""
    if run.data.kind != 'pairs':
        raise ValueError(f'{type(evaluator).__name__} needs pairs of texts, and {type(run.data.config).__name__} has none; '
                         'leave that evaluator out.')
    if run.model.source_length < run.data.lengths[0]:
        raise ValueError(f'{type(evaluator).__name__} is to translate sources of up to data.source_length='
                         f'{run.data.lengths[0]} tokens, but model.source_length is {run.model.source_length}; raise that.')
    require_strategy(run.model, run.shapes.params, evaluator.strategy, run.data.facts['vocab'], translates=True)


@dataclasses.dataclass(frozen=True)
class Translations(Evaluator):
    """BLEU and chrF of sacrebleu and the share of exact matches, of what the model makes of the sources of a split; some of it,
    and the signatures of the scores, go to samples/. BLEU splits texts as the target language needs it (`translation_scores`).

    Attributes:
      limit: how many pairs, the first ones of the split; 0: all.
      shown: how many of them are written out.
    """
    strategy: Strategy = Greedy()
    limit: int = 0
    shown: int = 5

    def check(self, run, batches):
        require_translation(run, self)
        if self.limit < 0 or self.shown < 0:
            raise ValueError(f'Translations has limit={self.limit} and shown={self.shown}; both must be 0 or more.')
        return 'bleu', 'chrf', 'exact_match', 'pairs'

    def __call__(self, snapshot, batches):
        pairs = batches.pairs()[:self.limit or None]
        sources, references = zip(*pairs)
        texts = best_texts(snapshot, sources, self.strategy)
        numbers, signatures = translation_scores(texts, references, snapshot.data.target_language)
        shown = [f'source:    {source}\nreference: {reference}\noutput:    {text}\n'
                 for (source, reference), text in list(zip(pairs, texts))[:self.shown]]
        prepared = snapshot.data.config.text  # the scores are of such texts, which their signatures do not say
        of = '' if prepared == 'raw' else f', of texts prepared by data.text={prepared!r}'
        snapshot.text('translations', '\n'.join([*shown, f'{self.strategy}{of}', *signatures]) + '\n')
        return numbers | {'pairs': len(pairs)}


@dataclasses.dataclass(frozen=True)
class Sentences(Evaluator):
    """Translates given sentences and scores each by the textbook's BLEU, as `bleu_1`, `bleu_2`, ..

    Attributes:
      sources, references: as many of the one as of the other.
      k: the longest n-gram.
    """
    sources: tuple = ()
    references: tuple = ()
    k: int = 2
    strategy: Strategy = Greedy()

    def check(self, run, batches):
        require_translation(run, self)
        if not len(self.sources) == len(self.references) > 0 or self.k < 1:
            raise ValueError(f'Sentences has {len(self.sources)} sources, {len(self.references)} references and k={self.k}; '
                             'give as many references as sources, one at least, and a k of 1 or more.')
        all_encoded(run, self.sources)  # refuses what is too long before training
        return tuple(f'bleu_{i + 1}' for i in range(len(self.sources)))

    def __call__(self, snapshot, batches):
        texts = best_texts(snapshot, self.sources, self.strategy)
        scores = [textbook_bleu(text, snapshot.data.prepare(reference), self.k)
                  for text, reference in zip(texts, self.references)]
        snapshot.text('sentences', '\n'.join(f'{source} => {text}, bleu {score:.3f}' for source, text, score in zip(
            self.sources, texts, scores)) + '\n')
        return {f'bleu_{i + 1}': score for i, score in enumerate(scores)}
