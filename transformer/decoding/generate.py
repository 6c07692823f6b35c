"""Decoding: outputs of any autoregressive model, in one compiled loop over a static cache.

`transformer.decoding.strategies` choose the tokens, `transformer.decoding.constraints` restrict them.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.contracts import ReadsSource
from transformer.decoding.strategies import Search, Strategy
from transformer.layers.heads import BlockedLogits
from transformer.layers.numerics import wide


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One output for a prompt.

    Attributes:
      tokens: the new tokens, without `end`.
      score: as its strategy defines it.
      finished: whether it ended with `end`; else it was cut.
    """
    tokens: np.ndarray
    score: float
    finished: bool


def require_room(model: Any, prompt: Sequence[int] | np.ndarray, what: str = 'The prompt', own: int = 0) -> None:
    """Raises ValueError, which begins with `what`, for an empty prompt, and for one that leaves no room for a new token; `own`
    of its tokens, such as that of a start, are no part of what was given."""
    if not len(prompt):
        raise ValueError(f'{what} is empty; give at least one character to continue.')
    if len(prompt) >= model.length:
        special = f'{own} special {"token" if own == 1 else "tokens"} and ' if own else ''
        raise ValueError(f'{what} has {len(prompt) - own} tokens, but the context of this model is {model.length} and must '
                         f'hold {special}a new one too; shorten it to {model.length - 1 - own}.')


def require_strategy(model: Any, params: Any, strategy: Strategy, vocab: int, translates: bool = False) -> None:
    """Raises ValueError if a strategy needs attention to a source that the model does not have, or names tokens outside of the
    vocabulary. Of `params` only the shapes are read."""
    strategy.constraint.require_vocab(vocab)

    def prefill(params):
        one = jnp.ones((1, 1), jnp.int32)
        inputs = dict(inputs=one, segments=one, positions=one - 1)
        return _reader(model, params, strategy, inputs if translates else None)(model.init_cache(1, 2), one, **inputs)

    if strategy.covers:
        jax.eval_shape(prefill, params)


def generate(model: Any, params: Any, prompts: Sequence, *, steps: int | Sequence[int], strategy: Strategy, key: jax.Array,
             end: int, vocab: int, source: Sequence | None = None, prefixes: Sequence[int] | None = None,
             numbers: Sequence[int] | None = None) -> list:
    """Generates outputs for each prompt: a list of hypotheses, best first.

    A decoder-only model continues its prompts. An encoder-decoder reads a source for each; its prompt is the start token of the
    decoder, optionally followed by tokens with which the output has to begin.

    A model offers `length`, the longest row of its decoder, `init_cache(batch, length)`, a nested dict of arrays whose first
    axis is the batch, and
      model.apply({'params': params}, inputs=, segments=, positions=, cache=) -> {'logits' [B, T, V], 'cache', ...}
    with prefixes also prefix= for the prompt, and block= if its head gives `BlockedLogits`, so that of a prompt only the logits
    of its last token are computed,
    or, with a source,
      model.apply(.., inputs=, segments=, positions=, decoder_inputs=, decoder_segments=, decoder_positions=, cache=)
    for the prompt, then with one token at a time and without segments and source, which the cache holds. Arrays under the key
    'source' of the cache, at any depth, keep their B rows: if a strategy extends K hypotheses, row r of the decoder reads
    source r // K. All other arrays have B·K rows and are reordered with the hypotheses.

    To compile few shapes, rows, prompts and sources are padded to powers of two, and the cache to quarters of one. Neither the
    padding nor the other rows change the result of a row, except for rounding.

    Args:
      prompts: list of non-empty integer sequences; one that leaves no room for a new token is refused (`require_room`).
      steps: the largest number of new tokens, `end` included; an int, or one for each prompt. The model reads at most
        `model.length` tokens, the prompt included; it does not read the last new one.
      strategy: e.g. Greedy(), Sample(temperature=0.8) or Beam(size=4).
      key: random key; prompt i draws from a stream of its own, fold_in(key, numbers[i]).
      end: the token that ends an output; a number outside of the vocabulary for none.
      vocab: number of tokens to choose from; the model's vocabulary may be larger than its tokenizer's.
      source: list of integer sequences.
      prefixes: for a decoder-only model, how many of the first tokens of each prompt see each other; None: none.
      numbers: the random stream of each prompt; None: 0, 1, ...
    Returns:
      for each prompt a list of `Hypothesis`: `strategy.count` of them, or fewer if a beam search finds no more.
    """
    strategy.constraint.require_vocab(vocab)
    for prompt in prompts:
        require_room(model, prompt)
    if not prompts:
        return []
    rows = _power_of_two(len(prompts))
    lengths = np.array([len(prompt) for prompt in prompts])
    limits = np.clip(np.broadcast_to(steps, lengths.shape), 0, model.length + 1 - lengths)  # the last one is never read
    numbers = range(len(prompts)) if numbers is None else numbers
    given = dict(tokens=_padded(prompts, rows, model.length), lengths=_filled(lengths, rows, 1),
                 limits=_filled(limits, rows, 0), numbers=_filled(numbers, rows, 0))
    if source is not None:
        tokens = _padded(source, rows, model.source_length if isinstance(model, ReadsSource) else None)
        place = np.arange(tokens.shape[1])
        there = place < _filled([len(one) for one in source], rows, 0)[:, None]
        given['source'] = {'inputs': tokens, 'segments': there.astype(np.int32),
                           'positions': np.broadcast_to(place, tokens.shape).astype(np.int32)}
    if prefixes is not None:
        given['prefixes'] = _filled(prefixes, rows, 0)
    total = min(model.length, max(given['tokens'].shape[1], _cache_length(int((lengths + limits).max()) - 1)))
    best = jax.device_get(_search(model, params, key, given, strategy=strategy, total=total, end=end, vocab=vocab))
    nothing = Hypothesis(np.zeros(0, np.int32), 0.0, False)
    found = [_hypotheses(best, i, lengths[i], strategy) if limits[i] else [nothing] for i in range(len(prompts))]
    if not all(found):
        raise ValueError('The probabilities of tokens are not finite: this run has diverged; give an earlier checkpoint with '
                         '--step=N.')
    return found


def _power_of_two(n):
    return 1 << (max(n, 1) - 1).bit_length()


def _cache_length(n):
    """Room for n tokens: powers of two up to 32, then multiples of a quarter of one, as every step looks at the whole cache."""
    if n <= 32:
        return _power_of_two(n)
    quarter = _power_of_two(n) // 8
    return -(-n // quarter) * quarter


def _padded(rows, count, longest):
    """[count, power of two] of integers, no wider than `longest` if the rows are not."""
    width = max(map(len, rows))
    padded = np.zeros((count, max(width, min(_power_of_two(width), longest or _power_of_two(width)))), np.int32)
    for row, tokens in zip(padded, rows):
        row[:len(tokens)] = tokens
    return padded


def _filled(values, count, fill):
    """[count]: the values, then `fill`."""
    return np.array([*values, *[fill] * (count - len(values))], np.int32)


def _hypotheses(best, row, begin, strategy):
    """The outputs of one row as a list of `Hypothesis`."""
    found, outputs = jax.tree.map(lambda x: x[row], best), {}
    for i in np.argsort(-found.score, kind='stable'):
        tokens = found.tokens[i, begin:begin + found.length[i] - found.finished[i]]
        if found.score[i] > -np.inf:
            same = (*tokens.tolist(), bool(found.finished[i])) if strategy.distinct else i
            outputs.setdefault(same, Hypothesis(tokens, float(found.score[i]), bool(found.finished[i])))
    return list(outputs.values())[:strategy.count]


@partial(jax.jit, static_argnames=('model', 'strategy', 'total', 'end', 'vocab'))
def _search(model, params, key, given, *, strategy, total, end, vocab):
    """The best hypotheses for prompts [B, P]: prefill, then one token for every row at a time until all are done. The model
    reads at most `total` tokens of a row."""
    tokens, lengths, limits, source = given['tokens'], given['lengths'], given['limits'], given.get('source')
    (rows, width), size, run = tokens.shape, strategy.size, _reader(model, params, strategy, source)

    def choose(logits, search, cache):
        search, parents = strategy(wide(logits[..., :vocab]), search, keys_of(row_keys, search.count))
        if parents is not None:  # else all stay where they are
            rows_of = (parents + size * jnp.arange(rows)[:, None]).reshape(-1)
            cache = _of_decoder(lambda x: x[rows_of], cache)
        return search, cache

    def advance(state):
        search, cache = state
        at = jnp.minimum(search.begin + search.count, total) - 1  # rows that are done go on counting
        last = jnp.take_along_axis(search.live.tokens, at[:, None, None], 2).reshape(rows * size, 1)
        logits, cache, attention = run(cache, inputs=last, positions=jnp.repeat(at, size)[:, None])
        if attention is not None:
            search = dataclasses.replace(search, coverage=search.coverage + attention.reshape(rows, size, -1))
        return choose(logits.reshape(rows, size, -1), search, cache)

    row_keys = jax.vmap(jax.random.fold_in, (None, 0))(key, given['numbers'])
    row_keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(row_keys, jnp.arange(size))  # [B, K]
    keys_of = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))
    positions = jnp.broadcast_to(jnp.arange(width), (rows, width))
    there = (positions < lengths[:, None]).astype(jnp.int32)
    more = {'prefix': (positions < given['prefixes'][:, None]).astype(jnp.int32)} if 'prefixes' in given else {}
    logits, cache, attention = run(model.init_cache(rows, total), there, inputs=tokens, segments=there, positions=positions,
                                   **more)
    last = lengths - 1
    logits = logits.at(last) if isinstance(logits, BlockedLogits) else jnp.take_along_axis(logits, last[:, None, None], 1)
    live, pool = strategy.begin(jnp.pad(tokens, ((0, 0), (0, total + 1 - width))))
    search = Search(live, pool, begin=lengths, limit=limits, count=jnp.zeros((), jnp.int32), done=limits < 1,
                    coverage=None if attention is None else jnp.repeat(attention[:, None], size, 1),
                    source=None if attention is None else source['segments'] != 0, end=end)
    # The barrier keeps XLA from moving the transpositions of the projected source into every step.
    cache = jax.lax.optimization_barrier(_of_decoder(lambda x: jnp.repeat(x, size, 0), cache))
    state = choose(jnp.repeat(logits, size, 1), search, cache)
    search, _ = jax.lax.while_loop(lambda state: ~state[0].done.all(), advance, state)
    return search.best


def _reader(model, params, strategy, source):
    """run(cache, there, **inputs) -> (logits, cache, attention to the source), which applies the model to inputs of R rows;
    with `there` (prefill) also to the source, and where they can be, the logits are `BlockedLogits`."""
    blocked = getattr(getattr(model, 'head', None), 'blocked', False)

    def run(cache, there=None, **inputs):
        if source:
            inputs = {'decoder_' + name: value for name, value in inputs.items()} | ({} if there is None else source)
        if blocked and there is not None:
            inputs['block'] = 1
        if not strategy.covers:
            outputs = model.apply({'params': params}, **inputs, cache=cache)
            return outputs['logits'], outputs['cache'], None
        outputs = model.apply({'params': params}, **inputs, cache=cache, capture=('attention',))
        return outputs['logits'], outputs['cache'], _attention(outputs, there)

    return run


def _of_decoder(function, cache):
    """Applies a function to the arrays of a cache that have a row for each hypothesis, not to those of the source."""
    of_source = lambda path: 'source' in jax.tree_util.keystr(path, simple=True, separator='/').split('/')
    return jax.tree_util.tree_map_with_path(lambda path, x: x if of_source(path) else function(x), cache)


def _attention(outputs, there):
    """[R, S]: attention to the source, averaged over layers and heads, summed over the tokens where `there` [R, T] is 1 (None:
    over all)."""
    weights = [x for name, x in outputs.items() if name.endswith('cross_attention')]
    if not weights:
        raise ValueError('A coverage penalty needs a model that attends to a source, and this one does not; leave it out.')
    mean = sum(x.mean(1) for x in weights) / len(weights)  # [R, T, S]
    return (mean if there is None else mean * there[..., None]).sum(1)
