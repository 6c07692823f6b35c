"""Training on texts whose segmentation is drawn anew in every epoch (data/tokenizers/drawn.py).

At the beginning of an epoch the training part is tokenized anew, at about a million characters a second, into a file that is
gone at its end; the epoch is then trained on as if the text had always had these tokens. The draws depend on the seed and on
the number of the epoch alone, so that a run resumes exactly, at the cost of one more tokenization. An epoch ends with the last
batch that it fills; the rows left over, less than a batch, are in other epochs. How many batches texts packed by first fit fill
is estimated, so that some percent of their pieces may be left out of an epoch or come twice in it.
"""

import copy
import dataclasses
import functools
import zlib
from collections.abc import Callable
from typing import Any

from data.text.frames import Framed
from data.tokenizers.specs import TokenizerSpec
from data.tokenizers.tokenizer import Tokenizer

Train = Callable[[Any, int], Any]  # (opened texts, seed) -> a Grain iterator over batches


def anew(train: Train) -> Train:
    """Decorates the method `train(seed)` of opened texts, whose `specs` are {attribute with a tokenizer: its spec}. If one of
    these draws segmentations, each epoch trains on a copy of the texts with tokens of its own."""

    @functools.wraps(train)
    def wrapped(opened: Any, seed: int) -> Any:
        from data import pipeline

        if not any(spec.draws for spec in opened.specs.values()):
            return train(opened, seed)

        def begin(epoch: int) -> tuple[Any, int]:
            name = f'{seed} {epoch}'
            made = redrawn(opened, name)
            return train(made, zlib.crc32(name.encode())), max(1, int(made.batches_per_epoch))

        return pipeline.closed_at_exit(pipeline.Epochs(begin))

    return wrapped


def redrawn(opened: Any, seed: str) -> Any:
    """A copy of opened texts whose tokenizers draw segmentations, and that has computed nothing yet."""
    made = copy.copy(opened)
    for cls in type(opened).__mro__:
        for name in [name for name, part in vars(cls).items() if isinstance(part, functools.cached_property)]:
            made.__dict__.pop(name, None)
    for name, spec in opened.specs.items():
        if spec.draws:
            setattr(made, name, _drawn(getattr(opened, name), spec, f'{seed} {name}'))
    return made


def _drawn(tokenizer: Tokenizer | Framed, spec: TokenizerSpec, seed: str) -> Tokenizer | Framed:
    if isinstance(tokenizer, Framed):
        return dataclasses.replace(tokenizer, inner=_drawn(tokenizer.inner, spec, seed))
    return spec.drawn(tokenizer, seed)
