"""Columns of labels, and what all columns share: which values may occur, and the code of each.

A value has one code, or none (-1), which is an error to whoever asked. Where a column declares
`outside`, every value has a code. What comes out is typed by the column alone, never by the values
that went in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.tables.values import distinct, is_null, number_of, text_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]
    Codes = NDArray[np.int64]

__all__ = ["KINDS", "MISSING", "OUTSIDE", "Boolean", "Categorical", "Column", "OpenCategorical"]

MISSING = "(missing)"
OUTSIDE = -1
KINDS = ("text", "integer", "number", "boolean", "date", "datetime")
"""What decoded values can be: `decode_as`."""


@dataclass(frozen=True)
class Column(ABC):
    """What all columns share.

    `missing`: None where a missing value (null, NaN, NaT, an empty text) is outside; otherwise
    missing values are the column's last code, and so are the texts listed, such as ("?",), of which
    the first is written back where the values are texts.

    `outside`: what becomes of a value that the column does not have. None: it is an error.
    Otherwise every value has a code, undeclared missing ones too: "missing", or one of the column's
    own labels; for ordered columns "clip", the nearest bin.

    `decode_as`: the type of decoded values, one of "text", "integer", "number", "boolean", "date",
    "datetime"; by default that of the column's own values.
    """

    type: ClassVar[str]
    becomes: ClassVar[tuple[str, ...]]
    """What values of this column can be decoded as; the first by default."""
    missing: tuple[str, ...] | None = field(default=None, kw_only=True)
    outside: str | None = field(default=None, kw_only=True)
    decode_as: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.missing, str):
            raise InvalidInput(f"missing must be a list of texts, got {self.missing!r}")
        if self.missing is not None:
            object.__setattr__(self, "missing", tuple(text_of(text) for text in self.missing))
        if self.decode_as is not None and self.decode_as not in self.becomes:
            raise InvalidInput(
                f"decode_as must be one of {', '.join(self.becomes)} for this {self.type} column; "
                f"got {self.decode_as!r}"
            )

    def _check_outside(self, *others: str) -> None:
        """Raises InvalidInput for an `outside` that is no place of the column."""
        allowed = [*others, *(["missing"] if self.missing is not None else [])]
        if self.outside is None or self.outside in allowed or self.outside in self.own_labels:
            return
        raise InvalidInput(
            f"outside must be {', '.join(map(repr, allowed))}{' or ' if allowed else ''}a label of "
            f"the column (missing ones need `missing`); got {self.outside!r}"
        )

    @property
    @abstractmethod
    def own_labels(self) -> tuple[str, ...]:
        """A text for each code but that of missing values."""

    @abstractmethod
    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        """A value for each code (missing ones excluded)."""

    @abstractmethod
    def _codes(self, values: Any) -> Codes:
        """The codes of values; -1 where there is none, missing ones as `_null_code`."""

    @property
    @abstractmethod
    def default_outside(self) -> str:
        """What `placed` declares where nothing is declared."""

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

    @property
    def kind(self) -> str:
        """What values are decoded as, one of `KINDS`."""
        return self.decode_as or self.becomes[0]

    @property
    def nullable(self) -> bool:
        """Whether decoded values can be null."""
        return self.missing is not None and not (self.kind == "text" and self.missing)

    def placed(self) -> Self:
        """The column with a place for every value: `outside` as declared, or its default."""
        if self.outside is not None:
            return self
        return replace(self, outside=self.default_outside)

    @property
    def place(self) -> str:
        """Where a value goes that the column does not have, for people."""
        if self.outside is None:
            return "refused"
        if self.outside == "missing":
            return "counted as missing"
        return f"counted as {self.outside!r}"

    @property
    def _null_code(self) -> int:
        return OUTSIDE if self.missing is None else self.size - 1

    @property
    def outside_code(self) -> int:
        """The code of values that have none of their own; -1 where they are errors."""
        if self.outside is None:
            return OUTSIDE
        if self.outside in self.own_labels:
            return self.own_labels.index(self.outside)
        return self.size - 1 if self.missing is not None else 0

    def encode(self, values: Any) -> Codes:
        """Codes (int64) of a column of values, a numpy or an Arrow array; -1 where one is outside.

        The codes do not depend on how the values came: as texts, numbers or dates, from a file or
        from a frame.
        """
        codes = self._codes(values)
        if self.outside is not None:
            codes = np.where(codes < 0, self.outside_code, codes)
        return codes

    def decode(self, codes: NDArray[np.integer[Any]], rng: np.random.Generator) -> Values:
        """A column of values: within a bin they are drawn uniformly.

        Where the column has missing values the result holds objects, with None (for texts the first
        of the `missing` texts) for them.
        """
        whole: Codes = np.asarray(codes).astype(np.int64)
        if self.missing is None:
            return self.own_values(whole, rng)
        text = self.missing[0] if self.missing and self.kind == "text" else None
        values = np.full(len(whole), text, dtype=object)
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
        shared = ("missing", "outside", "decode_as")
        own = [each for each in fields(self) if each.name not in shared]
        for each in [*own, *(each for each in fields(self) if each.name in shared[1:])]:
            value = getattr(self, each.name)
            if value != each.default:
                stored[each.name] = self._stored(value)
        if self.missing is not None:
            stored["missing"] = list(self.missing) or True
        return stored

    def _stored(self, value: Any) -> Any:
        return list(value) if isinstance(value, tuple) else value


class _Labelled(Column):
    """Columns whose values are told apart by their texts."""

    def _codes(self, values: Any) -> Codes:
        found, places = distinct(values)
        return np.array([self._code(value) for value in found], dtype=np.int64)[places]

    def _code(self, value: object) -> int:
        if is_null(value):
            return self._null_code
        text = text_of(value)
        code = self._known.get(text)
        if code is None and self.missing and text in self.missing:
            return self._null_code
        if code is None:
            code = self._otherwise(text)
        return code

    @property
    @abstractmethod
    def _known(self) -> Mapping[str, int]:
        """The code of every known text."""

    def _otherwise(self, text: str) -> int:
        """The code of a text that is not known."""
        return OUTSIDE


@dataclass(frozen=True)
class Categorical(_Labelled):
    """One of a list of values (texts, numbers or truth values); spaces around texts do not count.

    `other`: a label that takes every value not listed; without it such values are errors.
    `aliases`: other spellings, such as {"<=50K.": "<=50K"}.

    Values that are all numbers have an order: "2..4" is a range of them. They are decoded as
    numbers, and `other` then as a null.

    >>> column = Categorical(("no", "yes"), other="else")
    >>> column.encode(np.array(["yes", "no", "what"]))
    array([1, 0, 2])
    """

    type = "categorical"
    becomes = ("text", "integer", "number", "boolean")
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
        if "" in texts:
            raise InvalidInput(
                "values holds an empty text, which is a missing value; declare `missing` instead"
            )
        for spelling, label in dict(self.aliases).items():
            if text_of(label) not in texts:
                raise InvalidInput(f"alias {spelling!r} stands for {label!r}, which is no value")
            if spelling in texts:
                raise InvalidInput(f"alias {spelling!r} is a value itself; remove one of them")
        for text in self.missing or ():
            if text in texts:
                raise InvalidInput(f"{text!r} is listed as a value and as missing; keep one")
        self._check_outside()

    @cached_property
    def own_labels(self) -> tuple[str, ...]:
        listed = tuple(text_of(value) for value in self.values)
        return listed if self.other is None else (*listed, text_of(self.other))

    @property
    def default_outside(self) -> str:
        if self.other is not None:
            return text_of(self.other)
        return "missing" if self.missing is not None else self.own_labels[0]

    @property
    def kind(self) -> str:
        if self.decode_as is not None:
            return self.decode_as
        if self.other is not None:
            return "text"
        kinds = {type(value) for value in self.values}
        if kinds == {bool}:
            return "boolean"
        if kinds == {int}:
            return "integer"
        return "number" if kinds <= {int, float} else "text"

    @property
    def nullable(self) -> bool:
        return super().nullable or any(value is None for value in self._decoded)

    @cached_property
    def _numbers(self) -> list[int | float] | None:
        """The values, where all of them are numbers."""
        if any(isinstance(value, bool | str) for value in self.values):
            return None
        return [number_of(value) for value in self.values]

    @cached_property
    def _known(self) -> Mapping[str, int]:
        known = {text_of(value): code for code, value in enumerate(self.values)}
        return known | {
            text_of(spelling): known[text_of(value)]
            for spelling, value in dict(self.aliases).items()
        }

    def _otherwise(self, text: str) -> int:
        if self._numbers is not None:
            try:
                code = self._known.get(text_of(number_of(text)))
            except ValueError:
                code = None
            if code is not None:
                return code
        return OUTSIDE if self.other is None else len(self.values)

    @cached_property
    def _decoded(self) -> list[Any]:
        """The value that each own code is decoded to."""
        listed = list(self.values) if self.other is None else [*self.values, self.other]
        return [_converted(value, self.kind) for value in listed]

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        kinds = {type(value) for value in self._decoded}
        plain = kinds in ({int}, {bool}, {float}, {int, float})
        return np.array(self._decoded, dtype=None if plain else object)[codes]

    def within(self, low: object, high: object, closed: bool = True) -> NDArray[np.bool_]:
        if self._numbers is None:
            return super().within(low, high, closed)
        try:
            first = -np.inf if low is None else number_of(low)
            last = np.inf if high is None else number_of(high)
        except (ValueError, TypeError):
            raise InvalidInput(f"{low!r}..{high!r} is not a range of numbers") from None
        mask = np.zeros(self.size, dtype=bool)
        for code, value in enumerate(self._numbers):
            mask[code] = first <= value and (value <= last if closed else value < last)
        return mask

    @property
    def midpoints(self) -> NDArray[np.float64] | None:
        if self._numbers is None:
            return None
        rest = [np.nan] * (self.size - len(self._numbers))
        return np.array([*self._numbers, *rest], dtype=np.float64)

    def _stored(self, value: Any) -> Any:
        return dict(value) if value == self.aliases else super()._stored(value)


def _converted(value: Any, kind: str) -> Any:
    """A label as a value of this kind; None for one that has no such value."""
    if kind == "text":
        return value if isinstance(value, str) else text_of(value)
    if kind == "boolean":
        return {"true": True, "false": False, "1": True, "0": False}.get(text_of(value).lower())
    try:
        number = number_of(value)
    except ValueError:
        return None
    if kind == "number":
        return number
    return int(number) if float(number).is_integer() else None


@dataclass(frozen=True)
class OpenCategorical(Column):
    """A column whose labels are not known in advance: they are still to be found.

    `other`: the label of all values that are too rare to be found.
    """

    type = "open"
    becomes = ("text", "integer", "number", "boolean")
    other: str = "(other)"

    @property
    def resolved(self) -> bool:
        return False

    @property
    def default_outside(self) -> str:
        return self.other

    @property
    def own_labels(self) -> tuple[str, ...]:
        raise InvalidInput("an open column has no labels yet; resolve the schema with a budget")

    def _codes(self, values: Any) -> Codes:
        raise InvalidInput("an open column has no codes yet; resolve the schema with a budget")

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        raise InvalidInput("an open column has no values yet; resolve the schema with a budget")

    def is_missing(self, value: object) -> bool:
        """Whether a value is missing, listed texts included."""
        return is_null(value) or text_of(value) in (self.missing or ())

    def texts(self, values: Any) -> list[str]:
        """The texts of a column of values, missing ones left out."""
        found, places = distinct(values)
        texts = [None if self.is_missing(value) else text_of(value) for value in found]
        return [text for place in places.tolist() if (text := texts[place]) is not None]

    def found(self, labels: Sequence[str]) -> Categorical:
        """The concrete column with the labels that were found."""
        shared = {"missing": self.missing, "outside": self.outside, "decode_as": self.decode_as}
        return Categorical(tuple(labels), other=self.other, **shared)  # type: ignore[arg-type]


_TRUTH = {"false": 0, "true": 1, "0": 0, "1": 1, "no": 0, "yes": 1}


@dataclass(frozen=True)
class Boolean(_Labelled):
    """True or false; also read from 0 and 1 and the usual words.

    `words`: the words of a file for false and true, such as ("FALSE", "TRUE"): read, and written in
    CSV files.
    """

    type = "boolean"
    becomes = ("boolean", "text", "integer")
    words: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.words is not None:
            words = tuple(self.words)
            texts = [word.strip().lower() if isinstance(word, str) else "" for word in words]
            if len(words) != 2 or "" in texts or texts[0] == texts[1]:
                raise InvalidInput(
                    f"words must be two texts, for false and for true; got {self.words!r}"
                )
            object.__setattr__(self, "words", words)
        self._check_outside()

    @property
    def own_labels(self) -> tuple[str, ...]:
        return ("false", "true")

    @property
    def default_outside(self) -> str:
        return "missing" if self.missing is not None else "false"

    @cached_property
    def _known(self) -> Mapping[str, int]:
        return {text: code for code, text in enumerate(self.words or ())}

    def _otherwise(self, text: str) -> int:
        own = {word.strip().lower(): code for code, word in enumerate(self.words or ())}
        return (_TRUTH | own).get(text.lower(), OUTSIDE)

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        if self.kind == "text":
            return np.array(self.words or ("false", "true"), dtype=object)[codes]
        return codes.astype(bool if self.kind == "boolean" else np.int64)
