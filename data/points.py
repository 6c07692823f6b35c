"""Points with the values observed at them, as batches for pooling by similarity.

    opened = Curve(count=40).open(None)
    for batch in opened.train(seed=0): ...

Rows hold `query` [B, D] float32, `target` [B, C] float32 (numbers, or a one-hot class), and `own` [B] int32, the index
of the point among the training points, -1 for other points. The training points are facts, `keys` [S][D] and `values`
[S][C]: the model pools over all of them for every batch.
"""

import dataclasses
import functools
import hashlib
import math
import os

import numpy as np

from data import cache, fields, splits
from data.opened import Opened

_TRAIN_FLOWERS = 112  # three quarters


@dataclasses.dataclass(frozen=True)
class Curve:
    """y = 2·sin(x) + x + noise at `count` points, uniform in [0, 5) and sorted; validation is y without noise at 0, 0.1, ..,
    4.9 (Zhang et al., Dive into Deep Learning, section 11.2).

    Attributes:
      count: number of training points.
      noise: standard deviation of the noise.
      seed: of the points and the noise; the seed of the run does not change them.
      batch_size: points in a training batch.
      reader: import path of the class that reads inputs for predict.py and draws them for eval.py; '' for none.
    """

    count: int = 40
    noise: float = 1.0
    seed: int = 0
    batch_size: int = 40
    reader: str = ''

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenPoints':
        """Draws the points; the folders are not read. Raises ValueError for a field out of range."""
        fields.positive(count=self.count, batch_size=self.batch_size)
        if not (0 <= self.noise < math.inf and self.seed >= 0):
            raise ValueError(f'data.noise={self.noise} and data.seed={self.seed} do not fit; both must be 0 or more.')
        rng = np.random.default_rng(self.seed)
        x = np.sort(rng.uniform(0, 5, self.count))
        grid = np.arange(50) / 10
        train, valid = (x, _curve(x) + self.noise * rng.normal(size=self.count)), (grid, _curve(grid))
        return OpenPoints(self, 'the curve 2 sin x + x', {'train': _columns(*train), 'valid': _columns(*valid)})


@dataclasses.dataclass(frozen=True)
class Iris:
    """The 149 different flowers of Fisher's iris set (1936; scikit-learn has one of them twice): length and width of sepals
    and of petals in cm, and one of three species as a one-hot vector. 112 are for training and 37 for validation, in a
    fixed random order.

    Attributes:
      batch_size: flowers in a training batch.
      reader: import path of the class that reads inputs for predict.py and draws them for eval.py; '' for none.
    """

    batch_size: int = 112
    reader: str = ''

    def open(self, folder: str | os.PathLike | None, source: str | os.PathLike | None = None) -> 'OpenPoints':
        """Reads the flowers from scikit-learn; the folders are not read."""
        fields.positive(batch_size=self.batch_size)
        try:
            from sklearn import datasets
        except ImportError as error:
            raise ValueError("data.pipeline='data.points:Iris' needs scikit-learn; install it with pip.") from error
        bunch = datasets.load_iris()
        different = np.sort(np.unique(bunch.data, axis=0, return_index=True)[1])  # the same flower must not be in both parts
        order = sorted(different, key=lambda i: hashlib.sha256(b'%d' % i).digest())
        x, y = bunch.data[order].astype(np.float32), np.eye(3, dtype=np.float32)[bunch.target[order]]
        cut = _TRAIN_FLOWERS
        return OpenPoints(self, 'iris flowers', {'train': (x[:cut], y[:cut]), 'valid': (x[cut:], y[cut:])})


class OpenPoints(Opened):
    """Points in memory: training batches and evaluation.

    Args:
      parts: {'train' or 'valid': (x [n, D], y [n, C])}.
    """

    unit = 'points'

    def __init__(self, config: Curve | Iris, name: str, parts: dict[str, tuple[np.ndarray, np.ndarray]]):
        self.config, self._name, self._parts = config, name, parts
        x, y = parts['train']
        self.facts = {'keys': _as_tuples(x), 'values': _as_tuples(y)}

    def save(self, folder: str | os.PathLike) -> None:
        """Writes nothing: the config determines the points."""

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], type]]:
        """{name: (shape, dtype)} of a training batch."""
        rows, (x, y) = self.config.batch_size, self._parts['train']
        return {'query': ((rows, x.shape[1]), np.float32), 'target': ((rows, y.shape[1]), np.float32),
                'own': ((rows,), np.int32)}

    def describe(self) -> str:
        """One line about both parts, for the log."""
        sizes, (x, y) = self._sizes(), self._parts['train']
        return (f'{self._name}, {sizes["train"]:,} points of {x.shape[1]} coordinates and {y.shape[1]} values to train on, '
                f'{sizes["valid"]:,} for validation')

    def digest(self, split: str) -> str:
        """A digest of the points of a split; other data have another digest."""
        rows = self._rows(*self._range(split))
        return cache.key(*(hashlib.sha256(array.tobytes()).hexdigest() for array in rows.values()))

    @property
    def batches_per_epoch(self) -> float:
        return self._sizes()['train'] / self.config.batch_size

    def train(self, seed: int):
        """An endless Grain iterator over batches, reshuffled every epoch; get_state and set_state resume exactly."""
        from data import pipeline

        order = pipeline.Order(self._sizes()['train'], self.config.batch_size, seed)
        return pipeline.shuffled(functools.partial(_taken, self._rows('train')), order)

    def evaluation(self, split: str, batch_size: int, **view):
        """Batches that hold every point of a split once, in order.

        Args:
          split: 'train', 'valid', or a slice such as 'train[:50%]'.
          batch_size: rows in a batch.

        Returns: an Evaluation; facts 'points'.
        Raises: ValueError for an unknown or empty split, and for a view, which only text has.
        """
        from data import pipeline

        self.refuse_view(view)
        rows = self._rows(*self._range(split))
        points = len(rows['own'])
        return pipeline.Evaluation(points, batch_size, functools.partial(_taken, rows), {'points': points})

    def score(self, paths, batch_size: int, **view):
        """Raises ValueError: points do not come from files."""
        raise ValueError(f'{", ".join(paths)} cannot be scored: the points of {self._name} come from no file; give --split.')

    def _sizes(self) -> dict[str, int]:
        return {name: len(x) for name, (x, _) in self._parts.items()}

    def _range(self, split: str) -> tuple[str, int, int]:
        return splits.parse(split, self._sizes())

    def _rows(self, name: str, start: int = 0, stop: int | None = None) -> dict[str, np.ndarray]:
        x, y = self._parts[name]
        own = np.arange(len(x)) if name == 'train' else np.full(len(x), -1)
        return {key: array[start:stop].astype(dtype) for key, array, dtype in
                (('query', x, np.float32), ('target', y, np.float32), ('own', own, np.int32))}


def _taken(rows: dict[str, np.ndarray], numbers: np.ndarray) -> dict[str, np.ndarray]:
    return {name: array[numbers] for name, array in rows.items()}


def _curve(x: np.ndarray) -> np.ndarray:
    return 2 * np.sin(x) + x


def _columns(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(array[:, None].astype(np.float32) for array in arrays)


def _as_tuples(array: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, array.tolist()))
