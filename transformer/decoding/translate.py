"""Translation of texts: from source sequences to target sequences."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from display import progress
from transformer.contracts import PrefixedText, ReadsSource
from transformer.decoding.generate import generate
from transformer.decoding.strategies import Strategy

EXTRA = 50  # the largest number of tokens by which an output exceeds its source (Vaswani et al. 2017, section 6.1)


def translate(snapshot: Any, sources: Sequence, *, strategy: Strategy, key: jax.Array, steps: int | None = None,
              numbers: Sequence[int] | None = None, prefix: Sequence[int] = (), rows: int = 32) -> list:
    """Translates each source, token ids with their end, to the hypotheses of the strategy, best first.

    Sources of similar length are decoded together, `rows` at once, which does not change the outputs.

    A decoder alone continues each source; its data are `PrefixedText`.

    Args:
      steps: the largest number of tokens of an output; None: `EXTRA` more than its source.
      numbers: the random stream of each source; None: 0, 1, ...
      prefix: token ids with which every output begins; they are not part of the hypotheses.
    """
    data, found = snapshot.data, {}
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    with progress.waiting(f'translating by {type(strategy).__name__}', len(order), 'sentences') as advance:
        for first in range(0, len(order), rows):
            part = order[first:first + rows]
            batch = [sources[i] for i in part]
            limits = [len(source) + EXTRA if steps is None else steps for source in batch]
            streams = part if numbers is None else [numbers[i] for i in part]
            if isinstance(snapshot.model, ReadsSource):
                given = dict(prompts=[[data.start, *prefix]] * len(batch), source=batch)
            else:
                given = dict(prompts=[[*source, *prefix] for source in batch],
                             prefixes=list(map(len, batch)) if sees_source(snapshot) else None)
            outputs = generate(snapshot.model, snapshot.params, **given, steps=limits, strategy=strategy, key=key,
                               numbers=streams, end=data.end, vocab=data.facts['vocab'])
            found |= zip(part, outputs)
            advance(len(part))
    return [found[i] for i in range(len(sources))]


def sees_source(snapshot: Any) -> bool:
    """Whether the tokens of a source see each other, as in the training of a decoder alone: its task gives the model the
    `prefix`, and its data mark sources with it."""
    batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in snapshot.data.shapes.items()}
    return snapshot.data.bidirectional and 'prefix' in jax.eval_shape(snapshot.run.task.inputs, batch)


def longest_source(run: Any) -> int:
    """The largest number of tokens of a source that the model of a run or a snapshot reads. Raises ValueError for a decoder
    alone whose data do not put source and target in one row."""
    if isinstance(run.model, ReadsSource):
        return run.model.source_length
    if not isinstance(run.data, PrefixedText):
        raise ValueError(f'{type(run.model).__name__} has no encoder, and {type(run.data.config).__name__} gives it no row of '
                         'source and target; set data.pipeline to data.seq2seq.prefixed:Prefixed.')
    return run.data.lengths[0]


def encoded(data: Any, source: str, longest: int, *, truncate: bool = False, what: str = 'The source',
            otherwise: str = '') -> np.ndarray:
    """The int32 ids of a source text with their end, at most `longest`. With `truncate` a longer one is cut before its end,
    else ValueError begins with `what` and advises `otherwise`."""
    ids = data.encode(source)
    if len(ids) <= longest:
        return ids
    if not truncate:
        raise ValueError(f'{what} has {len(ids)} tokens with its end, but this model takes {longest}; shorten '
                         f'it{otherwise and ", or " + otherwise}.')
    return np.append(ids[:longest - 1], ids[-1])


def all_encoded(run: Any, sources: Sequence[str]) -> list[np.ndarray]:
    """`encoded` for each source of a run or a snapshot, truncated if data.long='truncate'."""
    return [encoded(run.data, source, longest_source(run), truncate=run.data.truncates,
                    what=f'The source {source!r}', otherwise="set data.long='truncate'") for source in sources]


def written(data: Any, texts: Sequence[str]) -> list[str]:
    """Target texts as the tokenizer of a run writes them, which is how an output of the same tokens reads, where that differs
    in case, accents and white space alone: 'the cat.' for 'The  cat.' with one that lower-cases. Others stay as they are."""
    def plain(text: str) -> str:
        letters = unicodedata.normalize('NFKD', ''.join(text.split()))
        return ''.join(one for one in letters if not unicodedata.combining(one)).casefold()

    restored = [data.decode(data.encode_target(text)[:-1]) for text in texts]
    return [own if plain(own) == plain(text) else text for own, text in zip(restored, texts)]


def best_texts(snapshot: Any, sources: Sequence[str], strategy: Strategy) -> list[str]:
    """The best output for each source text, as text."""
    found = translate(snapshot, all_encoded(snapshot, sources), strategy=strategy, key=snapshot.key('translations'))
    return [snapshot.data.decode(hypotheses[0].tokens) for hypotheses in found]
