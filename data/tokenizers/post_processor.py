"""Reads and writes the post_processor of a tokenizer.json, which adds special tokens around one text and around two.

    read(contents) -> ([(2, 0), ('a', 0), (3, 0)], [(2, 0), ('a', 0), (3, 0), ('b', 1), (3, 1)])

is BERT's [CLS] a [SEP] and [CLS] a [SEP] b [SEP]: ids of tokens and texts, each with its type.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Piece = tuple[int | str, int]  # the id of a token, or 'a' or 'b' for a text; its type


def read(contents: bytes) -> tuple[list[Piece], list[Piece]] | None:
    """The pieces of one text and of two with their special tokens; None if the file does not define them."""
    return _pieces(json.loads(contents).get('post_processor'))


def _pieces(processor: Mapping[str, Any] | None):
    match processor:
        case {'type': 'Sequence', 'processors': parts}:
            return next(filter(None, map(_pieces, reversed(parts))), None)
        case {'type': 'TemplateProcessing', 'single': single, 'pair': pair, 'special_tokens': special}:
            return _of_template(single, special), _of_template(pair, special)
        case {'type': 'BertProcessing', 'cls': [_, begin], 'sep': [_, end]}:
            single = [(begin, 0), ('a', 0), (end, 0)]
            return single, [*single, ('b', 1), (end, 1)]
        case {'type': 'RobertaProcessing', 'cls': [_, begin], 'sep': [_, end]}:
            single = [(begin, 0), ('a', 0), (end, 0)]
            return single, [*single, (end, 0), ('b', 0), (end, 0)]
    return None


def _of_template(template, special):
    pieces = []
    for part in template:
        (kind, given), = part.items()
        ids = [given['id'].lower()] if kind == 'Sequence' else special[given['id']]['ids']
        pieces += [(one, given['type_id']) for one in ids]
    return pieces


def written(contents: bytes, single: Sequence[Piece], pair: Sequence[Piece], signs: Mapping[int, str]) -> bytes:
    """The tokenizer.json with a post_processor that makes these pieces; `signs` are the tokens of the ids."""
    whole = json.loads(contents)
    parts = [part for one in _parts(whole.get('post_processor')) for part in _without_tokens(one)]
    special = {signs[one]: {'id': signs[one], 'ids': [one], 'tokens': [signs[one]]}
               for one, _ in (*single, *pair) if isinstance(one, int)}
    if special:
        parts.append({'type': 'TemplateProcessing', 'single': _template(single, signs), 'pair': _template(pair, signs),
                      'special_tokens': special})
    whole['post_processor'] = {'type': 'Sequence', 'processors': parts} if len(parts) > 1 else parts[0] if parts else None
    return json.dumps(whole, ensure_ascii=False).encode()


def _parts(processor):
    match processor:
        case None:
            return []
        case {'type': 'Sequence', 'processors': parts}:
            return [one for part in parts for one in _parts(part)]
    return [processor]


def _without_tokens(processor):
    """A processor without the tokens that it adds, in a list; [] if it does nothing else."""
    match processor['type']:
        case 'TemplateProcessing' | 'BertProcessing':
            return []
        case 'RobertaProcessing':  # which also handles the space before a word
            kept = {name: processor[name] for name in ('add_prefix_space', 'trim_offsets')}
            return [{'type': 'ByteLevel', **kept, 'use_regex': True}]
    return [processor]


def _template(pieces, signs):
    return [{'Sequence': {'id': one.upper(), 'type_id': kind}} if isinstance(one, str) else
            {'SpecialToken': {'id': signs[one], 'type_id': kind}} for one, kind in pieces]
