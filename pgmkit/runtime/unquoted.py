"""Errors of other packages that read private records, without their messages.

pandas, polars, pyarrow, DuckDB, Spark and other packages may quote a value in an error, such as one
that cannot be converted to a number, and numpy names the number of rows that it has no memory for.
Every function that reads private records is called through here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from pgmkit.errors import EngineFailed, PgmkitError

P = ParamSpec("P")
R = TypeVar("R")


def unquoted(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls the given one through `without_quotes`. For arguments that do
    not fit the parameters it raises Python's own TypeError, and calls nothing.
    """
    parameters = signature(function)

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        parameters.bind(*args, **kwargs)  # Python's own TypeError names a wrong argument
        return without_quotes("reading the records failed", function, *args, **kwargs)

    return guarded


def without_quotes(what: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call the function and return its result. An error of another package is replaced by
    EngineFailed, whose message has `what` (a description of the call) and the type of the error,
    and to which no other error is chained.

    Errors of pgmkit, which quote no private value, are raised without the errors that caused them.
    FileNotFoundError, PermissionError and IsADirectoryError are raised as they are, as is what ends
    a program (KeyboardInterrupt, for example).

    >>> without_quotes("reading the column 'age' failed", int, "secret")
    Traceback (most recent call last):
    pgmkit.errors.EngineFailed: reading the column 'age' failed: ValueError. Its message is left ...
    """
    failed: BaseException
    try:
        return function(*args, **kwargs)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        failed = error
    except PgmkitError as error:
        error.__cause__ = error.__context__ = None
        failed = error
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of polars is no Exception
        failed = EngineFailed(
            f"{what}: {type(error).__name__}. Its message is left out, because it may quote "
            "private values; to see it, read the same data with that package alone"
        )
    # The caught error becomes the context of one raised in a clause above, but not of one raised
    # here.
    raise failed
