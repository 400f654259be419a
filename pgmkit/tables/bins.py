"""Columns of ordered values in bins: what columns of numbers and of dates have in common."""

from __future__ import annotations

import itertools
import math
import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import check_whole, in_order
from pgmkit.runtime.typed import typed_class
from pgmkit.tables.columns import BATCH_ROWS, LARGEST, OUTSIDE, Codes, Column, equal_widths
from pgmkit.tables.values import distinct, is_null, numeric, parsed, text_of


@typed_class
@dataclass(frozen=True)
class Binned(Column):
    """Base of columns of ordered values, which are coded by bins; the last bin contains its upper
    end.

    Give either `edges` (ascending, including the lowest and the highest value), or `low`, `high`
    and `bins` for bins of equal width; columns of whole steps have a bin for each step by default.
    A code of a bin is decoded as a value drawn uniformly within the bin; spikes and special values
    are decoded as themselves.

    If `outside` is "clip", a value beyond an end of the range counts in the bin at that end, and a
    value between two whole steps in the bin of the lower one. Anything that is no value of this
    kind counts as missing, or in the first bin if the column declares no missing values.

    Attributes:
        low: The lowest value.
        high: The highest value.
        bins: The number of bins of equal width.
        edges: The ends of the bins.
        spikes: Single values within the range that have a bin of their own, such as an income of 0.
        special: Single values beyond the range that are no quantities, such as 9999 for "not
            asked". Each has a code of its own after the bins, and belongs to no range and no mean.

    Raises InvalidInput unless either `edges`, or `low` and `high`, are given, are values of the
    column's type, and ascend (`low` may equal `high` where values are whole steps). It is raised
    too for more than 2^20 bins of equal width, or more than there are whole steps; for a spike
    beyond the range, a special value within it, or one of either that is listed twice; and for a
    text for missing values that is a number of the column.
    """

    default_outside = "clip"
    accepts: ClassVar[str]
    """A value of the column's type, in words for error messages."""
    whole: ClassVar[bool] = True
    """True if values are whole steps: a bin's last value is then one step below its end."""
    low: Any = None
    high: Any = None
    bins: int | None = None
    edges: Sequence[Any] | None = None
    spikes: Sequence[Any] = ()
    special: Sequence[Any] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edges is None and (self.low is None or self.high is None):
            raise InvalidInput(f"give low and high, or edges; got {self.low!r} and {self.high!r}")
        if self.edges is not None and not self.bins is self.low is self.high is None:
            raise InvalidInput("give either edges, or low, high and bins; not both")
        for name in ("edges", "spikes", "special"):
            if (value := getattr(self, name)) is not None or name != "edges":
                object.__setattr__(self, name, tuple(in_order(value, name, "values")))
        if self.bins is not None:
            check_whole(self.bins, "bins", 1)
            object.__setattr__(self, "bins", int(self.bins))
        positions = self._plain_positions
        if len(positions) < 2 or not (np.diff(positions) > 0).all():
            raise InvalidInput(
                "edges must ascend, two or more of them, and low must be below high; got "
                f"{(self.low, self.high) if self.edges is None else self.edges!r}"
            )
        self._check_single_values()
        self._check_outside("clip")

    def _check_single_values(self) -> None:
        ends = self._plain_positions
        # The last bin contains its end, unless values are whole steps.
        end = math.nan if self.whole else ends[-1]
        for name, inside in (("spikes", True), ("special", False)):
            values = getattr(self, name)
            found = self._given(f"each of {name}", values)
            if len(set(found)) < len(found):
                raise InvalidInput(f"{name} holds a value twice: {values!r}; list it once")
            for value, position in zip(values, found, strict=True):
                if (ends[0] <= position < ends[-1] or position == end) != inside:
                    raise InvalidInput(
                        f"{name} holds {value!r}, which lies {'beyond' if inside else 'within'} "
                        f"the range; list it in {'special' if inside else 'spikes'}"
                    )
        for number in self._missing_numbers:  # `found` holds the positions of `special` now
            if ends[0] <= number < ends[-1] or number in (end, *found):
                raise InvalidInput(
                    f"missing lists {number}, a value of the column; keep one of them"
                )

    def _given(self, name: str, values: Iterable[object]) -> list[Any]:
        """Return the positions of values of an argument; raise InvalidInput, with `name`, for what
        is no value of the column's type.
        """
        value: object = None
        try:
            return [self._position(value := each) for each in values]
        except (ValueError, TypeError):
            raise InvalidInput(f"{name} must be {self.accepts}, got {value!r:.60}") from None

    @property
    @abstractmethod
    def parses_as(self) -> tuple[str, ...]:
        """Arrow's names of the types as which a column of texts may be read, tried in turn."""

    @abstractmethod
    def position(self, value: object) -> int | float:
        """Return a value as a position: a number is its own, and that of a date or time is the
        number of the column's units since 1970. Raise ValueError if it is no value of this kind.
        """

    @abstractmethod
    def _shown(self, position: Any) -> str:
        """Return a position as text."""

    def _all_shown(self, positions: NDArray[Any]) -> list[str]:
        """Return each position as text."""
        return [self._shown(position) for position in positions]

    @property
    def place(self) -> str:
        if self.outside != "clip":
            return super().place
        if self.missing is not None:
            return "counted in the nearest bin, unreadable ones as missing"
        return (
            "counted in the nearest bin, unreadable and missing ones as "
            f"{self.own_labels[0]!r} (declare `missing` to keep them apart)"
        )

    @cached_property
    def _plain_positions(self) -> NDArray[Any]:
        """The ends of the bins as positions, without spikes; `__post_init__` checks their order."""
        given: dict[str, Sequence[Any]] = {"low": (self.low,), "high": (self.high,)}
        if self.edges is not None:
            given = {"each of edges": self.edges}
        ends = [end for name, values in given.items() for end in self._given(name, values)]
        if self.whole and ends:
            ends[-1] += 1  # so that the highest value belongs to the last bin
        if self.edges is not None or not ends[0] < ends[-1]:
            return np.array(ends, dtype=np.int64 if self.whole else np.float64)
        first, last = ends
        steps = last - first if self.whole else 1
        return equal_widths(first, last, self.bins or steps, whole=self.whole)

    @cached_property
    def positions(self) -> NDArray[Any]:
        """The ends of the bins as positions: bin i contains the values whose position is at least
        positions[i] and below positions[i + 1]; the last bin contains its end too, unless values
        are whole steps.

        The ends are int64 if values are whole steps. A spike is a bin of one value.
        """
        ends = self._plain_positions
        if not self.spikes:
            return ends
        starts = np.array([self._position(value) for value in self.spikes], dtype=ends.dtype)
        # A bin of real numbers excludes its upper end; only the last one includes it. With another
        # end behind it (`_after`), a spike at the upper end of the range has a bin of its own.
        return np.unique(np.concatenate([ends, starts, self._after(starts)]))

    @cached_property
    def special_positions(self) -> list[Any]:
        """The special values as positions (see `position`)."""
        return list(map(self._position, self.special))

    def _after(self, positions: NDArray[Any]) -> NDArray[Any]:
        """Return the next position after each: the next whole step, or the next float64."""
        return np.asarray(positions + 1 if self.whole else np.nextafter(positions, math.inf))

    def _position(self, value: object) -> Any:
        position, largest = self.position(value), LARGEST if self.whole else sys.float_info.max
        if not abs(position) <= largest or (self.whole and position != int(position)):
            raise ValueError(value)
        return int(position) if self.whole else float(position)

    @property
    def single(self) -> NDArray[np.bool_]:
        """A Boolean for each bin: True if it holds one value only."""
        return np.asarray(self.positions[1:] == self._after(self.positions[:-1]))

    @cached_property
    def bin_labels(self) -> tuple[str, ...]:
        """A text for each bin."""
        bins = zip(self.positions[:-1], self.positions[1:], self.single, strict=True)
        if self.single.all():
            return tuple(self._all_shown(self.positions[:-1]))
        return tuple(self._shown(a) if one else self._range_shown(a, b) for a, b, one in bins)

    def _range_shown(self, start: Any, stop: Any) -> str:
        """Return the text of the range from position `start` to below `stop`, with its last whole
        step as the end or, for real numbers, `stop`. One of real numbers that follows a spike of 0
        is shown as "0..2", although 0 has its own bin.
        """
        if self.whole:
            return f"{self._shown(start)}..{self._shown(stop - 1)}"
        before = float(np.nextafter(start, -math.inf))
        behind_spike = before in [self._position(value) for value in self.spikes]
        return f"{self._shown(before if behind_spike else start)}..{self._shown(stop)}"

    def neighbours(self, most: int) -> list[tuple[str, int, int]]:
        """Return about `most` groups of neighbouring bins, as (label, first code, code after the
        last). They are more if spikes, special values and missing ones, each of which is a group
        of its own, are many.

        >>> from pgmkit.tables.numbers import Integer
        >>> Integer(0, 99, special=(999,)).neighbours(5)
        [('0..24', 0, 25), ('25..49', 25, 50), ('50..74', 50, 75), ('75..99', 75, 100), ('999', ...
        """
        bins = len(self.bin_labels)
        alone = {int(np.searchsorted(self.positions, self._position(v))) for v in self.spikes}
        width = max(1, math.ceil(bins / max(1, most - (self.size - bins + 2 * len(alone)))))
        ends = [0]
        while (start := ends[-1]) < bins:
            end = start + 1 if start in alone else min([bins, *(p for p in alone if p > start)])
            # A remainder of less than half a group joins the last group.
            ends.append(end if end - start < 1.5 * width else start + width)
        return self._groups(ends)

    def _groups(self, ends: Sequence[int]) -> list[tuple[str, int, int]]:
        """Return the bins between successive `ends` (codes, from 0 to the number of bins) as
        groups, and each code after the bins as its own: (label, first code, code after the last).
        """
        singles = range(ends[-1] + 1, self.size + 1)
        found = []
        for start, stop in itertools.pairwise([*ends, *singles]):
            label = self.labels[start]
            if stop - start > 1:
                label = self._range_shown(self.positions[start], self.positions[stop])
            found.append((label, start, stop))
        return found

    @cached_property
    def own_labels(self) -> tuple[str, ...]:
        return *self.bin_labels, *map(self._shown, self.special_positions)

    def _codes(self, values: Any) -> Codes:
        read = parsed(values, self.parses_as, self.missing_texts)
        numbers = numeric(values if read is None else read)
        positions = None if numbers is None else self._positions_of(numbers[0])
        if numbers is None or positions is None:
            found, places = distinct(values)
            return self._codes_of_few(found)[places]
        array, null = numbers
        codes = self._codes_at(positions)
        codes[null] = self._null_code
        for number in self._missing_numbers if array.dtype.kind in "iuf" else ():
            codes[array == number] = self._null_code
        return codes

    def _codes_of_few(self, found: Sequence[Any]) -> Codes:
        """Return the codes of distinct values of any type, which are examined one by one:
        `_null_code` for missing ones, `OUTSIDE` for those that cannot be read or have no code.
        """
        listed = set(self.missing_texts)
        codes = np.full(len(found), OUTSIDE, dtype=np.int64)
        whole, real = dict[int, int](), dict[int, float]()
        for i, value in enumerate(found):
            absent = is_null(value) or text_of(value) in listed
            try:
                position = math.nan if absent else self.position(value)
            except (ValueError, TypeError):
                continue
            if position != position or position in self._missing_numbers:
                codes[i] = self._null_code
            elif isinstance(position, int) and self.whole:
                whole[i] = max(-LARGEST - 1, min(position, LARGEST + 1))  # beyond every bin
            else:
                real[i] = float(Decimal(position))  # infinite if it is too large for a float
        # In one array with other numbers, large whole ones would be rounded to float64.
        for given, kind in ((whole, np.int64), (real, np.float64)):
            codes[[*given]] = self._codes_at(np.array([*given.values()], dtype=kind))
        return codes

    def _codes_at(self, positions: NDArray[Any]) -> Codes:
        """Return the codes of an array of positions; -1 for those without a code."""
        if self.whole and positions.dtype.kind == "f":
            # Floats are floored and looked up as int64, which holds all ends. Floors of fractions
            # are moved into the range, so that 9999.5 does not become the special value 9999.
            below = np.floor(np.nan_to_num(positions).clip(-1.5 * LARGEST, 1.5 * LARGEST))
            between = below != positions
            below[between] = below[between].clip(self.positions[0], self.positions[-1] - 1)
            codes = self._codes_at(below.astype(np.int64))
            codes[np.isnan(positions) if self.outside == "clip" else between] = OUTSIDE
            return codes
        if self._codes_of_whole is None:
            return self._searched(positions)
        first, codes = self._codes_of_whole
        return codes[np.clip(positions, first, first + len(codes) - 1) - first]

    @cached_property
    def _codes_of_whole(self) -> tuple[int, Codes] | None:
        """A table of codes by position: its first position, which is one below all ends and special
        values, and the codes of the consecutive positions from there to one above them all. None if
        values are not whole steps, or if the table would be longer than a batch of rows. A look-up
        takes a tenth of the time of a search.
        """
        known = [*self.positions.tolist(), *self.special_positions]
        first, last = min(known) - 1, max(known) + 1
        if not self.whole or last - first > BATCH_ROWS:
            return None
        return first, self._searched(np.arange(first, last + 1))

    def _searched(self, positions: NDArray[Any]) -> Codes:
        ends, last = self.positions, len(self.positions) - 2
        codes: Codes = np.searchsorted(ends, positions, side="right") - 1
        if not self.whole:
            codes[positions == ends[-1]] = last
        if self.outside == "clip":
            codes = np.where(np.isnan(positions), OUTSIDE, np.clip(codes, 0, last))
        codes[(codes > last) | (codes < 0)] = OUTSIDE  # NaN sorts behind all ends
        for code, position in enumerate(self.special_positions, last + 1):
            codes[positions == position] = code
        return codes

    @cached_property
    def _missing_numbers(self) -> frozenset[int | float]:
        """The numbers among the texts for missing values; only columns of numbers have any."""
        return frozenset()

    @abstractmethod
    def _positions_of(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """Return numbers or times as positions, all NaN if none of this type are values here; None
        if each must be examined by itself. The caller sets the codes of missing entries.
        """

    def _whole_positions(self, codes: Codes, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return for each code a position drawn uniformly among the whole ones of its bin, or that
        of its special value.
        """
        special = np.array(self.special_positions, dtype=np.int64)
        low = np.append(self.positions[:-1], special)[codes]
        return rng.integers(low, np.append(self.positions[1:], special + 1)[codes])

    def within(self, low: object, high: object, closed: bool = True) -> NDArray[np.bool_]:
        ends = dict.fromkeys(str(end) for end in (low, high) if end is not None)
        asked = f"the {'value' if len(ends) == 1 else 'range'} {'..'.join(ends)}"
        try:
            first = -math.inf if low is None else self._end_of(low, behind=False)
            end = math.inf if high is None else self._end_of(high, behind=closed and self.whole)
        except (ValueError, TypeError):
            raise InvalidInput(
                f"a column of type {self.type} does not have {asked}; {self.listed()}"
            ) from None
        starts, stops = self.positions[:-1], self.positions[1:]
        # The first bin contains its lower end, and the last one of real numbers its upper end.
        outer, others = (0, "`<` or `>=`") if closed else (-1, "`<=` or `>`")
        if closed and not self.whole and np.nextafter(end, math.inf) in self.positions:
            end = np.nextafter(end, math.inf)  # a spike at the end is included
        elif not self.whole and end == self.positions[outer]:
            raise InvalidInput(
                f"values of exactly {high} are in the bin {self.bin_labels[outer]} with others, "
                f"and cannot be told apart; use {others}, or declare the value as a spike"
            )
        if first > end:
            raise InvalidInput(f"{asked} ends before it begins; write the lower end first")
        cut = ((starts < first) & (first < stops)) | ((starts < end) & (end < stops))
        if cut.any():
            label = self.labels[int(np.argmax(cut))]
            said = f"the limit {next(iter(ends))}" if low is None or high is None else asked
            raise InvalidInput(
                f"{said} cuts the bin {label}; write whole bins, as {label}, or use bins' ends"
            )
        mask = np.zeros(self.size, dtype=bool)
        mask[: len(starts)] = (starts >= first) & (stops <= end)
        return mask

    def _end_of(self, value: object, *, behind: bool) -> float:
        """Return the position of an end of a range, or the one after it if `behind` is True."""
        return self._position(value) + behind

    def equal(self, labels: Sequence[object]) -> NDArray[np.bool_]:
        # Whole values are looked up as ranges, but not None, whose range would have open ends.
        given = [each for each in labels if self.whole and each is not None]
        single = [each for each in given if text_of(each) not in self._label_codes]
        mask = super().equal([each for each in labels if each not in single])
        for value in single:
            mask |= self.within(value, value)
        return mask
