"""The base of all columns: what every column has, such as its values and their codes.

A value has one code, or none (-1), which is an error for the caller. If a column declares
`outside`, every value has a code. The type of decoded values follows from the column alone, never
from the values that were encoded.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import any_array, one_of
from pgmkit.runtime.sizes import BLOCK_CELLS, CACHE_CELLS, CALL_CELLS
from pgmkit.runtime.typed import typed_class
from pgmkit.tables.values import dictionary, is_text, series_values, text_of

Values = NDArray[Any]
Codes = NDArray[np.int64]

BATCH_ROWS = CACHE_CELLS
"""The number of rows that are read, coded or made together: large enough that fixed costs of a
batch are small.
"""
MISSING = "(missing)"
OUTSIDE = -1
"""The code of a value that a column does not have."""
LARGEST = np.iinfo(np.int64).max // 2 + 1
"""The largest whole number accepted: positions, and sums with them, are int64."""
MOST_BINS = BLOCK_CELLS
"""The most bins of a column: the labels of more fill hundreds of megabytes."""
_DIGITS = np.finfo(np.float64).precision - round(math.log10(MOST_BINS))
"""The digits of a bin's width to which its ends are rounded; an end has up to six digits more."""


@typed_class
@dataclass(frozen=True)
class Column(ABC):
    """Base of all columns.

    Attributes:
        missing: None if a missing value (null, NaN, NaT, an empty text) counts as outside the
            column. Otherwise missing values have the column's last code, and so have the texts
            listed here, such as ("?",). A missing value is decoded as a null or, if decoded values
            are of type "text", as the first of these texts unless it is empty; CSV files have the
            first text whatever the type. True is the same as an empty list, False the same as None.
        outside: What becomes of a value that the column does not have. None makes it an error.
            Otherwise every value, also an undeclared missing one, has a code: that of "missing", or
            of one of the column's own labels, or, if it is "clip" and the column has bins, that of
            the nearest bin (a value of another kind counts as missing or, if the column declares no
            missing values, in the first bin).
        decode_as: The type of decoded values, one of "text", "category" (texts with the schema's
            list of labels, as in pandas and polars), "integer", "number", "boolean", "date",
            "datetime"; by default that of the column's own values.

    Raises InvalidInput for values of these three that are not as described here.
    """

    type: ClassVar[str]
    becomes: ClassVar[tuple[str, ...]]
    """The types that values of this column can be decoded as; the first is the default."""
    missing: Sequence[str] | None = field(default=None, kw_only=True)
    outside: str | None = field(default=None, kw_only=True)
    decode_as: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.missing, bool):  # as a schema file may have it
            object.__setattr__(self, "missing", () if self.missing else None)
        if self.missing is not None:
            listed = isinstance(self.missing, (list, tuple))
            if not listed or not all(isinstance(text, str) for text in self.missing):
                raise InvalidInput(
                    "missing must be a list of the texts that stand for a missing value, such as "
                    f"['?'], got {self.missing!r}; write missing=True where only null, NaN and "
                    "empty values are missing, and leave it out where none may be"
                )
            object.__setattr__(self, "missing", tuple(map(text_of, self.missing)))
        if self.decode_as is not None:
            one_of(self.decode_as, self.becomes, f"decode_as for this {self.type} column")

    def _check_outside(self, *others: str) -> None:
        """Raise InvalidInput if `outside` is neither None, nor a label of the column, nor one of
        `others`, nor "missing" for a column that declares missing values.
        """
        allowed = [*others, *(["missing"] if self.missing is not None else [])]
        known = [*allowed, *self.own_labels]
        if self.outside is None or (isinstance(self.outside, str) and self.outside in known):
            return
        raise InvalidInput(
            f"outside must be {', '.join(map(repr, allowed))}{' or ' if allowed else ''}a label of "
            f"the column (missing ones need `missing`); got {self.outside!r}"
        )

    @property
    @abstractmethod
    def own_labels(self) -> tuple[str, ...]:
        """A text for each code except that of missing values."""

    @abstractmethod
    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        """Return a value for each code, which `rng` draws where a code stands for several. The
        caller has taken out the codes of missing values, which is not checked here.
        """

    @abstractmethod
    def _codes(self, values: Any) -> Codes:
        """Return the codes of values; `_null_code` for missing ones, -1 for those without a
        code.
        """

    @property
    def default_outside(self) -> str:
        """The value of `outside` that `placed` declares if the column declares none."""
        return "missing" if self.missing is not None else self.own_labels[0]

    @property
    def resolved(self) -> bool:
        """True if the codes are known; False if they are still to be found in the data."""
        return True

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """A text for each code, for people to read."""
        return self.own_labels + (() if self.missing is None else (MISSING,))

    @cached_property
    def missing_texts(self) -> tuple[str, ...]:
        """The texts of missing values: those that are listed, and the label by which missing values
        are shown; none if the column declares no missing values.
        """
        return () if self.missing is None else (*self.missing, MISSING)

    @property
    def size(self) -> int:
        """The number of codes."""
        return len(self.labels)

    @property
    def kind(self) -> str:
        """The type of decoded values, one of `becomes`."""
        return self.decode_as or self.becomes[0]

    @property
    def nullable(self) -> bool:
        """True if decoded values can be null."""
        return self.missing is not None and self.missing_text is None

    @property
    def missing_text(self) -> str | None:
        """The text that stands for a missing value among decoded texts, or None if missing values
        are decoded as null.
        """
        return self.missing[0] or None if self.missing and self.kind == "text" else None

    def placed(self) -> Self:
        """Return the column with `outside` as declared or, if it is not, set to its default, so
        that every value has a code.
        """
        return self if self.outside is not None else replace(self, outside=self.default_outside)

    @property
    def place(self) -> str:
        """A description of what happens to a value that the column does not have."""
        if self.outside is None:
            return "refused"
        if self.outside == "missing":
            return "counted as missing"
        label = self.labels[self.outside_code] if self.resolved else self.outside
        return f"counted as {label!r}"

    @property
    def _null_code(self) -> int:
        return OUTSIDE if self.missing is None else self.size - 1

    @property
    def outside_code(self) -> int:
        """The code of values that have none of their own; -1 if such values are errors."""
        if self.outside is None:
            return OUTSIDE
        if self.outside in self.own_labels:
            return self.own_labels.index(self.outside)
        return self.size - 1 if self.missing is not None else 0

    def encode(self, values: Any) -> Codes:
        """Return the int64 codes of values, from a numpy or an Arrow array or a series of pandas or
        polars. A value that the column does not have gets the code `outside_code`: -1 if the column
        declares no `outside`.

        A value has the same code whether it is given as a text, a number or a date, and whether it
        comes from a file or a frame. There are two exceptions: the number 1234 also matches the
        label "01234", but the text "1234" does not; and a datetime may have a time zone, but a text
        of one may not.
        """
        return self.read(values)[0]

    def read(self, values: Any) -> tuple[Codes, NDArray[np.bool_]]:
        """Return the codes of `encode`, and a mask of the values that have no code of their own.

        These values get the code `outside_code`. Values that "clip" counts in the nearest bin, or
        that count as `other`, are not in the mask.
        """
        values = series_values(values)
        if isinstance(values, list | tuple):
            # numpy would convert them to one type, so that one would change the others.
            values = np.fromiter(values, object)
        elif isinstance(values, np.ma.MaskedArray):
            values = any_array(values, "values")
        if not (isinstance(values, pa.Array) or np.ndim(values) == 1):
            raise InvalidInput(f"values must be one column, got {type(values).__name__}")
        if isinstance(values, pa.Array) and is_text(values.type):
            some = values[:CALL_CELLS]
            again = len(some) - len(some.unique())
            # If n values are drawn from d texts, about n^2 / 2d of them repeat another: so the
            # first n values tell d. A dictionary pays if d is at most half the number of all
            # values, or at most n.
            if again * max(2 * len(some), len(values)) >= len(some) ** 2:
                values = values.dictionary_encode("encode")  # each distinct text is read once
        values, places = dictionary(values) or (values, None)
        codes = self._codes(values)
        unread = codes < 0
        codes = np.where(unread, self.outside_code, codes)
        return (codes, unread) if places is None else (codes.take(places), unread.take(places))

    def decode(self, codes: NDArray[np.integer[Any]], rng: np.random.Generator) -> Values:
        """Return a value for each code; for the code of a bin it is drawn uniformly within the bin.

        If the column declares missing values, the result is an array of objects, in which a missing
        value is `missing_text`: a text, or None. Raises InvalidInput for a code that the column
        does not have, such as -1.
        """
        whole: Codes = codes.astype(np.int64)
        if ((whole < 0) | (whole >= self.size)).any():
            raise InvalidInput(f"codes must be from 0 to {self.size - 1}, those of the column")
        if self.missing is None:
            return self.own_values(whole, rng)
        values = np.full(len(whole), self.missing_text, dtype=object)
        present = whole != self.size - 1
        values[present] = self.own_values(whole[present], rng)
        return values

    def equal(self, labels: Sequence[object]) -> NDArray[np.bool_]:
        """Return a Boolean for each code: True if it has one of these labels.

        Raises InvalidInput for a label that the column does not have. A column of whole numbers or
        dates also takes another spelling of a value that has a bin of its own, such as 3.0, and
        values beyond its range, which no code meets. A column of dates also takes a year or a month
        that neither begins nor ends within a bin; the codes of all its days meet it.
        """
        met = np.zeros(self.size, dtype=bool)
        for label in map(text_of, labels):
            if label not in self._label_codes:
                raise InvalidInput(f"no value {label!r}; {self.listed()}")
            met[self._label_codes[label]] = True
        return met

    @cached_property
    def _label_codes(self) -> Mapping[str, int]:
        """The code of each label."""
        return {label: code for code, label in enumerate(self.labels)}

    def listed(self) -> str:
        """Return a clause for error messages that lists the column's first twenty labels."""
        return f"the values are {', '.join(self.labels[:20])}{', ...' if self.size > 20 else ''}"

    def within(self, low: object, high: object, closed: bool = True) -> NDArray[np.bool_]:
        """Return a Boolean for each code: True from `low` to `high`, which is included if `closed`.

        None leaves an end open. Raises InvalidInput for a column without order, as this version
        always does; columns with an order have their own, which raises it for ends that are no
        values of their kind and, if they have bins, for ends that cut a bin in two and for a range
        that ends before it begins.
        """
        raise InvalidInput(f"a column of type {self.type} has no order; list its values instead")

    def steps(self, width: float) -> list[tuple[str, int, int]]:
        """Return the groups of codes between multiples of `width`, each as (label, first code, code
        after the last). The codes of special and missing values are groups of their own.

        Raises InvalidInput for columns of other types than integer and numeric, for a width that is
        infinite or not above 0, and for steps that cut a bin in two.
        """
        raise InvalidInput(
            f"steps need a column of numbers; this one is {self.type}; declare a level of the "
            "column for groups of its values, such as the years of dates"
        )

    @property
    def midpoints(self) -> NDArray[np.float64] | None:
        """The middle of each code's values, NaN for codes that are no quantities (missing and
        special values, and `other`); None if the column's values are not numbers.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the type and the values that differ from their defaults, as the plain values of a
        schema file, which `column_from_dict` reads. A `missing` without texts is stored as True.
        """
        own = changed_fields(self) | ({"missing": True} if self.missing == () else {})
        shared = ("outside", "decode_as", "missing")
        last = {name: own.pop(name) for name in shared if name in own}
        return {"type": self.type, **own, **last}


def equal_widths(first: float, last: float, bins: int, *, whole: bool) -> NDArray[Any]:
    """Return `bins` + 1 ends from `first` to `last`: whole numbers (int64) or real ones. They
    ascend, but real ones may be equal if floats cannot tell them apart.

    Raises InvalidInput for more than `MOST_BINS` bins; for whole numbers, also for more than `last
    - first` bins; for real ones, also if `last - first` is beyond all floats.

    >>> equal_widths(0, 10, 3, whole=True)
    array([ 0,  3,  6, 10])
    >>> equal_widths(0.4, 3, 20, whole=False)[6]
    np.float64(1.18)
    """
    if bins > MOST_BINS:
        raise InvalidInput(f"{bins:,} codes are too many; give at most {MOST_BINS:,} bins")
    if not whole:
        if not math.isfinite(last - first):
            raise InvalidInput(
                f"the ends {first:g} and {last:g} are farther apart than the largest float; give "
                "nearer ones, or a larger unit"
            )
        return _rounded(np.linspace(first, last, bins + 1))
    if bins > last - first:
        raise InvalidInput(f"bins is {bins}, but there are {last - first} values only")
    return np.array([first + (last - first) * i // bins for i in range(bins + 1)], dtype=np.int64)


def _rounded(ends: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends rounded to decimal places, far finer than a bin is wide, so that an end such
    as 1.18 equals the number that a file writes.

    The first and last ends are kept, and all of them if floats cannot tell two of them apart.
    Python's `round` gives the float nearest to the decimal number; numpy's is off by rounding
    errors where there are more than 22 places.
    """
    width = float(np.diff(ends).min())
    if not width > 0:
        return ends
    places = _DIGITS - math.floor(math.log10(width))
    return np.array([ends[0], *[round(end, places) for end in ends[1:-1].tolist()], ends[-1]])


def plain(value: Any) -> Any:
    """Return a value, or a collection of values, as YAML and JSON can represent it: numpy's numbers
    become Python's, collections lists or dictionaries, and whatever else, such as a date, a text.
    """
    if isinstance(value, Mapping):
        return {plain(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":
        return value.item()
    return value if isinstance(value, int | float | str | bool | type(None)) else str(value)


def changed_fields(record: Any) -> dict[str, Any]:
    """Return those fields of an object of a data class that differ from their default value, or
    have none, as a dictionary. The values are in the form that `plain` returns.
    """
    given = {each.name: (getattr(record, each.name), each.default) for each in fields(record)}
    return {name: plain(value) for name, (value, default) in given.items() if value != default}
