"""The embeddings of a model with sources and targets, and which of them are one table."""

from transformer.layers import Embedding

SHARES = ('all', 'inputs', 'output', 'none')
TIED = ('all', 'output')  # where the output layer is the table of the targets


def pair_embeddings(model, width, numerics):
    """(of sources, of targets): modules of the caller, named 'tokens' if they are one, else 'source_tokens' and
    'target_tokens'.

    Args:
      model: has `share`, `vocab`, `source_vocab` (0: one vocabulary for both), `initial` and `layers`. Its `share` is 'all', if
        sources, targets and output layer have one table; 'inputs', if sources and targets do; 'output', if targets and output
        layer do; or 'none'.
    """
    if model.share not in SHARES:
        raise ValueError(f'model.share is {model.share!r}; expected one of {", ".join(SHARES)}.')
    if model.share in ('all', 'inputs') and model.source_vocab:
        raise ValueError(f'model.share={model.share!r} needs one vocabulary for sources and targets, but the sources have one '
                         f"of {model.source_vocab} of their own; leave out data.target_tokenizer, or set model.share='output'.")
    table = lambda rows, name: Embedding(rows, width, kernel_init=model.initial.embedding(model.layers), numerics=numerics,
                                         name=name)
    if model.share in ('all', 'inputs'):
        return (table(model.vocab, 'tokens'),) * 2
    return table(model.source_vocab or model.vocab, 'source_tokens'), table(model.vocab, 'target_tokens')
