"""Constraints: combinations of values that the meaning of the columns rules out.

Each constraint becomes structural zeros of the model (`pgmkit.Zeros`), so that every record obeys.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgmkit.errors import InvalidInput
from pgmkit.structural_zeros import Zeros
from pgmkit.tables.columns import Column
from pgmkit.tables.values import plain

__all__ = ["Constraint", "Determines", "Forbid", "Require", "codes_of", "constraint_from_dict"]

Condition = str | int | float | bool | Sequence[Any]
Mask = NDArray[np.bool_]


def codes_of(name: str, column: Column, condition: Condition) -> Mask:
    """The codes of a column that meet a condition: a value, several, or a range "low..high".

    Raises InvalidInput, naming the column, for values it does not have and ranges that cut bins.

    >>> from pgmkit.tables.numbers import Integer
    >>> codes_of("age", Integer(0, 4), "2..")
    array([False, False,  True,  True,  True])
    """
    try:
        if isinstance(condition, str) and ".." in condition and condition not in column.labels:
            low, _, high = condition.partition("..")
            return column.within(low.strip() or None, high.strip() or None)
        if isinstance(condition, list | tuple | set | frozenset):
            masks = [codes_of(name, column, each) for each in condition]
            return np.logical_or.reduce(masks) if masks else np.zeros(column.size, dtype=bool)
        return column.equal([condition])
    except InvalidInput as error:
        text = str(error)
        raise InvalidInput(
            text if text.startswith("column ") else f"column {name!r}: {text}"
        ) from None


@dataclass(frozen=True)
class Constraint(ABC):
    """Base of rules on what may not occur among some columns."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The columns it speaks of."""

    @abstractmethod
    def allowed(self, columns: Mapping[str, Column]) -> Mask:
        """The combinations of codes that may occur; an axis a column, in the order of `columns`."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The plain values that a schema file holds; `constraint_from_dict` reads them."""

    def zeros(self, columns: Mapping[str, Column]) -> Zeros:
        """The constraint for the estimation of a model."""
        return Zeros(self.columns, self.allowed(columns))


@dataclass(frozen=True)
class Forbid(Constraint):
    """A combination that cannot occur: no record meets all these conditions.

    >>> from pgmkit.tables.numbers import Integer
    >>> from pgmkit.tables.labelled import Categorical
    >>> columns = {"age": Integer(0, 1), "married": Categorical(("no", "yes"))}
    >>> Forbid({"age": 0, "married": "yes"}).allowed(columns)
    array([[ True, False],
           [ True,  True]])
    """

    conditions: Mapping[str, Condition]

    def __post_init__(self) -> None:
        if not _are_conditions(self.conditions):
            raise InvalidInput("a Forbid needs at least one condition: {column: value}")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.conditions)

    def allowed(self, columns: Mapping[str, Column]) -> Mask:
        return ~_all_met(self.conditions, columns)

    def to_dict(self) -> dict[str, Any]:
        return {"forbid": _stored(self.conditions)}


@dataclass(frozen=True)
class Require(Constraint):
    """Records that meet the conditions `when` meet those of `then` too."""

    when: Mapping[str, Condition]
    then: Mapping[str, Condition]

    def __post_init__(self) -> None:
        if not _are_conditions(self.when) or not _are_conditions(self.then):
            raise InvalidInput(
                "a Require needs conditions in both `when` and `then`: {column: value}"
            )
        both = set(self.when) & set(self.then)
        if both:
            raise InvalidInput(f"column {sorted(both)[0]!r} is in both `when` and `then`")

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.when, *self.then)

    def allowed(self, columns: Mapping[str, Column]) -> Mask:
        premise, conclusion = _all_met(self.when, columns), _all_met(self.then, columns)
        return ~premise.reshape(premise.shape + (1,) * conclusion.ndim) | conclusion

    def to_dict(self) -> dict[str, Any]:
        return {"when": _stored(self.when), "then": _stored(self.then)}


@dataclass(frozen=True)
class Determines(Constraint):
    """The value of `source` determines that of `target`: {source's value: target's value}.

    A value may stand for several: {"HS-grad": 9, "Masters": [14, 15]}. Values of the source that
    `mapping` leaves out determine nothing.
    """

    source: str
    target: str
    mapping: Mapping[Any, Condition]

    def __post_init__(self) -> None:
        if self.source == self.target or not _are_conditions(self.mapping):
            raise InvalidInput("a Determines needs two columns and a mapping between their values")

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.source, self.target)

    def allowed(self, columns: Mapping[str, Column]) -> Mask:
        source, target = columns[self.source], columns[self.target]
        table = np.ones((source.size, target.size), dtype=bool)
        for value, goal in self.mapping.items():
            table[codes_of(self.source, source, value)] &= codes_of(self.target, target, goal)
        return table

    def to_dict(self) -> dict[str, Any]:
        return {"source": self.source, "target": self.target, "mapping": _stored(self.mapping)}


def constraint_from_dict(stored: Mapping[str, Any]) -> Constraint:
    """The constraint that `to_dict` stored; InvalidInput for anything else.

    >>> constraint_from_dict({"forbid": {"age": "0..14", "married": "yes"}})
    Forbid(conditions={'age': '0..14', 'married': 'yes'})
    """
    keys = set(stored)
    if keys == {"forbid"}:
        return Forbid(stored["forbid"])
    if keys == {"when", "then"}:
        return Require(stored["when"], stored["then"])
    if keys == {"source", "target", "mapping"}:
        return Determines(stored["source"], stored["target"], stored["mapping"])
    raise InvalidInput(
        f"a constraint has the fields {sorted(keys)}, but must have either `forbid`, or `when` and "
        "`then`, or `source`, `target` and `mapping`"
    )


def _are_conditions(given: object) -> bool:
    return isinstance(given, Mapping) and len(given) > 0


def _all_met(conditions: Mapping[str, Condition], columns: Mapping[str, Column]) -> Mask:
    """A Boolean for each combination of codes that meets all conditions; an axis a column."""
    masks = [codes_of(name, columns[name], wanted) for name, wanted in conditions.items()]
    met = np.ones((1,) * len(masks), dtype=bool)
    for axis, mask in enumerate(masks):
        met = met & mask.reshape([len(mask) if i == axis else 1 for i in range(len(masks))])
    assert met.size == math.prod(len(mask) for mask in masks)
    return met


def _stored(conditions: Mapping[Any, Condition]) -> dict[Any, Any]:
    """Conditions as YAML and JSON know them: dates, for one, are texts there."""
    return {plain(name): _plain_condition(wanted) for name, wanted in conditions.items()}


def _plain_condition(wanted: Condition) -> Any:
    if isinstance(wanted, list | tuple | set | frozenset):
        return [_plain_condition(each) for each in wanted]
    return plain(wanted)
