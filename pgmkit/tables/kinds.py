"""The column types by name, and columns made from the plain values of a schema file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pgmkit.errors import InvalidInput, check_known
from pgmkit.tables.columns import Column
from pgmkit.tables.dates import Date, DateTime
from pgmkit.tables.labelled import Boolean, Categorical, OpenCategorical
from pgmkit.tables.numbers import Integer, Numeric


def column_types() -> dict[str, type[Column]]:
    """Return the column types by the names that schema files use."""
    known: list[type[Column]] = [
        *(Categorical, OpenCategorical, Boolean, Integer, Numeric, Date, DateTime)
    ]
    return {each.type: each for each in known}


def column_from_dict(stored: Mapping[str, Any]) -> Column:
    """Return the column that `to_dict` stored; raise InvalidInput for an unknown type or field.

    >>> column_from_dict({"type": "integer", "low": 0, "high": 3})
    Integer(missing=None, outside=None, decode_as=None, low=0, high=3, bins=None, ...)
    """
    types = column_types()
    given = dict(stored)
    kind = given.pop("type", "")
    check_known([kind], types, "there is no type", "types are")
    allowed = sorted(each.name for each in fields(types[kind]))
    check_known(given, allowed, f"a {kind} column has no field", "it has")
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(value)
    try:
        return types[kind](**given)
    except TypeError as error:
        raise InvalidInput(
            f"a {kind} column cannot be made from {dict(stored)!r}: {error}"
        ) from None
