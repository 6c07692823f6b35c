"""Checks of config fields: call expressions such as 'SentencePiece(vocab=4096)', small sets of values, ranges."""

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
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
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args) or None in [
        keyword.arg for keyword in node.keywords
    ]:
        raise ValueError(f'{field}={expression!r} is not a call such as Name(key=value); it takes {choices}.')
    name, keywords = node.func.id, {}
    if name not in known:
        raise ValueError(f'{field}={expression!r}: there is no {name!r}{_hint(name, known)}; it takes {choices}.')
    allowed = inspect.signature(known[name]).parameters
    for keyword in node.keywords:
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError:
            value = None
        if keyword.arg not in allowed:
            hint = _hint(keyword.arg, allowed)
            raise ValueError(f'{field}={expression!r}: {name} has no keyword {keyword.arg!r}{hint}; it takes {choices}.')
        kind = type(allowed[keyword.arg].default)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ValueError(
                f'{field}={expression!r}: {keyword.arg} must be of type {kind.__name__}, not '
                f'{ast.unparse(keyword.value)}; it takes {choices}.'
            )
        keywords[keyword.arg] = value
    return name, keywords


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


def _hint(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), 1)
    return f' (did you mean {close[0]!r}?)' if close else ''


def _signature(part: Callable) -> str:
    return '(' + ', '.join(f'{p.name}={p.default!r}' for p in inspect.signature(part).parameters.values()) + ')'
