"""Values and settings in the form that YAML and JSON can represent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Return a value, or a collection of values, as YAML and JSON can represent it: numpy's numbers
    become Python's, collections lists or dictionaries, and whatever else, such as a date, a text.
    """
    if isinstance(value, Mapping):
        return {plain(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":
        return value.item()
    return value if isinstance(value, int | float | str | bool | type(None)) else str(value)


def changed_fields(record: Any) -> dict[str, Any]:
    """Return those fields of an object of a data class that differ from their default value, or
    have none, as a dictionary. The values are in the form that `plain` returns.
    """
    given = {each.name: (getattr(record, each.name), each.default) for each in fields(record)}
    return {name: plain(value) for name, (value, default) in given.items() if value != default}
