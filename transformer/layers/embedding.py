"""Embeddings, and their sharing between sources and targets."""

from collections.abc import Callable

import flax.linen as nn
import jax

from transformer.layers.initial import normal
from transformer.layers.numerics import Numerics
from transformer.layers.roles import Wanted, declare, table


class Embedding(nn.Module):
    """A table [rows, D] that embeds ids, and projects onto its rows as a tied output layer (Press and Wolf 2017)."""
    rows: int
    width: int
    kernel_init: Callable = normal(0.02)
    numerics: Numerics = Numerics()

    def setup(self) -> None:
        self.embedding = declare(self, 'embedding', Wanted(self.kernel_init, (self.rows, self.width), table()), self.numerics)

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.numerics.rows(self.embedding, ids)

    def attend(self, x: jax.Array) -> jax.Array:
        """Logits x·Eᵀ: [..., D] -> [..., rows]. Raises ValueError for states of another width."""
        return self.numerics.across(x, self._for(x))

    def across(self, x: jax.Array) -> jax.Array:
        """Eᵀ [D, rows] for states x [..., D]. Raises ValueError for those of another width."""
        return self._for(x).T

    def _for(self, x):
        if x.shape[-1] != self.width:
            raise ValueError(f'A head that is tied to tables of width {self.width} cannot take states of width {x.shape[-1]}; '
                             'set model.embedding_width=0, or a head that projects to this width, such as MaskedWords().')
        return self.embedding


def pair_embeddings(vocab: int, source_vocab: int, widths: tuple, share: bool, kernel_inits: tuple,
                    numerics: Numerics) -> tuple:
    """(the embedding of sources, the embedding of targets): modules of the caller, named 'tokens' if they are shared, else
    'source_tokens' and 'target_tokens'.

    Args:
      vocab: number of rows for targets; source_vocab: number of rows for sources, 0: the same vocabulary.
      widths: the widths of sources and of targets.
      share: use one table, that of the targets, for both.
      kernel_inits: initialisers for sources and for targets.
    """
    table = lambda rows, i, name: Embedding(rows, widths[i], kernel_init=kernel_inits[i], numerics=numerics, name=name)
    if not share:
        return table(source_vocab or vocab, 0, 'source_tokens'), table(vocab, 1, 'target_tokens')
    if source_vocab:
        raise ValueError(f'model.share=True needs one vocabulary for sources and targets, but the sources have one of '
                         f'{source_vocab} of their own; leave out data.target_tokenizer, or set model.share=False.')
    if widths[0] != widths[1]:
        raise ValueError(f'model.share=True needs embeddings of one width, but those of sources are {widths[0]} wide and those '
                         f'of targets {widths[1]}; make them equal, or set model.share=False.')
    return (table(vocab, 1, 'tokens'),) * 2
