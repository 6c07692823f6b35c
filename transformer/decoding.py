"""Decoding: strategies that pick a token, and generation as one compiled loop over a static key-value cache."""

import abc
import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np


class Strategy(abc.ABC):
    """Base of the strategies."""

    @abc.abstractmethod
    def __call__(self, logits, key):
        """logits [B, V] -> tokens [B]."""


@dataclasses.dataclass(frozen=True)
class Greedy(Strategy):
    """The most probable token."""

    def __call__(self, logits, key):
        return logits.argmax(-1)


@dataclasses.dataclass(frozen=True)
class Sample(Strategy):
    """A draw from softmax(logits / temperature), among the `top_k` most probable tokens (0: all) and the smallest set
    of tokens whose probability reaches `top_p` (Holtzman et al. 2020)."""
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self):
        if self.temperature < 1e-3 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f'{self}: expected temperature >= 0.001, top_k >= 0 and top_p in (0, 1]; '
                             'for the most probable token use Greedy().')

    def __call__(self, logits, key):
        logits = logits.astype(jnp.float32) / self.temperature
        if self.top_k:
            kth = jax.lax.top_k(logits, min(self.top_k, logits.shape[-1]))[0][..., -1:]
            logits = jnp.where(logits < kth, -jnp.inf, logits)
        if self.top_p < 1.0:
            ranked = jnp.sort(logits, axis=-1)[..., ::-1]
            before = jnp.cumsum(jax.nn.softmax(ranked), -1) - jax.nn.softmax(ranked)  # mass above each rank
            last = jnp.where(before < self.top_p, ranked, jnp.inf).min(-1, keepdims=True)
            logits = jnp.where(logits < last, -jnp.inf, logits)
        return jax.random.categorical(key, logits)


@partial(jax.jit, static_argnames=('model', 'strategy', 'total', 'end', 'vocab'))
def _generate(model, params, tokens, lengths, limit, key, *, strategy, total, end, vocab):
    """tokens [B, P] right-padded prompts of `lengths` [B] -> rows [B, total] filled until `limit` or `end`."""
    rows, width = tokens.shape
    variables = {'params': params}
    positions = jnp.broadcast_to(jnp.arange(width), (rows, width))
    there = (positions < lengths[:, None]).astype(jnp.int32)
    outputs = model.apply(variables, tokens, segments=there, positions=positions, cache=model.init_cache(rows))
    logits = jnp.take_along_axis(outputs['logits'], (lengths - 1)[:, None, None], 1)[:, 0]  # [B, V]
    out = jnp.zeros((rows, total), tokens.dtype).at[:, :width].set(tokens)

    def going(state):
        t, _, _, _, done = state
        return (t < limit) & ~done.all()

    def advance(state):
        t, out, logits, cache, done = state
        token = strategy(logits[:, :vocab], jax.random.fold_in(key, t)).astype(out.dtype)
        at = jnp.minimum(lengths + t, total - 1)
        done = done | (lengths + t >= total)
        old = out[jnp.arange(rows), at]
        out = out.at[jnp.arange(rows), at].set(jnp.where(done, old, token))
        done = done | (token == end)
        step = model.apply(variables, token[:, None], positions=at[:, None], cache=cache)
        return t + 1, out, step['logits'][:, 0], step['cache'], done

    state = (0, out, logits, outputs['cache'], jnp.zeros(rows, bool))
    return jax.lax.while_loop(going, advance, state)[1]


def require_room(model, prompt, what='The prompt'):
    """Raises ValueError, about `what`, unless a prompt has a token and its model has room for one more."""
    if not len(prompt):
        raise ValueError(f'{what} is empty; give at least one character to continue.')
    if len(prompt) >= model.length:
        raise ValueError(f'{what} has {len(prompt)} tokens, but the context of this model is {model.length} and must hold a '
                         f'new one too; shorten it to {model.length - 1}.')


def generate(model, params, prompts, *, steps, strategy, key, end, vocab):
    """Continues each prompt by up to `steps` tokens, stopping after `end` and at the model's longest row.

    A model offers `length`, `init_cache(batch)` and `apply(..., segments=, positions=, cache=)` as `transformer.gpt:Gpt`
    does. A prompt that is empty or leaves no room for a new token is refused (see `require_room`). Prompts are padded to a
    power of two, so that few lengths compile.

    Args:
      prompts: list of non-empty integer sequences.
      strategy: e.g. Greedy() or Sample(temperature=0.8).
      vocab: number of tokens that may be chosen; a model may have more than its tokenizer.
    Returns:
      a list of 1-D arrays, the new tokens of each prompt without `end`.
    """
    for prompt in prompts:
        require_room(model, prompt)
    longest = max(map(len, prompts))
    width = min(model.length, 1 << (longest - 1).bit_length())
    tokens = np.zeros((len(prompts), width), np.int32)
    for row, prompt in zip(tokens, prompts):
        row[:len(prompt)] = prompt
    lengths = np.array([len(p) for p in prompts], np.int32)
    out = np.asarray(_generate(model, params, tokens, lengths, steps, key, strategy=strategy, total=model.length, end=end,
                               vocab=vocab))
    continuations = [row[n:min(n + steps, model.length)] for row, n in zip(out, lengths)]
    return [new[:np.argmax(new == end)] if (new == end).any() else new for new in continuations]
