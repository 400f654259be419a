"""Columns of numbers: whole numbers with a code each, and whole or real numbers in bins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import check_whole, one_of
from pgmkit.runtime.precision import EXACT
from pgmkit.runtime.typed import typed_class
from pgmkit.tables.bins import Binned
from pgmkit.tables.columns import LARGEST, Codes, Values
from pgmkit.tables.values import bare, number_of, text_of


@typed_class
class Numbers(Binned):
    """Base of columns of whole and of real numbers.

    Texts are also read as spreadsheets print numbers: $1,234.50 is 1234.5, 33 % is 33, and (12.00)
    is -12.
    """

    parses_as: ClassVar[tuple[str, ...]] = ("int64", "float64")

    def position(self, value: object) -> int | float:
        return number_of(bare(value.strip()) if isinstance(value, str) else value)

    @cached_property
    def _missing_numbers(self) -> frozenset[int | float]:
        found = set[int | float]()
        for text in self.missing or ():
            with suppress(ValueError):  # other texts are no numbers
                found.add(number_of(text))
        return frozenset(found)

    def _positions_of(self, array: NDArray[Any]) -> NDArray[Any]:
        if array.dtype.kind not in "iuf":
            return np.full(len(array), math.nan)
        if array.dtype.kind == "u" and array.dtype.itemsize == 8:
            # Numbers above LARGEST lie beyond every bin; they must not turn the others into floats.
            return np.minimum(array, LARGEST + 1).astype(np.int64)
        return array.astype(np.int64 if array.dtype.kind in "iu" else np.float64, copy=False)

    @property
    def ends_of_bins(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
        """Three arrays with an entry for each bin: its lowest and its highest value, and how many
        values the column can have in an interval of length 1, which is 1 for whole numbers.
        """
        starts, stops = self.positions[:-1], self.positions[1:]
        return starts, stops - 1, np.ones(len(starts))

    @property
    def midpoints(self) -> NDArray[np.float64]:
        first, last, _ = self.ends_of_bins
        middles = first / 2 + last / 2
        return np.append(middles, [math.nan] * (self.size - len(middles)))

    def steps(self, width: float) -> list[tuple[str, int, int]]:
        """Return the bins between multiples of `width` (`Column.steps`); special values and
        missing ones are groups of their own.

        >>> Integer(17, 30, special=(99,)).steps(5)
        [('17..19', 0, 3), ('20..24', 3, 8), ('25..29', 8, 13), ('30', 13, 14), ('99', 14, 15)]
        """
        if not (math.isfinite(width) and width > 0):
            raise InvalidInput(f"steps must have a width above 0, got {width!r}")
        starts, stops = self.positions[:-1], self.positions[1:]
        if self.whole and float(width).is_integer():  # exact, also where floats would be rounded
            exact = min(int(width), 2 * LARGEST - 1)
            first, last = starts // exact, (stops - 1) // exact
        else:
            first, last = np.floor(_whole(starts / width)), _whole(stops / width) - 1
            if self.whole:
                last = np.floor(_whole((stops - 1) / width))
        cut = last > first
        if cut.any():
            raise InvalidInput(
                f"steps of {width:g} cut the bin {self.labels[int(np.argmax(cut))]}; use steps "
                "that bins end at"
            )
        return self._groups([0, *(np.flatnonzero(np.diff(first)) + 1).tolist(), len(starts)])


def _whole(ratios: NDArray[Any]) -> NDArray[np.float64]:
    """Return the ratios; those within rounding errors of a whole number become that number."""
    near = np.rint(ratios)
    close = np.isclose(ratios, near, rtol=4 * np.finfo(np.float64).eps, atol=1e-12)
    return np.where(close, near, ratios)


@dataclass(frozen=True)
class Integer(Numbers):
    """Whole numbers from `low` to `high`: a code for each, or `bins` of nearly equal width.

    A fraction such as 11.5 is no whole number and so outside the column. `outside` says where it
    counts: "clip" counts it in the bin of the whole number below (11), from any source of data.
    Raises InvalidInput for a wrong range, bins, spikes or special values (`Binned` has the rules),
    and if values beyond 2^53 are to be decoded as "number".

    >>> Integer(0, 9, bins=5).labels
    ('0..1', '2..3', '4..5', '6..7', '8..9')
    >>> Integer(edges=(17, 30, 65, 90)).encode(np.array([17, 29, 30, 90, 91]))
    array([ 0,  0,  1,  2, -1])
    >>> Integer(0, 99, bins=2, spikes=(0,), special=(9999,)).labels
    ('0', '1..49', '50..99', '9999')
    """

    type = "integer"
    becomes = ("integer", "number", "text")
    accepts = "a whole number up to 2^62"

    def __post_init__(self) -> None:
        super().__post_init__()
        first, end = self.positions[[0, -1]].tolist()  # numpy's numbers would be compared as floats
        largest = max(map(abs, [first, end - 1, *self.special_positions]))
        if self.decode_as == "number" and largest > EXACT:
            raise InvalidInput(
                'decode_as "number" holds whole numbers up to 2^53 only; leave it out, or declare '
                '"text"'
            )

    @property
    def place(self) -> str:
        clipped = self.outside == "clip"
        return super().place + "; a fraction counts as the whole number below it" * clipped

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        positions = self._whole_positions(codes, rng)
        if self.kind == "text":
            return positions.astype(str).astype(object)
        return positions.astype(np.float64 if self.kind == "number" else np.int64)

    def _shown(self, position: Any) -> str:
        return str(position)


@dataclass(frozen=True)
class Numeric(Numbers):
    """Numbers from `low` to `high` in `bins` of equal width, or in bins between `edges`.

    Attributes:
        quantiles: Whether the inner edges are still to be found in the data, for bins of equal
            counts; the schema is unresolved until then.
        decimals: The decimal places of decoded values; by default enough to distinguish a thousand
            values in the narrowest bin, but at most 22.
        trailing_zeros: Whether CSV files are written with all these places, as in 2.50.

    Raises InvalidInput for a wrong range, bins, spikes or special values (`Binned` has the rules),
    without either bins or edges, for `quantiles` together with `edges`, for `decimals` outside 0 to
    15, for trailing zeros without `decimals`, and for `decode_as` "integer" unless `decimals` is 0,
    each bin has a whole number, and each special value is one.

    >>> Numeric(0, 1, bins=4).encode(np.array([0.0, 0.25, 0.99, 1.0, 1.01]))
    array([ 0,  1,  3,  3, -1])
    """

    type = "numeric"
    becomes = ("number", "integer", "text")
    accepts = "a finite number"
    whole = False
    parses_as = ("float64",)
    quantiles: bool = False
    decimals: int | None = None
    trailing_zeros: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("quantiles", "trailing_zeros"):
            one_of(getattr(self, name), (False, True), name)
        if self.bins is None and (self.edges is None or self.quantiles):
            raise InvalidInput("a numeric column needs bins, or edges without quantiles")
        if self.decimals is not None:
            check_whole(self.decimals, "decimals", 0, 15)
            object.__setattr__(self, "decimals", int(self.decimals))
        if self.trailing_zeros and self.decimals is None:
            raise InvalidInput("trailing_zeros needs decimals: how many places are written")
        if self.decode_as == "integer" and not self._holds_whole_numbers():
            raise InvalidInput(
                'decode_as "integer" needs decimals: 0, and a whole number in every bin and as '
                "every special value"
            )

    def _holds_whole_numbers(self) -> bool:
        first, beyond, _ = self._multiples
        whole = all(map(float.is_integer, self.special_positions))
        return self.decimals == 0 and whole and bool((self.quantiles | (first < beyond)).all())

    @property
    def resolved(self) -> bool:
        return not self.quantiles

    def found(self, inner: Sequence[float]) -> Numeric:
        """Return the concrete column, with bins between `low`, those edges in `inner` that lie
        within the range, and `high`. Inner edges are rounded to the decimal places of decoded
        values; those that become equal are one.
        """
        low, high = self._position(self.low), self._position(self.high)
        rounded = (round(float(edge), self._places) for edge in inner)
        edges = sorted({low, high, *(edge for edge in rounded if low < edge < high)})
        return replace(self, edges=tuple(edges), low=None, high=None, bins=None, quantiles=False)

    def grid(self, bins: int) -> Numeric:
        """Return the column with `bins` bins of equal width in place of edges at quantiles."""
        return replace(self, bins=bins, quantiles=False)

    @property
    def ends_of_bins(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
        """Three arrays with an entry for each bin: its lowest and its highest value, and how many
        values the column can have in an interval of length 1.

        If `decimals` are declared, only values with that many decimal places count; the upper end
        of the last bin does not, although the bin contains it. Without `decimals`, and for a bin
        without such values, the two values are the bin's ends, and the number is 0.
        """
        starts = self.positions[:-1]
        stops = np.where(self.single, starts, self.positions[1:])
        if self.decimals is None:
            return starts, stops, np.zeros(len(starts))
        first, beyond, scale = self._multiples
        some = first < beyond
        low, high = np.where(some, [first / scale, (beyond - 1) / scale], [starts, stops])
        return low, high, np.where(some, scale, 0.0)

    @cached_property
    def _multiples(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """For each bin the first value that has the decimal places of decoded values, and the first
        such value beyond the bin, both as multiples of the last place's unit (such as 0.01); and
        the number of these units in 1. The first two are equal for a bin without such values, or if
        floats cannot tell them apart.
        """
        scale = 10.0**self._places
        with np.errstate(over="ignore"):
            least = np.rint(self.positions * scale)
        least += least / scale < self.positions  # the nearest multiple may lie below the bin's end
        first, beyond = least[:-1], least[1:]
        exact = (np.maximum(-first, beyond) < EXACT) & (first < beyond)
        return np.where(exact, first, 0.0), np.where(exact, beyond, 0.0), scale

    @cached_property
    def _places(self) -> int:
        """The decimal places of decoded values. No power of ten above 10^22 is a float."""
        if self.decimals is not None:
            return self.decimals
        width = float(np.diff(self._plain_positions).min())
        return min(max(0, 3 - math.floor(math.log10(width))), 22)

    def own_values(self, codes: Codes, rng: np.random.Generator) -> Values:
        """Return a value for each code, of the type `kind`: a special value, or one drawn uniformly
        among the values of the bin that have the decimal places of decoded values; from the whole
        bin if it has none.
        """
        special, drawn = self.special_positions, rng.random(len(codes))
        first, beyond, scale = self._multiples
        low = np.append(self.positions[:-1], special)[codes]
        high = np.append(self.positions[1:], special)[codes]
        own, number = (
            np.append(each, np.zeros(len(special)))[codes] for each in (first, beyond - first)
        )
        within = np.maximum(np.minimum(low + (high - low) * drawn, np.nextafter(high, low)), low)
        values = np.where(number > 0, (own + np.floor(drawn * number)) / scale, within)
        if self.kind == "integer":
            return values.astype(np.int64)
        if self.kind == "text":
            return np.array([text_of(each) for each in values.tolist()], dtype=object)
        return values

    def _shown(self, position: Any) -> str:
        short = f"{position:g}"
        return short if float(short) == position else text_of(float(position))
