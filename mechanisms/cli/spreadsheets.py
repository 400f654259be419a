"""Texts in a CSV file that a spreadsheet would run as formulas."""

from __future__ import annotations

import re

import click

_RUNS = re.compile(
    "[\t\r\n]|[\\s\\x00-\\x1f\ufeff\u200b-\u200f\u2060]*[-=+@\uff1d\uff0b\uff0d\uff20]"
)
"""This pattern matches the beginnings of texts that a spreadsheet takes for formulas (OWASP, CSV
injection). Some spreadsheets ignore blanks and zero-width characters before these signs.
"""

safe_csv_option = click.option(
    "--safe-csv",
    is_flag=True,
    help="Single quote before texts and names that a spreadsheet would run, such as =cmd.",
)


def spreadsheet_safe(text: str) -> str:
    """Return the text, with a single quote before it if a spreadsheet would run it.

    >>> spreadsheet_safe("=1+1"), spreadsheet_safe("F")
    ("'=1+1", 'F')
    """
    return f"'{text}" if _RUNS.match(text) else text
