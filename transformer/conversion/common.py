"""Rows and fields that several families share."""

import dataclasses
import re
from functools import partial
from typing import Any

import numpy as np

from transformer.attention.positions.absolute import Learned
from transformer.conversion.fields import Fields, head
from transformer.conversion.tables import Family, Row
from transformer.layers.activations import Gelu, GeluTanh, LeakyRelu, QuickGelu, Relu, Silu
from transformer.layers.heads import (
    Classes,
    Span,
)

ACTIVATIONS = {'gelu_new': GeluTanh(), 'gelu_pytorch_tanh': GeluTanh(), 'gelu_fast': GeluTanh(), 'gelu': Gelu(),
               'relu': Relu(), 'silu': Silu(), 'swish': Silu(), 'quick_gelu': QuickGelu(), 'leaky_relu': LeakyRelu(slope=0.01)}
STACKS = 'encoder.', 'decoder.'  # beginnings of the paths of fields of both stacks
TOKENS = {'inputs': ((1, 1), 'int32')}
PAIRS = TOKENS | {'decoder_inputs': ((1, 1), 'int32')}
ABSOLUTE = Fields(((), ('positions',)), lambda config: {'positions': Learned()},
                  lambda model: require_learned(model['positions'], 0))


def token_limits(model: Any) -> dict[str, int]:
    """The limits of a model of one stack with a table of positions."""
    return {'input_ids': model.vocab, 'attention_mask': 2, 'position_ids': model.length + model.stack.positions.offset}


def pair_limits(model: Any) -> dict[str, int]:
    """The limits of an encoder and a decoder."""
    return {'input_ids': model.source_vocab or model.vocab, 'attention_mask': 2, 'decoder_input_ids': model.vocab,
            'decoder_attention_mask': 2}


def require_learned(given: Any, offset: int) -> dict:
    """Returns {}. Raises ValueError for positions other than a learnt table with this offset."""
    if not isinstance(given, Learned) or (given.at, given.offset) != ('input', offset):
        raise ValueError(f'model.positions is {given!r}, which has no counterpart there; expected {Learned(offset=offset)!r}.')
    return {}


def dense(ours: str, theirs: str) -> tuple[Row, Row]:
    """The rows of a dense layer, whose matrix is transposed there."""
    return Row(f'{ours}/kernel', f'{theirs}.weight', 'D F -> F D'), Row(f'{ours}/bias', f'{theirs}.bias')


def norm(ours: str, theirs: str) -> tuple[Row, Row]:
    """The rows of a layer norm."""
    return Row(f'{ours}/scale', f'{theirs}.weight'), Row(f'{ours}/bias', f'{theirs}.bias')


def attention(ours: str, theirs: str, query: str, key: str, value: str, output: str) -> tuple[Row, ...]:
    """The rows of an attention with separate matrices for queries, keys and values."""
    return (
        *(row for name, their in (('query', query), ('key', key), ('value', value)) for row in (
            Row(f'{ours}/{name}/kernel', f'{theirs}.{their}.weight', 'D N H -> (N H) D'),
            Row(f'{ours}/{name}/bias', f'{theirs}.{their}.bias', 'N H -> (N H)'))),
        Row(f'{ours}/output/kernel', f'{theirs}.{output}.weight', 'N H D -> D (N H)'),
        Row(f'{ours}/output/bias', f'{theirs}.{output}.bias'))


def with_head(family: Family, architecture: str, use: str, *rows: Row, fields: tuple = (), head: Any = None,
              **changes: Any) -> Family:
    """The family with another head: `rows` are those of the head, `fields` its fields, or `head` its fixed value."""
    implied = dict(family.implied) | ({} if head is None else {'head': head})
    return dataclasses.replace(family, architecture=architecture, use=use, rows=(*family.rows, *rows), implied=implied,
                               fields=(*family.fields, *fields), **changes)


def bare(family: Family) -> Family:
    """The family for files of the model without a head, whose weight names have no prefix."""
    rows = tuple(dataclasses.replace(row, theirs=row.theirs.removeprefix(family.prefix)) for row in family.rows)
    renamed = *family.renamed, (f'^{re.escape(family.prefix)}', '')
    return dataclasses.replace(family, prefix='', rows=rows, renamed=renamed)


def prefixed(family: Family, prefix: str) -> Family:
    """The family for files in which the names of all weights of the body have a prefix."""
    rows = tuple(dataclasses.replace(row, theirs=prefix + row.theirs) for row in family.rows)
    copies = {prefix + copy: prefix + of for copy, of in family.copies.items()}
    return dataclasses.replace(family, prefix=prefix, rows=rows, copies=copies)


def _read_again(model, inputs, start):
    """Adds decoder inputs, where absent, as for a head that is no language model: the source shifted right, after `start`."""
    if 'decoder_inputs' in inputs:
        return inputs
    ids = np.asarray(inputs['inputs'])
    more = {'decoder_inputs': np.concatenate([np.full_like(ids[:, :1], start), ids[:, :-1]], 1)}
    return inputs | more | ({'decoder_segments': inputs['segments']} if 'segments' in inputs else {})


def classes_of_pairs(family: Family, architecture: str) -> Family:
    """Classes of texts by an encoder and a decoder that both read the text; the last hidden state is classified."""
    return with_head(family, architecture, 'classes', *dense('pooler', 'classification_head.dense'),
                     *dense('classes', 'classification_head.out_proj'), derived=_read_again,
                     fields=(head(partial(Classes, at='last', twice=True), default=0.0, of='decoder.dropout'),))


def spans_of_pairs(family: Family, architecture: str) -> Family:
    """Spans of answers by an encoder and a decoder that both read the text."""
    return with_head(family, architecture, 'spans', *dense('span', 'qa_outputs'), head=Span(), derived=_read_again)
