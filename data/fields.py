"""Checks of config fields: small sets of values, ranges."""


def positive(**fields: int) -> None:
    """Raises ValueError for the first field below its least value: 0 for workers, 1 for all others."""
    for name, value in fields.items():
        least = 0 if name == 'workers' else 1
        if value < least:
            raise ValueError(f'data.{name}={value} is out of range; it must be {least} or more.')


def one_of(field: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError if the value of a field is not one of its choices."""
    if value not in choices:
        raise ValueError(f'data.{field}={value!r} is not known; it takes {", ".join(map(repr, choices))}.')
