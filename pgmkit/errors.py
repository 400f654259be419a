"""The errors and warnings of pgmkit, and errors of other packages without their messages.

Each error is also a builtin error that callers may already catch. pandas, polars, pyarrow, DuckDB,
Spark and other packages may quote a value in an error, such as one that cannot be converted to a
number, and numpy names the number of rows that it has no memory for. Every function that reads
private records is called through `without_quotes`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_UNSAID: ContextVar[tuple[type[Warning], ...]] = ContextVar("unsaid", default=())


class PgmkitError(Exception):
    """Base class of pgmkit's errors. A file that is missing, or that cannot be written, raises
    OSError instead, as `open` does.
    """


class InvalidInput(PgmkitError, ValueError):
    """An argument is wrong; the message names it, what is allowed and the remedy."""


class ModelTooLarge(PgmkitError, MemoryError):
    """A table or clique would not fit; the message names it, its size, the limit and the remedy."""


class NotMeasured(InvalidInput):
    """No measured table determines the error of this answer; the message says which answers have
    error bars.
    """


class TotalUndetermined(InvalidInput):
    """No measurement determines the total number of records."""


class NumericalFailure(PgmkitError, ArithmeticError):
    """A computation did not reach its tolerance, contradicts itself or a second computation, or
    produced a value that is impossible (not finite, for example).
    """


class EngineFailed(PgmkitError, RuntimeError):
    """The package that holds or reads the records (Spark, Dask, DuckDB, polars, pyarrow) failed.
    Its message is left out, since it may quote a private value.
    """


class TooSlow(PgmkitError, TimeoutError):
    """The work takes longer than the given time, or would; no partial result is returned."""


class NotCertified(UserWarning):
    """The search for a model ended while its loss may still be above the optimum by more than a
    noise unit (the standard deviation of the loss at the true marginals).
    """


class Contradictory(UserWarning):
    """Measurements are farther from every distribution than their noise explains: some value or
    stddev, the total or a structural zero must be wrong.
    """


class FromRecords(UserWarning):
    """A region model counted an answer in synthetic records, since none of its tables holds all
    attributes of the question; or it drew records that are farther from one of its tables than the
    table's noise explains.
    """


@contextmanager
def without(*kinds: type[Warning]) -> Iterator[None]:
    """Leave out warnings of these kinds that the block gives by `warn`. This holds for one thread;
    Python's filters are those of the process, and stay changed if two threads change them at once.
    """
    token = _UNSAID.set((*_UNSAID.get(), *kinds))
    try:
        yield
    finally:
        _UNSAID.reset(token)


def warn(message: str, kind: type[Warning], stacklevel: int) -> None:
    """Warn as `warnings.warn` does, unless `without` leaves out warnings of this kind."""
    if not issubclass(kind, _UNSAID.get()):
        warnings.warn(message, kind, stacklevel=stacklevel + 1)


@contextmanager
def naming(place: str, kind: type[PgmkitError] = InvalidInput) -> Iterator[None]:
    """Put `place`, such as "column 'age'", before the message of an error of this kind that the
    block raises.
    """
    try:
        yield
    except kind as error:
        raise type(error)(f"{place}: {error}") from None


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return a clause for messages about an unknown name: the known name whose spelling is closest.

    Upper and lower case count as the same. The clause is empty if no known name is close, or if
    `name` is not a string. Known names that are no strings, as data frames have, are left out.

    >>> did_you_mean("Wages", ["age", "wage"])
    " (did you mean 'wage'?)"
    >>> did_you_mean("income", ["age", "wage"])
    ''
    """
    from difflib import get_close_matches  # only a message needs it

    text = name if isinstance(name, str) else ""
    spelt = {each.casefold(): each for each in known if isinstance(each, str) and each != text}
    near = get_close_matches(text.casefold(), spelt, 1)
    return f" (did you mean {spelt[near[0]]!r}?)" if near else ""


def check_known(names: Iterable[object], known: Iterable[object], said: str, they: str) -> None:
    """Raise InvalidInput unless each of `names` is a string among `known`.

    `said`: the message before the wrong name. `they`: the words before the list of known names.

    >>> check_known(["wages"], ["age", "wage"], "there is no column", "columns are")
    Traceback (most recent call last):
    pgmkit.errors.InvalidInput: there is no column 'wages' (did you mean 'wage'?); columns are ...
    """
    kept = dict.fromkeys(known)
    for name in names:
        if not isinstance(name, str) or name not in kept:
            listed = ", ".join(map(str, kept))
            raise InvalidInput(f"{said} {name!r}{did_you_mean(name, kept)}; {they} {listed}")


def installing(extra: str) -> str:
    """Return the command that installs an extra of pgmkit, for messages. It needs a checkout, since
    pgmkit is not on PyPI.

    >>> installing("files")
    "pip install '.[files]' in a checkout of pgmkit"
    """
    return f"pip install '.[{extra}]' in a checkout of pgmkit"


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
