"""Forms of a model: another composition of our parts that computes the same, from parameters that follow from its own.

A family of transformers has biases, a learnt table of positions or as many keys as queries where a run may have none of them.
A bias of zeros, a table that holds the sinusoids and a key for each query give the same outputs.
"""

import abc
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer.attention.positions.absolute import Learned, Sinusoidal, Sinusoidal2d
from transformer.attention.positions.base import NoPositions
from transformer.attention.pruned import kept_heads
from transformer.conversion.fields import changed, fields_of
from transformer.layers.heads import NextWords
from transformer.layers.norm import LayerNorm
from transformer.layers.stack import Stack


def with_fields(model: Any, changes: Mapping) -> Any:
    """The model with other values of its fields, {path: value} as in `fields_of`."""
    found = changed(fields_of(model), changes)
    values = {field.name: getattr(model, field.name) for field in dataclasses.fields(model) if field.init}
    for field in dataclasses.fields(model):
        if field.metadata.get('inline'):
            part = values[field.name]
            values[field.name] = dataclasses.replace(part, **{own.name: found[own.name] for own in dataclasses.fields(part)})
        elif field.name in found:
            values[field.name] = found[field.name]
    return type(model)(**values)


def table_width(model: Any, stack: Stack) -> int:
    """The width of the tables at the input of a stack."""
    return getattr(model, 'embedding_width', 0) or stack.width


def stack_of(model: Any, front: str) -> Stack:
    """The stack whose fields have paths that begin with `front`: '' or 'encoder.', ..."""
    return getattr(model, front.removesuffix('.') or 'stack')


class Form(abc.ABC):
    """Base of the forms."""

    @abc.abstractmethod
    def changes(self, model: Any) -> dict:
        """{path: value} of the fields in which the model of this form differs from `model`; {} if there are none."""

    @abc.abstractmethod
    def params(self, params: Mapping, before: Any, after: Any, image: tuple) -> dict:
        """{name: array} of the parameters of the model `after` in this form, from those of the model `before`.

        image: (height, width, channels) of the images, () for text."""

    @property
    @abc.abstractmethod
    def said(self) -> str:
        """What has been added, for a report."""


@dataclasses.dataclass(frozen=True)
class Biases(Form):
    """Biases, of zeros where there were none, in every layer norm and in the dense layers of every block.

    Attributes:
      fronts: the beginnings of the paths of its stacks.
      projections: whether queries, keys and values get them too.
    """
    fronts: tuple = ('',)
    projections: bool = True
    said = 'zeros for biases'

    def changes(self, model: Any) -> dict:
        found = {}
        for front in self.fronts:
            stack = stack_of(model, front)
            found |= {f'{front}{name}': True for name in ('projection_bias',) * self.projections + ('output_bias',)
                      if not getattr(stack, name)}
            if not getattr(stack.feed_forward, 'bias', True):
                found[f'{front}feed_forward.bias'] = True
            if isinstance(stack.norm, LayerNorm) and not stack.norm.bias:
                found[f'{front}norm.bias'] = True
        return found | ({'patch_bias': True} if not getattr(model, 'patch_bias', True) else {})

    def params(self, params: Mapping, before: Any, after: Any, image: tuple) -> dict:
        found = dict(params)
        for name, x in params.items():
            layer, _, kind = name.rpartition('/')
            norm = layer.endswith('norm') and kind == 'scale'  # which the numbers of LayerScale are called too
            dense = ('block_' in name or layer == 'patches') and kind == 'kernel'
            projection = re.search(r'attention/(query|key|value)$', layer) is not None
            if norm or (dense and (self.projections or not projection)):
                found.setdefault(f'{layer}/bias', np.zeros(x.shape[-2:] if projection else x.shape[-1:], x.dtype))
        return found


@dataclasses.dataclass(frozen=True)
class Table(Form):
    """A learnt table of positions at the input, `Learned(offset=offset)`, instead of sinusoids, of a table with another offset,
    or of no positions.

    Attributes:
      lengths: (beginning of the paths of a stack, field with the length of its longest row) for each stack; in a model of
        images the length follows from `image`.
      equal: whether all tables have as many rows as the longest one.
    """
    lengths: tuple = (('', 'length'),)
    offset: int = 0
    equal: bool = False
    said = 'positions as a table'

    def changes(self, model: Any) -> dict:
        found = {}
        for front, length in self.lengths:
            positions = stack_of(model, front).positions
            known = isinstance(positions, NoPositions) or (
                isinstance(positions, Learned | Sinusoidal | Sinusoidal2d) and positions.at == 'input')
            if known and (not isinstance(positions, Learned) or positions.offset != self.offset):
                found[f'{front}positions'] = Learned(offset=self.offset)
            if self.equal and getattr(model, length) != self._longest(model):
                found[length] = self._longest(model)
        return found

    def params(self, params: Mapping, before: Any, after: Any, image: tuple) -> dict:
        found = dict(params)
        for front, length in self.lengths:
            name = f'{front.replace(".", "/")}positions/embedding'
            stack, old = stack_of(before, front), stack_of(before, front).positions
            if isinstance(old, Learned):
                rows = params[name][old.offset:]
            else:
                grid = tuple(side // before.patch for side in image[:2]) if image else None
                extra = len(before.front) - fields_of(before).get('registers', 0) if grid else 0
                count = extra + grid[0] * grid[1] if grid else getattr(before, length)
                width = table_width(before, stack)
                sizes = stack.sizes(count, input_width=width, grid=grid, extra=extra)
                rows = np.asarray(old.at_input({}, jnp.zeros((count, width), _type_of(params)), jnp.arange(count), sizes))
            wanted = len(rows) if image else getattr(after, length)
            found[name] = np.pad(rows, ((self.offset, wanted - len(rows)), (0, 0)))
        return found

    def _longest(self, model):
        return max(getattr(model, length) for _, length in self.lengths)


@dataclasses.dataclass(frozen=True)
class Heads(Form):
    """As many keys and values as queries, where groups of queries share them; and pruned heads with an output of zero.

    Attributes:
      fronts: the beginnings of the paths of its stacks.
    """
    fronts: tuple = ('',)
    said = 'keys and values for every head'

    def changes(self, model: Any) -> dict:
        found = {}
        for front in self.fronts:
            stack = stack_of(model, front)
            usual = {'kept': (), 'cross_kept': ()}
            if stack.key_heads:
                usual['key_heads'] = 0
            if stack.head_width and stack.head_width * stack.heads == stack.width:
                usual['head_width'] = 0
            found |= {f'{front}{name}': value for name, value in usual.items() if getattr(stack, name) != value}
        return found

    def params(self, params: Mapping, before: Any, after: Any, image: tuple) -> dict:
        found = dict(params)
        for front in self.fronts:
            stack, start = stack_of(before, front), front.replace('.', '/')
            for branch, field in (('attention', 'kept'), ('cross_attention', 'cross_kept')):
                for i, kept in enumerate(kept_heads(stack, field)):
                    self._fill(found, f'{start}block_{i}/{branch}/', kept, stack)
        return found

    def _fill(self, found, layer, kept, stack):
        """Writes the parameters of one attention with all heads; `kept` are the heads that it has, None for all."""
        if kept is None:
            for name, x in [*found.items()]:
                if re.match(f'{layer}(key|value)/', name):
                    found[name] = np.repeat(x, stack.heads // x.shape[-2], x.ndim - 2)
            return
        sizes = stack.width, stack.heads, stack.each_head
        wanted = {f'{kind}/kernel': sizes for kind in ('query', 'key', 'value')} | {'output/kernel': (*sizes[1:], sizes[0])}
        if stack.projection_bias:
            wanted |= {f'{kind}/bias': sizes[1:] for kind in ('query', 'key', 'value')}
        for name, shape in wanted.items():
            whole, axis = np.zeros(shape, _type_of(found)), 0 if name == 'output/kernel' else len(shape) - 2
            if kept:  # nothing is stored of a layer without heads
                np.moveaxis(whole, axis, 0)[list(kept)] = np.moveaxis(found[layer + name], axis, 0)
            found[layer + name] = whole


@dataclasses.dataclass(frozen=True)
class Types(Form):
    """Two types of tokens, with embeddings of zeros, where there were none."""
    said = 'zeros for token types'

    def changes(self, model: Any) -> dict:
        return {} if model.types else {'types': 2}

    def params(self, params: Mapping, before: Any, after: Any, image: tuple) -> dict:
        return {**params, 'types/embedding': np.zeros((2, table_width(before, before.stack)), _type_of(params))}


@dataclasses.dataclass(frozen=True)
class AddedBias(Form):
    """A head for next words with `added`: the bias of a separate output layer, else zeros."""
    said = 'an output bias, of zeros where there was none'

    def changes(self, model: Any) -> dict:
        if type(model.head) is not NextWords or model.head.added:
            return {}
        return {'head': dataclasses.replace(model.head, bias=False, added=True)}

    def params(self, params: Mapping, before: Any, after: Any, image: tuple) -> dict:
        found = dict(params)
        zeros = np.zeros(before.vocab, _type_of(params))
        return found | {'added/bias': found.pop('output/bias', zeros)}


@dataclasses.dataclass(frozen=True)
class OwnTables(Form):
    """An embedding for sources and one for targets, where they share one but the output layer has a matrix of its own."""
    said = 'an embedding for sources and one for targets'

    def changes(self, model: Any) -> dict:
        return {'share': False} if model.share and not getattr(model.head, 'tied', True) else {}

    def params(self, params: Mapping, before: Any, after: Any, image: tuple) -> dict:
        found = dict(params)
        table = found.pop('tokens/embedding')
        return found | {'source_tokens/embedding': table, 'target_tokens/embedding': table}


def _type_of(params):
    return next(iter(params.values())).dtype
