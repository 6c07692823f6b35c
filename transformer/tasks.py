"""What a run learns: which inputs the model gets, which sums make the loss, and what derives from them.

    loss(forward, batch, key=, step=, train=) -> {term: (sum, weight)}
    total = sum over `coefficients` of coefficient * sum / weight

Weights depend on the batch alone, so sums and weights add up over microbatches, devices and batches, and padding
never changes a number. A term without a coefficient is a metric. The total is reported as `loss`; a task of one term
calls it that.
"""

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp

from transformer.losses import correct, cross_entropy


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of one forward pass: `inputs` says what the model is given, `terms` what is made of its outputs."""

    @property
    def coefficients(self) -> Mapping[str, float]:
        return {'loss': 1.0}

    def inputs(self, batch) -> dict:
        raise NotImplementedError

    def terms(self, outputs, batch) -> dict:
        raise NotImplementedError

    def loss(self, forward, batch, *, key, step, train):
        """{term: (sum, weight)}; `forward(**inputs)` applies the model, with `key` for its randomness in training."""
        return self.terms(forward(**self.inputs(batch), key=key if train else None), batch)

    def derived(self, averages, facts) -> dict:
        """Further numbers from the averages over a split and its facts (bytes, tokens, ...)."""
        return {}


@dataclasses.dataclass(frozen=True)
class NextToken(Task):
    """Language modelling: -log p(target | tokens before it), averaged over the positions of weight 1."""

    def inputs(self, batch):
        return {name: batch[name] for name in ('inputs', 'segments', 'positions')}

    def terms(self, outputs, batch):
        logits, targets, weights = outputs['logits'], batch['targets'], batch['weights']
        weight = weights.sum()
        return {'loss': ((weights * cross_entropy(logits, targets)).sum(), weight),
                'accuracy': ((weights * correct(logits, targets)).sum(), weight)}

    def derived(self, averages, facts):
        """perplexity = exp(loss); bits per byte = loss · tokens / (ln 2 · bytes)."""
        numbers = {'perplexity': math.exp(min(averages['loss'], 700.0))}
        if facts.get('bytes'):
            numbers['bits_per_byte'] = averages['loss'] * facts['tokens'] / (math.log(2) * facts['bytes'])
        return numbers


def example_weights(batch, rows):
    """[B] weights of the examples: 1, and 0 for the rows that pad a last batch."""
    return batch['example_weights'] if 'example_weights' in batch else jnp.ones(rows, jnp.float32)
