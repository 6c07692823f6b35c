"""Which heads pruning left (Michel et al. 2019; Voita et al. 2019)."""

from transformer.attention.positions import Positions


def kept_heads(model):
    """For each layer of a model, the numbers of the heads in its field `kept`, or None: all of them."""
    kept, layers, heads = model.kept, model.layers, model.heads
    if kept == ():
        return [None] * layers
    rows = [row for row in kept if isinstance(row, tuple) and all(type(h) is int and 0 <= h < heads for h in row)
            and list(row) == sorted(set(row))]
    if not len(kept) == len(rows) == layers:
        raise ValueError(f'model.kept is {kept!r}; expected for each of {layers} layers the numbers of the heads it keeps, in '
                         f'order and from 0 to {heads - 1}, such as ((0,), ()) for two layers, or () for all heads of all.')
    period = model.mask.period
    # Scanned layers are one program: what they share cannot depend on which heads they are.
    told_apart = type(model.positions).bias is not Positions.bias
    same = (lambda row: row) if told_apart else len
    if model.scan and any(same(row) != same(rows[i % period]) for i, row in enumerate(rows)):
        what = f'the same heads, as {model.positions} tells them apart,' if told_apart else 'as many heads'
        raise ValueError(f'model.scan: layers with the heads {kept!r} cannot be scanned; keep {what} in every layer, or set '
                         'scan=False.')
    return rows
