"""What is done to the scores before the softmax, besides adding arrays."""

import abc
from collections.abc import Callable

import jax


class Term(abc.ABC):
    """An entry of the bias of `kernels.attend` that is no array: a pytree, made of the scores, queries, keys and positions.

    Attributes:
      numbers_per_score: how many numbers it needs to compute one score.
      by_content: it multiplies queries or keys with parameters, which are as wide as a head.
      values: `values(weights [B, N, T, S], t, s) -> [B, N, T, H]`, what it adds to the output; None: nothing.
    """
    numbers_per_score: int = 1
    by_content: bool = False
    values: Callable | None = None

    @abc.abstractmethod
    def __call__(self, scores: jax.Array, query: jax.Array, key: jax.Array, t: jax.Array, s: jax.Array) -> jax.Array:
        """New scores [B, N, T, S], of those so far, of query [B, T, N, H] and key [B, S, K, H], and where they are, t and s."""


def terms_of(bias: tuple) -> list[Term]:
    """The terms among the entries of a bias."""
    return [entry for entry in bias if isinstance(entry, Term)]
