"""Evaluators of image runs (see training/contracts.py for the contract)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.evaluators.base import Evaluator


@dataclasses.dataclass(frozen=True)
class Mistakes(Evaluator):
    """A picture of the `rows` x `rows` images whose label the model gives the least probability; each is titled with its label
    and, after an arrow, the predicted class."""
    rows: int = 4

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        if not 1 <= self.rows <= 32:
            raise ValueError(f'Mistakes has rows={self.rows}; expected 1 to 32.')
        return ()

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        from matplotlib.figure import Figure  # matplotlib is slow to import

        found = []  # (probability of the label, image, label, prediction)
        for batch in batches:
            logits = np.asarray(snapshot.apply(image=batch['image'])['logits'], np.float64)[:, :len(snapshot.data.classes)]
            p = np.exp(logits - logits.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            real = np.flatnonzero(batch['example_weights'])
            found += [(p[i, batch['label'][i]], batch['image'][i], batch['label'][i], p[i].argmax()) for i in real]
            found = sorted(found, key=lambda entry: entry[0])[:self.rows ** 2]
        figure = Figure(figsize=(1.4 * self.rows, 1.6 * self.rows), dpi=100, layout='constrained')
        grid = figure.subplots(self.rows, self.rows, squeeze=False)
        for axes, (probability, image, label, prediction) in zip(grid.flat, found):
            image = snapshot.data.visible(image)
            axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap='gray')
            names = snapshot.data.classes
            axes.set_title(f'{names[label]} → {names[prediction]}  {probability:.2f}', fontsize=8)
        for axes in figure.axes:
            axes.set_axis_off()
        snapshot.picture('mistakes', figure)
        return {}
