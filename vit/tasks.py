"""What image runs learn (see transformer/tasks.py for the contract)."""

import dataclasses

from transformer.losses import correct, cross_entropy
from transformer.tasks import Task, example_weights


@dataclasses.dataclass(frozen=True)
class Classification(Task):
    """-log p(label | image), averaged over the examples."""

    def inputs(self, batch):
        return {'image': batch['image']}

    def terms(self, outputs, batch):
        logits, label = outputs['logits'], batch['label']
        weights = example_weights(batch, label.shape[0])
        weight = weights.sum()
        return {'loss': ((weights * cross_entropy(logits, label)).sum(), weight),
                'accuracy': ((weights * correct(logits, label)).sum(), weight)}
