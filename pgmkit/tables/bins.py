"""Columns of numbers in bins: integers and real numbers, and what dates share with them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pgmkit.errors import InvalidInput
from pgmkit.tables.columns import OUTSIDE, Column, distinct, plain, text_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgmkit.tables.columns import Codes, Values

__all__ = ["Binned", "Integer", "Numeric"]

_MOST_CODES = 1_000_000


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
        if count > _MOST_CODES:
            raise InvalidInput(f"{count:,} codes are too many; give at most {_MOST_CODES:,} bins")
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

        found, places = distinct(values)
        return np.array([position(value) for value in found], dtype=np.float64)[places]

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
            if text_of(label) in self.labels:
                mask |= super().equal([label])
            elif self.whole:
                mask |= self.within(label, label)
            else:
                super().equal([label])
        return mask

    def _stored(self, value: Any) -> Any:
        return [plain(each) for each in value] if isinstance(value, tuple) else plain(value)


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

    With `quantiles` the inner edges are still to be found; the schema is then unresolved.

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
