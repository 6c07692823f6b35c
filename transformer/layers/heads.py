"""Heads, which compute the outputs of a model from its hidden states: a part of a config, `model.head`.

The submodules of a head belong to the model, so that a parameter is named `pooler/kernel`.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from transformer.layers.activations import Activation, Gelu, Tanh
from transformer.layers.dense import Dense, Parameters
from transformer.layers.dropout import dropout, fold
from transformer.layers.embedding import Embedding
from transformer.layers.initial import zeros
from transformer.layers.norm import LayerNorm, Norm, normed
from transformer.layers.numerics import Numerics, wide
from transformer.layers.roles import Wanted, table
from transformer.layers.sharding import BATCH, several


@dataclasses.dataclass(frozen=True)
class Body:
    """The properties of the model that a head uses.

    Attributes:
      width: D, the width of the hidden states.
      kernel_init: initialiser of matrices.
      norm: the kind of its norms.
      dropout: its dropout rate on branches.
      tokens: the module of its token embedding; None: it has none.
      vocab: V, the number of rows of this embedding.
      output_init: initialiser of matrices to words or classes; None: `kernel_init`.
      multiple: m, by which states are divided before words or classes: 1 but for muP (`initial.MuP`).
    """
    width: int
    kernel_init: Callable
    norm: Norm = LayerNorm()
    dropout: float = 0.0
    numerics: Numerics = Numerics()
    tokens: Any = None
    vocab: int = 0
    output_init: Callable | None = None
    multiple: float = 1.0

    def rate(self, given: float) -> float:
        """The rate of a field for dropout: the model's if it is negative."""
        return self.dropout if given < 0 else given

    def dense(self, features: int, name: str, bias: bool = True) -> Dense:
        return Dense(features, bias=bias, kernel_init=self.kernel_init, numerics=self.numerics, name=name)

    def output(self, features: int, name: str, bias: bool = True) -> Dense:
        """A dense layer to words or classes, whose kernel has a vector for each."""
        return Dense(features, bias=bias, kernel_init=self.output_init or self.kernel_init, role=table(1),
                     numerics=self.numerics, name=name)

    def readout(self, x: jax.Array) -> jax.Array:
        """States [.., D] for `output`, or for the token embedding as output: x / m."""
        return x if self.multiple == 1 else x / self.multiple

    def vector(self, name: str) -> jax.Array:
        """A number for each word, NAME/bias [V]."""
        return Parameters({'bias': Wanted(zeros, (self.vocab,))}, numerics=self.numerics, name=name)()['bias']


def body_of(stack: Any, numerics: Numerics, tokens: Any = None, vocab: int = 0) -> Body:
    """The `Body` of a stack."""
    return Body(stack.width, stack.matrix_init, stack.norm, stack.dropout, numerics, tokens, vocab, stack.output_init,
                stack.multiple)


@dataclasses.dataclass(frozen=True)
class Head(abc.ABC):
    """Base of the heads.

    Attributes:
      causal: whether it predicts later positions, which the model must then not see.
      bounded: whether it takes `boundaries` [B, M, 3] of the predicted positions, as `SpanBoundary` does.
      blocked: whether it takes `block`, as `NextWords` does.
    """
    causal = False
    bounded = False
    blocked = False

    @abc.abstractmethod
    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        """Hidden states [B, T, D] -> outputs by name.

        Args:
          segments: [B, T], 0 = padding; None: no padding.
          masked: [B, M], the positions whose words are predicted; None: all, M = T.
          key: random key of training; None switches dropout off.
        """


def in_blocks(head: Head, block: int) -> dict:
    """The keyword of a head for logits in blocks; without `block` none. Raises ValueError for a head that takes none."""
    if block and not head.blocked:
        raise ValueError(f'model.head is {head!r}, whose logits are whole; set task.block=0.')
    return {'block': block} if block else {}


def pooler(x: jax.Array, body: Body, activation: Activation = Tanh()) -> jax.Array:
    """tanh(x·W + b) of the state [B, D] that represents a row (Devlin et al. 2019, section 3.1; the layer is in their code), or
    another activation."""
    return body.numerics.cast(activation(wide(body.dense(body.width, 'pooler')(x))))


def last_of(x: jax.Array, segments: jax.Array | None) -> jax.Array:
    """The states [B, D] of the last positions of rows [B, T, D] before their padding."""
    if segments is None:
        return x[:, -1]
    last = jnp.where(segments != 0, jnp.arange(x.shape[1]), 0).max(1)
    return jnp.take_along_axis(x, last[:, None, None], 1)[:, 0]


def require_classes(head: Any) -> None:
    if head.classes < 1:
        raise ValueError(f'{head}: classes is {head.classes}; expected the number of classes.')


@dataclasses.dataclass(frozen=True)
class NoHead(Head):
    """No outputs besides the hidden states of every model; with `pooler` {'pooled' [B, D]}, of the first position."""
    pooler: bool = False

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        return {'pooled': pooler(x[:, 0], body)} if self.pooler else {}


@dataclasses.dataclass(frozen=True)
class NextWords(Head):
    """{'logits' [B, T, V]}: x·Eᵀ, or x·W + b, for the word after each position.

    Attributes:
      tied: whether the output layer is the token embedding E (Press and Wolf 2017) or a separate matrix W.
      bias: whether a separate output layer has b.
      scaled: whether x is divided by sqrt(D) first, as in T5 with tied embeddings.
      added: whether a constant b is added, zeros at the start and not trained, as in BART's checkpoints.
    """
    tied: bool = True
    bias: bool = False
    scaled: bool = False
    added: bool = False
    causal = True
    blocked = True

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None, block: int = 0) -> dict:
        """As in `Head`; with `block` the logits are `BlockedLogits` of so many positions."""
        x = body.readout(x * (body.width / body.multiple) ** -0.5 if self.scaled else x)
        output = None if self.tied else body.output(body.vocab, 'output', self.bias)
        added = jax.lax.stop_gradient(body.vector('added')) if self.added else None
        if block:
            kernel, bias = (body.tokens.across(x), None) if self.tied else output.weights(x.shape[-1:])
            bias = added if bias is None else bias if added is None else bias + added
            return {'logits': BlockedLogits(x, kernel, bias, block, body.numerics)}
        logits = (body.tokens.attend if self.tied else output)(x)
        return {'logits': logits if added is None else logits + body.numerics.cast(added)}


@dataclasses.dataclass(frozen=True)
class NextWordsAndChoice(NextWords):
    """The outputs of `NextWords` and {'choice_logits' [B]}: x·w + b of the last state before the padding, a score for the
    choice among several rows (Radford et al. 2018, section 3.3).

    Attributes:
      dropout: rate on that state; -1: the model's.
    """
    dropout: float = -1.0
    blocked = False

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        state = dropout(last_of(x, segments), body.rate(self.dropout), fold(key, 'head'))
        return super().__call__(x, body) | {'choice_logits': body.output(1, 'choice')(body.readout(state))[:, 0]}


@dataclasses.dataclass(frozen=True)
class MaskedWords(Head):
    """{'logits' [B, M, V]}: norm(activation(x·W + b))·Eᵀ + c, with the token embedding E (Devlin et al. 2019, section 3.1,
    task 1); W projects to the width of E (Lan et al. 2020, section 3.1)."""
    activation: Activation = Gelu()

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        if masked is not None:
            x = jnp.take_along_axis(x, masked[..., None], 1)  # [B, M, D]
        x = body.numerics.cast(self.activation(wide(body.dense(body.tokens.width, 'transform')(x))))
        x = normed(body.norm, x, 'transform_norm', body.numerics, key is not None)
        bias = body.vector('output')
        return {'logits': body.numerics.plus(body.tokens.attend(body.readout(x)), bias)}


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(Head):
    """{'replaced_logits' [B, T]}: activation(x·W + b)·w + c, whether a generator has put another token at a position (Clark
    et al. 2020, section 3.1, where the layer before w is in their code only)."""
    activation: Activation = Gelu()

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        x = body.numerics.cast(self.activation(wide(body.dense(body.width, 'discriminator')(x))))
        return {'replaced_logits': body.output(1, 'replaced')(body.readout(x))[..., 0]}


@dataclasses.dataclass(frozen=True)
class SpanBoundary(MaskedWords):
    """The outputs of `MaskedWords`, and with boundaries {'boundary_logits' [B, M, V]}: the masked words from the hidden states
    left and right of their span alone and their places in it (Joshi et al. 2020, section 3.2),

        y = f(f([h(s-1); h(e+1); p(place)])),   f(x) = norm(activation(x·W + b)),   logits = y·Eᵀ + c,

    where each f has its W and b, and c is not that of `MaskedWords`.

    Attributes:
      boundary_targets: the number of places p in a span; the data has no more (`data.boundary_targets`).
      position_width: the width of p.
    """
    boundary_targets: int = 20
    position_width: int = 200
    bounded = True

    def __post_init__(self):
        if self.boundary_targets < 1 or self.position_width < 1:
            raise ValueError(f'{self}: boundary_targets is {self.boundary_targets} and position_width {self.position_width}; '
                             'expected numbers of 1 or more.')

    def __call__(self, x: jax.Array, body: Body, *, boundaries: jax.Array | None = None, **given: Any) -> dict:
        """As the others; boundaries: [B, M, 3], the position left and the position right of the span of each predicted word,
        and its place in the span from 0."""
        found = super().__call__(x, body, **given)
        if boundaries is None:
            return found
        table = Embedding(self.boundary_targets, self.position_width, numerics=body.numerics, name='boundary_positions')
        sides = [jnp.take_along_axis(x, boundaries[..., side, None], 1) for side in (0, 1)]  # [B, M, D] each
        y = jnp.concatenate([*sides, table(boundaries[..., 2])], -1)
        for number, width in enumerate((body.width, body.tokens.width)):
            y = body.dense(width, f'boundary_{number}')(y)
            y = body.numerics.cast(self.activation(wide(y)))
            y = normed(body.norm, y, f'boundary_norm_{number}', body.numerics, given.get('key') is not None)
        bias = body.vector('boundary_output')
        return found | {'boundary_logits': body.numerics.plus(body.tokens.attend(body.readout(y)), bias)}


@dataclasses.dataclass(frozen=True)
class NextSentence(Head):
    """{'next_logits' [B, 2]}: whether the second text follows the first (0) or not (1) (section 3.1, task 2)."""

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        return {'next_logits': body.output(2, 'next_sentence')(body.readout(pooler(x[:, 0], body)))}


@dataclasses.dataclass(frozen=True)
class Pretraining(MaskedWords):
    """The two pretraining tasks of BERT: the outputs of `MaskedWords` and of `NextSentence`."""

    def __call__(self, x: jax.Array, body: Body, **given: Any) -> dict:
        return super().__call__(x, body, **given) | NextSentence()(x, body, **given)


@dataclasses.dataclass(frozen=True)
class Classes(Head):
    """{'logits' [B, classes]}: from the state of one position, which represents the row.

    Attributes:
      at: 'first', or 'last' before the padding, which has seen all others in a causal model.
      pooler: whether activation(x·W + b) is applied first.
      activation: of the pooler: 'Tanh()' as in BERT, 'Gelu()' in ELECTRA, 'Relu()' in DistilBERT.
      bias: whether the last layer has a bias.
      dropout: rate on the input of the last layer; -1: the model's.
      twice: whether dropout also acts on the input of the pooler, as in RoBERTa and BART.
    """
    classes: int
    at: str = 'first'
    pooler: bool = True
    activation: Activation = Tanh()
    bias: bool = True
    dropout: float = -1.0
    twice: bool = False

    def __post_init__(self):
        require_classes(self)
        if self.at not in ('first', 'last'):
            raise ValueError(f'{self}: at is {self.at!r}; expected first or last.')

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        x = x[:, 0] if self.at == 'first' else last_of(x, segments)
        rate = body.rate(self.dropout)
        if self.pooler:
            x = pooler(dropout(x, rate if self.twice else 0.0, fold(key, 'pooler')), body, self.activation)
        x = body.readout(dropout(x, rate, fold(key, 'head')))
        return {'logits': body.output(self.classes, 'classes', self.bias)(x)}


@dataclasses.dataclass(frozen=True)
class ClassesAndWords(Classes):
    """The outputs of `Classes` and {'word_logits' [B, T, V]}: x·Eᵀ with the token embedding E, for the word after each position
    (Radford et al. 2018, section 3.2)."""
    causal = True

    def __call__(self, x: jax.Array, body: Body, **given: Any) -> dict:
        return super().__call__(x, body, **given) | {'word_logits': body.tokens.attend(body.readout(x))}


@dataclasses.dataclass(frozen=True)
class TokenClasses(Head):
    """{'logits' [B, T, classes]} for every position (section 5.3).

    Attributes:
      dropout: rate on the input of the layer; -1: the model's.
    """
    classes: int
    dropout: float = -1.0

    def __post_init__(self):
        require_classes(self)

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        x = dropout(x, body.rate(self.dropout), fold(key, 'head'))
        return {'logits': body.output(self.classes, 'classes')(body.readout(x))}


@dataclasses.dataclass(frozen=True)
class Span(Head):
    """{'start_logits', 'end_logits' [B, T]}: the first and the last position of an answer (section 4.2).

    Attributes:
      dropout: rate on the input of the layer; -1: the model's.
    """
    dropout: float = 0.0

    def __call__(self, x: jax.Array, body: Body, *, segments: jax.Array | None = None, masked: jax.Array | None = None,
                 key: jax.Array | None = None) -> dict:
        logits = body.output(2, 'span')(body.readout(dropout(x, body.rate(self.dropout), fold(key, 'head'))))
        return {'start_logits': logits[..., 0], 'end_logits': logits[..., 1]}


def _static():
    return dataclasses.field(metadata={'static': True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockedLogits:
    """x·W + b [B, T, V], of which only those of `block` positions of every row exist at a time.

    The logits of a batch and their gradient are the largest arrays of a language model's step. A loss that is a sum over
    positions needs them block by block only; and because its gradient is known as soon as a block is, the products are as many
    as with whole logits, and none is repeated in the backward pass. On several devices W and its gradient are whole on each.

    Attributes:
      states: x [B, T, D].
      kernel, bias: W [D, V] and b [V], None for none.
      block: positions of a row.
    """
    states: jax.Array
    kernel: jax.Array
    bias: jax.Array | None
    block: int = _static()
    numerics: Numerics = _static()

    def at(self, places: jax.Array) -> jax.Array:
        """The logits [B, 1, V] of one position of each row; places: [B]."""
        states = jnp.take_along_axis(self.states, places[:, None, None], 1)
        return _logits(self.numerics, states, self.numerics.cast(self.kernel), self.bias)

    def sums(self, values: Mapping[str, Callable], coefficients: Mapping[str, float], targets: jax.Array,
             weights: jax.Array) -> dict:
        """{term: sum over positions of weight·value}.

        Args:
          values: {term: function of logits [.., V] and targets [..] with values [..]}.
          coefficients: {term: factor} of those that the loss consists of. Only its gradient is computed: all others are 0, and
            a loss with other factors would have a wrong one.
          targets, weights: [B, T].
        """
        how = tuple(values.items()), tuple(coefficients.items()), self.block, self.numerics
        return _sums(how, self.states, self.numerics.cast(self.kernel), self.bias, targets, weights)


def _logits(numerics, states, kernel, bias):
    logits = numerics.dense(states, kernel)
    return logits if bias is None else numerics.plus(logits, bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sums(how, states, kernel, bias, targets, weights):
    return _over_blocks(how, False, states, kernel, bias, targets, weights)[0]


def _sums_forward(how, *arrays):
    return _over_blocks(how, True, *arrays)


def _sums_backward(how, gradients, change):
    (term, factor), *_ = how[1]
    scale = change[term] / factor  # the same of every term, as the loss is their sum with these factors
    return *jax.tree.map(lambda x: (scale * x).astype(x.dtype), gradients), None, None


_sums.defvjp(_sums_forward, _sums_backward)


def _over_blocks(how, with_gradient, states, kernel, bias, targets, weights):
    """({term: sum}, gradients of states, kernel and bias, or None); on several devices each adds up its own rows and, where
    they can be divided, positions."""
    local = functools.partial(_local, how, with_gradient)
    if not several():
        return local((), states, kernel, bias, targets, weights)
    tensor = jax.sharding.get_abstract_mesh().shape['tensor']
    split = tensor > 1 and states.shape[1] % tensor == 0
    axes = (*BATCH, 'tensor') if split else BATCH
    of_rows, whole = PartitionSpec(BATCH, 'tensor' if split else None), PartitionSpec()
    return jax.shard_map(
        functools.partial(local, axes), in_specs=(of_rows, whole, whole, of_rows, of_rows),
        out_specs=(whole, (of_rows, whole, whole) if with_gradient else whole), check_vma=False)(
        states, kernel, bias, targets, weights)


def _local(how, with_gradient, axes, states, kernel, bias, targets, weights):
    values, coefficients, block, numerics = how
    rows, length, _ = states.shape
    block = min(block, length)
    count = -(-length // block)

    def blocks(x):  # [B, T, ..] -> [count, B·block, ..], with zeros after the end
        x = jnp.pad(x, [(0, 0), (0, count * block - length)] + [(0, 0)] * (x.ndim - 2))
        x = jnp.moveaxis(x.reshape(rows, count, block, *x.shape[2:]), 1, 0)
        return x.reshape(count, rows * block, *x.shape[3:])

    def loss(states, kernel, bias, targets, weights):
        logits = _logits(numerics, states, kernel, bias)
        found = {term: (weights * value(logits, targets)).sum() for term, value in values}
        return sum(factor * found[term] for term, factor in coefficients), found

    def one(carry, given):
        sums, of_kernel, of_bias = carry
        if not with_gradient:
            return (_added(sums, loss(given[0], kernel, bias, *given[1:])[1]), of_kernel, of_bias), None
        (_, found), (dx, dw, db) = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(given[0], kernel, bias, *given[1:])
        return (_added(sums, found), _added(of_kernel, wide(dw)), None if bias is None else _added(of_bias, wide(db))), dx

    given = blocks(states), blocks(targets), blocks(weights)
    shapes = jax.eval_shape(lambda first: loss(first[0], kernel, bias, *first[1:])[1], jax.tree.map(lambda x: x[0], given))
    zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32)), tree)
    begin = zeros(shapes), *((zeros(kernel), zeros(bias)) if with_gradient else (None, None))
    (sums, of_kernel, of_bias), of_states = jax.lax.scan(one, begin, given)
    if axes:
        sums, of_kernel, of_bias = jax.lax.psum((sums, of_kernel, of_bias), axes)
    if not with_gradient:
        return sums, None
    of_states = jnp.moveaxis(of_states.reshape(count, rows, block, -1), 0, 1).reshape(rows, count * block, -1)[:, :length]
    return sums, (of_states, of_kernel.astype(kernel.dtype), None if bias is None else of_bias.astype(bias.dtype))


def _added(before, more):
    return jax.tree.map(jnp.add, before, more)
