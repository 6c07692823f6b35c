"""Pictures of what a masked autoencoder predicts (see training/contracts.py for the contract)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.evaluators.base import Evaluator
from vit.explain import filled


@dataclasses.dataclass(frozen=True)
class Reconstructions(Evaluator):
    """A picture of the first images of a split: the original, what the model saw, and the image with its predictions for the
    masked patches (He et al. 2022, figure 2).

    Attributes:
      count: images in the picture.
    """
    count: int = 8

    def check(self, run: Any, batches: Any) -> Sequence[str]:
        filled.require(run.model, 'Reconstructions')
        if not 1 <= self.count <= 64:
            raise ValueError(f'Reconstructions has count={self.count}; expected 1 to 64.')
        return ()

    def __call__(self, snapshot: Any, batches: Any) -> Mapping[str, float]:
        found = []
        for batch in batches:
            real = np.flatnonzero(batch['example_weights'])
            rows = filled.fill(snapshot, batch['image'])  # of one shape, so that one program is compiled
            found += [rows[i] for i in real]
            if len(found) >= self.count:
                break
        shown = found[:self.count]
        title = f'{len(shown)} images with masked patches, step {snapshot.step}'
        snapshot.picture('reconstructions', filled.figure(shown, title))
        return {}
