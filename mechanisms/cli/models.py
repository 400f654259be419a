"""`pgmkit estimate`: a model of noisy tables from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from mechanisms.cli.options import as_json, emit, read_schema, writable

__all__ = ["estimate"]


@click.command()
@click.argument("tables", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--schema",
    required=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Schema file of the columns; its constraints hold in the model.",
)
@click.option("--out", required=True, help="File for the model.")
@click.option("--total", type=float, help="Number of records [default: as the tables imply].")
@as_json
def estimate(tables: str, schema: str, out: str, total: float | None, json_out: bool) -> None:
    """Estimate one consistent model of noisy tables, however they were measured.

    TABLES is JSON: a list of {"columns": [...], "values": [...], "stddev": ...}, the values nested
    or flat in the order of the columns' values.

    \b
    pgmkit estimate tables.json --schema people.yaml --out model.pgm
    pgmkit query model.pgm --schema people.yaml "income | sex = F"
    """
    target = writable(out)
    from pgmkit import estimate as fit
    from pgmkit.errors import InvalidInput

    described = read_schema(schema)
    try:
        stored = json.loads(Path(tables).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{tables} is not JSON in UTF-8: {error}") from None
    if not isinstance(stored, list):
        raise InvalidInput(f"{tables} must hold a list of tables, got {type(stored).__name__}")
    measurements = [_measurement(tables, i, table) for i, table in enumerate(stored)]
    model = fit(described.domain, measurements, total=total, zeros=described.zeros, progress=True)
    model.save(target)
    emit(
        {
            "out": out,
            "total": model.total,
            "loss": model.loss,
            "gap": model.gap,
            "unit": model.unit,
            "certified": model.certified,
        },
        f"wrote {out}: total {model.total:.6g}, loss {model.loss:.6g}, {model.fit}",
        json_out,
    )


def _measurement(path: str, place: int, table: Any) -> Any:
    from pgmkit.errors import InvalidInput
    from pgmkit.measurement import Measurement

    if not isinstance(table, dict) or set(table) != {"columns", "values", "stddev"}:
        raise InvalidInput(
            f'{path}, table {place + 1} must be {{"columns": [...], "values": [...], '
            '"stddev": ...}'
        )
    try:
        return Measurement(tuple(table["columns"]), table["values"], table["stddev"])
    except InvalidInput as error:
        raise InvalidInput(f"{path}, table {place + 1}: {error}") from None
