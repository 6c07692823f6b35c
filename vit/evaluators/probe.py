"""A linear probe: how much of the classes a linear classifier finds in the features of a model that is not trained further."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from transformer.evaluators.base import Evaluator, Found, OfExamples
from transformer.readers.rows import outputs
from vit.contracts import Patched

STRENGTHS = 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0


@dataclasses.dataclass(frozen=True)
class LinearProbe(OfExamples):
    """The accuracy of logistic regression, scikit-learn's, on frozen features (Alain and Bengio 2017; He et al. 2022, section
    4.3). It works for any run with labels, also for one that was trained for one step, whose features are those of a
    random encoder.

    Features are standardised by the mean and the deviation of those that the classifier is fitted to. The inverse strength C of
    its L2 penalty, one of 0.001 .. 100, is the one with the highest accuracy on a random part of the training images, on which
    it is not fitted for this; then it is fitted to all of them. `C` is reported.

    Attributes:
      feature: the output of the model that is probed: 'hidden', whose mean over the patches is taken, without the tokens in
        front of them; or one of vectors [B, D], such as 'pooled', what a head of this model reads.
      train: the split to which it is fitted.
      limit: the most images of it, drawn at random; 0: all.
      choosing: the share of these that choose C.
    """
    feature: str = 'hidden'
    train: str = 'train'
    limit: int = 0
    choosing: float = 0.1

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        if not 0 < self.choosing < 1 or self.limit < 0:
            raise ValueError(f'LinearProbe has choosing={self.choosing} and limit={self.limit}; expected a share between 0 and '
                             '1, and 0 or more images.')
        batch, found = classified(self, run, batches)
        known = [name for name, x in found.items() if x.ndim in (2, 3, 4) and x.shape[0] == len(batch['label'])]
        if self.feature not in known:
            raise ValueError(f'LinearProbe has feature={self.feature!r}, and the model of this run gives {", ".join(known)}; '
                             'choose one of these.')
        return 'accuracy', 'C'

    def each(self, snapshot: Any, batches: Any) -> Found:
        return {'accuracy': self._right(snapshot, batches)[0]}

    def numbers(self, found: Found) -> Mapping[str, float]:
        return {'accuracy': float(found['accuracy'].mean())}

    def right(self, found: Found) -> Mapping[str, np.ndarray]:
        return {'accuracy': found['accuracy'] > 0}

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        right, strength = self._right(snapshot, batches)
        return self.numbers({'accuracy': right}) | {'C': strength}

    def _right(self, snapshot, batches):
        """(1 for each example whose class is predicted rightly, 0 for others; the chosen C)."""
        known = self._features(snapshot, snapshot.data.evaluation(self.train, snapshot.run.eval_rows))
        predict, strength = fitted(*known, choosing=self.choosing, limit=self.limit)
        features, labels = self._features(snapshot, batches)
        return (predict(features) == labels).astype(np.float64), strength

    def _features(self, snapshot, batches):
        """(float64 [examples, D], labels [examples])."""
        front = len(snapshot.model.front) if isinstance(snapshot.model, Patched) else 0
        rows = [(_vector(row[self.feature], front), row['label']) for row in outputs(snapshot, batches, [self.feature])]
        features, labels = zip(*rows)
        return np.stack(features), np.array(labels)


def classified(evaluator: Evaluator, run: Any, batches: Any) -> tuple[Mapping[str, np.ndarray], dict[str, Any]]:
    """(the first batch, the shapes of what the model gives for it by name), for the check of an evaluator.

    Raises ValueError unless each example has one class."""
    name, batch = type(evaluator).__name__, next(iter(batches))
    if np.ndim(batch.get('label')) != 1 or batch['label'].dtype.kind not in 'iu':
        raise ValueError(f'{name} needs a class for each example, and {run.config.data.pipeline} has none; leave it out.')
    given = run.task.inputs(batch)
    return batch, jax.eval_shape(lambda variables: run.model.apply(variables, **given), run.shapes.variables)


def _vector(x, front):
    """float64 [D] of a vector [D], of states [front + T, D], or of states [rows, columns, D]."""
    x = x.astype(np.float64)
    return x if x.ndim == 1 else x[front:].mean(tuple(range(x.ndim - 1)))


def fitted(features: np.ndarray, labels: np.ndarray, *, choosing: float, limit: int = 0) -> tuple[Callable, float]:
    """(from features [.., D] to predicted labels, the chosen C), as `LinearProbe` says; the same examples give the same.

    Raises ValueError if the part that is fitted has less than two classes."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    order = np.random.default_rng(0).permutation(len(labels))[:limit or None]
    count = max(1, round(choosing * len(order)))
    aside, rest = order[:count], order[count:]
    if len(np.unique(labels[rest])) < 2:
        raise ValueError(f'A linear probe is fitted to {len(rest)} examples of less than two classes; give it more with train '
                         'and limit.')

    def classifier(rows, strength):
        mean, deviation = features[rows].mean(0), features[rows].std(0)
        scaled = lambda x: (x - mean) / np.where(deviation > 0, deviation, 1.0)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', ConvergenceWarning)  # of weak penalties on classes that can be separated
            found = LogisticRegression(C=strength, max_iter=500).fit(scaled(features[rows]), labels[rows])
        return lambda x: found.predict(scaled(x))

    scores = [(classifier(rest, strength)(features[aside]) == labels[aside]).mean() for strength in STRENGTHS]
    best = STRENGTHS[int(np.argmax(scores))]  # of equal ones the strongest penalty
    return classifier(order, best), best
