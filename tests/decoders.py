"""A small model whose outputs depend on all that came before, and searches over it in float64, without early stopping."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

STATES, TOKENS, LONGEST = 53, 7, 32


class Fake:
    """An autoregressive model, decoder-only or with a source. A state that every token changes is its cache, and picks logits
    and attention to the source from tables; what it knows of the source it keeps once for each source.

    Attributes:
      calls: how often it was run.
      traces: how often it was traced.
    """
    length = LONGEST

    def __init__(self, seed=0, scale=1.5):
        rng = np.random.default_rng(seed)
        self.params = {'logits': rng.normal(size=(STATES, TOKENS), scale=scale).astype(np.float32),
                       'attention': rng.normal(size=(STATES, 2, LONGEST), scale=2.0).astype(np.float32)}
        self.calls = self.traces = 0

    def init_cache(self, batch, length):
        return {'state': jnp.zeros(batch, jnp.int32), 'positions': jnp.full((batch, length), -1)}

    def apply(self, variables, *, inputs=None, segments=None, positions=None, decoder_inputs=None, decoder_segments=None,
              decoder_positions=None, cache, capture=()):
        self.traces += 1
        jax.debug.callback(self._count)
        if decoder_inputs is None:
            tokens, there, at, source = inputs, segments, positions, None
        elif inputs is not None:
            own = jnp.where(segments != 0, inputs * (positions + 1), 0).sum(1) % STATES
            tokens, there, at, source = decoder_inputs, decoder_segments, decoder_positions, {'sum': own, 'there': segments}
        else:
            tokens, there, at, source = decoder_inputs, None, decoder_positions, cache['deep']['source']
        rows, length = tokens.shape
        there = jnp.ones_like(tokens) if there is None else there
        state, logits, weights = cache['state'], [], []
        of_row = None if source is None else jax.tree.map(lambda x: jnp.repeat(x, rows // len(x), 0), source)
        for t in range(length):
            state = jnp.where(there[:, t] != 0, (3 * state + tokens[:, t] + 1) % STATES, state)
            entry = state if source is None else (state + of_row['sum']) % STATES
            logits.append(variables['params']['logits'][entry])
            if source is not None:
                scores = variables['params']['attention'][entry, :, :of_row['there'].shape[1]]
                weights.append(jax.nn.softmax(jnp.where(of_row['there'][:, None] != 0, scores, -jnp.inf)))
        # Every hypothesis must find its own past in the cache.
        slots = jnp.arange(rows)[:, None], jnp.where(there != 0, at, cache['positions'].shape[1])
        seen = cache['positions'].at[slots].set(at, mode='drop')
        whole = (seen == jnp.arange(seen.shape[1])).sum(1) == at.max(1, where=there != 0, initial=0) + 1
        logits = jnp.where(whole[:, None, None], jnp.stack(logits, 1), jnp.nan)
        new = {'state': state, 'positions': seen} | ({} if source is None else {'deep': {'source': source}})
        outputs = {'logits': logits, 'cache': new}
        if 'attention' not in capture:
            return outputs
        outputs['decoder/block_0/attention'] = jnp.full((rows, 1, length, 3), 7.0)
        for layer, of_layer in enumerate(jnp.split(jnp.stack(weights, 2), 2, 1) if weights else []):  # [B, 1, T, S]
            outputs[f'decoder/block_{layer + 1}/cross_attention'] = of_layer
        return outputs

    def _count(self):
        self.calls += 1

    def next(self, tokens, source=None, vocab=TOKENS):
        """(log-probabilities of the token behind `tokens`, attention to the source of all predicted so far), float64."""
        state, attention = 0, 0.0
        own = 0 if source is None else sum((i + 1) * token for i, token in enumerate(source)) % STATES
        for token in tokens:
            state = (3 * state + token + 1) % STATES
            if source is not None:
                scores = np.exp(np.float64(self.params['attention'][(state + own) % STATES, :, :len(source)]))
                attention = attention + (scores / scores.sum(1, keepdims=True)).mean(0)
        logits = np.float64(self.params['logits'][(state + own) % STATES, :vocab])
        return logits - np.log(np.exp(logits).sum()), attention


def final(score, length, attention, alpha, beta, offset=5.0):
    """Wu et al. 2016, eq. 14, where the offset is 5."""
    coverage = beta * np.log(np.minimum(attention, 1.0)).sum() if beta else 0.0
    return score / ((offset + length) ** alpha / (offset + 1) ** alpha) + coverage


def exhaustive(next_, prompt, steps, end, vocab, alpha=0.0, beta=0.0, offset=5.0):
    """[(new tokens, score, finished)] of all outputs, best first; next_(tokens) as `Fake.next`."""
    found = []
    for length in range(1, steps + 1):
        for new in itertools.product(range(vocab), repeat=length):
            if end in new[:-1] or (new[-1] != end and length < steps):
                continue
            score = sum(next_([*prompt, *new[:i]])[0][new[i]] for i in range(length))
            score = final(score, length, next_([*prompt, *new[:-1]])[1], alpha, beta, offset)
            found.append((list(new[:-1] if new[-1] == end else new), score, new[-1] == end))
    return sorted(found, key=lambda one: -one[1])


def beam(next_, prompt, steps, end, size, alpha=0.0, beta=0.0, groups=1, diversity=0.0):
    """[(new tokens, score, finished)] that a (diverse) beam search finds that never stops early, best first."""
    per = size // groups
    live, pools = [[([], 0.0)] for _ in range(groups)], [[] for _ in range(groups)]
    for t in range(steps):
        used = {}
        for group in range(groups):
            candidates = []
            for new, score in live[group]:
                for token, gain in enumerate(next_([*prompt, *new])[0]):
                    candidates.append((score + gain - diversity * used.get(token, 0), score + gain, new, token))
            candidates.sort(key=lambda one: -one[0])
            for _, score, new, token in candidates[:per]:
                if token == end:
                    used[token] = used.get(token, 0) + 1
                if token == end or t == steps - 1:
                    value = final(score, t + 1, next_([*prompt, *new])[1], alpha, beta)
                    pools[group].append((new if token == end else [*new, token], value, token == end))
            live[group] = [([*new, token], score) for _, score, new, token in candidates if token != end][:per]
            for new, _ in live[group]:
                used[new[-1]] = used.get(new[-1], 0) + 1
    best = [one for pool in pools for one in sorted(pool, key=lambda one: -one[1])[:per]]
    unique = {(*new, finished): (new, value, finished) for new, value, finished in best}
    return sorted(unique.values(), key=lambda one: -one[1])
