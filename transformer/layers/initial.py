"""The initialisation of the parameters of a Transformer. Biases always start at zero, and the scales of norms at one."""

import abc
import copy
import dataclasses
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

normal = nn.initializers.normal
zeros = nn.initializers.zeros_init()


def xavier(gain: float = 1.0) -> Callable:
    """Uniform in ±gain·sqrt(6 / (rows + columns)) (Glorot and Bengio 2010, eq. 16). A projection to N heads of width H is
    the matrix [D, N·H], and one from them [N·H, D]."""
    return nn.initializers.variance_scaling(gain ** 2, 'fan_avg', 'uniform')


def table(gain: float = 1.0) -> Callable:
    """Normal with a standard deviation of gain / sqrt(D), for an embedding [rows, D]."""
    return nn.initializers.variance_scaling(gain ** 2, 'fan_out', 'normal')


@dataclasses.dataclass(frozen=True)
class Initial(abc.ABC):
    """Base: the initialisers of a stack of `layers` blocks, and of the embeddings below it.

    `attention` returns keywords of MultiHead, `feed_forward` the argument `initial` of FeedForward, for blocks with 2 branches,
    or 3 with cross attention.

    Attributes:
      multiple: m, by which outputs are divided: 1 but for `MuP`.
    """
    multiple = 1.0

    def at(self, width: int) -> 'Initial':
        """The initialisation for a model of this width: the same but for `MuP`."""
        return self

    def matrix(self, layers: int) -> Callable:
        """The initialiser of a matrix before or after the stack."""
        return self.feed_forward(layers)['kernel_init']

    def output(self, layers: int) -> Callable:
        """The initialiser of a matrix from the stack to words or classes."""
        return self.matrix(layers)

    @abc.abstractmethod
    def embedding(self, layers: int) -> Callable:
        """The initialiser of a table."""

    @abc.abstractmethod
    def attention(self, layers: int, branches: int = 2) -> dict:
        """{'kernel_init', 'value_init', 'output_init'}, 'query_init' if queries begin otherwise than keys, and 'query_scale' if
        scores have a factor of their own."""

    @abc.abstractmethod
    def feed_forward(self, layers: int, branches: int = 2) -> dict:
        """{'kernel_init', 'output_init'}."""


@dataclasses.dataclass(frozen=True)
class Scaled(Initial):
    """Normal with standard deviation `scale`, the output matrices of branches with scale / sqrt(branches·layers), so that the
    stream keeps its variance through the layers (Radford et al. 2019, section 2.3)."""
    scale: float = 0.02

    def __post_init__(self):
        if not 0 <= self.scale < math.inf:
            raise ValueError(f'{self}: expected a scale of 0 or more.')

    def embedding(self, layers: int) -> Callable:
        return normal(self.scale)

    def feed_forward(self, layers: int, branches: int = 2) -> dict:
        return {'kernel_init': normal(self.scale), 'output_init': normal(self.scale / (branches * layers) ** 0.5)}

    def attention(self, layers: int, branches: int = 2) -> dict:
        return self.feed_forward(layers, branches) | {'value_init': normal(self.scale)}


@dataclasses.dataclass(frozen=True)
class Xavier(Initial):
    """`xavier` for every matrix, and N(0, 1/D) for embeddings."""

    def embedding(self, layers: int) -> Callable:
        return table()

    def feed_forward(self, layers: int, branches: int = 2) -> dict:
        return {'kernel_init': xavier(), 'output_init': xavier()}

    def attention(self, layers: int, branches: int = 2) -> dict:
        return self.feed_forward(layers) | {'value_init': xavier()}


@dataclasses.dataclass(frozen=True)
class TFixup(Initial):
    """T-Fixup, which trains without norms and warm-up (Huang et al. 2020, section 3): `Xavier`, but values, attention
    outputs and both feed-forward matrices times 0.67·layers^(-1/4), or (9·layers)^(-1/4) in a decoder with cross attention,
    and embeddings times (9·layers)^(-1/4).

    With m for matrices and e for embeddings these factors make 2·layers·(2·m²·e² + m⁴) = 1, and in a decoder
    9·layers·e⁴ = 1, the bound on how far one update moves the output. The paper's code multiplies embedded tokens by
    sqrt(D); without that, the initial stream is smaller by this factor."""

    def embedding(self, layers: int) -> Callable:
        return table((9 * layers) ** -0.25)

    def feed_forward(self, layers: int, branches: int = 2) -> dict:
        scaled = xavier((0.67 if branches == 2 else 9 ** -0.25) * layers ** -0.25)
        return {'kernel_init': scaled, 'output_init': scaled}

    def attention(self, layers: int, branches: int = 2) -> dict:
        scaled = self.feed_forward(layers, branches)['output_init']
        return {'kernel_init': xavier(), 'value_init': scaled, 'output_init': scaled}

    def matrix(self, layers: int) -> Callable:
        return xavier()


@dataclasses.dataclass(frozen=True)
class DTFixup(TFixup):
    """DT-Fixup, which trains without norms and warm-up above inputs of any size, such as those of a pretrained model (Xu et al.
    2021, section 3.2): `Xavier`, but values, attention outputs and both feed-forward matrices times
    1 / (2·largest·sqrt(layers)).

    With m for the matrices this makes 4·layers·m²·largest² = 1, the bound on how far one update moves the output, where
    T-Fixup also counts m⁴. (The paper's relations between words add 2·largest + 2 to 4·largest².)

    Attributes:
      largest: the largest Euclidean norm of an input of the blocks at the start. Embeddings drawn with N(0, 1/D) have a norm of
        about 1, and with learnt positions of about sqrt(2).
    """
    largest: float = 1.5

    def __post_init__(self):
        if not 0 < self.largest < math.inf:
            raise ValueError(f'{self}: expected a norm above 0 as largest.')

    def embedding(self, layers: int) -> Callable:
        return table()

    def feed_forward(self, layers: int, branches: int = 2) -> dict:
        if branches > 2:
            raise ValueError(f'initial={self} is for blocks with one attention; use TFixup() for a decoder.')
        scaled = xavier(1 / (2 * self.largest * layers ** 0.5))
        return {'kernel_init': scaled, 'output_init': scaled}


@dataclasses.dataclass(frozen=True)
class LeCun(Initial):
    """Normal with a variance of 1 / rows, the fan-in, for every matrix (LeCun et al. 1998, section 4.6), and N(0, 1/D) for
    embeddings."""

    def embedding(self, layers: int) -> Callable:
        return table()

    def feed_forward(self, layers: int, branches: int = 2) -> dict:
        matrix = nn.initializers.variance_scaling(1.0, 'fan_in', 'normal')
        return {'kernel_init': matrix, 'output_init': matrix}

    def attention(self, layers: int, branches: int = 2) -> dict:
        matrices = self.feed_forward(layers)
        return matrices | {'value_init': matrices['kernel_init']}


@dataclasses.dataclass(frozen=True)
class T5(LeCun):
    """That of T5's code (Raffel et al. 2020): `LeCun`, but queries smaller by sqrt(H), the width of a head, in place of scores
    that are divided by it ('Softmax(score=Dot())'), and N(0, 1) for embeddings, whose tied head divides by sqrt(D)
    ('NextWords(scaled=True)')."""

    def embedding(self, layers: int) -> Callable:
        return normal(1.0)

    def attention(self, layers: int, branches: int = 2) -> dict:
        return super().attention(layers, branches) | {'query_init': _smaller_by_root}


def _smaller_by_root(head_width):
    return nn.initializers.variance_scaling(1.0 / head_width, 'fan_in', 'normal')


@dataclasses.dataclass(frozen=True)
class PyTorch(Initial):
    """The defaults of PyTorch: uniform in ±1 / sqrt(rows) for every matrix, N(0, 1) for embeddings. (Its
    biases start as its matrices do, ours at zero.)"""

    def embedding(self, layers: int) -> Callable:
        return normal(1.0)

    def feed_forward(self, layers: int, branches: int = 2) -> dict:
        matrix = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
        return {'kernel_init': matrix, 'output_init': matrix}

    def attention(self, layers: int, branches: int = 2) -> dict:
        matrices = self.feed_forward(layers)
        return matrices | {'value_init': matrices['kernel_init']}


@dataclasses.dataclass(frozen=True)
class Growing:
    """The initialiser of a matrix whose two sides grow with the width of the model, `multiple` times that of the base: normal
    with standard deviation scale / sqrt(multiple)."""
    scale: float
    multiple: float

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> jax.Array:
        return normal(self.scale / self.multiple ** 0.5)(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class MuP(Scaled):
    """The maximal update parametrisation: what is best for a model of width `base`, above all the learning rate, stays so for
    one m = width / base times as wide (Yang et al. 2022, table 8 and definition 4.1). With the width `base` it is
    `Scaled(scale)`. Else, with the standard deviations and the rate of the base,

        matrices between widths    standard deviation / sqrt(m), rate of Adam / m, weight decay · rate unchanged
        embeddings, vectors        unchanged
        output to words, classes   unchanged, but its input divided by m
        scores                     q·k·sqrt(h) / H, with heads of width H here and h at the base

    Width, inner width and heads grow together: as many heads as at the base with h = H / m, or with `head_width` more heads.
    Depth, length and vocabulary are no part of it.

    Attributes:
      base: the width at which the rates were chosen.
      head_width: h; 0: as many heads as at the base.
      zero: begin with zeros in the matrices of queries, and in an output layer of its own (section D.2).
    """
    base: int = dataclasses.field(kw_only=True)
    head_width: int = dataclasses.field(default=0, kw_only=True)
    zero: bool = dataclasses.field(default=False, kw_only=True)
    width: int = dataclasses.field(default=0, init=False, repr=False)  # of the model, by `at`

    def __post_init__(self):
        super().__post_init__()
        if self.base < 1 or self.head_width < 0:
            raise ValueError(f'{self}: expected a width of 1 or more as base, and a head_width of 0 or more.')

    def at(self, width: int) -> 'MuP':
        made = copy.copy(self)
        object.__setattr__(made, 'width', width)
        return made

    @property
    def multiple(self) -> float:
        """m."""
        if not self.width:
            raise ValueError(f'initial={self} is for Transformers with one width; use {Scaled(self.scale)}.')
        return self.width / self.base

    def output(self, layers: int) -> Callable:
        return zeros if self.zero else self.embedding(layers)

    def feed_forward(self, layers: int, branches: int = 2) -> dict:
        return {'kernel_init': Growing(self.scale, self.multiple),
                'output_init': Growing(self.scale / (branches * layers) ** 0.5, self.multiple)}

    def attention(self, layers: int, branches: int = 2) -> dict:
        found = self.feed_forward(layers, branches)
        if self.zero:
            found['query_init'] = lambda head_width: Growing(0.0, self.multiple)
        return found | {'value_init': found['kernel_init'], 'query_scale': self.query_scale}

    def query_scale(self, head_width: int) -> float:
        """sqrt(h / H), the factor of scores that are divided by sqrt(H)."""
        return ((self.head_width or head_width / self.multiple) / head_width) ** 0.5
