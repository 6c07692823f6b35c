"""Language modelling: the next token, alone or given a source."""

import dataclasses
import math
from collections.abc import Mapping

from transformer.tasks.base import Pondering


@dataclasses.dataclass(frozen=True)
class NextToken(Pondering):
    """Language modelling: -log p(target | tokens before it), averaged over the positions of weight 1.

    Attributes:
      block: in training, positions of a row whose logits are in memory at a time (transformer/layers/heads.py); 0: all.
    """
    block: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.block < 0:
            raise ValueError(f'block is {self.block}; expected a number of positions, or 0 for whole logits.')

    def options(self, train: bool) -> dict:
        return {'block': self.block} if train and self.block else {}

    def inputs(self, batch: Mapping) -> dict:
        return {name: batch[name] for name in ('inputs', 'segments', 'positions')}

    def there(self, batch: Mapping) -> tuple:
        return batch['segments'] != 0,

    def terms(self, outputs: Mapping, batch: Mapping) -> dict:
        return self.predictions(outputs['logits'], batch['targets'], batch['weights']) | self.charges(outputs, batch)

    def derived(self, averages: Mapping, facts: Mapping) -> dict:
        """perplexity = exp(cross-entropy); bits per byte = cross-entropy · tokens / (ln 2 · bytes)."""
        nats = averages.get('cross_entropy', averages['loss'])
        numbers = {'perplexity': math.exp(min(nats, 700.0))}
        if facts.get('bytes'):
            numbers['bits_per_byte'] = nats * facts['tokens'] / (math.log(2) * facts['bytes'])
        return numbers


@dataclasses.dataclass(frozen=True)
class PrefixNextToken(NextToken):
    """-log p(target | the prefix, targets before it), averaged over the positions of weight 1: language modelling of texts
    whose first tokens, such as those of a source, see each other (Raffel et al. 2020, section 3.2.1)."""

    def inputs(self, batch: Mapping) -> dict:
        return super().inputs(batch) | {'prefix': batch['prefix']}


@dataclasses.dataclass(frozen=True)
class SequenceToSequence(NextToken):
    """-log p(target | targets before it, source), averaged over the positions of weight 1."""

    charged = {'ponder': 'model.decoder.depth', 'source_ponder': 'model.encoder.depth'}

    def inputs(self, batch: Mapping) -> dict:
        return {name: batch[name] for name in ('inputs', 'segments', 'positions', 'decoder_inputs', 'decoder_segments',
                                               'decoder_positions')}

    def there(self, batch: Mapping) -> tuple:
        return batch['decoder_segments'] != 0, batch['segments'] != 0
