"""Analysis of a mask: its pattern and data terms, the documents it separates, its receptive field, its picture."""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.attention.masks.algebra import Mask, conjuncts, static
from transformer.attention.masks.data import Explicit, Padding, Segments
from transformer.attention.masks.patterns import Full


def parts(mask: Mask) -> tuple[Mask | None, list]:
    """(pattern, [terms of the data]) of a mask that joins a pattern with Padding, Segments and Explicit by &; (None, []) if it
    joins them in another way."""
    terms = [term for term in conjuncts(mask) if not static(term)]
    if not all(isinstance(term, Padding | Segments | Explicit) for term in terms):
        return None, []
    patterns = [term for term in conjuncts(mask) if static(term) and term != Full()]
    return functools.reduce(operator.and_, patterns) if patterns else Full(), terms


def dense(mask: Mask, length: int) -> np.ndarray:
    """[length, length] booleans, by numpy; of data with several rows, those of the first row."""
    mask.require_length(length)
    row = np.arange(length)
    try:
        seen = np.asarray(mask(row, row))
        return np.broadcast_to(seen[0] if seen.ndim == 3 else seen, (length, length))
    except (TypeError, ValueError):
        if static(mask):
            raise
        raise ValueError(f'The arrays of the mask {mask} do not fit rows of {length} positions; give their length.') from None


def reach(mask: Mask, length: int, layers: int) -> np.ndarray:
    """[length, length]: after how many layers, 1..`layers`, each key reaches each query; 0: not yet. The residual stream
    keeps each position, so that its own count is 1."""
    arrived, first = np.eye(length, dtype=np.float32), np.eye(length, dtype=int)
    for layer in range(layers):
        step = dense(mask.of_layer(layer), length) | np.eye(length, dtype=bool)
        arrived = np.sign(step @ arrived)
        first = np.where((first == 0) & (arrived > 0), layer + 1, first)
    return first


def show(mask: Mask, length: int = 16, layers: int = 1) -> Any:
    """A matplotlib figure of a mask over `length` positions: a row for each query, a column for each key. With several
    layers, the shade shows after how many of them a key reaches a query: the receptive field."""
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm, ListedColormap

    from display import figures

    figure, body = figures.new(6.0, 4.4)
    axes = body.subplots()
    first = reach(mask, length, layers) if layers > 1 else dense(mask.of_layer(0), length).astype(int)
    shades = colormaps[figures.SEQUENTIAL](np.linspace(0.8, 0.8 / layers, layers))
    image = axes.imshow(first, cmap=ListedColormap(['#f4f4f4', *shades]), interpolation='nearest',
                        norm=BoundaryNorm(np.arange(layers + 2) - 0.5, layers + 1))
    axes.set(xlabel='key position', ylabel='query position')
    bar = figures.bar(body, image, axes, '', shrink=0.8, ticks=range(layers + 1))
    names = ['hidden', *(f'after {n} layer{"s" * (n > 1)}' for n in range(1, layers + 1))]
    bar.ax.set_yticklabels(names if layers > 1 else ['hidden', 'visible'])
    if length <= 32:
        axes.set_xticks(np.arange(-0.5, length), minor=True)
        axes.set_yticks(np.arange(-0.5, length), minor=True)
        axes.grid(which='minor', color='white', linewidth=0.8)
        axes.tick_params(which='minor', length=0)
    further = f', and paler if that takes several of {layers} layers' if layers > 1 else ''
    return figures.explain(figure, f'{mask}' + (f', {layers} layers' if layers > 1 else ''),
                           f'A cell is blue if a query (its row) may attend to a key (its column){further}.')


def segments_of(mask: Mask, queries: int, keys: int) -> tuple | None:
    """(query [B, T], key [B, S]) numbers of documents: a query may attend to the keys with its own number; 0 is padding. Either
    may be [1, ...]; None if the mask has no terms of the data."""
    pattern, terms = parts(mask)
    if pattern is None:
        raise ValueError(f'The mask {mask} is not a pattern joined with Padding or Segments by &, as this attention needs; use '
                         'Softmax().')
    query, key = jnp.ones((1, queries), jnp.int32), jnp.ones((1, keys), jnp.int32)
    if any(isinstance(term, Explicit) for term in terms):
        raise ValueError('A mask of single pairs, Explicit(..), needs an attention with scores; use Softmax().')
    for term in terms:
        if isinstance(term, Padding):
            if term.lengths.ndim != 1:
                raise ValueError('Lengths of Padding that differ between the queries of a row need an attention with scores; '
                                 'use Softmax(), or one length for each row.')
            key = jnp.where(jnp.arange(keys) < term.lengths[:, None], key, 0)
    found = [term for term in terms if isinstance(term, Segments)]
    if len(found) > 1:
        raise ValueError(f'A mask has {len(found)} terms of Segments; combine them into one.')
    for term in found:
        query, key = term.query, jnp.where(key != 0, term.key, 0)
    return (query, key) if terms else None


def documents(mask: Mask) -> list[Segments]:
    """The terms of a mask that separate documents, whatever it joins them with by &."""
    return [term for term in conjuncts(mask) if isinstance(term, Segments)]


def places(segments: jax.Array) -> jax.Array:
    """[B, T] numbers of documents, each contiguous -> the place of each position in its document, from 0."""
    row = jnp.arange(segments.shape[1])
    begins = jnp.concatenate([jnp.ones_like(segments[:, :1], bool), segments[:, 1:] != segments[:, :-1]], 1)
    return row - jax.lax.cummax(jnp.where(begins, row, 0), 1)


def places_of(mask: Mask) -> tuple | None:
    """(query [B, T], key [B, S]): the place of each position in its document; None if the mask separates no documents, or
    regions that are not runs of positions, in which a place is that in the row."""
    return next(((places(term.query), places(term.key)) for term in documents(mask) if term.runs), None)


def real(mask: Mask, positions: jax.Array) -> jax.Array:
    """[B, T] booleans: which of the tokens at `positions` lie within the lengths of every Padding. A recurrent state takes in
    only these; in a cache of keys the others would be overwritten later."""
    there = jnp.ones(positions.shape, bool)
    for term in parts(mask)[1]:
        if isinstance(term, Padding):
            there = there & (positions < term.lengths[:, None])
    return there


def require_next(out: jax.Array, count: jax.Array, positions: jax.Array) -> jax.Array:
    """An output [B, T, ...], with NaN in rows whose positions do not continue a state of `count` [B] tokens."""
    follows = positions[:, 0] == count
    return jnp.where(follows.reshape(-1, *(1,) * (out.ndim - 1)), out, jnp.nan)
