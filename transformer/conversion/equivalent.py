"""Models that compute the same and have a form in transformers: a bias that is absent here is zero there, and a table of sines
is one that could have been learnt.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.attention.positions.absolute import sinusoid
from transformer.conversion.tables import at, fields_of

_SINES = 'Sinusoidal('


def rewritten(config: Any, misfits: Callable[[Any], Sequence]) -> tuple[Any, list[str]]:
    """(the group `model` of a config, a ConfigDict, changed so that it has the fewest misfits and computes the same; what was
    changed).

    misfits: the group -> what a family cannot express of it. The group itself stays as it is.
    """
    best, said = config, []
    fewest = len(misfits(best))
    for names, change, what in _changes(best):
        tried = best.copy_and_resolve_references().unlock()  # groups too
        for name in names:
            group = tried[name] if name else tried
            group.update(change(group))
        if fewest and len(found := misfits(tried)) < fewest:
            best, fewest, said = tried, len(found), list(dict.fromkeys([*said, what]))
    return best, said


def _changes(config: Any) -> Iterator[tuple[tuple[str, ...], Callable, str]]:
    """(names of stacks, '' for the model itself; group -> {field: new value}, what it does)."""
    stacks = tuple(name for name in ('encoder', 'decoder') if hasattr(config.get(name), 'items'))
    for names in ((stacks, *((name,) for name in stacks)) if stacks else ()) + (('',),):
        groups = [config[name] if name else config for name in names]
        for field in dict.fromkeys(field for group in groups for field in group):
            values = [group.get(field) for group in groups]
            if field.endswith('_bias') and False in values:
                yield names, lambda group, field=field: {field: True}, 'biases that it lacks are zeros'
            if any(isinstance(value, str) and 'bias=False' in value for value in values):
                yield (names, lambda group, field=field: {field: group[field].replace('bias=False', 'bias=True')},
                       'biases that it lacks are zeros')
        if any(str(group.get('positions')).startswith(_SINES) for group in groups):
            for table in ('Learned()', 'Learned(offset=2)'):
                yield names, lambda group, table=table: {'positions': table}, 'its positions are a table of sines'


def filled(params: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]], before: Any,
           after: Any) -> dict[str, np.ndarray]:
    """{name: array} of the shapes of the model `after`: the parameters of the model `before`, zeros for biases and sines for
    tables of positions. Raises ValueError for anything else that is missing."""
    dtype = next(iter(params.values())).dtype
    found = {}
    for name, shape in shapes.items():
        if name in params:
            found[name] = params[name]
        elif name.endswith('bias'):
            found[name] = np.zeros(shape, dtype)
        elif name.endswith('positions/embedding'):
            path = name.removesuffix('/embedding').replace('/', '.')
            sines, table = at(fields_of(before), path), at(fields_of(after), path)
            rows = sines.scale * sinusoid(np.arange(shape[0] - table.offset), shape[1])
            found[name] = np.concatenate([np.zeros((table.offset, shape[1])), rows]).astype(dtype)
        else:
            raise ValueError(f'The run has no parameter {name}, which the model there needs; train with that part.')
    return found
