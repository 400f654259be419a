"""CSV cells that a spreadsheet would run, quoted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["safe_csv_option", "spreadsheet_safe"]

_RUNS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters that make a spreadsheet take a text for a formula (OWASP, CSV injection)."""

safe_csv_option = click.option(
    "--safe-csv",
    is_flag=True,
    help="Put ' before texts and names that a spreadsheet would run, such as =cmd.",
)


def spreadsheet_safe(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The columns with a single quote before every text that a spreadsheet would run.

    >>> import numpy as np
    >>> spreadsheet_safe({"@x": np.array(["=1+1", "F"], dtype=object)})
    {"'@x": array(["'=1+1", 'F'], dtype=object)}
    """
    import numpy as np

    return {
        _quoted(name): np.array([_quoted(value) for value in values.tolist()], dtype=object)
        if values.dtype.kind in "OU"
        else values
        for name, values in columns.items()
    }


def _quoted(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_RUNS) else value
