"""Which cases of a parameterized test are left to `make test-all`."""

import pytest


def slow_but(test, *fast):
    """A decorator of a test class: marks all named cases of `test` as slow but these, which prove it in `make test`."""
    def marked(cls):
        cases = [name for name in dir(cls) if name.startswith(f'{test}_')]
        kept = [f'{test}_{case}' for case in fast]
        if missing := {*kept} - {*cases}:
            raise ValueError(f'{cls.__name__} has no {", ".join(sorted(missing))}.')
        for name in {*cases} - {*kept}:
            setattr(cls, name, pytest.mark.slow(getattr(cls, name)))
        return cls
    return marked
