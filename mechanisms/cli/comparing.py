"""`pgmkit compare`: mechanisms side by side on public or made-up records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli import options as cli
from mechanisms.cli.consent import public_records
from mechanisms.cli.preflight import check_form, page_file
from mechanisms.registry import USUAL, configure
from pgmkit.errors import InvalidInput, naming

if TYPE_CHECKING:
    from mechanisms.synthesis.comparing import Compared
    from pgmkit.records.dataset import Dataset
    from pgmkit.tables.schema import Schema


@click.command()
@cli.schema_option
@click.option(
    "--public", type=cli.FILE, help="File of public records to run on [default: made-up records]."
)
@click.option("--rows", type=click.IntRange(1), default=10_000, help="Number of made-up records.")
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    help="Mechanism by its name in `pgmkit mechanisms`; may be given several times [default: "
    f"{', '.join(USUAL)}].",
)
@click.option(
    "--workload",
    type=click.IntRange(1),
    default=2,
    help="Number of columns of the marginals to be answered well: 2 for all pairs.",
)
@cli.budget_options
@click.option("-o", "--out", help="File for an HTML page with the pictures.")
@cli.file_options
@cli.as_json
def compare(
    schema: str,
    public: str | None,
    rows: int,
    mechanisms: Sequence[str],
    workload: int,
    epsilon: float,
    delta: float,
    neighbours: str,
    out: str | None,
    **form: Any,
) -> None:
    """Compare mechanisms on made-up or on public records.

    Made-up records have the shape that the schema describes.

    Errors are exact: never give private records here. On made-up records the mechanisms may rank
    differently than on yours.

    \b
    pgmkit compare --schema people.yaml --epsilon 1 -o compare.html
    pgmkit compare --schema people.yaml --public sample.csv --mechanism mst --mechanism aim
    """
    if public is not None and cli.given("rows"):
        raise InvalidInput(f"--rows {rows} is about made-up records; leave it or --public out")
    check_form(public)
    target = None if out is None else page_file(out)
    from mechanisms.synthesis.comparing import compared, comparison
    from mechanisms.workload import k_way

    columns, names = cli.read_schema(schema, **form), mechanisms or USUAL
    data = _records(columns, public, rows)
    with naming("--workload"):  # the default of 2 is 1 for a single column
        wanted = k_way(data.domain, workload if cli.given("workload") else min(2, len(data.domain)))
    found = list(compared(names, data, wanted, epsilon, delta, neighbours=neighbours))
    kind = "made-up records of this shape" if public is None else f"records of {Path(public).name}"
    said = f"{len(data):,} {kind}; epsilon = {epsilon:g}, delta = {delta:g}, {neighbours}"
    if columns.constraints:
        cannot = ", ".join(name for name in names if not configure(name)[0].graphical)
        said += "; the schema's constraints are left out"
        said += f", and {cannot} cannot hold them" if cannot else ""
        held = () if public is None else zip(columns.constraints, columns.zeros, strict=True)
        for constraint, zeros in held:
            broken = int(data.marginal(zeros.clique)[~zeros.allowed].sum())
            said += f"; records that break the constraint ({constraint}): {broken:,}"
    lines = [f"on {said}; mean error of tables by their columns", *map(_line, found)]
    if target is not None:
        cli.write_text(target, comparison(found, len(data), said))
        lines.append(f"wrote {out}")
    values = {"records": len(data), "compared": [each.to_dict() for each in found], "out": out}
    cli.emit(values, "\n".join(lines))


def _line(found: Compared) -> str:
    if found.refused:
        return f"{found.mechanism:<20} refused: {found.refused}"
    errors = (f"{k}: {mean:7.2%}" for k, mean in found.to_dict()["mean"].items())
    return f"{found.mechanism:<20} {'   '.join(errors)}   {found.seconds:6.2f} s"


def _records(schema: Schema, public: str | None, rows: int) -> Dataset:
    """Return the public records coded by the schema, or made-up ones. Raises InvalidInput for
    public records if values or edges of a column are still to be found, and for a file without
    records.
    """
    import numpy as np

    from mechanisms.synthesis.open_columns import assumed
    from mechanisms.synthesis.plan import made_up

    if public is None:
        return made_up(assumed(schema).domain, rows, np.random.default_rng(0))
    if schema.unresolved:
        raise InvalidInput(
            f"values are not listed for {', '.join(schema.unresolved)}; describe these columns, "
            "or leave --public out for made-up records"
        )
    return public_records(public, schema.placed())
