"""Tests that go through a list of values as one case."""

import functools
import inspect

import pytest


def each(names, values):
    """`pytest.mark.parametrize` as one case: it ends at the first values that fail, and names them.

    For checks that take milliseconds. Fixtures are made once for all values.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    def decorate(test):
        signature = inspect.signature(test)
        rest = [x for name, x in signature.parameters.items() if name not in wanted]

        @functools.wraps(test)
        def run(*arguments, **fixtures):
            for value in values:
                given = dict(zip(wanted, [value] if len(wanted) == 1 else value, strict=True))
                try:
                    test(*arguments, **fixtures, **given)
                except (Exception, pytest.fail.Exception) as error:
                    raise AssertionError(f"{test.__name__} fails with {given}") from error

        run.__signature__ = signature.replace(parameters=rest)
        return run

    return decorate
