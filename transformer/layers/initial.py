"""The initialisation of the parameters of a Transformer. Biases always start at zero, and the scales of norms at one."""

import abc
import dataclasses
import math
from collections.abc import Callable

import flax.linen as nn

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
    or 3 with cross attention."""

    @abc.abstractmethod
    def embedding(self, layers: int) -> Callable:
        """The initialiser of a table."""

    @abc.abstractmethod
    def attention(self, layers: int, branches: int = 2) -> dict:
        """{'kernel_init', 'value_init', 'output_init'}, and 'query_init' if queries begin otherwise than keys."""

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
