"""The base of noises: they turn a row of text into the inputs of an encoder and the targets of a decoder.

    inputs, targets = noise.corrupted(ids, np.random.default_rng(7), vocabulary)

What is drawn depends on the generator alone, so that its seed records the noise.
"""

import abc
import dataclasses

import numpy as np

from data.noise.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Noise(abc.ABC):
    """Base of the noises, frozen dataclasses.

    Attributes:
      least: the smallest number of tokens that it takes.
      masks: whether it needs a token that stands for missing ones.
    """

    least = 1
    masks = False

    @abc.abstractmethod
    def corrupted(self, ids: np.ndarray, rng: np.random.Generator, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, targets), int32, of a row of ids [n], without special tokens around them."""

    @abc.abstractmethod
    def restored(self, inputs: np.ndarray, targets: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
        """int32: the text of inputs and (predicted) targets."""

    def raw(self, room: int) -> int:
        """How many tokens of text fill `room` places of the inputs."""
        return room

    def targets(self, count: int) -> int:
        """How many targets a text of `count` tokens has."""
        return count

    def sentinels(self, count: int) -> int:
        """How many sentinels a text of `count` tokens takes."""
        return 0

    def check(self, count: int) -> None:  # noqa: B027
        """Raises ValueError if it changes no token of a text of `count` tokens."""


def rounded_up(counts: float | np.ndarray) -> np.ndarray:
    """int64: shares of numbers, rounded up to 1 or more; 0.07 · 100 is 7, though a little above it in floating point."""
    return np.maximum(1, np.ceil(np.asarray(counts) - 1e-9)).astype(np.int64)
