"""Neighbour relations, and the sensitivities of one marginal under each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral

from pgmkit.errors import InvalidInput
from pgmkit.runtime.arguments import shown
from pgmkit.runtime.printed import on_one_line


@dataclass(frozen=True)
class Neighbours:
    """A neighbour relation and its sensitivities for one marginal, in counts.

    `l1`, `l2`: the largest L1 and L2 change of a marginal between neighbouring data sets. The L1
    distance of a marginal to any fixed table changes by at most `l1` (triangle inequality). At most
    `l1` values of a column occur in only one of two neighbours, since the count of each such value
    changes: two for a replaced row (the old value and the new one), one for an added row.

    `rows_public`: whether all neighbours have the same number of rows, which is then public.

    `exchanged`: whether a row can take the place of another.

    `max_rows`: the most rows that one of two neighbours has and the other lacks: no count changes
    by more.
    """

    name: str
    l1: int
    l2: float
    rows_public: bool
    exchanged: bool
    max_rows: int = 1

    def of_units(self, unit: str, max_rows: int) -> Neighbours:
        """Return the same relation for units, each of 1 to `max_rows` rows, instead of rows.

        The worst unit has all its rows in one cell, so that L2 grows with their number and not with
        its square root, and a replaced one moves them all to one other cell. Each of its rows may
        hold a value that nobody else has. A unit of fewer rows may replace one of more: the number
        of rows is public only if every unit has exactly one.

        >>> units = NEIGHBOURS["add/remove"].of_units("household", 4)
        >>> units.name, units.l1, units.l2
        ('add/remove of household (max_rows 4)', 4, 4.0)
        """
        return replace(
            self,
            name=f"{self.name} of {unit} (max_rows {max_rows})",
            l1=self.l1 * max_rows,
            l2=self.l2 * max_rows,
            rows_public=self.rows_public and max_rows == 1,
            max_rows=self.max_rows * max_rows,
        )

    def largest_move(self, norm: Callable[[bool], float]) -> float:
        """Return the largest change of the answers to linear queries between neighbours, in a norm.

        `norm(False)`: the largest norm of one row's answers; `norm(True)`: that of the difference
        of two rows' answers. The change is a sum of at most `max_rows` rows' answers minus such a
        sum; a norm is convex, so it is largest if each side has none or all of its rows in one
        cell.
        """
        kinds = [True] * self.exchanged + [False] * (not self.rows_public)
        return self.max_rows * max(norm(differ) for differ in kinds)


NEIGHBOURS = {
    "replace-one": Neighbours(
        "replace-one", l1=2, l2=math.sqrt(2), rows_public=True, exchanged=True
    ),
    "add/remove": Neighbours("add/remove", l1=1, l2=1.0, rows_public=False, exchanged=False),
}
"""The relations by name: one row replaced by another, or one row more or less."""

_OF_UNITS = re.compile(
    r"(?P<promise>(?P<rows>[^ ]+)( of (?P<unit>.+?))??)( \(max_rows (?P<most>\d+)\))?", re.DOTALL
)


def relation(
    neighbours: str | Neighbours, unit: str | None = None, max_rows: int | None = None
) -> Neighbours:
    """Return the relation of this name (or this relation itself) for rows or, with `unit` and
    `max_rows`, for units of at most `max_rows` rows.

    `unit`: the name of the column that says which unit a row belongs to. Raises InvalidInput for an
    unknown name, for a unit without a whole number of rows above 0, and for a number of rows
    without a unit.

    >>> relation("replace-one", "person", 2).l1
    4
    """
    if isinstance(neighbours, Neighbours):
        found = neighbours
    elif isinstance(neighbours, str) and neighbours in NEIGHBOURS:
        found = NEIGHBOURS[neighbours]
    else:
        raise InvalidInput(
            f"neighbours must be one of {', '.join(map(repr, NEIGHBOURS))}; got {shown(neighbours)}"
        )
    if unit is None and max_rows is None:
        return found
    if not isinstance(unit, str) or not unit:
        raise InvalidInput(
            f"unit must be the name of the column with each row's unit, got {shown(unit)}; "
            "without a unit leave max_rows out"
        )
    if not isinstance(max_rows, Integral) or isinstance(max_rows, bool) or max_rows < 1:
        raise InvalidInput(
            f"max_rows must be a whole number above 0 (--max-rows), got {shown(max_rows)}; each "
            f"{unit!r} keeps that many rows at most, and noise grows with it"
        )
    return found.of_units(unit, int(max_rows))


def promise(name: str) -> str:
    """Return the name of a relation without the number of rows of a unit. Runs whose relations have
    the same promise can be added up.

    >>> promise("add/remove of household (max_rows 4)"), promise("add/remove")
    ('add/remove of household', 'add/remove')
    """
    parsed = _OF_UNITS.fullmatch(name)
    return parsed["promise"] if parsed else name


def rows_used(name: str) -> str:
    """Return a sentence on which rows of a unit are counted under a relation of units, from the
    relation's name; empty for a relation of rows, or if the name lacks `max_rows`.

    >>> rows_used("add/remove of household (max_rows 4)")
    'Counts are of at most 4 rows of each household; any others were left out.'
    """
    parsed = _OF_UNITS.fullmatch(name)
    if parsed is None or None in (parsed["unit"], parsed["most"]):
        return ""
    rows = "1 row" if parsed["most"] == "1" else f"{parsed['most']} rows"
    unit = on_one_line(parsed["unit"])
    return f"Counts are of at most {rows} of each {unit}; any others were left out."


def rows_public(name: str) -> bool:
    """Return True if the relation of this name leaves the number of rows public.

    >>> [rows_public(f"replace-one{unit}") for unit in ("", " of id (max_rows 1)", " of id")]
    [True, True, False]
    """
    return re.fullmatch(r"replace-one( of .+ \(max_rows 1\))?", name, re.DOTALL) is not None


def is_promise(name: object) -> bool:
    """Return True if `name` is the name of a relation, of rows or of units."""
    parsed = _OF_UNITS.fullmatch(name) if isinstance(name, str) else None
    return parsed is not None and parsed["rows"] in NEIGHBOURS
