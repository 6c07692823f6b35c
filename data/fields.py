"""Checks of config fields: call expressions such as 'SentencePiece(vocab=4096)', small sets of values, ranges."""

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def call(expression: str, known: Mapping[str, Callable], field: str) -> tuple[str, dict[str, Any]]:
    """Reads one 'Name(key=constant, ...)' into (name, keywords), checked against the signature of `known[name]`.

    Raises ValueError, naming the config field, for an unknown name or keyword and for anything that is not a call
    with constant keywords.
    """
    try:
        node = ast.parse(expression.strip(), mode='eval').body
    except SyntaxError:
        node = None
    choices = ', '.join(f'{name}{_signature(part)}' for name, part in known.items())
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args):
        raise ValueError(f'{field}={expression!r} is not a call such as Name(key=value); it takes {choices}.')
    if node.func.id not in known:
        raise ValueError(f'{field}={expression!r} names no known part; it takes {choices}.')
    keywords = {}
    allowed = inspect.signature(known[node.func.id]).parameters
    for keyword in node.keywords:
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError:
            value = None
        if keyword.arg not in allowed or not isinstance(value, type(allowed[keyword.arg].default)):
            raise ValueError(f'{field}={expression!r} does not fit its signature; it takes {choices}.')
        keywords[keyword.arg] = value
    return node.func.id, keywords


def positive(**fields: int) -> None:
    """Raises ValueError for the first field below its least value: 0 for workers, 1 for all others."""
    for name, value in fields.items():
        least = 0 if name == 'workers' else 1
        if value < least:
            raise ValueError(f'data.{name}={value} is out of range; it must be {least} or more.')


def one_of(field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError if a field with a small set of values holds another one."""
    if value not in choices:
        raise ValueError(f'data.{field}={value!r} is not known; it takes {", ".join(map(repr, choices))}.')


def _signature(part: Callable) -> str:
    return '(' + ', '.join(f'{p.name}={p.default!r}' for p in inspect.signature(part).parameters.values()) + ')'
