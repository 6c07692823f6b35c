"""Evaluators of image runs (see training/contracts.py for the contract)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from display import figures
from transformer.evaluators.base import Evaluator
from vit.evaluators.probe import classified


@dataclasses.dataclass(frozen=True)
class Mistakes(Evaluator):
    """A picture of the `rows` x `rows` images whose label the model gives the least probability; each is titled with its label
    and with the predicted class, both with their probability."""
    rows: int = 4

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        if not 1 <= self.rows <= 32:
            raise ValueError(f'Mistakes has rows={self.rows}; expected 1 to 32.')
        batch, found = classified(self, run, batches)
        if 'image' not in batch or 'logits' not in found or found['logits'].ndim != 2:
            raise ValueError(f'Mistakes needs images and logits of classes, and this run has {", ".join(batch)} and its model '
                             f'gives {", ".join(found)}; leave it out.')
        return ()

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        found = []  # (probability of the label, image, label, all probabilities)
        for batch in batches:
            logits = np.asarray(snapshot.apply(image=batch['image'])['logits'], np.float64)[:, :len(snapshot.data.classes)]
            p = np.exp(logits - logits.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            real = np.flatnonzero(batch['example_weights'])
            found += [(p[i, batch['label'][i]], batch['image'][i], batch['label'][i], p[i]) for i in real]
            found = sorted(found, key=lambda entry: entry[0])[:self.rows ** 2]
        rows = -(-len(found) // self.rows)
        figure, body = figures.new(2.0 * self.rows + 0.4, 2.1 * rows)
        grid, names = body.subplots(rows, self.rows, squeeze=False), snapshot.data.classes
        for axes, (probability, image, label, p) in zip(grid.flat, found):
            image = snapshot.data.visible(image)
            axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap='gray', vmin=0, vmax=1)
            prediction = p.argmax()
            axes.set_title(f'true: {_short(names[label])} ({probability:.2f})\n'
                           f'predicted: {_short(names[prediction])} ({p[prediction]:.2f})', fontsize=8,
                           color='black' if prediction == label else figures.COLOURS[1])
        for axes in figure.axes:
            axes.set_axis_off()
        wrong = sum(p.argmax() != label for _, _, label, p in found)
        figures.explain(figure, f'The {len(found)} images with the least probable true class',
                        'Above each image its true class and the predicted one, each with the probability that the model gives '
                        f'it; the titles of the {wrong} wrong predictions are orange.')
        snapshot.picture('mistakes', figure)
        return {}


def _short(name: str, longest: int = 16) -> str:
    return name if len(name) <= longest else f'{name[:longest - 1]}…'
