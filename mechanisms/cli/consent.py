"""Warnings of values that could not be read, and the question whether to spend the rest of the
budget nevertheless.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import click

from mechanisms.cli.options import warn
from pgmkit.errors import InvalidInput

if TYPE_CHECKING:
    from mechanisms.synthesis.unread import UnreadValues
    from pgmkit import Dataset, Schema

yes_option = click.option(
    "--yes",
    is_flag=True,
    help="Consent to go on if more than a tenth of a column cannot be read, or all is missing.",
)
"""--yes, which answers the question before it is asked."""


def asked_about(schema: Schema, yes: bool) -> Literal[False] | Callable[[UnreadValues], None]:
    """Return the argument `report_unread` of `synthesize`: a callable, or False if the labels of
    all columns are still to be found, since such a column can read any value.

    The callable warns of columns with many unread values, or with only missing ones. If there are
    any, it raises InvalidInput, which ends the run, unless `yes` is True or a person on a terminal
    consents to go on.
    """
    from pgmkit.tables.labelled import OpenCategorical

    if all(isinstance(column, OpenCategorical) for column in schema.columns.values()):
        return False

    def ask(unread: UnreadValues) -> None:
        found = (*unread.many, *unread.empty)
        if not found:
            return
        warn(str(unread))
        question = "spend the rest of the budget on them nevertheless?"
        terminal = sys.stdin and sys.stdin.isatty()
        if not yes and not (terminal and click.confirm(question, err=True)):
            raise InvalidInput(
                f"too many values of {', '.join(found)} could not be read, or are missing; only a "
                "hundredth of the budget is spent, which stays so; say how the file is written "
                "(--encoding, --separator, --decimal), correct the schema, or go on with --yes"
            )

    return ask


def public_records(path: str, schema: Schema) -> Dataset:
    """Return the records of a file, and warn of values that could not be read, with their exact
    share of each column. Only for records whose exact numbers may be shown. Raises InvalidInput for
    a file that the schema cannot read, and for one without records.
    """
    from mechanisms.synthesis.unread import exact_shares
    from pgmkit import encode_file

    data = encode_file(path, schema)
    if not len(data):
        raise InvalidInput(f"{path} holds no records; give at least one")
    if lost := exact_shares(data):
        warn(f"{path}: {lost}")
    return data
