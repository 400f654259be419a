"""Columns of labels, and what all columns share: which values may occur, and the code of each.

Encoding is total and exact: a value has one code, or none (-1), which is an error to whoever asked.
Missing values and odd spellings are codes only where the column declares them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]
    Codes = NDArray[np.int64]

__all__ = [
    "MISSING",
    "OUTSIDE",
    "Boolean",
    "Categorical",
    "Column",
    "OpenCategorical",
    "distinct",
    "plain",
    "text_of",
]

MISSING = "(missing)"
OUTSIDE = -1


@dataclass(frozen=True)
class Column(ABC):
    """What all columns share.

    `missing`: None where a missing value (None, NaN, NaT) is an error; otherwise missing values are
    the column's last code, and so are the texts listed, such as ("?",), of which the first is
    written back.
    """

    type: ClassVar[str]
    missing: tuple[str, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.missing, str):
            raise InvalidInput(f"missing must be a list of texts, got {self.missing!r}")
        if self.missing is not None:
            object.__setattr__(self, "missing", tuple(self.missing))

    @property
    @abstractmethod
    def own_labels(self) -> tuple[str, ...]:
        """A text for each code but that of missing values."""

    @abstractmethod
    def own_codes(self, values: Values) -> Codes:
        """The codes of values that are not missing; -1 where there is none."""

    @abstractmethod
    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        """A value for each code (missing ones excluded)."""

    @property
    def resolved(self) -> bool:
        """False for a column whose codes are still to be found."""
        return True

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """A text for each code, for people."""
        return self.own_labels + (() if self.missing is None else (MISSING,))

    @property
    def size(self) -> int:
        """The number of codes."""
        return len(self.labels)

    def encode(self, values: Values) -> Codes:
        """Codes (int64) of a column of values; -1 where a value is outside."""
        array = np.asarray(values)
        absent = _absent(array, self.missing or ())
        codes = np.full(len(array), OUTSIDE, dtype=np.int64)
        codes[~absent] = self.own_codes(array[~absent])
        if self.missing is not None:
            codes[absent] = self.size - 1
        return codes

    def decode(self, codes: NDArray[np.integer[Any]], rng: np.random.Generator) -> Values:
        """A column of values: within a bin they are drawn uniformly.

        Where the column has missing values the result holds objects, with None (or the first of
        the `missing` texts) for them.
        """
        whole: Codes = np.asarray(codes).astype(np.int64)
        if self.missing is None:
            return self.own_values(whole, rng)
        values = np.full(len(whole), self.missing[0] if self.missing else None, dtype=object)
        present = whole != self.size - 1
        values[present] = self.own_values(whole[present], rng)
        return values

    def equal(self, labels: Sequence[object]) -> NDArray[np.bool_]:
        """Which codes have one of these labels.

        Raises InvalidInput for a label that the column does not have.
        """
        wanted = [text_of(label) for label in labels]
        for label in wanted:
            if label not in self.labels:
                shown = ", ".join(self.labels[:20]) + (", ..." if self.size > 20 else "")
                raise InvalidInput(f"no value {label!r}; the values are {shown}")
        return np.array([label in wanted for label in self.labels])

    def within(self, low: object, high: object, closed: bool = True) -> NDArray[np.bool_]:
        """Which codes lie from `low` to `high`, both included (`high` is not unless `closed`).

        None leaves an end open. Raises InvalidInput for a column without order, and for ends that
        cut a bin in two.
        """
        raise InvalidInput(f"a {self.type} column has no order; list its values instead")

    @property
    def midpoints(self) -> NDArray[np.float64] | None:
        """The middle of each code's values (NaN for missing); None where they are no numbers."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """What a schema file holds; `column_from_dict` reads it."""
        stored: dict[str, Any] = {"type": self.type}
        for each in fields(self):
            value = getattr(self, each.name)
            if value != each.default and each.name != "missing":
                stored[each.name] = self._stored(value)
        if self.missing is not None:
            stored["missing"] = list(self.missing) or True
        return stored

    def _stored(self, value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Categorical(Column):
    """One of a list of values (texts, whole numbers or truth values).

    `other`: a label that takes every value not listed; without it such values are errors.
    `aliases`: other spellings, such as {"<=50K.": "<=50K"}.

    >>> column = Categorical(("no", "yes"), other="else")
    >>> column.encode(np.array(["yes", "no", "what"]))
    array([1, 0, 2])
    """

    type = "categorical"
    values: tuple[Any, ...] = ()
    other: str | None = None
    aliases: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "aliases", tuple(dict(self.aliases).items()))
        texts = list(self.own_labels)
        if not texts:
            raise InvalidInput("values is empty; list at least one value")
        doubled = {text for text in texts if texts.count(text) > 1}
        if doubled:
            raise InvalidInput(f"values holds {sorted(doubled)[0]!r} twice; list it once")
        for spelling, label in dict(self.aliases).items():
            if text_of(label) not in texts:
                raise InvalidInput(f"alias {spelling!r} stands for {label!r}, which is no value")
            if spelling in texts:
                raise InvalidInput(f"alias {spelling!r} is a value itself; remove one of them")
        for text in self.missing or ():
            if text in texts:
                raise InvalidInput(f"{text!r} is listed as a value and as missing; keep one")

    @property
    def own_labels(self) -> tuple[str, ...]:
        listed = tuple(text_of(value) for value in self.values)
        return listed if self.other is None else (*listed, self.other)

    def own_codes(self, values: Values) -> Codes:
        rest = OUTSIDE if self.other is None else len(self.values)
        known = {text_of(value): code for code, value in enumerate(self.values)}
        known |= {spelling: known[text_of(value)] for spelling, value in dict(self.aliases).items()}
        return _by_distinct(values, lambda value: known.get(text_of(value), rest))

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        listed = list(self.values) if self.other is None else [*self.values, self.other]
        kinds = {type(value) for value in listed}
        return np.array(listed, dtype=None if kinds in ({int}, {bool}) else object)[codes]

    def _stored(self, value: Any) -> Any:
        return dict(value) if value == self.aliases else super()._stored(value)


@dataclass(frozen=True)
class OpenCategorical(Column):
    """A column whose labels are not known in advance: they are still to be found.

    `other`: the label of all values that are too rare to be found.
    """

    type = "open"
    other: str = "(other)"

    @property
    def resolved(self) -> bool:
        return False

    @property
    def own_labels(self) -> tuple[str, ...]:
        raise InvalidInput("an open column has no labels yet; resolve the schema with a budget")

    def own_codes(self, values: Values) -> Codes:
        raise InvalidInput("an open column has no codes yet; resolve the schema with a budget")

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        raise InvalidInput("an open column has no values yet; resolve the schema with a budget")

    def texts(self, values: Values) -> list[str]:
        """The texts of a column of values, missing ones left out."""
        array = np.asarray(values)
        present = array[~_absent(array, self.missing or ())]
        return [text_of(value) for value in present]

    def found(self, labels: Sequence[str]) -> Categorical:
        """The concrete column with the labels that were found."""
        return Categorical(tuple(labels), other=self.other, missing=self.missing)


@dataclass(frozen=True)
class Boolean(Column):
    """True or false; also read from 0 and 1 and the usual words."""

    type = "boolean"

    @property
    def own_labels(self) -> tuple[str, ...]:
        return ("false", "true")

    def own_codes(self, values: Values) -> Codes:
        known = {"false": 0, "true": 1, "0": 0, "1": 1, "no": 0, "yes": 1}
        return _by_distinct(values, lambda value: known.get(text_of(value).lower(), OUTSIDE))

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        return codes.astype(bool)


def _absent(values: Values, texts: Sequence[str]) -> NDArray[np.bool_]:
    """Which values are None, NaN, NaT or one of the texts."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind in "biu":
        return np.zeros(len(values), dtype=bool)
    return _by_distinct(values, lambda value: _is_null(value) or text_of(value) in texts).astype(
        bool
    )


def _is_null(value: object) -> bool:
    # pandas' NA refuses to be compared; NaN and NaT differ from themselves.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _by_distinct(values: Values, code: Callable[[Any], int | bool]) -> Codes:
    """`code` of each value, called once for each distinct value."""
    found, places = distinct(values)
    return np.array([code(value) for value in found], dtype=np.int64)[places]


def distinct(values: Values) -> tuple[list[Any], NDArray[np.intp]]:
    """The distinct values, and the place among them of each value."""
    if values.dtype != object:
        found, places = np.unique(values, return_inverse=True)
        return found.tolist() if values.dtype.kind not in "mM" else list(found), places.reshape(-1)
    seen: dict[Any, int] = {}
    places = np.empty(len(values), dtype=np.intp)
    for i, value in enumerate(values):
        # True == 1 == 1.0 as keys, but not as texts.
        key = (type(None), None) if _is_null(value) else (type(value), value)
        places[i] = seen.setdefault(key, len(seen))
    return [value for _, value in seen], places


def text_of(value: object) -> str:
    """A value as the text that identifies it: 3, 3.0 and "3" are the same label."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def plain(value: Any) -> Any:
    """A value as YAML and JSON know it."""
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, int | float | str | bool | type(None)) else str(value)
