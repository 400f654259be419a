"""`pgmkit estimate`: a model of noisy tables from elsewhere, as a release file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mechanisms.cli import options as cli
from pgmkit.errors import Contradictory, InvalidInput, TotalUndetermined, without

if TYPE_CHECKING:
    from mechanisms.release.tabular import TableRelease
    from pgmkit import Schema
    from pgmkit.factor_graph import Inference


@click.command()
@click.argument("tables", nargs=-1, required=True, type=cli.FILE)
@click.option(
    "--schema",
    type=cli.FILE,
    help="Schema file of the columns; its constraints hold in the model. A release has its own.",
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
    help="Estimation on a junction tree (exact), by tables that agree with each other (region), or "
    "by such tables only where no tree fits (auto) [default: exact; auto for a release].",
)
@cli.device_option
@cli.as_json
def estimate(
    tables: tuple[str, ...],
    schema: str | None,
    out: str,
    total: float | None,
    inference: Inference | None,
    device: str | None,
    **reading: Any,
) -> None:
    """Fit one consistent model to noisy tables from elsewhere.

    TABLES are CSV files, a table each: some of the schema's columns with a label (or a range
    low..high) in each line, a column of noisy counts, and perhaps a column stddev. Or JSON: a list
    of {"columns": [...], "values": [...], "stddev": ...}, the values nested or flat in the order
    of the columns' values. Published tables are read too: suppressed cells (..), counts such as
    <10, totals, labels such as 65+, and tables with a column for each value. The model is a
    release: query, sample and report read it.

    TABLES may also be one release, such as `synth` saves of a run that did not end: a model is
    fitted to its noisy tables, at no cost to the budget.

    \b
    pgmkit estimate age-sex.csv sex-income.csv --stddev 5 --schema people.yaml --out model.pgm
    pgmkit estimate tables.json --schema people.yaml --out model.pgm
    pgmkit estimate rescued-1a2b3c4d.pgm --out people.pgm
    pgmkit query model.pgm "income | sex = F"
    pgmkit sample model.pgm --out records.csv
    """
    target = cli.writable(out)
    if cli.is_release(tables[0]):
        before = _release(tables, cli.given("schema", *reading))
        inference = inference or "auto"
    elif schema is None:
        raise InvalidInput(
            f"{tables[0]} is no release (it has another format, or it is cut off or damaged); "
            "noisy tables need the schema of their columns: --schema"
        )
    else:
        before = _of_tables(tables, cli.read_schema(schema), reading)
    release = _fitted(before, total, inference or "exact", device)
    release.save(target)
    model: Any = release.model  # graphical, or a region model
    left_out = [name for name in before.schema.columns if name not in release.schema.columns]
    lines = [f"wrote {out}: total {model.total:.6g}, loss {model.loss:.6g}, {model.certificate}"]
    if release.contradiction:
        lines.append(f"warning: {release.contradiction}")
    cli.emit(
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
    )


def _release(paths: Sequence[str], given: Sequence[str]) -> TableRelease:
    """Return the release in a file. Raises InvalidInput for further files, and for the options
    `given`, which are about tables.
    """
    from mechanisms.release.tabular import TableRelease

    if len(paths) > 1 or given:
        raise InvalidInput(
            f"{paths[0]} is a release, which has its own tables and schema; leave "
            f"{', '.join([*paths[1:], *given])} out"
        )
    return TableRelease.load(paths[0])


def _of_tables(paths: Sequence[str], schema: Schema, reading: Mapping[str, Any]) -> TableRelease:
    """Return a release of the noisy tables in these files, without a model. `reading`: the options
    of `read_noisy_tables`.
    """
    from mechanisms.release.record import Release
    from mechanisms.release.tabular import TableRelease
    from mechanisms.release.unfitted import Unfitted
    from pgmkit.tables.files.noisy_tables import read_noisy_tables

    measurements = [each for path in paths for each in read_noisy_tables(path, schema, **reading)]
    empty = Unfitted(schema.domain, None)
    return TableRelease(Release("estimate", empty, tuple(measurements), None, None), schema)


def _fitted(
    release: TableRelease, total: float | None, inference: Inference, device: str | None
) -> TableRelease:
    try:
        with without(Contradictory):  # it is reported after the file is written
            return release.estimated(total=total, inference=inference, device=device, progress=True)
    except TotalUndetermined as error:
        reason = str(error).partition("; pass total=")[0]
        raise InvalidInput(
            f"{reason}; give --total, or add a table with every cell of a column"
        ) from None
