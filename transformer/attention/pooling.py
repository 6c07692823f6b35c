"""Pooling by similarity, the attention of 1964 (Nadaraya 1964; Watson 1964):

    estimate(q) = sum over s of w_s·v_s,    w_s = α(q, k_s) / sum over r of α(q, k_r)

Keys are points, values are observations there, and a kernel α weights each observation for a query at another point. Values
that are numbers give regression; one-hot vectors give classification, with a distribution over classes as the estimate.

Kernels depend on the distance u = |(q - k) / width| in units of a width, one for all coordinates or one for each.
"""

import abc
import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer.attention.kernels.attend import masked_softmax
from transformer.layers.numerics import Numerics, real_dtype
from transformer.layers.roles import Wanted, declare

LEARN = ('none', 'one', 'each')


def _is_width(value):
    return isinstance(value, (int, float)) and 0 < value < math.inf


class Kernel(abc.ABC):
    """Base of the kernels.

    Attributes:
      width: a number above 0; None for a kernel without one.
      smooth: whether the weights are differentiable in the width, so that it can be learnt.
    """

    width = None
    smooth = False

    def __post_init__(self):
        if self.width is not None and not _is_width(self.width):
            raise ValueError(f'{self}: the width is {self.width!r}; expected a number above 0.')

    @abc.abstractmethod
    def scores(self, squared: jax.Array) -> jax.Array:
        """log α of the squared distance u², of any shape; -inf where α is 0."""


@dataclasses.dataclass(frozen=True)
class Gaussian(Kernel):
    """α = exp(-u² / 2), that is exp(-|q - k|² / (2·width²)). Far from all keys the nearest one has all of the weight."""
    width: float = 1.0
    smooth = True

    def scores(self, squared: jax.Array) -> jax.Array:
        return -squared / 2


@dataclasses.dataclass(frozen=True)
class Boxcar(Kernel):
    """α = 1 if u <= 1, else 0: the mean of the values within one width."""
    width: float = 1.0

    def scores(self, squared: jax.Array) -> jax.Array:
        return jnp.where(squared <= 1, 0.0, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class Constant(Kernel):
    """α = 1: the mean of all values, wherever the query is."""

    def scores(self, squared: jax.Array) -> jax.Array:
        return jnp.zeros_like(squared)


@dataclasses.dataclass(frozen=True)
class Epanechnikov(Kernel):
    """α = 3/4·max(1 - u², 0) (Epanechnikov 1969)."""
    width: float = 1.0
    smooth = True

    def scores(self, squared: jax.Array) -> jax.Array:
        near = squared < 1
        return jnp.where(near, math.log(0.75) + jnp.log1p(-jnp.where(near, squared, 0.0)), -jnp.inf)  # no logarithm at 0


@dataclasses.dataclass(frozen=True)
class Triangular(Kernel):
    """α = max(1 - u, 0); Zhang et al., Dive into Deep Learning, section 11.2, call it Epanechnikov's."""
    width: float = 1.0
    smooth = True

    def scores(self, squared: jax.Array) -> jax.Array:
        at_key = squared == 0
        distance = jnp.where(at_key, 0.0, jnp.sqrt(jnp.where(at_key, 1.0, squared)))  # a root has no gradient at 0
        near = distance < 1
        return jnp.where(near, jnp.log1p(-jnp.where(near, distance, 0.0)), -jnp.inf)  # nor a logarithm


def pool(query: jax.Array, key: jax.Array, value: jax.Array, kernel: Kernel, *, width: jax.Array | float | None = None,
         visible: jax.Array | None = None, own: jax.Array | None = None,
         numerics: Numerics = Numerics()) -> tuple[jax.Array, jax.Array]:
    """(estimate, weights): the values, weighted by the similarity of their keys to the query.

    Distances are computed from the differences, not as q² - 2qk + k², which would lose the digits of near points.

    Args:
      query, key, value: [T, D], [S, D], [S, C].
      kernel: a Kernel.
      width: [] or [D], replaces the kernel's width.
      visible: booleans that broadcast to [T, S], True where a query may attend to a key; None: everywhere.
      own: [T], the number of the key that is the query itself and is left out, for leave-one-out with own=jnp.arange(S); -1
        for none.
    Returns:
      [T, C] and [T, S]; the weights of a query sum to one; if all kernels are 0 there, weights and estimate are 0.
    """
    if not (query.ndim == key.ndim == value.ndim == 2 and query.shape[1] == key.shape[1] and len(key) == len(value)):
        raise ValueError(f'query, key and value have shapes {query.shape}, {key.shape} and {value.shape}; expected [T, D], '
                         '[S, D] and [S, C].')
    if width is None:
        width = 1.0 if kernel.width is None else kernel.width
    width = jnp.asarray(width, real_dtype())
    if width.shape not in ((), query.shape[1:]):
        raise ValueError(f'{width.size} widths were given for points of {query.shape[1]} coordinates; give one width, or one '
                         'for each coordinate.')
    squared = jnp.square((query[:, None] - key) / width).sum(-1)  # [T, S]
    if own is not None:
        others = own[:, None] != jnp.arange(len(key))
        visible = others if visible is None else visible & others
    weights = masked_softmax(kernel.scores(squared), visible)
    return numerics.scores('TS,SC->TC', weights, value), weights


class Pooling(nn.Module):
    """`pool` over the points of the training part, with the width exp(log_width), which is always above 0.

    Attributes:
      keys, values: [S][D] and [S][C]; by default the data's. They are constants of the program, and the [B, S, D] differences
        are in memory at once: suited to thousands of points, not to millions.
      kernel: 'Gaussian(width=1.0)', 'Boxcar(width=1.0)', 'Epanechnikov(width=1.0)', 'Triangular(width=1.0)' or
        'Constant()'.
      learn: 'one' learns one width, starting from the kernel's; 'each' learns one for each coordinate; 'none' learns nothing.
      widths: a width for each coordinate, in place of the kernel's; (): the kernel's for all.
    """
    keys: tuple
    values: tuple
    kernel: Kernel = Gaussian()
    learn: str = 'one'
    widths: tuple = ()
    dtype: str = 'float32'
    parameter_dtype: str = 'float32'

    attentions = {}  # no heads that `head_mask` could switch off

    @nn.compact
    def __call__(self, query: jax.Array, *, own: jax.Array | None = None, key: jax.Array | None = None) -> dict:
        """query [B, D], own [B] (see `pool`) -> {'estimate' [B, C], 'width' [] or [D]}; `key` is ignored."""
        keys, values = jnp.asarray(self.keys, real_dtype()), jnp.asarray(self.values, real_dtype())
        self._check(keys.shape[1])
        start = jnp.asarray(self.widths or self.kernel.width or 1.0, real_dtype())
        shape = keys.shape[1:] if self.learn == 'each' else start.shape
        # A parameter even if it is fixed, so that a run saves and restores it.
        numerics = Numerics(self.dtype, parameter_dtype=self.parameter_dtype)
        begun = Wanted(lambda key, shape, *dtype: jnp.broadcast_to(jnp.log(start), shape), shape)
        log_width = declare(self, 'log_width', begun, numerics)
        width = jnp.exp(log_width if self.learn != 'none' else jax.lax.stop_gradient(log_width))
        estimate, _ = pool(query, keys, values, self.kernel, width=width, own=own, numerics=numerics)
        return {'estimate': estimate} | ({} if self.kernel.width is None else {'width': width})

    def _check(self, coordinates):
        if self.learn not in LEARN:
            raise ValueError(f'model.learn is {self.learn!r}; expected one of {", ".join(LEARN)}.')
        if self.learn != 'none' and not self.kernel.smooth:
            raise ValueError(f'model.kernel is {self.kernel}, whose weights have no gradient with respect to a width; set '
                             'model.learn to none, or choose Gaussian(), Epanechnikov() or Triangular().')
        if not self.widths:
            return
        if len(self.widths) != coordinates or not all(map(_is_width, self.widths)):
            raise ValueError(f'model.widths is {tuple(self.widths)}; expected a number above 0 for each of {coordinates} '
                             "coordinates, or () for the kernel's width.")
        if self.learn == 'one' or self.kernel.width is None:
            raise ValueError(f'model.widths is {tuple(self.widths)}, too much for model.kernel {self.kernel} with model.learn '
                             f'{self.learn}; set it to (), or set model.learn to each, or to none with a kernel of some width.')
