"""Checks of config fields: small sets of values, ranges, columns of tables; numbers of things for the log."""

import re
from collections.abc import Sequence


def positive(**fields: int) -> None:
    """Raises ValueError for the first field below its least value: 0 for workers, 1 for all others."""
    for name, value in fields.items():
        least = 0 if name == 'workers' else 1
        if value < least:
            raise ValueError(f'data.{name}={value} is out of range; it must be {least} or more.')


def counted(count: int, what: str) -> str:
    """'1 document', '2 documents', for the log."""
    return f'{count:,} {what}{"s" * (count != 1)}'


def one_of(field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError if the value of a field is not one of its choices."""
    if value not in choices:
        raise ValueError(f'data.{field}={value!r} is not known; it takes {", ".join(map(repr, choices))}.')


def columns(field: str, value: str | Sequence[int | str]) -> tuple[str, ...]:
    """Columns of a table, as names or numbers from 1; a string may have several, separated by commas.

    Raises ValueError for an empty name or a number below 1.
    """
    given = (value,) if isinstance(value, str) else value
    found = tuple(part.strip() for one in given for part in str(one).split(','))
    if any(not one or re.fullmatch(r'0+|-\d+', one) for one in found):
        raise ValueError(f'data.{field}={",".join(found)} names no column; write names of the header, or numbers from 1, '
                         'such as 1,2.')
    return found
