"""The attention of a recurrent decoder to its source, and to its own past: Bahdanau's, Luong's, or none.

These are parts of a config (`model.attention`): pure functions of parameters and arrays. The decoder's R rows may be a multiple
of the B rows of the source: R / B consecutive rows (the hypotheses of a beam) share one source.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer.attention.kernels.attend import mixed, weights_of
from transformer.attention.masks.data import Explicit
from transformer.attention.masks.patterns import require_at_least
from transformer.attention.scores import Additive, Dot, Score
from transformer.layers.initial import normal, xavier
from transformer.layers.numerics import Numerics
from transformer.layers.roles import Wanted, matrix


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Attended:
    """What a decoder attends to, and the parameters of the score.

    Attributes:
      parameters: those of the score.
      values: [B, S, D], such as the encoder's annotations.
      visible: [B, S], or for each query [B, R / B · T, S].
      keys: [B, S, 1, ..], the keys that the score computes from the values; None: not computed yet.
    """
    parameters: Any
    values: Any
    visible: Any
    keys: Any = None


def keys_of(score: Score, parameters: Mapping, values: jax.Array, width: int, numerics: Numerics) -> jax.Array:
    """The keys that a score computes from values [B, S, D], for queries of `width`."""
    query = jnp.zeros((len(values), 1, 1, width), values.dtype)
    return score.prepare(parameters, query, values[:, :, None], numerics)[1]


class RecurrentAttention:
    """Base: how the decoder attends to its source. With h the state of the top layer,

        context = Σ_s w_s·a_s,   w = softmax_s(score(h, a_s))     over the encoder's outputs a_s, its annotations.

    Attributes:
      score: one of `transformer.attention.scores`; None: the context is the encoder's last state.
      past: the decoder also attends to the earlier states of its top layer, with the same kind of score and separate
        parameters; both contexts are concatenated. Training keeps T states for each of T steps.
      early: compute the context from the previous h and feed it to the cell; False: from the new h, after the cell.
      combined: the output layer reads tanh([context; h]·W) instead of h.
      feeding: the input of the output layer also enters the cell of the next step.
      dropout: rate on the attention weights of the source in training.
    """
    score: Score | None = None
    dropout = 0.0
    past = early = combined = feeding = False

    @property
    def stepwise(self) -> bool:
        """Whether a step depends on the attention of the step before; if not, all steps attend at once."""
        return self.early or self.feeding or self.past

    def parameters(self, width: int, source_width: int) -> dict:
        """{name: `Wanted`} of the parameters of attention to a source of `source_width`."""
        return self.score.parameters(1, 1, width, source_width)

    def context_width(self, width: int, source_width: int) -> int:
        return source_width + (width if self.past else 0)

    def contexts(self, dense: Callable, source: Any, query: jax.Array, positions: jax.Array, numerics: Numerics,
                 own: Any = None, keep: Any = None) -> tuple[jax.Array, dict]:
        """Contexts [R, T, C] of states [R, T, H] at `positions` [R, T], and the weights by name: of the source as
        'cross_attention' [R, T, S], and of the own past as 'attention'.

        Args:
          dense: as in `recurrent.scan`, for the kernel 'window' of `parameters`.
          source, own: `Attended`, the source and, with `past`, the decoder's own states.
          keep: [R, T, S], dropout's factors of the weights of the source; None: ones.
        """
        context, weights = self._look(source, query, numerics, self._middle(dense, source, query, positions), keep)
        if own is None:
            return context, {'cross_attention': weights}
        past, own_weights = self._look(own, query, numerics)
        return jnp.concatenate([context, past], -1), {'cross_attention': weights, 'attention': own_weights}

    def _look(self, at, query, numerics, middle=None, keep=None):
        batch, (rows, steps) = len(at.values), query.shape[:2]
        folded = lambda x: x.reshape(batch, -1, *x.shape[2:])  # [R, T, ..] -> [B, R / B · T, ..]
        visible = at.visible if at.visible.ndim == 3 else at.visible[:, None]
        values = at.values[:, :, None]
        query, keys, bias = self.score.prepare(at.parameters, folded(query)[:, :, None], values, numerics)
        if middle is not None:
            away = jnp.arange(visible.shape[-1]) - folded(middle)[..., None]
            visible = visible & (jnp.abs(away) <= self.window)
        keys = keys if at.keys is None else at.keys
        weights = weights_of(query, keys, mask=Explicit(visible), bias=bias, numerics=numerics)  # [B, 1, R / B · T, S]
        if middle is not None:
            weights = self._faded(weights, away[:, None])
        kept = weights if keep is None else weights * folded(keep)[:, None]
        contexts = mixed(numerics.cast(kept), values, numerics=numerics)  # [B, R / B · T, 1, D]
        return contexts.reshape(rows, steps, -1), weights.reshape(rows, steps, -1)

    def _middle(self, dense, source, query, positions):
        """The middle [R, T] of the visible window, or None without a window."""
        return None


@dataclasses.dataclass(frozen=True)
class NoAttention(RecurrentAttention):
    """No attention: the encoder's last state enters the cell in every step (Cho et al. 2014; in Sutskever et al. 2014 it is the
    decoder's first state only)."""


@dataclasses.dataclass(frozen=True)
class Bahdanau(RecurrentAttention):
    """The previous state attends to the source, and the context enters the cell with the embedding (Bahdanau et al. 2015, eq.
    4-6 and appendix A.2.2).

    Attributes:
      score: of state and annotation.
      combined: the output layer reads tanh([context; h]·W); False: h alone.
      past, dropout: as in the base.
    """
    score: Score = Additive()
    combined: bool = False
    past: bool = False
    dropout: float = 0.0
    early = True


@dataclasses.dataclass(frozen=True)
class Luong(RecurrentAttention):
    """The new state attends to the source, and the output layer reads h~ = tanh([context; h]·W) (Luong et al. 2015, eq. 5).

    Attributes:
      score: of state and annotation: the paper's are Dot(), Bilinear(), Additive() and Location() (section 3.1). Dot() needs
        annotations as wide as states, so model.bidirectional=False.
      feeding: h~ also enters the next step (section 3.3); without it, and without `past`, all steps attend at once.
      window: D > 0: local attention, to the positions within D of p (section 3.2); 0: to all.
      predictive: p = S·σ(vᵀ·tanh(h·Wp)) with S tokens in the source, and the weights are multiplied by
        exp(-(s - p)² / (2·(D/2)²)) (local-p, eq. 9 and 10), so that their sum is below 1; False: p is the decoder's
        position (local-m).
      past, dropout: as in the base.
    """
    score: Score = Dot()
    feeding: bool = True
    window: int = 0
    predictive: bool = False
    past: bool = False
    dropout: float = 0.0
    combined = True

    def __post_init__(self):
        require_at_least(self, window=0)
        if self.predictive and not self.window:
            raise ValueError(f'{self}: predictive=True predicts the middle of a window, but window is 0; give it a '
                             'size, such as 10.')

    def parameters(self, width: int, source_width: int) -> dict:
        more = {'window': Wanted(xavier(), (width, width), matrix()), 'window_output': Wanted(normal(width ** -0.5), (width,))}
        return super().parameters(width, source_width) | (more if self.predictive else {})

    def _middle(self, dense, source, query, positions):
        if not self.window:
            return None
        if not self.predictive:
            return positions
        lengths = jnp.repeat(source.visible.sum(-1), len(query) // len(source.visible))[:, None]
        inner = jnp.tanh(dense('window', query))  # not cast: an error of p moves the window by whole positions
        return lengths * jax.nn.sigmoid(jnp.matmul(inner, source.parameters['window_output'], precision='highest'))

    def _faded(self, weights, away):
        return weights * jnp.exp(-2.0 * jnp.square(away / self.window)) if self.predictive else weights
