"""Column types: which values a column may hold, and the code that stands for each.

Encoding is total and exact: a value has one code, or none (-1), which is an error to whoever asked.
Missing values and odd spellings are codes only where the column declares them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]
    Codes = NDArray[np.int64]

__all__ = [
    "Boolean",
    "Categorical",
    "Column",
    "Integer",
    "Numeric",
    "OpenCategorical",
    "column_from_dict",
    "column_types",
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
        """False for a column whose codes are still to be found with a privacy budget."""
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
        wanted = [_text(label) for label in labels]
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
            if _text(label) not in texts:
                raise InvalidInput(f"alias {spelling!r} stands for {label!r}, which is no value")
            if spelling in texts:
                raise InvalidInput(f"alias {spelling!r} is a value itself; remove one of them")
        for text in self.missing or ():
            if text in texts:
                raise InvalidInput(f"{text!r} is listed as a value and as missing; keep one")

    @property
    def own_labels(self) -> tuple[str, ...]:
        listed = tuple(_text(value) for value in self.values)
        return listed if self.other is None else (*listed, self.other)

    def own_codes(self, values: Values) -> Codes:
        rest = OUTSIDE if self.other is None else len(self.values)
        known = {_text(value): code for code, value in enumerate(self.values)}
        known |= {spelling: known[_text(value)] for spelling, value in dict(self.aliases).items()}
        return _by_distinct(values, lambda value: known.get(_text(value), rest))

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        listed = list(self.values) if self.other is None else [*self.values, self.other]
        kinds = {type(value) for value in listed}
        return np.array(listed, dtype=None if kinds in ({int}, {bool}) else object)[codes]

    def _stored(self, value: Any) -> Any:
        return dict(value) if value == self.aliases else super()._stored(value)


@dataclass(frozen=True)
class OpenCategorical(Column):
    """A column whose labels are not known in advance: they are found with a privacy budget.

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
        return [_text(value) for value in present]

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
        return _by_distinct(values, lambda value: known.get(_text(value).lower(), OUTSIDE))

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        return codes.astype(bool)


@dataclass(frozen=True)
class Binned(Column):
    """What columns of ordered values share: bins between edges, of which the last is closed.

    Either `edges` (ascending, the lowest and the highest value among them), or `low`, `high` and
    `bins` of equal width. `outside`: "error", or "clip" to count values beyond the ends in the
    bin at that end.
    """

    low: Any = None
    high: Any = None
    bins: int | None = None
    edges: tuple[Any, ...] | None = None
    outside: Literal["error", "clip"] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outside not in ("error", "clip"):
            raise InvalidInput(f'outside must be "error" or "clip", got {self.outside!r}')
        if self.edges is not None:
            if self.bins is not None or self.low is not None or self.high is not None:
                raise InvalidInput("give either edges, or low, high and bins; not both")
            object.__setattr__(self, "edges", tuple(self.edges))
        elif self.low is None or self.high is None:
            raise InvalidInput("give low and high, or edges")
        if self.bins is not None and (
            isinstance(self.bins, bool) or not isinstance(self.bins, int) or self.bins < 1
        ):
            raise InvalidInput(f"bins must be a whole number, 1 or more; got {self.bins!r}")
        positions = self.positions
        if len(positions) < 2 or not (np.diff(positions) > 0).all():
            raise InvalidInput(
                f"the edges of a {self.type} column must ascend, low below high; "
                f"got {self.edges or (self.low, self.high)!r}"
            )

    @abstractmethod
    def position(self, value: object) -> float:
        """A value as a number, in units of the finest step; ValueError if it is none."""

    @abstractmethod
    def _from_positions(self, positions: NDArray[np.float64]) -> Values:
        """Numbers in those units as values."""

    @abstractmethod
    def _shown(self, position: float) -> str:
        """A position as text."""

    @property
    def whole(self) -> bool:
        """Whether values are whole steps, so that a bin's last value is one step below its end."""
        return True

    @cached_property
    def positions(self) -> NDArray[np.float64]:
        """The bins' ends as numbers: bin i holds positions[i] <= value < positions[i + 1]."""
        try:
            if self.edges is not None:
                ends = [self._position(edge) for edge in self.edges]
            else:
                ends = [self._position(self.low), self._position(self.high)]
        except ValueError:
            raise InvalidInput(
                f"{self.edges or (self.low, self.high)!r} are not values of a {self.type} column"
            ) from None
        if self.whole:
            ends[-1] += 1  # the highest value belongs to the last bin
        if self.edges is not None:
            return np.array(ends)
        first, last = ends
        if not first < last:
            return np.array(ends)
        count = self.bins if self.bins is not None else self._natural_bins(first, last)
        if self.whole:
            if count > last - first:
                raise InvalidInput(f"bins is {count}, but there are {last - first:g} values only")
            return np.floor(first + (last - first) * np.arange(count + 1) / count)
        return np.linspace(first, last, count + 1)

    def _position(self, value: object) -> float:
        position = self.position(value)
        if not math.isfinite(position):
            raise ValueError(value)
        return position

    def _natural_bins(self, first: float, last: float) -> int:
        """Without `bins` every value has its own code."""
        return max(1, int(last - first))

    @cached_property
    def own_labels(self) -> tuple[str, ...]:
        step = 1.0 if self.whole else 0.0
        return tuple(
            self._shown(a)
            if self.whole and b - a == 1
            else f"{self._shown(a)}..{self._shown(b - step)}"
            for a, b in zip(self.positions[:-1], self.positions[1:], strict=True)
        )

    def own_codes(self, values: Values) -> Codes:
        positions = self._positions_of(values)
        codes = np.searchsorted(self.positions, positions, side="right") - 1
        last = len(self.positions) - 2
        if not self.whole:
            codes[positions == self.positions[-1]] = last
        if self.outside == "clip":
            codes = np.clip(codes, 0, last)
        codes[(codes > last) | (codes < 0) | np.isnan(positions)] = OUTSIDE
        if self.whole:
            with np.errstate(invalid="ignore"):
                codes[positions != np.floor(positions)] = OUTSIDE
        return codes.astype(np.int64)

    def _positions_of(self, values: Values) -> NDArray[np.float64]:
        def position(value: object) -> float:
            try:
                return self.position(value)
            except (ValueError, TypeError):
                return math.nan

        distinct, places = _distinct(values)
        return np.array([position(value) for value in distinct], dtype=np.float64)[places]

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        low, high = self.positions[codes], self.positions[codes + 1]
        drawn = np.minimum(
            low + (high - low) * rng.random(len(codes)), np.nextafter(high, -math.inf)
        )
        return self._from_positions(np.floor(drawn) if self.whole else drawn)

    def within(self, low: object, high: object, closed: bool = True) -> NDArray[np.bool_]:
        try:
            first = -math.inf if low is None else self._position(low)
            end = math.inf if high is None else self._position(high)
        except ValueError:
            raise InvalidInput(
                f"{low!r}..{high!r} is not a range of a {self.type} column"
            ) from None
        if self.whole and closed:
            end += 1
        starts, stops = self.positions[:-1], self.positions[1:]
        cut = ((starts < first) & (first < stops)) | ((starts < end) & (end < stops))
        if cut.any():
            raise InvalidInput(
                f"the range {'' if low is None else low}..{'' if high is None else high} cuts the "
                f"bin {self.labels[int(np.argmax(cut))]}; use the bins' ends"
            )
        mask = np.zeros(self.size, dtype=bool)
        mask[: len(starts)] = (starts >= first) & (stops <= end)
        return mask

    def equal(self, labels: Sequence[object]) -> NDArray[np.bool_]:
        mask = np.zeros(self.size, dtype=bool)
        for label in labels:
            if _text(label) in self.labels:
                mask |= super().equal([label])
            elif self.whole:
                mask |= self.within(label, label)
            else:
                super().equal([label])
        return mask

    def _stored(self, value: Any) -> Any:
        return [_plain(each) for each in value] if isinstance(value, tuple) else _plain(value)


@dataclass(frozen=True)
class Integer(Binned):
    """Whole numbers from `low` to `high`, a code each, or in `bins` of nearly equal width.

    >>> Integer(0, 9, bins=5).labels
    ('0..1', '2..3', '4..5', '6..7', '8..9')
    >>> Integer(edges=(17, 30, 65, 90)).encode(np.array([17, 29, 30, 90, 91]))
    array([ 0,  0,  1,  2, -1])
    """

    type = "integer"

    def position(self, value: object) -> float:
        if isinstance(value, bool | np.bool_):
            raise ValueError(value)
        return float(value)  # type: ignore[arg-type]

    def _from_positions(self, positions: NDArray[np.float64]) -> Values:
        return positions.astype(np.int64)

    def _shown(self, position: float) -> str:
        return f"{position:.0f}"

    @property
    def midpoints(self) -> NDArray[np.float64]:
        return _middles(self, -0.5)


@dataclass(frozen=True)
class Numeric(Binned):
    """Numbers from `low` to `high` in `bins` of equal width, or between `edges`.

    With `quantiles` the inner edges are still to be found with a privacy budget.

    >>> Numeric(0, 1, bins=4).encode(np.array([0.0, 0.25, 0.99, 1.0, 1.01]))
    array([ 0,  1,  3,  3, -1])
    """

    type = "numeric"
    quantiles: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edges is None and self.bins is None:
            raise InvalidInput("a numeric column needs bins, or edges")
        if self.quantiles and self.bins is None:
            raise InvalidInput("quantiles need bins: the number of bins of equal counts")

    @property
    def resolved(self) -> bool:
        return not self.quantiles

    def found(self, inner: Sequence[float]) -> Numeric:
        """The concrete column with the inner edges that were found."""
        low, high = self._position(self.low), self._position(self.high)
        edges = sorted({low, high, *(float(edge) for edge in inner if low < edge < high)})
        return Numeric(edges=tuple(edges), outside=self.outside, missing=self.missing)

    @property
    def whole(self) -> bool:
        return False

    def position(self, value: object) -> float:
        if isinstance(value, bool | np.bool_):
            raise ValueError(value)
        return float(value)  # type: ignore[arg-type]

    def _from_positions(self, positions: NDArray[np.float64]) -> Values:
        return positions

    def _shown(self, position: float) -> str:
        return f"{position:g}"

    @property
    def midpoints(self) -> NDArray[np.float64]:
        return _middles(self, 0.0)


def _middles(column: Binned, shift: float) -> NDArray[np.float64]:
    middles = (column.positions[:-1] + column.positions[1:]) / 2 + shift
    return np.append(middles, [math.nan] * (column.size - len(middles)))


def column_types() -> dict[str, type[Column]]:
    """The column types by the name that schema files use."""
    from pgmkit.schema.dates import Date, DateTime

    known: list[type[Column]] = [
        *(Categorical, OpenCategorical, Boolean, Integer, Numeric, Date, DateTime)
    ]
    return {each.type: each for each in known}


def column_from_dict(stored: Mapping[str, Any]) -> Column:
    """The column that `to_dict` stored; InvalidInput for an unknown type or field.

    >>> column_from_dict({"type": "integer", "low": 0, "high": 3})
    Integer(missing=None, low=0, high=3, bins=None, edges=None, outside='error')
    """
    types = column_types()
    given = dict(stored)
    kind = given.pop("type", None)
    if kind not in types:
        raise InvalidInput(f"type {kind!r} is unknown; types are {', '.join(types)}")
    missing = given.pop("missing", None)
    if isinstance(missing, bool):
        missing = () if missing else None
    allowed = {each.name for each in fields(types[kind])} - {"missing"}
    for name in given:
        if name not in allowed:
            raise InvalidInput(
                f"a {kind} column has no field {name!r}; it has missing, "
                f"{', '.join(sorted(allowed))}"
            )
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(value)
    try:
        return types[kind](**given, missing=missing)
    except TypeError as error:
        raise InvalidInput(
            f"a {kind} column cannot be made from {dict(stored)!r}: {error}"
        ) from None


def _absent(values: Values, texts: Sequence[str]) -> NDArray[np.bool_]:
    """Which values are None, NaN, NaT or one of the texts."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind in "biu":
        return np.zeros(len(values), dtype=bool)
    return _by_distinct(values, lambda value: _is_null(value) or _text(value) in texts).astype(bool)


def _is_null(value: object) -> bool:
    # pandas' NA refuses to be compared; NaN and NaT differ from themselves.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _by_distinct(values: Values, code: Callable[[Any], int | bool]) -> Codes:
    """`code` of each value, called once for each distinct value."""
    distinct, places = _distinct(values)
    return np.array([code(value) for value in distinct], dtype=np.int64)[places]


def _distinct(values: Values) -> tuple[list[Any], NDArray[np.intp]]:
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


def _text(value: object) -> str:
    """A value as the text that identifies it: 3, 3.0 and "3" are the same label."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _plain(value: Any) -> Any:
    """A value as YAML and JSON know it."""
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, int | float | str | bool | type(None)) else str(value)
