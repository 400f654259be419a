"""The column types by name, and columns made from the plain values of a schema file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pgmkit.errors import check_known
from pgmkit.tables.columns import Column
from pgmkit.tables.dates import Date, DateTime
from pgmkit.tables.labelled import Boolean, Categorical, OpenCategorical
from pgmkit.tables.numbers import Integer, Numeric

COLUMN_TYPES: Mapping[str, type[Column]] = {
    each.type: each
    for each in (Categorical, OpenCategorical, Boolean, Integer, Numeric, Date, DateTime)
}
"""The types of columns that a schema can have, by the names that schema files give them."""


def column_from_dict(stored: Mapping[str, Any]) -> Column:
    """Return the column that `to_dict` stored; raise InvalidInput for an unknown type or field.

    >>> column_from_dict({"type": "integer", "low": 0, "high": 3})
    Integer(missing=None, outside=None, decode_as=None, low=0, high=3, bins=None, ...)
    """
    given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in stored.items()}
    kind = given.pop("type", None)
    check_known([kind], COLUMN_TYPES, "there is no type", "types are")
    allowed = sorted(each.name for each in fields(COLUMN_TYPES[kind]))
    check_known(given, allowed, f"a column of type {kind} has no field", "it has")
    return COLUMN_TYPES[kind](**given)
