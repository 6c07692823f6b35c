"""Scores: how well a query and a key match, which the softmax turns into weights.

A score is a part of a config (`model.attention.score`). It maps queries [B, T, N, H] and keys [B, S, K, H], of which N / K
query heads share one head, to [B, N, T, S]. All scores but `Additive` are inner products of a function of the query and a
function of the key, so every kernel computes them.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.kernels.terms import Term
from transformer.layers import roles
from transformer.layers.initial import normal, xavier
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import Wanted


def products(query: jax.Array, key: jax.Array, numerics: Numerics = Numerics()) -> jax.Array:
    """q·k: [B, T, N, H], [B, S, K, H] -> [B, N, T, S], in at least float32."""
    batch, queries, heads, width = query.shape
    grouped = query.reshape(batch, queries, key.shape[2], heads // key.shape[2], width)
    if width != key.shape[3]:
        raise ValueError(f'Queries are {width} wide and keys {key.shape[3]}, so that there is no product of them; give them '
                         'one width, or use the score Bilinear() or Additive().')
    if queries > 1:
        # In the order of the result: XLA on a CPU takes twice as long from the other.
        scores = numerics.scores('BKGTH,BKSH->BKGTS', grouped.transpose(0, 2, 3, 1, 4), key.swapaxes(1, 2))
    else:  # keys of a cache, which the other order would copy
        scores = numerics.scores('BTKGH,BSKH->BKGTS', grouped, key)
    return scores.reshape(batch, heads, queries, key.shape[1])


class Score(abc.ABC):
    """Base of the scores."""

    def parameters(self, heads: int, key_heads: int, query_width: int, key_width: int) -> dict:
        """{name: `Wanted`} of its parameters."""
        return {}

    @abc.abstractmethod
    def prepare(self, parameters: Mapping, query: jax.Array, key: jax.Array, numerics: Numerics = Numerics(),
                places: jax.Array | None = None) -> tuple:
        """(query, key, bias) for which q·k / sqrt(H) + bias, the score of `attend`, is this score.

        places: [B, S], the position of each key in its document; None: its position in the row."""

    def require_length(self, length: int) -> None:
        """Raises ValueError for too many keys; only `Location` has a largest length."""
        return


@dataclasses.dataclass(frozen=True)
class ScaledDot(Score):
    """q·k / sqrt(H) (Vaswani et al. 2017, eq. 1)."""

    def prepare(self, parameters: Mapping, query: jax.Array, key: jax.Array, numerics: Numerics = Numerics(),
                places: jax.Array | None = None) -> tuple:
        return query, key, ()


@dataclasses.dataclass(frozen=True)
class Dot(Score):
    """q·k (Luong et al. 2015, section 3.1, dot)."""

    def prepare(self, parameters: Mapping, query: jax.Array, key: jax.Array, numerics: Numerics = Numerics(),
                places: jax.Array | None = None) -> tuple:
        return _unscaled(query), key, ()


def _unscaled(query):
    """The query times sqrt(H), by which `attend` divides."""
    flat = query.reshape(*query.shape[:-2], -1)  # the heads are laid out in another way on a TPU
    return (flat * query.shape[-1] ** 0.5).reshape(query.shape)


@dataclasses.dataclass(frozen=True)
class Bilinear(Score):
    """qᵀ·W·k, with a matrix W [Hq, Hk] for each head (Luong et al. 2015, section 3.1, general); the widths may differ."""

    def parameters(self, heads: int, key_heads: int, query_width: int, key_width: int) -> dict:
        return {'kernel': _each_head(heads, query_width, key_width)}

    def prepare(self, parameters: Mapping, query: jax.Array, key: jax.Array, numerics: Numerics = Numerics(),
                places: jax.Array | None = None) -> tuple:
        return _unscaled(numerics.einsum('BTNH,NHJ->BTNJ', query, parameters['kernel'])), key, ()


@dataclasses.dataclass(frozen=True)
class Additive(Score):
    """wᵀ·tanh(Wq·q + Wk·k) (Bahdanau et al. 2015, appendix A.1.2); the widths may differ.

    Attributes:
      width: A, inner width; w [A], Wq [Hq, A] and Wk [Hk, A] of each head.
    """
    width: int = 64

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f'{self}: expected a width of 1 or more.')

    def parameters(self, heads: int, key_heads: int, query_width: int, key_width: int) -> dict:
        return {'query': _each_head(heads, query_width, self.width),
                'key': _each_head(key_heads, key_width, self.width, shared=True),
                'output': Wanted(normal(self.width ** -0.5), (heads, self.width), roles.vector(heads=0))}

    def prepare(self, parameters: Mapping, query: jax.Array, key: jax.Array, numerics: Numerics = Numerics(),
                places: jax.Array | None = None) -> tuple:
        query = numerics.einsum('BTNH,NHA->BTNA', query, parameters['query'])
        key = numerics.einsum('BSKH,KHA->BSKA', key, parameters['key'])
        return query, key, (_Additive(parameters['output']),)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Additive(Term):
    """A term that replaces the products, which the compiled program then omits: wᵀ·tanh(q + k), [B, N, T, S]."""
    output: Any  # w [N, A]

    @property
    def numbers_per_score(self) -> int:
        return self.output.shape[-1]

    def __call__(self, products: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        return _additive(self.output, query, key)


def _additive(output, query, key):
    batch, queries, heads, width = query.shape
    shared = heads // key.shape[2]
    grouped = query.reshape(batch, queries, 1, key.shape[2], shared, width)
    inner = jnp.tanh(wide(grouped) + wide(key[:, None, :, :, None]))  # [B, T, S, K, G, A]
    scores = jnp.einsum('BTSKGA,KGA->BKGTS', inner, output.reshape(key.shape[2], shared, width), precision='highest')
    return scores.reshape(batch, heads, queries, key.shape[1])


@dataclasses.dataclass(frozen=True)
class Cosine(Score):
    """β·q·k / (|q||k|) with a sharpness β > 0, learnt for each head (Graves et al. 2014, section 3.3.1), or fixed: the plain
    cosine is `Cosine(sharpness=1.0, learnt=False)`.

    Attributes:
      sharpness: β; its initial value if it is learnt.
    """
    sharpness: float = 10.0
    learnt: bool = True

    def __post_init__(self):
        if not 0 < self.sharpness < math.inf:
            raise ValueError(f'{self}: sharpness is {self.sharpness}; expected a number above 0.')

    def parameters(self, heads: int, key_heads: int, query_width: int, key_width: int) -> dict:
        start = nn.initializers.constant(math.log(self.sharpness))
        return {'log_sharpness': Wanted(start, (heads,), roles.vector(heads=0))} if self.learnt else {}

    def prepare(self, parameters: Mapping, query: jax.Array, key: jax.Array, numerics: Numerics = Numerics(),
                places: jax.Array | None = None) -> tuple:
        sharp = jnp.exp(parameters['log_sharpness'])[:, None] if self.learnt else self.sharpness
        return _unscaled(_unit(query) * sharp), _unit(key), ()


def _unit(x):
    x = wide(x)
    return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-12)


@dataclasses.dataclass(frozen=True)
class Location(Score):
    """w_s·q: the score of position s depends on the query alone, not on the key (Luong et al. 2015, eq. 8).

    Attributes:
      length: number of positions with a row w_s; longer sources are refused.
    """
    length: int = 1024

    def __post_init__(self):
        if self.length < 1:
            raise ValueError(f'{self}: length is {self.length}; expected at least 1.')

    def parameters(self, heads: int, key_heads: int, query_width: int, key_width: int) -> dict:
        role = roles.table(heads=1, shared=True)
        return {'table': Wanted(normal(query_width ** -0.5), (self.length, key_heads, query_width), role)}

    def prepare(self, parameters: Mapping, query: jax.Array, key: jax.Array, numerics: Numerics = Numerics(),
                places: jax.Array | None = None) -> tuple:
        batch, keys = key.shape[:2]
        self.require_length(keys)
        table = parameters['table'][jnp.arange(keys) if places is None else places]
        return _unscaled(query), jnp.broadcast_to(table, (batch, *table.shape[-3:])), ()

    def require_length(self, length: int) -> None:
        if length > self.length:
            raise ValueError(f'{self} is asked for {length} positions, more than its length; shorten the text, or train with '
                             f'length={length}.')


@dataclasses.dataclass(frozen=True)
class Gaussian(Score):
    """-|q - k|² / 2, which gives the weights of Nadaraya and Watson with a Gaussian kernel of width 1. Computed as
    q·k - |k|²/2, as the term that depends on the query alone cancels in the softmax."""

    def prepare(self, parameters: Mapping, query: jax.Array, key: jax.Array, numerics: Numerics = Numerics(),
                places: jax.Array | None = None) -> tuple:
        norms = 0.5 * jnp.square(wide(numerics.cast(key))).sum(-1)  # [B, S, K]
        norms = jnp.repeat(norms, query.shape[2] // key.shape[2], 2)
        return _unscaled(query), key, (-norms.transpose(0, 2, 1)[:, :, None],)  # [B, N, 1, S]


def _each_head(heads, rows, columns, shared=False):
    """A matrix [rows, columns] for each head."""
    each = lambda key, shape, *dtype: jax.vmap(lambda k: xavier()(k, shape[1:], *dtype))(jax.random.split(key, shape[0]))
    return Wanted(each, (heads, rows, columns), roles.matrix((1,), (2,), heads=0, shared=shared))
