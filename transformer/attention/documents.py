"""What mechanisms without scores need to know of a mask: whether it is causal, and who belongs to which document."""

import jax
import jax.numpy as jnp

from transformer.attention.masks import Padding, Segments, parts


def segments_of(mask, queries, keys):
    """(query [B, T], key [B, S]) numbers of documents: a query belongs to the keys of its own number, 0 to nobody. One of the
    two may be [1, ...]; None if every key belongs to every query as far as the data goes."""
    pattern, terms = parts(mask)
    if pattern is None:
        raise ValueError(f'The mask {mask} is not a pattern joined with Padding or Segments by &, as this attention needs; use '
                         'Softmax().')
    query, key = jnp.ones((1, queries), jnp.int32), jnp.ones((1, keys), jnp.int32)
    for term in terms:
        if isinstance(term, Padding):
            if term.lengths.ndim != 1:
                raise ValueError('Lengths of Padding that differ between the queries of a row need an attention with scores; '
                                 'use Softmax(), or one length for each row.')
            key = jnp.where(jnp.arange(keys) < term.lengths[:, None], key, 0)
    found = [term for term in terms if isinstance(term, Segments)]
    if len(found) > 1:
        raise ValueError(f'A mask has {len(found)} terms of Segments; join them to one.')
    for term in found:
        query, key = term.query, jnp.where(key != 0, term.key, 0)
    return (query, key) if terms else None


def packed(mask):
    """Whether a mask tells documents in a row apart."""
    return any(isinstance(term, Segments) for term in parts(mask)[1])


def places(segments):
    """[B, T] numbers of documents, each in one piece -> where in its document each position is, from 0."""
    row = jnp.arange(segments.shape[1])
    begins = jnp.concatenate([jnp.ones_like(segments[:, :1], bool), segments[:, 1:] != segments[:, :-1]], 1)
    return row - jax.lax.cummax(jnp.where(begins, row, 0), 1)


def real(mask, positions):
    """[B, T] booleans: which of the tokens at `positions` are there, and not behind the lengths of a Padding. A state that
    runs along takes up these; a cache of keys would have the others overwritten later."""
    there = jnp.ones(positions.shape, bool)
    for term in parts(mask)[1]:
        if isinstance(term, Padding):
            there = there & (positions < term.lengths[:, None])
    return there


def require_next(out, count, positions):
    """An output [B, T, ...], but NaN in rows whose positions do not go on where a state that holds `count` [B] ends."""
    follows = positions[:, 0] == count
    return jnp.where(follows.reshape(-1, *(1,) * (out.ndim - 1)), out, jnp.nan)
