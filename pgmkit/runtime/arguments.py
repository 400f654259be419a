"""Functions that read arguments of unknown type and refuse wrong ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf, nan
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pgmkit.errors import InvalidInput, ModelTooLarge
from pgmkit.runtime.deferred import is_tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

K = TypeVar("K")
T = TypeVar("T")

Rng: TypeAlias = "int | np.random.Generator | None"
"""A seed, a generator to draw from, or None for a fresh one."""


def number(value: Any) -> float:
    """Return a real number as a float. Return NaN, which is in no range, for anything else, such as
    a text, a truth value, a complex number, a Decimal or an integer above 1.8e308.

    >>> number(3), number("3"), number(10**400), number(True)
    (3.0, nan, nan, nan)
    """
    kind = str(getattr(value, "dtype", ""))
    if isinstance(value, bool | str | bytes) or "bool" in kind or "complex" in kind:
        return nan
    try:
        return float(value + 0.0)  # which fails for a Decimal, as later sums would
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return nan


def check_whole(value: int, name: str, least: int, most: float = inf, of: str = "") -> None:
    """Raise InvalidInput unless ``value``, that of the argument ``name``, is a whole number from
    ``least`` to ``most``. The message says with ``of`` what the number counts: " of bytes", for
    example.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value <= most:
        limits = f" from {least:,} to {most:,}" if most < inf else f", {least:,} or more"
        raise InvalidInput(f"{name} must be a whole number{of}{limits}, got {shown(value)}")


def check_seconds(max_seconds: float | None) -> None:
    """Raise InvalidInput unless the limit of time is None or a number above 0."""
    if max_seconds is not None and not number(max_seconds) > 0:
        raise InvalidInput(
            f"max_seconds must be a number above 0, or None for no limit, got {shown(max_seconds)}"
        )


def listed(values: Iterable[T], name: str, content: str) -> list[T]:
    """Return the values as a list, those of a torch tensor as Python's numbers. Raises InvalidInput
    if they are a text or cannot be iterated over; the message has the argument's ``name`` and
    ``content``, the name of the values that it must hold, such as "cliques".
    """
    try:
        if isinstance(values, str | bytes):
            raise TypeError
        # An array or tensor of no axes has __iter__, but raises here.
        tensor = type(values) not in (list, tuple) and is_tensor(values)
        each = iter(values.tolist() if tensor else values)  # type: ignore[attr-defined]
    except TypeError:
        raise InvalidInput(f"{name} must be a sequence of {content}, got {shown(values)}") from None
    return list(each)


def check_order(values: object, name: str) -> None:
    """Raise InvalidInput for a set, whose order changes from run to run; the message has the
    argument's ``name``.
    """
    if isinstance(values, set | frozenset):
        kind = type(values).__name__
        raise InvalidInput(f"{name} must be in an order, which a {kind} has not; write a tuple")


def in_order(values: Iterable[T], name: str, content: str) -> list[T]:
    """Return the values as ``listed`` does; raises InvalidInput for a set and a mapping too."""
    check_order(values, name)
    if isinstance(values, Mapping):
        raise InvalidInput(f"{name} must be a sequence of {content}, got a mapping; write a list")
    return listed(values, name, content)


def instance(value: T, kind: type, name: str) -> T:
    """Return the value. Raises InvalidInput unless it is an instance of the class ``kind``; the
    message has the argument's ``name`` and the value's type, but not the value.
    """
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    return value


def one_of(value: T, known: Iterable[T], name: str) -> T:
    """Return the value. Raises InvalidInput, with the argument's name and the known values, unless
    it is one of them.
    """
    kept = list(known)
    if not any(type(value) is type(each) and value == each for each in kept):
        raise InvalidInput(
            f"{name} must be one of {', '.join(map(repr, kept))}; got {shown(value)}"
        )
    return value


def shown(value: object) -> str:
    """Return a text that shows a value: an int, float, bool, text or None as Python code, up to 60
    characters. Of any other value, which may hold records, and of an integer that has too many
    digits for a text, it shows only the name of the type.
    """
    with suppress(ValueError):
        if isinstance(value, str | int | float | None):
            return f"{value!r:.60}"
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def mapped(values: Mapping[K, T], name: str, content: str) -> Mapping[K, T]:
    """Return the values. Raises InvalidInput if they are not a mapping; the message has the
    argument's ``name`` and ``content``, what it must map to what: "attributes to codes", say.
    """
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{name} must be a mapping from {content}, got {shown(values)}")
    return values


def any_array(values: object, name: str) -> NDArray[Any]:
    """Return the values as an array. Raises InvalidInput, with ``name`` in the message, for None
    and for lists of unequal lengths, which are no array, and for masked entries, whose stored
    numbers mean nothing; ModelTooLarge if there is no memory for the array.
    """
    import numpy as np

    found: NDArray[Any] | None = None
    full = False
    try:
        found = None if values is None else np.asarray(values)
    except Exception as error:
        # Nothing is raised here: numpy's error, which would be chained to it, could quote a value,
        # or state the number of values, which may be private.
        full = isinstance(error, MemoryError)
    if full:
        raise ModelTooLarge(f"{name} takes more memory than is left; give fewer values")
    if found is None:
        raise InvalidInput(
            f"{name} must be an array of numbers (a column: of its values), got {shown(values)}, "
            "which is no array; give lists of one length"
        )
    if np.ma.is_masked(values):
        raise InvalidInput(f"{name} must be an array without masked entries; fill or drop them")
    return found


def check_unlabelled(values: object, name: str) -> None:
    """Raise InvalidInput, with ``name`` in the message, for numbers of a table's cells with labels
    of their own: a mapping, or a pandas object whose labels are not 0, 1, ... in order. Their order
    need not be that of the codes (`value_counts` has the most frequent value first).
    """
    labels = getattr(values, "axes", ())  # those of a pandas object
    if isinstance(values, Mapping) or any([*each] != [*range(len(each))] for each in labels):
        raise InvalidInput(
            f"{name} must be an array of numbers in the order of the codes, got "
            f"{type(values).__name__} with labels of its own; order it, and pass the numbers alone "
            "(of a pandas object: .to_numpy())"
        )


def float_array(values: object, name: str) -> NDArray[np.float64]:
    """Return a copy of the values as an array of float64. In an array of objects, None becomes NaN
    and the text of a number that number. Raises InvalidInput, with ``name`` in the message, for
    anything else that is not an array of real numbers.
    """
    import numpy as np

    found = any_array(values, name)
    if found.dtype.kind not in "biufO":
        raise InvalidInput(f"{name} must be an array of numbers, got type {found.dtype}")
    with suppress(TypeError, ValueError, OverflowError):  # whose text may quote one of the values
        return np.array(found, dtype=np.float64)
    raise InvalidInput(f"{name} must be an array of numbers; some entry is no number")


def generator(rng: Rng, name: str = "rng") -> np.random.Generator:
    """Return a numpy Generator: `rng` itself if it is one, otherwise a new one from the seed `rng`,
    or from the system's randomness if it is None. `name` is the argument's name, for the message.

    Raises InvalidInput unless `rng` is a whole number of at least 0, a numpy Generator or None.

    >>> import numpy as np
    >>> int(generator(0).integers(10)) == int(generator(np.random.default_rng(0)).integers(10))
    True
    """
    import numpy as np

    if rng is not None and not isinstance(rng, np.random.Generator):
        check_whole(rng, f"{name}, unless a numpy.random.Generator or None,", 0)
    return np.random.default_rng(rng)
