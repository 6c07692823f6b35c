"""What image runs learn (see transformer/tasks.py for the contract)."""

import dataclasses

from transformer.tasks import Prediction, example_weights


@dataclasses.dataclass(frozen=True)
class Classification(Prediction):
    """-log p(label | image), averaged over the examples."""

    def inputs(self, batch):
        return {'image': batch['image']}

    def terms(self, outputs, batch):
        label = batch['label']
        return self.predictions(outputs['logits'], label, example_weights(batch, label.shape[0]))
