"""Terms: changes to the scores before the softmax that are more than the addition of an array."""

import abc
from collections.abc import Callable

import jax
import jax.numpy as jnp


class Term(abc.ABC):
    """An entry of the bias of `kernels.attend` that is not an array: a pytree that computes new scores.

    Attributes:
      numbers_per_score: how many numbers it holds in memory for each score.
      additive: whether it adds to the scores what depends on the positions alone; it is then called without query and key too.
      by_content: whether it multiplies queries or keys by parameters, which then have the width of a head.
      values: `values(weights [B, N, T, S], t, s) -> [B, N, T, H]`, its addition to the output; None for no addition.
    """
    numbers_per_score: int = 1
    additive: bool = False
    by_content: bool = False
    values: Callable | None = None

    @abc.abstractmethod
    def __call__(self, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        """New scores [B, N, T, S] from the scores so far, query [B, T, N, H], key [B, S, K, H] and their positions t and s."""


def arrays_of(bias: tuple, queries: int, keys: int) -> tuple:
    """The entries of a bias whose terms are additive, as arrays that broadcast to [B, N, T, S], for positions along a row."""
    zero = jnp.zeros((1, 1, 1, 1))
    return tuple(entry(zero, None, None, jnp.arange(queries), jnp.arange(keys)) if isinstance(entry, Term) else entry
                 for entry in bias)


def terms_of(bias: tuple) -> list[Term]:
    """The terms among the entries of a bias."""
    return [entry for entry in bias if isinstance(entry, Term)]
