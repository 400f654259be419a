"""The base of all columns: the values that may occur, and the code of each.

A value has one code, or none (-1), which is an error to whoever asked. Where a column declares
`outside`, every value has a code. What comes out is typed by the column alone, never by the values
that went in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.tables.values import dictionary, plain, text_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[Any]
    Codes = NDArray[np.int64]

__all__ = ["BATCH_ROWS", "KINDS", "MISSING", "OUTSIDE", "Column"]

BATCH_ROWS = 1 << 16
"""Rows that are read, coded or made together: enough that what is done once a batch is little."""
MISSING = "(missing)"
OUTSIDE = -1
"""The code of a value that a column does not have."""
KINDS = ("text", "category", "integer", "number", "boolean", "date", "datetime")
"""Types of decoded values: `decode_as`."""


@dataclass(frozen=True)
class Column(ABC):
    """Base of all columns.

    `missing`: None where a missing value (null, NaN, NaT, an empty text) is outside; otherwise
    missing values are the column's last code, and so are the texts listed, such as ("?",), of which
    the first is written back where the values are texts.

    `outside`: what becomes of a value that the column does not have. None: it is an error.
    Otherwise every value has a code, undeclared missing ones too: "missing", or one of the column's
    own labels; for ordered columns "clip", the nearest bin.

    `decode_as`: the type of decoded values, one of "text", "category" (texts with the schema's list
    of labels, as pandas and polars have them), "integer", "number", "boolean", "date", "datetime";
    by default that of the column's own values.
    """

    type: ClassVar[str]
    becomes: ClassVar[tuple[str, ...]]
    """Types that values of this column can be decoded as; the first by default."""
    missing: tuple[str, ...] | None = field(default=None, kw_only=True)
    outside: str | None = field(default=None, kw_only=True)
    decode_as: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        listed = isinstance(self.missing, (list, tuple))
        if self.missing is not None and not (
            listed and all(isinstance(text, str) for text in self.missing)
        ):
            raise InvalidInput(
                "missing must be a list of the texts that stand for a missing value, such as "
                f"['?'], got {self.missing!r}; write missing=[] where only null, NaN and empty "
                "values are missing, and leave it out where none may be"
            )
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
        """The place that `placed` declares where nothing is declared."""

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
        """The type that values are decoded as, one of `KINDS`."""
        return self.decode_as or self.becomes[0]

    @property
    def nullable(self) -> bool:
        """True where decoded values can be null."""
        return self.missing is not None and not (self.kind == "text" and self.missing)

    def placed(self) -> Self:
        """The column with a place for every value: `outside` as declared, or its default."""
        if self.outside is not None:
            return self
        return replace(self, outside=self.default_outside)

    @property
    def place(self) -> str:
        """The place of a value that the column does not have, in words."""
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
        return self.read(values)[0]

    def read(self, values: Any) -> tuple[Codes, NDArray[np.bool_]]:
        """Return the codes of `encode`, and a mask of the values that have no code of their own.

        Where the column declares `outside`, such a value has the code of that place. A value that
        `outside` clips, or that `other` takes, has a code of its own.
        """
        known = dictionary(values)
        if known is not None:
            codes, unread = self.read(known[0])
            return codes[known[1]], unread[known[1]]
        codes = self._codes(values)
        unread = codes < 0
        return np.where(unread, self.outside_code, codes), unread

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
        """A Boolean for each code: True where it has one of these labels.

        Raises InvalidInput for a label that the column does not have.
        """
        wanted = [text_of(label) for label in labels]
        for label in wanted:
            if label not in self.labels:
                shown = ", ".join(self.labels[:20]) + (", ..." if self.size > 20 else "")
                raise InvalidInput(f"no value {label!r}; the values are {shown}")
        return np.array([label in wanted for label in self.labels])

    def within(self, low: object, high: object, closed: bool = True) -> NDArray[np.bool_]:
        """A Boolean for each code: True from `low` to `high` (which is included where `closed`).

        None leaves an end open. Raises InvalidInput for a column without order, and for ends that
        cut a bin in two.
        """
        raise InvalidInput(f"a {self.type} column has no order; list its values instead")

    @property
    def midpoints(self) -> NDArray[np.float64] | None:
        """The middle of each code's values (NaN for missing); None where they are no numbers."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """The plain values that a schema file holds; `column_from_dict` reads them."""
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
        return [plain(each) for each in value] if isinstance(value, tuple) else plain(value)
