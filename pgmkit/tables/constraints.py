"""Constraints: combinations of values that the meaning of the columns makes impossible.

Each constraint becomes structural zeros of the model (`pgmkit.Zeros`), so every synthetic record
satisfies it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput, naming
from pgmkit.runtime.arguments import shown
from pgmkit.runtime.typed import typed_class
from pgmkit.structural_zeros import Zeros
from pgmkit.tables.columns import Column, changed_fields, plain
from pgmkit.tables.values import text_of

Condition = str | int | float | bool | Sequence[Any]
Mask = NDArray[np.bool_]


def codes_of(name: str, column: Column, condition: Condition) -> Mask:
    """Return a Boolean for each code: True if it meets the condition.

    A condition is a value, a range "low..high", or a list of values and ranges; a code meets a list
    if it meets one of them, and no code meets an empty list. Raises InvalidInput, with the column's
    name, for values that the column does not have and for ranges that cut bins.

    >>> from pgmkit.tables.numbers import Integer
    >>> codes_of("age", Integer(0, 4), "2..")
    array([False, False,  True,  True,  True])
    """
    wanted = condition if isinstance(condition, list | tuple | set | frozenset) else [condition]
    ranges = [each for each in wanted if _is_range(each, column)]
    with naming(f"column {name!r}"):
        met = column.equal([each for each in wanted if not _is_range(each, column)])
        for each in ranges:
            low, _, high = each.partition("..")
            met |= column.within(low.strip() or None, high.strip() or None)
    return met


def _said(conditions: Mapping[Any, Condition]) -> str:
    """Return conditions in words: "age 0..14 and status married or widowed"."""
    listed = {
        n: each if isinstance(each, list | tuple) else [each] for n, each in conditions.items()
    }
    return " and ".join(f"{n} {' or '.join(map(text_of, each))}" for n, each in listed.items())


def _is_range(condition: object, column: Column) -> TypeGuard[str]:
    return isinstance(condition, str) and ".." in condition and condition not in column.labels


@typed_class
@dataclass(frozen=True)
class Constraint(ABC):
    """Base of rules on which combinations of some columns' values cannot occur."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns that the rule is about."""

    @abstractmethod
    def allowed(self, columns: Mapping[str, Column]) -> Mask:
        """Return a Boolean for each combination of codes: True if it may occur.

        The array has an axis for each of the rule's columns, in their order.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return the plain values of a schema file, which `constraint_from_dict` reads."""
        return changed_fields(self)

    def zeros(self, columns: Mapping[str, Column]) -> Zeros:
        """Return the constraint as structural zeros, for the estimation of a model."""
        return Zeros(self.columns, self.allowed(columns))


@typed_class
@dataclass(frozen=True)
class Forbid(Constraint):
    """A combination that cannot occur: no record meets all `conditions`, each of which is a value
    of a column, a range, or a list of these (`codes_of`). Raises InvalidInput without conditions.

    >>> from pgmkit.tables.numbers import Integer
    >>> from pgmkit.tables.labelled import Categorical
    >>> columns = {"age": Integer(0, 1), "married": Categorical(("no", "yes"))}
    >>> Forbid({"age": 0, "married": "yes"}).allowed(columns)
    array([[ True, False],
           [ True,  True]])
    """

    conditions: Mapping[str, Condition]

    def __post_init__(self) -> None:
        if not self.conditions:
            raise InvalidInput("a Forbid needs at least one condition: {column: value}")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.conditions)

    def allowed(self, columns: Mapping[str, Column]) -> Mask:
        return ~_all_met(self.conditions, columns)

    def to_dict(self) -> dict[str, Any]:
        return {"forbid": plain(self.conditions)}

    def __str__(self) -> str:
        return f"never {_said(self.conditions)}"


@typed_class
@dataclass(frozen=True)
class Require(Constraint):
    """A rule that every record which meets all conditions of `when` also meets all of `then`. A
    condition is a value, a range, or a list of these (`codes_of`). Raises InvalidInput if either is
    empty, or if both have a condition on the same column.
    """

    when: Mapping[str, Condition]
    then: Mapping[str, Condition]

    def __post_init__(self) -> None:
        if not self.when or not self.then:
            raise InvalidInput(
                "a Require needs conditions in both `when` and `then`: {column: value}"
            )
        both = set(self.when) & set(self.then)
        if both:
            raise InvalidInput(f"column {sorted(both)[0]!r} is in both `when` and `then`; keep one")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.when, *self.then)

    def allowed(self, columns: Mapping[str, Column]) -> Mask:
        premise, conclusion = _all_met(self.when, columns), _all_met(self.then, columns)
        return np.asarray(np.logical_or.outer(~premise, conclusion))

    def __str__(self) -> str:
        return f"if {_said(self.when)}, then {_said(self.then)}"


@typed_class
@dataclass(frozen=True)
class Determines(Constraint):
    """A rule that the value of the column `source` determines that of the column `target`.

    `mapping` has values of the source with the values of the target that they allow, one or
    several: {"HS-grad": 9, "Masters": [14, 15]}. Values of the source that it leaves out allow
    every value of the target. Raises InvalidInput for an empty mapping, and if both columns are the
    same.
    """

    source: str
    target: str
    mapping: Mapping[Any, Condition]

    def __post_init__(self) -> None:
        if self.source == self.target or not self.mapping:
            raise InvalidInput(f"a Determines needs two columns and a mapping, got {self!r:.60}")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.source, self.target)

    def allowed(self, columns: Mapping[str, Column]) -> Mask:
        source, target = columns[self.source], columns[self.target]
        table = np.ones((source.size, target.size), dtype=bool)
        for value, goal in self.mapping.items():
            table[codes_of(self.source, source, value)] &= codes_of(self.target, target, goal)
        return table

    def __str__(self) -> str:
        own, other, pairs = self.source, self.target, self.mapping.items()
        rules = (f"{_said({own: value})}, then {_said({other: goal})}" for value, goal in pairs)
        return f"if {'; if '.join(rules)}"


def constraint_from_dict(stored: Mapping[str, Any]) -> Constraint:
    """Return the constraint that `to_dict` stored; raise InvalidInput for anything else.

    >>> constraint_from_dict({"forbid": {"age": "0..14", "married": "yes"}})
    Forbid(conditions={'age': '0..14', 'married': 'yes'})
    """
    keys = set(stored) if isinstance(stored, Mapping) else set()
    if keys == {"forbid"}:
        return Forbid(stored["forbid"])
    if keys == {"when", "then"}:
        return Require(stored["when"], stored["then"])
    if keys == {"source", "target", "mapping"}:
        return Determines(stored["source"], stored["target"], stored["mapping"])
    raise InvalidInput(
        "a constraint must be a mapping with either `forbid`, or `when` and `then`, or `source`, "
        f"`target` and `mapping`; got {', '.join(sorted(map(str, keys))) or shown(stored)}"
    )


def _all_met(conditions: Mapping[str, Condition], columns: Mapping[str, Column]) -> Mask:
    """Return a Boolean for each combination of codes, in an array with an axis for each column:
    True if the combination meets all conditions.
    """
    masks = (codes_of(name, columns[name], wanted) for name, wanted in conditions.items())
    return reduce(np.logical_and.outer, masks)
