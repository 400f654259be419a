"""`pgmkit estimate`: a model of noisy tables from elsewhere, as a release file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from mechanisms.cli.options import FILE, as_json, device_option, emit, read_schema, writable
from pgmkit.errors import Contradictory, InvalidInput, TotalUndetermined, check_known
from pgmkit.runtime.printed import printable

if TYPE_CHECKING:
    from pgmkit import GraphicalModel, Measurement, RegionModel, Schema


@click.command()
@click.argument("tables", nargs=-1, required=True, type=FILE)
@click.option(
    "--schema",
    required=True,
    type=FILE,
    help="Schema file of the columns; its constraints hold in the model.",
)
@click.option("--out", required=True, help="File for the model.")
@click.option("--total", type=float, help="Number of records [default: as the tables imply].")
@click.option(
    "--stddev",
    type=float,
    help="Standard deviation of the noise in each cell, where the tables do not say.",
)
@click.option(
    "--rounding",
    type=click.IntRange(1),
    help="Whole number that published counts are rounded to multiples of; 1 for exact counts.",
)
@click.option("--value", help="The CSV column of noisy counts [default: the only other one].")
@click.option(
    "--inference",
    type=click.Choice(["exact", "region", "auto"]),
    default="exact",
    help="Estimation on a junction tree (exact), by tables that agree with each other (region), or "
    "by such tables only where no tree fits (auto).",
)
@device_option
@as_json
def estimate(
    tables: tuple[str, ...],
    schema: str,
    out: str,
    total: float | None,
    stddev: float | None,
    rounding: int | None,
    value: str | None,
    inference: Literal["exact", "region", "auto"],
    device: str | None,
    json_out: bool,
) -> None:
    """Fit one consistent model to noisy tables from elsewhere.

    TABLES are CSV files, a table each: some of the schema's columns with a label (or a range
    low..high) in each line, a column of noisy counts, and perhaps a column stddev. Or JSON: a list
    of {"columns": [...], "values": [...], "stddev": ...}, the values nested or flat in the order
    of the columns' values. Published tables are read too: suppressed cells (..), counts such as
    <10, totals, labels such as 65+, and tables with a column for each value. The model is a
    release: query, sample and report read it.

    \b
    pgmkit estimate age-sex.csv sex-income.csv --stddev 5 --schema people.yaml --out model.pgm
    pgmkit estimate tables.json --schema people.yaml --out model.pgm
    pgmkit query model.pgm "income | sex = F"
    pgmkit sample model.pgm --out records.csv
    """
    target = writable(out)
    from mechanisms.release.record import Release
    from mechanisms.release.tabular import TableRelease
    from pgmkit.tables.files.noisy_tables import read_noisy_tables

    described = read_schema(schema)
    measurements = [
        measurement
        for path in tables
        for measurement in read_noisy_tables(
            path, described, stddev=stddev, value=value, rounding=rounding
        )
    ]
    measured = {name for measurement in measurements for name in measurement.clique}
    left_out = [name for name in described.columns if name not in measured]
    if left_out:
        described = _restricted(described, measured, left_out)
    model = _fitted(described, measurements, total, inference, device)
    release = Release("estimate", model, tuple(measurements), None, None)
    TableRelease(release, described).save(target)
    lines = [f"wrote {out}: total {model.total:.6g}, loss {model.loss:.6g}, {model.certificate}"]
    if release.contradiction:
        lines.append(f"warning: {release.contradiction}")
    emit(
        {
            "out": out,
            "total": model.total,
            "loss": model.loss,
            "gap": model.gap,
            "unit": model.unit,
            "certified": model.certified,
            "contradictory": bool(release.contradiction),
            "left_out": left_out,
        },
        "\n".join(lines),
        json_out,
    )


def _restricted(schema: Schema, measured: set[str], left_out: Sequence[str]) -> Schema:
    """Return the schema of the measured columns, since nothing is known of the others; warn of
    these.

    Raises InvalidInput if the tables have a column that the schema does not, or none of its
    columns.
    """
    said = "the tables have a column that the schema does not:"
    check_known(sorted(measured), schema.columns, said, "columns are")
    if not measured:
        raise InvalidInput(
            "no table has a column of the schema; name the tables' columns as the schema does"
        )
    click.echo(
        printable(f"warning: in no table, and so left out of the model: {', '.join(left_out)}"),
        err=True,
    )
    return schema.restricted(measured)


def _fitted(
    schema: Schema,
    measurements: Sequence[Measurement],
    total: float | None,
    inference: Literal["exact", "region", "auto"],
    device: str | None,
) -> GraphicalModel | RegionModel:
    from pgmkit import estimate as fit

    if total is not None and not (math.isfinite(total) and total > 0):
        raise InvalidInput(f"--total must be a number above 0, got {total:g}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Contradictory)  # reported after the file is written
            return fit(
                schema.domain,
                measurements,
                total=total,
                zeros=schema.zeros,
                inference=inference,
                device=device,
                progress=True,
            )
    except TotalUndetermined as error:
        reason = str(error).partition("; pass total=")[0]
        raise InvalidInput(
            f"{reason}; give --total, or add a table with every cell of a column"
        ) from None
