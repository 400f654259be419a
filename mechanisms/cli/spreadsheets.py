"""CSV cells that a spreadsheet would run, quoted."""

from __future__ import annotations

import click

__all__ = ["safe_csv_option", "spreadsheet_safe"]

_RUNS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters that make a spreadsheet take a text for a formula (OWASP, CSV injection)."""

safe_csv_option = click.option(
    "--safe-csv",
    is_flag=True,
    help="Put ' before texts and names that a spreadsheet would run, such as =cmd.",
)


def spreadsheet_safe(text: str) -> str:
    """The text, with a single quote before it if a spreadsheet would run it.

    >>> spreadsheet_safe("=1+1"), spreadsheet_safe("F")
    ("'=1+1", 'F')
    """
    return f"'{text}" if text.startswith(_RUNS) else text
