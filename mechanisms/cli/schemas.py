"""`pgmkit schema draft`: a first schema to correct by hand."""

from __future__ import annotations

from typing import Any

import click

from mechanisms.cli.options import FILE, file_format, file_options, writable, write_text
from mechanisms.cli.preflight import check_form
from pgmkit.errors import InvalidInput
from pgmkit.runtime.printed import printable


@click.group()
def schema() -> None:
    """Describe what each column may hold."""


@schema.command()
@click.argument("data", type=FILE)
@click.option(
    "--assume-public",
    is_flag=True,
    help="Permission to look at values: the data are public, or made up by hand.",
)
@click.option("-o", "--out", help="File for the draft (YAML) [default: printed].")
@click.option(
    "--values",
    type=click.IntRange(2),
    default=50,
    help="Number of distinct texts above which a column is left open, to be found with a budget.",
)
@click.option(
    "--names", help="Columns of a CSV file without a header line, as age,sex,... in their order."
)
@file_options
def draft(
    data: str, assume_public: bool, out: str | None, values: int, names: str | None, **given: Any
) -> None:
    """Propose a schema from public values, or from names alone.

    Looking at private values without a budget would leak them. Without --assume-public only the
    column names are read. Every column is then left open, so that its values are found with a
    budget, or left out if its name is that of an identifier.

    \b
    pgmkit schema draft sample.csv --assume-public -o people.yaml
    """
    check_form(data)
    target = None if out is None else writable(out)
    if target is not None and (target.exists() or target.suffix.lower() not in (".yaml", ".yml")):
        raise InvalidInput(
            f"--out must be a new file that ends in .yaml or .yml, got {out!r}: a draft is YAML "
            "with comments on what to check, and replaces no file that may be corrected by hand"
        )
    from pgmkit import FileFormat
    from pgmkit import draft as drafted

    named = None if names is None else tuple(name.strip() for name in names.split(","))
    form = file_format(FileFormat(names=named), **given)
    text = drafted(data, look=assume_public, most_values=values, file=form)
    if target is None:
        click.echo(printable(text))
        return
    write_text(target, text)
    for line in text.splitlines():
        if line.lstrip().startswith("# "):
            click.echo(printable(line.lstrip()[2:]))
    click.echo(f"wrote {out}: read it through, correct ranges and values, then use it")
