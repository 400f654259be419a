"""Levels of a column: groups of its values, such as the tracts and counties of blocks.

A column with its levels is a tree. Only its lowest level, the column itself, is coded, measured and
drawn; the code of every upper level is a function of it. So levels never contradict each other, and
they are public: data need not have a column for them, and such a column is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput, did_you_mean, naming
from pgmkit.runtime.typed import typed_class
from pgmkit.tables.columns import Column, changed_fields
from pgmkit.tables.constraints import Condition, codes_of
from pgmkit.tables.labelled import Categorical
from pgmkit.tables.values import text_of


@typed_class
@dataclass(frozen=True)
class Level:
    """A rule that every value of a column, or of a level below, belongs to one group.

    Raises InvalidInput for groups that are no mapping, if `of` or `groups` is empty, and for two
    names that are the same text, such as 1 and "1".

    Attributes:
        of: The name of the column, or of another level.
        groups: For each group's name, which is a text, the values in it: a value, a range
            "low..high", or a list of these. Missing values are a group of their own unless
            "(missing)" is in one.

    >>> from pgmkit import Integer, Schema
    >>> ages = {"minor": "..17", "adult": "18.."}
    >>> schema = Schema({"age": Integer(0, 89, bins=45)}, levels={"stage": Level("age", ages)})
    >>> schema.groups["stage"].codes[[8, 9]]
    array([0, 1])
    """

    of: str
    groups: Mapping[str, Condition]

    def __post_init__(self) -> None:
        if not self.of or not self.groups:
            raise InvalidInput(
                "a Level needs `of`, the name of a column or of a level, and groups such as "
                "{'t1': ['b1', 'b2']}"
            )
        # Names are texts, as in files: JSON allows no other keys.
        named = {text_of(k): each for k, each in self.groups.items()}
        if len(named) < len(self.groups):
            raise InvalidInput(
                f"groups need names that differ as texts, got {[*self.groups]!r:.200}; rename one"
            )
        object.__setattr__(self, "groups", named)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain values of a schema file, which `level_from_dict` reads."""
        return changed_fields(self)


@dataclass(frozen=True)
class Groups:
    """A level as a column of its own.

    Attributes:
        base: The name of the column at the bottom of the tree.
        column: The column whose values are the groups' names.
        codes: The group's code for each code of `base`.
    """

    base: str
    column: Categorical
    codes: NDArray[np.intp]

    def members(self) -> NDArray[np.bool_]:
        """Return a Boolean array of shape (groups, codes of `base`): True for the group's codes."""
        return np.asarray(np.equal.outer(np.arange(self.column.size), self.codes))


def level_from_dict(name: object, stored: Any) -> Level:
    """Return the level that `to_dict` stored; raise InvalidInput for anything else."""
    if not isinstance(stored, Mapping) or set(stored) != {"of", "groups"}:
        raise InvalidInput(f"level {name!r} must have the fields `of` and `groups`")
    with naming(f"level {name!r}"):
        return Level(stored["of"], stored["groups"])


def found_groups(columns: Mapping[str, Column], levels: Mapping[str, Level]) -> dict[str, Groups]:
    """Return each level as a column whose values are the names of its groups, with the group of
    each code of the column at the bottom. Missing values that are in no group are a further group.

    Raises InvalidInput for a level whose name is no text, empty, or that of a column; whose `of` is
    neither a column nor a level, is a column whose values are still to be found, or leads back to
    the level; for a value, other than a missing one, that is in none of a level's groups or in
    several; and for a group without values, or with one that the column does not have.
    """
    found: dict[str, Groups] = {}
    try:
        upwards = [*TopologicalSorter({n: [each.of] for n, each in levels.items()}).static_order()]
    except CycleError as error:
        raise InvalidInput(
            f"level {error.args[1][0]!r} is a level of itself; change its name or its `of`"
        ) from None
    for name in filter(levels.__contains__, upwards):
        if not isinstance(name, str) or not name or name in columns:
            raise InvalidInput(f"a level needs a name of its own, got {name!r}")
        level, known = levels[name], {**columns, **{n: each.column for n, each in found.items()}}
        if level.of not in known:
            raise InvalidInput(
                f"level {name!r} is of {level.of!r}, which is neither a column nor a level"
                f"{did_you_mean(level.of, known)}; columns are {', '.join(columns)}"
            )
        below = known[level.of]
        if not below.resolved:
            raise InvalidInput(
                f"level {name!r} needs the values of {level.of!r}, which are still to be found in "
                "the data; list them"
            )
        with naming(f"level {name!r}"):
            own, codes = _grouped(level, below)
        under = found.get(level.of)
        base, codes = (level.of, codes) if under is None else (under.base, codes[under.codes])
        found[name] = Groups(base, own, codes)
    return {name: found[name] for name in levels}


def _grouped(level: Level, below: Column) -> tuple[Categorical, NDArray[np.intp]]:
    """Return the column of a level's groups, and the group of each code of the column below."""
    column = Categorical(tuple(level.groups))
    codes, times = np.zeros(below.size, np.intp), np.zeros(below.size, np.intp)
    for group, (name, condition) in enumerate(level.groups.items()):
        own = codes_of(level.of, below, condition)
        if not own.any():
            raise InvalidInput(f"the group {name!r} has no values; leave it out")
        codes[own] = group
        times[own] += 1
    absent = below.size - 1
    if below.missing is not None and times[absent] == 0:
        column = Categorical(column.values, missing=())
        codes[absent], times[absent] = len(level.groups), 1
    if (times != 1).any():
        wrong = int(np.flatnonzero(times != 1)[0])
        raise InvalidInput(
            f"the value {below.labels[wrong]!r} of {level.of!r} is in {times[wrong]} groups; every "
            "value must be in one"
        )
    return column, codes
